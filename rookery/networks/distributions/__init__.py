"""Distributions over actions, and the one place that decides which of them an action space gets."""

from rookery.networks.distributions.composite import Composite
from rookery.networks.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rookery.networks.distributions.distribution import Distribution
from rookery.networks.distributions.family import DistributionFamily, GaussianConfig, distribution_family
from rookery.networks.distributions.gaussian import DiagonalGaussian, TanhGaussian

__all__ = [
    "Bernoulli",
    "Categorical",
    "Composite",
    "DiagonalGaussian",
    "Distribution",
    "DistributionFamily",
    "GaussianConfig",
    "MultiCategorical",
    "TanhGaussian",
    "distribution_family",
]
