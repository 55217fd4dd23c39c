"""Vector environments of Gymnasium, EnvPool and the Arcade Learning Environment, which reset themselves."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import gymnasium.vector
import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from rookery.errors import EnvironmentCheckError, InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, BaseEnv, EnvOutputs
from rookery.runners.envs.gymnasium_vector import (
    FINAL_INFO,
    VectorInfo,
    autoreset_mode_of,
    batch_size_of,
    close_by_force,
    death_of_a_process,
    final_obs,
    infos_by_env,
    is_envpool,
    seed_arguments,
    takes_a_seed_for_each,
)
from rookery.runners.envs.validation import (
    Errors,
    ObsStacker,
    StepChecker,
    as_failed,
    check_info,
    check_reply,
    row_of,
    zeros_of,
)
from rookery.runners.envs.vector_base_env import joined, polled_reset, polled_step
from rookery.runners.envs.vector_env import Reset, VectorReset, VectorStep, rows_of, without_errors
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiDiscrete, Space, Tuple, from_gymnasium


class AutoresetBaseEnv(BaseEnv):
    """A `gymnasium.vector.VectorEnv` in any autoreset mode, as it is; also one of EnvPool or an `AtariVectorEnv`.

    Such envs step all at once: actions must be sent to all that can act. An env that is over and not requested goes on
    unseen, with arbitrary actions, and returns with the first observation of a later episode. So does an env that
    returned invalid data. With `NEXT_STEP` a reset takes the place of a step of that env.

    With `DISABLED`, every episode in Gymnasium's sync and async vector envs begins with its own seed. In
    all others seeds are used at the first reset only; EnvPool takes its seed when it is made.

    An exception is a fault of all envs. `make_env` then restarts them; without it they are lost. With `SAME_STEP` the
    last observation of an episode is `final_obs` of the vector env. Gymnasium's own do not copy it: it is wrong if an
    env reuses the array of its observations. Use another mode then.
    """

    steps_together = True

    def __init__(
        self,
        vector_env: gymnasium.vector.VectorEnv,
        name: str = "vector_env",
        make_env: Callable[[], gymnasium.vector.VectorEnv] | None = None,
        sample_bounds: bool = True,
    ) -> None:
        batch_size = batch_size_of(vector_env)
        if batch_size != vector_env.num_envs:
            raise InvalidInputError(
                f"{name} steps batch_size={batch_size} of its num_envs={vector_env.num_envs} envs at a time; expected "
                "all: make it without batch_size."
            )
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.name = name
        self.autoreset_mode = autoreset_mode_of(vector_env, name)
        self._make_env = make_env
        self._observation_space = from_gymnasium(vector_env.single_observation_space)
        self._action_space = from_gymnasium(vector_env.single_action_space)
        self._checker = StepChecker(self._observation_space, sample_bounds)
        self._first_checker = StepChecker(self._observation_space, sample_bounds=False)
        self._stacker = ObsStacker(self._observation_space, sample_bounds=False)
        self._idle_actions = _idle_actions(self._action_space, self.num_envs)
        self._actions: Any = None
        self._seeds: list[int | None] = [None] * self.num_envs
        # Envs whose episode is followed, whose episode ended with the last step, and whose next episode is requested.
        self._is_live = np.zeros(self.num_envs, np.bool_)
        self._is_over = np.zeros(self.num_envs, np.bool_)
        self._wanted = set(range(self.num_envs))
        # The first observations of episodes without a step yet.
        self._firsts: dict[int, Reset] = {}
        self._needs_reset = True
        self._needs_rebuild = False
        self._failed: Failed | None = None
        self._is_at_work = False
        """Whether the vector env has not answered the last call."""

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return {SINGLE_AGENT: (self._observation_space, self._action_space)}

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        try:
            step = self._go_on(timeout)
        except _BrokenError as broken:
            return self._polled_failure(broken.failed)
        resets = {env: self._firsts.pop(env) for env in sorted(self._wanted & self._firsts.keys())}
        if step is not None and not resets:
            return step
        self._wanted.difference_update(resets)
        obs = rows_of([obs for obs, _ in resets.values()]) if resets else zeros_of(self._observation_space, 0)
        infos = {env: info for env, (_, info) in resets.items() if info}
        reset = without_errors(
            VectorReset(list(resets), obs, infos), self._first_checker.check_values(obs, len(resets))
        )
        self._is_live[reset.envs] = True
        polled = polled_reset(reset)
        return polled if step is None else joined(step, polled)

    def send_actions(self, actions: Actions) -> None:
        is_sent = np.zeros(self.num_envs, np.bool_)
        is_sent[actions.envs] = True
        if (is_sent != self._is_live).any():
            env = int(np.argmax(is_sent != self._is_live))
            advice = (
                "cannot act: call try_reset, or try_restart if it failed, and poll until its first observation is there"
                if is_sent[env]
                else "can act and was sent no action: the envs of a Gymnasium vector env step all at once"
            )
            raise InvalidInputError(f"env {env} of {self.name} {advice}.")
        if len(actions.envs):
            self._action_space.check(actions.actions, "actions", (len(actions.envs),))
            self._actions = _filled(self._action_space, self._idle_actions, actions.envs, actions.actions)

    def try_reset(self, env: int, seed: int | None) -> None:
        self._seeds[env] = seed
        self._is_live[env] = False
        self._wanted.add(env)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._firsts.pop(env, None)  # it began with another seed

    def abandon_episodes(self) -> None:
        self._actions = None
        self._is_live[:] = False
        self._wanted.clear()

    def try_restart(self, env: int, seed: int | None) -> None:
        self.try_reset(env, seed)
        self._needs_rebuild = self._failed is not None

    def try_render(self, env: int) -> np.ndarray | None:
        if getattr(self.vector_env, "render_mode", None) != "rgb_array":
            return None
        vector_env: Any = self.vector_env
        return vector_env.render(env)[0] if is_envpool(vector_env) else vector_env.render()[env]

    def close(self) -> None:
        if not self._is_at_work:
            with contextlib.suppress(Exception):
                self.vector_env.close()
                return
        close_by_force(self.vector_env)

    def _go_on(self, timeout: float | None) -> EnvOutputs | None:
        """Step if there are actions; otherwise do what begins a requested episode."""
        if self._needs_rebuild:
            self._rebuild()
        if self._failed is not None:
            raise _BrokenError(self._failed)
        if self._needs_reset:
            self._reset_all()
        if self._actions is not None:
            actions, self._actions = self._actions, None
            return self._step(actions)
        missing = self._wanted - self._firsts.keys()
        if self.autoreset_mode is AutoresetMode.DISABLED:
            if missing:
                self._reset_some(missing, self._take_seeds(missing))
        elif missing == self._wanted and missing and timeout != 0 and not self._is_live.any():
            self._step(self._idle_actions)  # which resets the envs that are over
            if not self._wanted & self._firsts.keys():
                self._reset_all()  # they are in the middle of unseen episodes
        return None

    def _step(self, actions: Any) -> EnvOutputs:
        mode, was_over = self.autoreset_mode, self._is_over
        if mode is AutoresetMode.DISABLED and was_over.any():
            self._reset_some(np.flatnonzero(was_over).tolist(), [])
        self._firsts.clear()
        with self._calling(Phase.STEP):
            step, infos = self._checked_step(self.vector_env.step(actions))
        self._is_over = step.terminated | step.truncated
        if mode is not AutoresetMode.DISABLED:
            has_begun = was_over if mode is AutoresetMode.NEXT_STEP else self._is_over
            self._keep_firsts(np.flatnonzero(has_begun).tolist(), step.obs, infos)
        polled = self._polled_step(step, infos)
        self._is_live[list(polled.over)] = False
        self._is_live[list(polled.failed)] = False
        return polled

    def _checked_step(self, reply: Any) -> tuple[VectorStep, Mapping]:
        check_reply(reply, Phase.STEP)
        obs, rewards, terminated, truncated, infos = reply
        check_info(infos)
        obs = self._checker.check_obs(obs, self.num_envs)
        rewards, errors = self._checker.check_rewards(rewards, self.num_envs)
        terminated = self._checker.check_flags("terminated", terminated, self.num_envs)
        truncated = self._checker.check_flags("truncated", truncated, self.num_envs)
        failed = {env: as_failed(error, Phase.STEP) for env, error in errors.items()}
        return VectorStep(obs, rewards, terminated, truncated, failed=failed), infos

    def _polled_step(self, step: VectorStep, infos: Mapping) -> EnvOutputs:
        """Keep the followed envs, with the last observations of those that began another episode."""
        envs, obs = np.flatnonzero(self._is_live), step.obs
        if len(envs) < self.num_envs:
            obs = jax.tree.map(lambda leaf: leaf[envs], obs)
        over = np.flatnonzero(self._is_over[envs])
        errors: Errors = {}
        final_infos: dict[int, Mapping] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and len(over):
            with _broken_by(Phase.STEP):
                finals, errors = self._stacker.stack(final_obs(infos, envs[over].tolist()))
            errors = {int(over[row]): error for row, error in errors.items()}
            obs = jax.tree.map(lambda leaf, final: _replaced(leaf, over, final), obs, finals)
            final_infos = {env: VectorInfo(infos.get(FINAL_INFO, {}), env) for env in envs[over].tolist()}
        errors = self._checker.check_values(obs, len(envs)) | errors
        failed = {env: failed for env, failed in step.failed.items() if self._is_live[env]}
        failed |= {int(envs[row]): as_failed(error, Phase.STEP) for row, error in errors.items()}
        by_env = infos_by_env(infos, envs.tolist()) | final_infos
        return polled_step(
            envs,
            VectorStep(
                obs,
                step.rewards[envs],
                step.terminated[envs],
                step.truncated[envs],
                {env: info for env, info in by_env.items() if info},
                failed,
            ),
        )

    def _reset_all(self) -> None:
        envs = range(self.num_envs)
        seeds = seed_arguments(self.vector_env, self._take_seeds(envs))
        with self._calling(Phase.RESET):
            self._take_resets(envs, self.vector_env.reset(**seeds))
        self._needs_reset = False

    def _reset_some(self, envs: Collection[int], seeds: list[int | None]) -> None:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[list(envs)] = True
        arguments: dict[str, Any] = {"seed": seeds} if seeds and takes_a_seed_for_each(self.vector_env) else {}
        with self._calling(Phase.RESET):
            self._take_resets(envs, self.vector_env.reset(options={"reset_mask": mask}, **arguments))

    @contextlib.contextmanager
    def _calling(self, phase: Phase) -> Iterator[None]:
        self._is_at_work = True
        with _broken_by(phase, self.vector_env):
            yield
        self._is_at_work = False

    def _take_seeds(self, envs: Collection[int]) -> list[int | None]:
        """Return the seeds for the next episodes of some envs, and None for the others; each is used once."""
        seeds = [seed if env in envs else None for env, seed in enumerate(self._seeds)]
        for env in envs:
            self._seeds[env] = None
        return seeds

    def _take_resets(self, envs: Collection[int], reply: Any) -> None:
        check_reply(reply, Phase.RESET)
        obs, infos = reply
        check_info(infos)
        self._is_over[list(envs)] = False
        self._keep_firsts(envs, self._checker.check_obs(obs, self.num_envs), infos)

    def _keep_firsts(self, envs: Collection[int], obs: Any, infos: Mapping) -> None:
        by_env = infos_by_env(infos, envs)
        self._firsts |= {env: (row_of(obs, env), by_env.get(env, {})) for env in envs}

    def _rebuild(self) -> None:
        self._needs_rebuild = False
        self.close()
        if self._make_env is None:
            reason = "it was given as an object, without a make_env to restart it"
            raise _BrokenError(Failed(FaultKind.EXITED, Phase.MAKE, reason))
        with _broken_by(Phase.MAKE):
            self.vector_env = self._make_env()
        self._failed, self._is_at_work = None, False
        self._needs_reset = True

    def _polled_failure(self, failed: Failed) -> EnvOutputs:
        """Return the failure of all envs that the runner waits for."""
        envs = sorted(self._wanted | set(np.flatnonzero(self._is_live).tolist()))
        self._failed = failed
        self._actions = None
        self._firsts.clear()
        self._wanted.clear()
        self._is_live[:] = False
        self._is_over[:] = False
        return polled_reset(VectorReset([], zeros_of(self._observation_space, 0), failed=dict.fromkeys(envs, failed)))


class _BrokenError(Exception):
    """The vector env as a whole is broken."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error)
        self.failed = failed


@contextlib.contextmanager
def _broken_by(phase: Phase, vector_env: Any = None) -> Iterator[None]:
    try:
        yield
    except EnvironmentCheckError as error:
        raise _BrokenError(as_failed(error, phase)) from error
    except (EOFError, ConnectionError) as error:
        failed = death_of_a_process(vector_env, phase) or Failed.by_exception(error, phase)
        raise _BrokenError(failed) from error
    except Exception as error:
        raise _BrokenError(Failed.by_exception(error, phase)) from error


def _replaced(leaf: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    leaf = leaf.copy()
    leaf[rows] = values
    return leaf


def _idle_actions(space: Space, num_envs: int) -> Any:
    """Return actions for envs that are not followed."""
    match space:
        case Dict():
            return {name: _idle_actions(part, num_envs) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(_idle_actions(part, num_envs) for part in space.spaces)
        case Box():
            action: Any = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
        case Discrete() | MultiDiscrete():
            action = space.start
        case _:
            action = 0
    assert isinstance(space, ArraySpace)
    return np.broadcast_to(np.asarray(action, space.dtype), (num_envs, *space.shape))


def _filled(space: Space, idle: Any, envs: np.ndarray, actions: Any) -> Any:
    """Return actions for all envs, of which some are given."""
    match space:
        case Dict():
            return {name: _filled(part, idle[name], envs, actions[name]) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(_filled(part, idle[k], envs, actions[k]) for k, part in enumerate(space.spaces))
    filled = idle.copy()
    filled[envs] = actions
    filled.setflags(write=False)
    return filled
