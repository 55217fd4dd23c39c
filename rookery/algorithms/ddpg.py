"""Deep deterministic policy gradient (Lillicrap et al., 2016): TD3 with one critic, no delay and no target noise.

Departures from the paper: exploration noise is independent Gaussian, not an Ornstein-Uhlenbeck process, and the critic
has no weight decay. Neither made a difference in later work (Fujimoto et al., 2018).
"""

from dataclasses import dataclass
from typing import ClassVar

from rookery.algorithms.td3 import TD3, DeterministicHyperparameters, TD3Config
from rookery.networks.critic import ActorCriticsConfig
from rookery.workflows.off_policy import OffPolicyWorkflow


@dataclass(frozen=True)
class DDPGNetworkConfig(ActorCriticsConfig):
    """The settings of the policy network and the critic network."""

    num_critics: int = 1


@dataclass(frozen=True)
class DDPGConfig(TD3Config):
    """The settings of DDPG."""

    smooth_targets: ClassVar[bool] = False
    policy_delay: int = 1
    network: DDPGNetworkConfig = DDPGNetworkConfig()


class DDPGWorkflow(OffPolicyWorkflow):
    """Deep deterministic policy gradient: each update changes the critic, the policy and their target networks."""

    agent_name = "ddpg"
    config_class = DDPGConfig
    hyperparameters_class = DeterministicHyperparameters
    learner_class = TD3
