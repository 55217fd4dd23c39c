"""Networks: encoders, layers, recurrent cores and action distributions."""

from rookery.networks.actor_critic import ActorCriticConfig, ActorCriticNetwork
from rookery.networks.convolution import CNN, cnn_for
from rookery.networks.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    DiagonalGaussian,
    Distribution,
    DistributionFamily,
    GaussianConfig,
    MultiCategorical,
    TanhGaussian,
    distribution_family,
)
from rookery.networks.encoders import ObservationEncoder
from rookery.networks.mlp import MLP
from rookery.networks.policy import PolicyConfig, PolicyNetwork, Trunk, TrunkConfig
from rookery.networks.recurrent import RecurrentCore

__all__ = [
    "CNN",
    "MLP",
    "ActorCriticConfig",
    "ActorCriticNetwork",
    "Bernoulli",
    "Categorical",
    "Composite",
    "DiagonalGaussian",
    "Distribution",
    "DistributionFamily",
    "GaussianConfig",
    "MultiCategorical",
    "ObservationEncoder",
    "PolicyConfig",
    "PolicyNetwork",
    "RecurrentCore",
    "TanhGaussian",
    "Trunk",
    "TrunkConfig",
    "cnn_for",
    "distribution_family",
]
