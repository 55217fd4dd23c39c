"""Conversion from and to Gymnasium spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.errors import InvalidInputError
from rookery.spaces.space import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

if TYPE_CHECKING:
    import gymnasium


def from_gymnasium(space: gymnasium.Space) -> Space:
    """Convert a Gymnasium space; `to_gymnasium` gives back an equal one."""
    from gymnasium import spaces as gym_spaces

    match space:
        case gym_spaces.Box():
            return Box(space.low, space.high, space.shape, space.dtype)
        case gym_spaces.Discrete():
            return Discrete(int(space.n), int(space.start), space.dtype)
        case gym_spaces.MultiDiscrete():
            return MultiDiscrete(space.nvec, space.start, space.dtype)
        case gym_spaces.MultiBinary():
            return MultiBinary(space.n)
        case gym_spaces.Dict():
            return Dict({name: from_gymnasium(subspace) for name, subspace in space.spaces.items()})
        case gym_spaces.Tuple():
            return Tuple([from_gymnasium(subspace) for subspace in space.spaces])
    raise InvalidInputError(
        f"the Gymnasium space {space} has no fixed shape, which compiled code needs: "
        "expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def to_gymnasium(space: Space) -> gymnasium.Space:
    """Convert to a Gymnasium space; `from_gymnasium` gives back an equal one."""
    from gymnasium import spaces as gym_spaces

    match space:
        case Box():
            return gym_spaces.Box(space.low, space.high, space.shape, space.dtype)  # type: ignore[arg-type]
        case Discrete():
            return gym_spaces.Discrete(space.n, start=space.start, dtype=space.dtype.type)
        case MultiDiscrete():
            return gym_spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type, start=space.start)
        case MultiBinary():
            return gym_spaces.MultiBinary(space.n)
        case Dict():
            return gym_spaces.Dict([(name, to_gymnasium(subspace)) for name, subspace in space.spaces.items()])
        case Tuple():
            return gym_spaces.Tuple([to_gymnasium(subspace) for subspace in space.spaces])
    raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")
