"""Device environments that return NaN or infinite numbers now and then: the library `poisoned` of the campaign."""

from typing import Any

import jax.numpy as jnp

from rookery.envs import Env, EnvState, make_env
from rookery.envs.env import Wrapper
from rookery.types import Action, Array

TASKS = {"cartpole": "classic/cartpole", "pendulum": "classic/pendulum"}


class Poisoned(Wrapper):
    """Replaces the reward or the observation of one step in `period` by `value`; the state stays finite."""

    def __init__(self, env: Env, part: str, value: float, period: int) -> None:
        super().__init__(env)
        self.part = part
        self.value = value
        self.period = period

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        stepped = self.env.step(env_state, action)
        poison = jnp.float32(self.value)
        is_due = self._draw(stepped.obs) < 1.0 / self.period
        if self.part == "obs":
            return stepped.replace(obs=jnp.where(is_due, poison, stepped.obs))
        return stepped.replace(reward=jnp.where(is_due, poison, stepped.reward))

    @staticmethod
    def _draw(obs: Array) -> Array:
        """Return a number from 0 to 1 that depends on the observation as if it were random."""
        return jnp.mod(jnp.abs(jnp.sum(obs)) * 4321.1, 1.0)


def names() -> tuple[str, ...]:
    """Return the names of the environments."""
    return tuple(TASKS)


def make(
    name: str,
    episode_length: int | None = None,
    part: str = "reward",
    value: Any = "nan",
    period: int = 100,
) -> Env:
    """Build a poisoned environment."""
    return Poisoned(make_env(TASKS[name], episode_length), part, float(value), period)
