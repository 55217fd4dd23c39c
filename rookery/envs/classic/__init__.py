"""Our own classic-control environments, exact to Gymnasium's: `classic/cartpole` and its siblings."""

import inspect
from typing import Any

from rookery.envs.classic.acrobot import Acrobot
from rookery.envs.classic.cartpole import CartPole
from rookery.envs.classic.mountain_car import MountainCar, MountainCarContinuous
from rookery.envs.classic.pendulum import Pendulum
from rookery.envs.env import Env
from rookery.errors import InvalidInputError, unknown_name

__all__ = ["Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum", "make", "names"]

_ENVS: dict[str, type[Env]] = {
    "acrobot": Acrobot,
    "cartpole": CartPole,
    "mountain_car": MountainCar,
    "mountain_car_continuous": MountainCarContinuous,
    "pendulum": Pendulum,
}


def names() -> tuple[str, ...]:
    """Return the names that `make` knows."""
    return tuple(_ENVS)


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Make one environment; `kwargs` are the arguments of its class.

    `episode_length` is there for the libraries whose environments end by a time limit of their own. These do not: a
    wrapper applies it.
    """
    if name not in _ENVS:
        raise unknown_name("environment", f"classic/{name}", [f"classic/{known}" for known in _ENVS])
    known = list(inspect.signature(_ENVS[name]).parameters)
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        advice = f"it takes {', '.join(known)}" if known else "it takes none"
        raise InvalidInputError(f"classic/{name}: unknown argument {', '.join(map(repr, unknown))}; {advice}.")
    return _ENVS[name](**kwargs)
