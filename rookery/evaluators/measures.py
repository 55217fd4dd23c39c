"""Measures of an episode besides its return: further objectives, behavior descriptors.

A measure is written `sum:metrics.reward_ctrl`, `mean:action.0` or `last:obs.1`: the reduction over the steps of the
episode, the source, and the index of one of its numbers. The source is `reward`, `action`, `obs` (after the step), or
an entry of the environment's `info`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import EnvState
from rookery.errors import InvalidInputError, unknown_name
from rookery.spaces import Space
from rookery.types import Action, Array, Key, Obs, PyTree

Number = Any
"""A NumPy or JAX array of one number or more."""

PATTERN = re.compile(r"(?P<reduction>sum|mean|last):(?P<source>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(\.(?P<index>\d+))?")
OF_SPACES = ("reward", "action", "obs")
"""Sources that every environment has."""


@dataclass(frozen=True)
class Measure:
    """One number per episode."""

    reduction: str
    source: str
    index: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a measure of a config."""
        match = PATTERN.fullmatch(text)
        if match is None:
            raise InvalidInputError(
                f"measure {text!r}: expected REDUCTION:NAME or REDUCTION:NAME.INDEX, with sum, mean or last, "
                "like sum:reward, last:obs.0 or mean:metrics.x_velocity."
            )
        index = match["index"]
        return cls(match["reduction"], match["source"], None if index is None else int(index))

    def at_step(self, action: Action, env_state: EnvState) -> Array:
        """Return the value at one step."""
        value = self._look_up(action, env_state.reward, env_state.obs, env_state.info)
        return self._choose(jnp.ravel(jnp.asarray(value, jnp.float32)))

    def at_host_step(self, action: Action, reward: float, obs: Obs, info: Mapping[str, PyTree]) -> float:
        """Return the value at one step of a host environment."""
        value = self._look_up(action, reward, obs, info)
        return float(self._choose(np.ravel(np.asarray(value, np.float32))))

    def check(self, obs_space: Space, action_space: Space) -> None:
        """Raise if these spaces do not have what is measured; entries of `info` are known only after a step."""
        if self.source.partition(".")[0] not in OF_SPACES:
            return

        def measure(key: Key) -> Array:
            value = self._look_up(action_space.sample(key), jnp.float32(0.0), obs_space.sample(key), {})
            return self._choose(jnp.ravel(jnp.asarray(value, jnp.float32)))

        jax.eval_shape(measure, jax.random.key(0))

    def accumulate(self, total: Number, value: Number) -> Number:
        """Add the value of one step."""
        return value if self.reduction == "last" else total + value

    def result(self, total: Number, length: Number) -> Number:
        """Return the measure of a whole episode."""
        return total / length.astype(total.dtype) if self.reduction == "mean" else total

    def _look_up(self, action: Action, reward: Number, obs: Obs, info: Mapping[str, PyTree]) -> PyTree:
        value: PyTree = {**info, "reward": reward, "action": action, "obs": obs}
        for name in self.source.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise unknown_name("measure", self.source, value if isinstance(value, Mapping) else ())
            value = value[name]
        return value

    def _choose(self, numbers: Number) -> Number:
        if self.index is None and numbers.size != 1:
            raise InvalidInputError(f"measure {self.source} has {numbers.size} numbers: choose one, {self.source}.0.")
        if self.index is not None and self.index >= numbers.size:
            raise InvalidInputError(f"measure {self.source}.{self.index}: it has {numbers.size} numbers.")
        return numbers[self.index or 0]
