"""The classic-control environments equal Gymnasium's: step by step, over episodes, in their spaces and at the start."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import scipy.stats

from rookery.envs import classic
from rookery.envs.classic.acrobot import AcrobotState
from rookery.envs.classic.cartpole import CartPoleState
from rookery.envs.classic.mountain_car import MountainCarState
from rookery.envs.classic.pendulum import PendulumState
from rookery.spaces import Discrete, to_gymnasium

NUM_PAIRS = 1000


@dataclass(frozen=True)
class Case:
    """How to compare one of our environments with Gymnasium's.

    States are drawn between `-limits` and `limits` around `center`; one in ten has an entry moved onto its border or,
    where `thresholds` names one, onto the threshold at which the episode ends. `margins` gives, for the successors, the
    distance to the nearest place where the true step jumps: closer than `min_margin`, rounding may decide otherwise.
    """

    name: str
    gymnasium_name: str
    state_class: Any
    center: tuple[float, ...]
    limits: tuple[float, ...]
    borders: tuple[tuple[float, ...], ...]
    margins: Callable[[np.ndarray], np.ndarray]
    max_action: float = 0.0
    tolerance: float = 1e-5
    angles: tuple[int, ...] = ()

    def gymnasium_env(self) -> Any:
        return gymnasium.make(self.gymnasium_name).unwrapped
