"""Action distributions, and the choice of one for an action space."""

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
