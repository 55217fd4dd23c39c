"""Observation and action spaces, and their conversion from and to Gymnasium spaces and JSON."""

from rookery.spaces.gymnasium_spaces import from_gymnasium, to_gymnasium
from rookery.spaces.json_spaces import from_json, to_json
from rookery.spaces.space import (
    ArraySpace,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Shape,
    Space,
    Tuple,
    alike,
    check_discrete_range,
)

__all__ = [
    "ArraySpace",
    "Box",
    "Dict",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "Shape",
    "Space",
    "Tuple",
    "alike",
    "check_discrete_range",
    "from_gymnasium",
    "from_json",
    "to_gymnasium",
    "to_json",
]
