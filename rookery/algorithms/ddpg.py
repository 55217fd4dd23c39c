"""Deep deterministic policy gradient (Lillicrap et al., 2016).

Departures from the paper: exploration by independent normal noise, not by an Ornstein-Uhlenbeck process, and no weight
decay of the critic; neither made a difference in later work (Fujimoto et al., 2018).
"""

from dataclasses import dataclass, field
from typing import Any

from rookery.algorithms.deterministic import (
    DeterministicAgent,
    DeterministicConfig,
    DeterministicHyperparameters,
    DeterministicWorkflow,
)
from rookery.networks.critic import ActorCriticsConfig
from rookery.spaces import Box
from rookery.types import Array, Key, pytree_field


@dataclass(frozen=True)
class DDPGNetworkConfig(ActorCriticsConfig):
    """The shape of the policy and of its critic."""

    num_critics: int = 1


@dataclass(frozen=True)
class DDPGConfig(DeterministicConfig):
    """The shapes of DDPG."""

    network: DDPGNetworkConfig = field(default_factory=DDPGNetworkConfig)


class DDPGAgent(DeterministicAgent):
    """A policy and a critic, with a slow copy of each for the targets."""

    config: ActorCriticsConfig = pytree_field(static=True, default_factory=DDPGNetworkConfig)

    def target_actions(self, actions: Array, space: Box, hyperparameters: Any, key: Key) -> Array:
        return actions


class DDPGWorkflow(DeterministicWorkflow):
    """Deep deterministic policy gradient: critic, policy and their slow copies, one step each."""

    agent_name = "ddpg"
    config_class = DDPGConfig
    hyperparameters_class = DeterministicHyperparameters
    agent_class = DDPGAgent
