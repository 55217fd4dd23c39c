"""Vector environments as a `BaseEnv`."""

from collections.abc import Collection, Mapping

import jax
import numpy as np

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.vector_env import VectorEnv, VectorReset, VectorStep
from rookery.spaces import Space

_STEPPING = "has not answered its last action: poll first"
_NOT_RESET = "has not been reset: poll first"
_RESETTING = "is being reset: poll until its first observation is there"
_OVER = "is over: call try_reset and poll first"
_FAILED = "has failed: call try_restart and poll first"


class VectorBaseEnv(BaseEnv):
    """A `VectorEnv` as a `BaseEnv`: unless it is asynchronous, envs that are sent actions together answer together."""

    def __init__(self, vector_env: VectorEnv, name: str = "vector_env") -> None:
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.name = name
        self.is_asynchronous, self.patience = vector_env.is_asynchronous, vector_env.patience
        self._first_seeds: list[int | None] = [None] * self.num_envs
        self._stepping: np.ndarray | None = None
        """The envs of the last actions until they answer, unless they are asynchronous."""
        self._resetting: set[int] = set()
        # The reasons why envs cannot act; mostly empty.
        self._idle: dict[int, str] = dict.fromkeys(range(self.num_envs), _NOT_RESET)
        self._is_started = False
        self._no_ends = np.zeros(self.num_envs, np.uint8)
        self._no_resets = np.zeros(self.num_envs, np.bool_)

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return {SINGLE_AGENT: (self.vector_env.observation_space, self.vector_env.action_space)}

    @property
    def num_clipped(self) -> int:
        return self.vector_env.num_clipped

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        awaited: Collection[int] = ()
        if not self._is_started:
            self._is_started = True
            for env, seed in enumerate(self._first_seeds):
                self.try_reset(env, seed)
            awaited = self._resetting
        elif self.is_asynchronous:
            self.vector_env.wait(timeout)
        step = self.vector_env.finished_step() if self.is_asynchronous or self._stepping is not None else None
        if step is not None and not self._resetting:
            return self._polled_step(step)
        reset = self._polled_reset(self.vector_env.finished_resets(awaited, None if awaited else timeout))
        return reset if step is None else joined(self._polled_step(step), reset)

    def wait(self, timeout: float | None = None) -> None:
        self.vector_env.wait(timeout)

    def send_actions(self, actions: Actions) -> None:
        envs = actions.envs
        if len(envs) == 0:
            return
        if self._stepping is not None:
            raise InvalidInputError(f"{self.name} has not answered the actions before these: poll first.")
        if self._idle:
            for env in envs.tolist():
                if env in self._idle:
                    raise InvalidInputError(f"env {env} of {self.name} {self._idle[env]}.")
        self.vector_env.begin_step(actions.actions, None if len(envs) == self.num_envs else envs)
        if self.is_asynchronous:
            self._idle |= dict.fromkeys(envs.tolist(), _STEPPING)
        else:
            self._stepping = envs

    def try_reset(self, env: int, seed: int | None) -> None:
        if not self._is_started:
            self._first_seeds[env] = seed
            return
        self.vector_env.begin_reset(env, seed)
        self._resetting.add(env)
        self._idle[env] = _RESETTING

    def abandon_episodes(self) -> None:
        self.vector_env.abandon()
        self._stepping = None
        self._resetting.clear()
        self._idle = dict.fromkeys(range(self.num_envs), _OVER)

    def try_restart(self, env: int, seed: int | None) -> None:
        self.vector_env.restart_at(env)
        self.try_reset(env, seed)

    def try_render(self, env: int) -> np.ndarray | None:
        return self.vector_env.try_render_at(env)

    def close(self) -> None:
        self.vector_env.close()

    def _polled_step(self, step: VectorStep) -> EnvOutputs:
        if step.envs is None:
            envs, self._stepping = self._stepping, None
        else:
            envs = step.envs
            for env in envs.tolist():
                del self._idle[env]
        assert envs is not None
        if step.is_quiet:
            num_rows = len(envs)
            ends, is_reset = self._no_ends[:num_rows], self._no_resets[:num_rows]
            return EnvOutputs(envs, None, step.obs, step.rewards, ends, is_reset, stepped=envs)
        polled = polled_step(envs, step)
        for env in polled.over:
            self._idle[env] = _OVER
        for env in polled.failed:
            self._idle[env] = _FAILED
        return polled

    def _polled_reset(self, reset: VectorReset) -> EnvOutputs:
        for env in reset.envs:
            del self._idle[env]
        for env in reset.failed:
            self._idle[env] = _FAILED
        self._resetting.difference_update(reset.envs, reset.failed)
        return polled_reset(reset)


def polled_step(envs: np.ndarray, step: VectorStep) -> EnvOutputs:
    """Return the outputs of a step of these envs, ascending, with one agent each."""
    ends = step.terminated.view(np.uint8)  # End.TERMINATED or End.RUNNING
    if np.count_nonzero(step.truncated):
        ends = np.where(step.truncated & ~step.terminated, np.uint8(End.TRUNCATED), ends)
    obs, rewards = step.obs, step.rewards
    if step.failed:
        good = np.ones(len(envs), np.bool_)
        good[np.searchsorted(envs, sorted(step.failed))] = False
        envs, ends, rewards = envs[good], ends[good], rewards[good]
        obs = jax.tree.map(lambda leaf: leaf[good], obs)
    return EnvOutputs(
        envs=envs,
        agents=None,
        obs=obs,
        rewards=rewards,
        ends=ends,
        is_reset=np.zeros(len(envs), np.bool_),
        over=envs[ends.nonzero()].tolist(),
        stepped=envs,
        infos=_infos_of_agents(step.infos, step.failed),
        failed=step.failed,
    )


def polled_reset(reset: VectorReset) -> EnvOutputs:
    """Return the outputs of resets of envs with one agent each."""
    num_rows = len(reset.envs)
    is_reset = np.empty(num_rows, np.bool_)
    is_reset.fill(True)
    return EnvOutputs(
        envs=np.array(reset.envs, np.int64),
        agents=None,
        obs=reset.obs,
        rewards=np.zeros(num_rows),
        ends=np.zeros(num_rows, np.uint8),
        is_reset=is_reset,
        resets=reset.envs,
        infos=_infos_of_agents(reset.infos),
        failed=reset.failed,
    )


def _infos_of_agents(infos: Mapping[int, Mapping], failed: Collection[int] = ()) -> Mapping[int, Mapping]:
    if not infos:
        return infos
    return {env: {SINGLE_AGENT: info} for env, info in infos.items() if env not in failed}


def joined(steps: EnvOutputs, resets: EnvOutputs) -> EnvOutputs:
    """Return the outputs of steps and of resets as one, in this order."""
    return EnvOutputs(
        envs=np.concatenate([steps.envs, resets.envs]),
        agents=None,
        obs=jax.tree.map(lambda *leaves: np.concatenate(leaves), steps.obs, resets.obs),
        rewards=np.concatenate([steps.rewards, resets.rewards]),
        ends=np.concatenate([steps.ends, resets.ends]),
        is_reset=np.concatenate([steps.is_reset, resets.is_reset]),
        resets=resets.resets,
        over=steps.over,
        stepped=steps.stepped,
        infos={**steps.infos, **resets.infos},
        failed={**steps.failed, **resets.failed},
    )
