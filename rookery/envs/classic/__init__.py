"""Classic control environments with the dynamics of Gymnasium's: `classic/cartpole` and others."""

from typing import Any

from rookery.envs.adapter import make_from_table
from rookery.envs.classic.acrobot import Acrobot
from rookery.envs.classic.cartpole import CartPole
from rookery.envs.classic.mountain_car import MountainCar, MountainCarContinuous
from rookery.envs.classic.pendulum import Pendulum
from rookery.envs.env import Env

__all__ = ["Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum", "make", "names"]

_ENVS: dict[str, type[Env]] = {
    "acrobot": Acrobot,
    "cartpole": CartPole,
    "mountain_car": MountainCar,
    "mountain_car_continuous": MountainCarContinuous,
    "pendulum": Pendulum,
}


def names() -> tuple[str, ...]:
    """Return the names of all environments."""
    return tuple(_ENVS)


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Make one environment; `kwargs` are the arguments of its class.

    `episode_length` is ignored here: these environments have no time limit of their own, a wrapper applies it.
    """
    return make_from_table("classic", _ENVS, name, kwargs)
