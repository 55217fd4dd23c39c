"""Environments in this process."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rookery.errors import InvalidInputError
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.transport import EnvTransport, MakeEnvFn, Reply, check_all_asked


class LocalTransport(EnvTransport):
    """Environments in this process; a request is executed at once and its reply kept.

    Envs are built when they are first needed. `existing_envs` take the first slots; one of them can be rebuilt only if
    its entry in `make_env_fns` is not None.
    """

    def __init__(self, make_env_fns: Sequence[MakeEnvFn | None], existing_envs: Sequence[Any] = ()) -> None:
        self.num_envs = len(make_env_fns)
        self._make_env_fns = tuple(make_env_fns)
        if not 0 < self.num_envs >= len(existing_envs):
            raise InvalidInputError(
                f"{len(existing_envs)} existing envs for {self.num_envs} slots: give an entry of make_env_fns for each "
                "slot, None for an existing env that cannot be rebuilt."
            )
        for index in range(len(existing_envs), self.num_envs):
            if make_env_fns[index] is None:
                raise InvalidInputError(f"slot {index} has neither an existing env nor a function that makes one.")
        # The env of each slot; None before it is built, a Failed if it could not be.
        self._is_closed = False
        self._envs: list[Any] = [*existing_envs, *[None] * (self.num_envs - len(existing_envs))]
        self._replies: dict[int, Reply] = {}

    @property
    def envs(self) -> list[Any]:
        """The envs that have been built."""
        return [env for env in self._envs if env is not None and not isinstance(env, Failed)]

    def build(self, index: int) -> Any | Failed:
        """Build the env of a slot if needed; return it or the failure."""
        if self._envs[index] is None:
            self._envs[index] = self._made(index)
        return self._envs[index]

    def send_reset(self, index: int, seed: int | None) -> None:
        self._replies[index] = self.reset_now(index, seed)

    def reset_now(self, index: int, seed: int | None) -> Reply:
        """Reset an env and return its reply, without `receive`."""
        env = self._envs[index]
        if env is None:
            env = self.build(index)
        if isinstance(env, Failed):
            return env
        try:
            return env.reset(seed=seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.RESET)

    def send_steps(self, indexes: Sequence[int], actions: Sequence[Any]) -> None:
        self._replies |= zip(indexes, self.step_now(indexes, actions), strict=True)

    def step_now(self, indexes: Sequence[int], actions: Sequence[Any]) -> list[Reply]:
        """Step some envs and return their replies in order, without `receive`."""
        envs = self._envs
        replies: list[Reply] = []
        for index, action in zip(indexes, actions, strict=True):
            try:
                replies.append(envs[index].step(action))
            except KeyboardInterrupt:
                self._close_env(index)
                envs[index] = Failed(FaultKind.KILLED, Phase.STEP, "its step was interrupted")
                raise
            except BaseException as error:
                replies.append(self._failed_step(index, error))
        return replies

    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Reply]:
        check_all_asked(wait_for, self._replies)
        replies, self._replies = self._replies, {}
        return replies

    def rebuild(self, index: int) -> None:
        self._replies.pop(index, None)
        if not self._is_closed:
            self._close_env(index)
            self._envs[index] = None

    def apply(self, index: int, function: Callable[[Any], Any]) -> Any | Failed:
        env = self.build(index)
        if isinstance(env, Failed):
            return env
        try:
            return function(env)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.RENDER)

    def close(self) -> None:
        self._is_closed = True
        for index in range(self.num_envs):
            self._close_env(index)
            self._envs[index] = Failed(FaultKind.EXITED, Phase.MAKE, "the envs were closed")

    def _made(self, index: int) -> Any | Failed:
        make_env_fn = self._make_env_fns[index]
        if make_env_fn is None:
            error = "it was given as an object, without a make_env to restart it"
            return Failed(FaultKind.EXITED, Phase.MAKE, error)
        try:
            return make_env_fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.MAKE)

    def _failed_step(self, index: int, error: BaseException) -> Failed:
        match self._envs[index]:
            case None:
                raise InvalidInputError(f"env {index} was stepped before it was reset.") from None
            case Failed() as failed:
                return failed
            case _:
                return Failed.by_exception(error, Phase.STEP)

    def _close_env(self, index: int) -> None:
        """Close an env, whatever its `close` raises."""
        env = self._envs[index]
        if env is None or isinstance(env, Failed):
            return
        with contextlib.suppress(Exception, SystemExit):
            env.close()
