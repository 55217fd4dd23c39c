"""Hyper-parameters: traced numbers of a method, constant or scheduled over env steps.

A method declares each hyper-parameter once, with its default, range and help:

    class PPOHyperparameters(OnPolicyHyperparameters):
        clip_ratio: Scalar = number(0.2, low=0.0, help="how far the probability ratio may leave 1")
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rookery.configuration import Declaration, declarations, declared, field_names
from rookery.errors import InvalidInputError
from rookery.types import PyTreeData

Number = int | float | Shaped[Array, "..."]
Value = TypeVar("Value")
Values = TypeVar("Values", bound="Hyperparameters")


class LinearSchedule(PyTreeData):
    """Changes linearly from `start` to `end` over `steps` env steps, then stays at `end`.

    All three are traced, so the members of a population may have different schedules.
    """

    start: Number
    end: Number
    steps: Number

    def value(self, env_steps: Number) -> Float[Array, "..."]:
        """Return the value after `env_steps`, exact at both ends; with `steps=0` it is always `end`."""
        start, end, steps, taken = map(jnp.float32, (self.start, self.end, self.steps, env_steps))
        progress = taken / jnp.where(steps > 0.0, steps, 1.0)
        return jnp.where(taken >= steps, end, start + progress * (end - start))


Scalar = float | Array | LinearSchedule
"""A hyper-parameter: a number, or one that changes with the env steps."""


def number(
    default: Value, *, help: str = "", low: float | None = None, high: float | None = None, schedule: bool = True
) -> Value:
    """Declare a hyper-parameter; use `schedule=False` for a number that is used only at the start.

    A subclass that only changes the default writes the field without `number` and inherits range and help.
    """
    return dataclasses.field(
        default=default, metadata=declared(Declaration(help, low, high, schedule=schedule), static=False)
    )


class Hyperparameters(PyTreeData):
    """The hyper-parameters of a method. They are part of its state, so a population may have different ones.

    None disables a feature in the compiled program.
    """


class HyperparameterValues(Protocol):
    """Hyper-parameters evaluated at one env step: numbers are arrays; None disables a feature."""

    def __getattr__(self, name: str, /) -> Array: ...


def values_at(hyperparameters: Hyperparameters, env_steps: Number) -> Any:
    """Evaluate all schedules at `env_steps`; return `HyperparameterValues` with float32 arrays."""

    def value_of(leaf: Any) -> Array:
        return leaf.value(env_steps) if isinstance(leaf, LinearSchedule) else jnp.float32(leaf)

    return jax.tree.map(value_of, hyperparameters, is_leaf=lambda node: isinstance(node, LinearSchedule))


def declaration_of(cls: type[Hyperparameters], name: str) -> Declaration:
    """Return the declaration of a hyper-parameter; a field without `number` takes any number and any schedule."""
    return declarations(cls).get(name, Declaration(schedule=True))


def hyperparameters_from(
    cls: type[Values], values: Mapping[str, Any], total_timesteps: int, path: str = "agent"
) -> Values:
    """Build hyper-parameters from numbers and schedules `{start: 3e-4, end: 0}`, by default over the whole run.

    A field may be hyper-parameters of another method, given as a mapping. `path` is the key of `values` in the config.
    """
    annotations = get_type_hints(cls)
    optional = {name for name in field_names(cls) if type(None) in get_args(annotations[name])}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        declaration, key = declaration_of(cls, name), f"{path}.{name}"
        if value is None and name in optional:
            parsed[name] = None
        elif isinstance(annotations[name], type) and issubclass(annotations[name], Hyperparameters):
            parsed[name] = hyperparameters_from(annotations[name], value, total_timesteps, key)
        elif isinstance(value, Mapping):
            parsed[name] = _schedule_from(key, value, declaration, total_timesteps)
        else:
            parsed[name] = _number_from(key, value, declaration)
    return cls(**parsed)


def _schedule_from(name: str, value: Mapping, declaration: Declaration, total_timesteps: int) -> LinearSchedule:
    if not declaration.schedule:
        raise InvalidInputError(f"{name} is used once, at the start: give a number, not a schedule.")
    unknown = set(value) - {"start", "end", "steps"}
    if unknown or "start" not in value or "end" not in value:
        raise InvalidInputError(f"{name}={dict(value)}: a schedule is {{start: NUMBER, end: NUMBER}}.")
    return LinearSchedule(
        start=_number_from(f"{name}.start", value["start"], declaration),
        end=_number_from(f"{name}.end", value["end"], declaration),
        steps=_number_from(f"{name}.steps", value.get("steps", total_timesteps), Declaration(low=0.0)),
    )


def _number_from(name: str, value: Any, declaration: Declaration) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
            raise ValueError
        number = float(value)
    except ValueError:
        raise InvalidInputError(f"{name}={value!r}: expected a number, or {{start: NUMBER, end: NUMBER}}.") from None
    if not math.isfinite(number):
        raise InvalidInputError(f"{name}={number:g} must be finite.")
    if not declaration.contains(number):
        raise InvalidInputError(f"{name}={number:g} {declaration.expected_range()}.")
    return number
