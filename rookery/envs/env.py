"""The environment API: pure functions over an explicit state, compiled onto the device."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict, pytree_field


class EnvState(PyTreeData):
    """What `reset` and `step` hand back.

    `env_state` is the simulator's own state and `_internal` that of the wrappers: the next step depends on these two
    only. `reward`, `done` and `info` are outputs, which an autoreset leaves as the ended episode made them.
    Rewards and dones are float32; a multi-agent env has a dict of rewards, and one `done` for the episode.
    """

    env_state: Any
    obs: Any
    reward: Any
    done: Array
    info: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    _internal: PyTreeDict = pytree_field(default_factory=PyTreeDict)


class Env(ABC):
    """One environment, or `num_envs` of them side by side if it is vectorized."""

    @abstractmethod
    def reset(self, key: Key) -> EnvState:
        """Start an episode."""

    @abstractmethod
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """Act once.

        An env that ends episodes by a time limit of its own marks that with `info.truncation` = 1. If the same step may
        also be a true end, it gives `info.termination` too, which then decides.
        """

    @property
    @abstractmethod
    def obs_space(self) -> Space:
        """The space of one env's observation, without the batch axis."""

    @property
    @abstractmethod
    def action_space(self) -> Space:
        """The space of one env's action, without the batch axis."""

    @property
    def max_episode_steps(self) -> int | None:
        """The env's own time limit in steps, or None if it has none."""
        return None

    @property
    def batch_shape(self) -> Shape:
        """`(num_envs,)` for a vectorized env, `()` for a single one."""
        return ()

    @property
    def unwrapped(self) -> "Env":
        """The innermost env."""
        return self

    def render(self, env_state: EnvState) -> np.ndarray:
        """Draw the state of one env as an RGB array, `uint8[height, width, 3]`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered.")


class MultiAgentEnv(Env):
    """Several agents act at once: observations, actions and rewards are dicts with one entry per agent.

    `obs_space` and `action_space` are `Dict` spaces over the agents; `done` ends the episode for all of them.
    """

    @property
    @abstractmethod
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in a fixed order."""


def check_is_env(env: object) -> None:
    """Raise unless `env` is an environment of ours."""
    if not isinstance(env, Env):
        given = f"the class {env.__name__}, which must be called" if isinstance(env, type) else repr(env)
        raise InvalidInputError(
            f"expected an Env of rookery.envs, got {given}. create_env('classic/cartpole') makes one by its name; "
            "environments of Gymnasium cannot be compiled."
        )


class Wrapper(Env):
    """An env around another; what a wrapper does not change, it passes on."""

    def __init__(self, env: Env) -> None:
        check_is_env(env)
        self.env = env

    def reset(self, key: Key) -> EnvState:
        return self.env.reset(key)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self.env.step(env_state, action)

    @property
    def obs_space(self) -> Space:
        return self.env.obs_space

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    @property
    def max_episode_steps(self) -> int | None:
        return self.env.max_episode_steps

    @property
    def batch_shape(self) -> Shape:
        return self.env.batch_shape

    def render(self, env_state: EnvState) -> np.ndarray:
        return self.env.render(env_state)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents of a multi-agent env."""
        return self.env.agents  # type: ignore[attr-defined]

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped
