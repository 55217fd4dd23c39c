"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, "Addressing function approximation error").

What it adds to DDPG: of two critics the lower one makes the targets (eq. 10), the policy waits for the critics
(`policy_delay`), and targets are smoothed by noise on the actions of the slow policy (eq. 14).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.algorithms.deterministic import (
    DeterministicAgent,
    DeterministicConfig,
    DeterministicHyperparameters,
    DeterministicWorkflow,
    moved,
)
from rookery.hyperparameters import Scalar
from rookery.spaces import Box
from rookery.types import Array, Key


@dataclass(frozen=True)
class TD3Config(DeterministicConfig):
    """The shapes of TD3."""

    policy_delay: int = 2


class TD3Hyperparameters(DeterministicHyperparameters):
    """The numbers of TD3; noise is given as a share of half the range of the actions."""

    RANGES: ClassVar = DeterministicHyperparameters.RANGES | {
        "target_noise": (0.0, float("inf")),
        "max_target_noise": (0.0, float("inf")),
    }

    target_noise: Scalar = 0.2
    max_target_noise: Scalar = 0.5


class TD3Agent(DeterministicAgent):
    """A policy and two critics, with a slow copy of each for the targets."""

    def target_actions(self, actions: Array, space: Box, hyperparameters: Any, key: Key) -> Array:
        limit = hyperparameters.max_target_noise
        noise = jnp.clip(hyperparameters.target_noise * jax.random.normal(key, actions.shape), -limit, limit)
        return moved(actions, noise, space)


class TD3Workflow(DeterministicWorkflow):
    """Twin delayed DDPG: two critics at every step, the policy and the slow copies at every other."""

    agent_name = "td3"
    config_class = TD3Config
    hyperparameters_class = TD3Hyperparameters
    agent_class = TD3Agent
