"""The interface of device environments: pure functions over an explicit state."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.spaces import Shape, Space
from rookery.types import Action, Array, Key, Obs, PyTree, PyTreeData, PyTreeDict, pytree_field


class EnvState(PyTreeData):
    """The result of `reset` and `step`.

    `env_state` is the state of the simulator and `_internal` that of the wrappers: the next step depends only on these
    two. `reward`, `done` and `info` are outputs; an autoreset keeps those of the ended episode. Rewards and dones are
    float32; a multi-agent env has a dict of rewards and one `done` for the episode.
    """

    env_state: PyTree
    obs: Obs
    reward: Any
    done: Array
    info: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    _internal: PyTreeDict = pytree_field(default_factory=PyTreeDict)


class Env(ABC):
    """One environment, or `num_envs` copies of it if it is vectorized."""

    @abstractmethod
    def reset(self, key: Key) -> EnvState:
        """Start an episode."""

    @abstractmethod
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Take one action.

        An env with its own time limit sets `info.truncation` to 1 when it is reached. If the same step can also
        terminate the episode, the env sets `info.termination` too, which has precedence.
        """

    @property
    @abstractmethod
    def obs_space(self) -> Space:
        """The observation space of one env, without the batch axis."""

    @property
    @abstractmethod
    def action_space(self) -> Space:
        """The action space of one env, without the batch axis."""

    @property
    def max_episode_steps(self) -> int | None:
        """The env's own time limit in steps; None without one."""
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
        """Render the state of one env as an RGB array, `uint8[height, width, 3]`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MultiAgentEnv(Env):
    """Several agents act at once: observations, actions and rewards are dicts with one entry per agent.

    `obs_space` and `action_space` are `Dict` spaces over the agents; `done` ends the episode for all of them.
    """

    @property
    @abstractmethod
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in a fixed order."""


def check_is_env(env: object) -> None:
    """Raise unless `env` is an `Env`."""
    if not isinstance(env, Env):
        given = f"the class {env.__name__}, which must be called" if isinstance(env, type) else repr(env)
        raise InvalidInputError(
            f"expected an Env of rookery.envs, got {given}. create_env('classic/cartpole') makes one by name; "
            "Gymnasium environments cannot be compiled."
        )


class Wrapper(Env):
    """An env around another env; by default it changes nothing."""

    def __init__(self, env: Env) -> None:
        check_is_env(env)
        self.env = env

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    def reset(self, key: Key) -> EnvState:
        return self.env.reset(key)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
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
