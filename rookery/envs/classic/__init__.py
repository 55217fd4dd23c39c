"""Our own classic-control environments, exact to Gymnasium's: `classic/cartpole` and its siblings."""

from typing import Any

from rookery.envs.classic.acrobot import Acrobot
from rookery.envs.classic.cartpole import CartPole
from rookery.envs.classic.mountain_car import MountainCar, MountainCarContinuous
from rookery.envs.classic.pendulum import Pendulum
from rookery.envs.env import Env
from rookery.envs.library import make_from_table

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
    return make_from_table("classic", _ENVS, name, kwargs)
