"""Strategies of evosax: CMA-ES, particle swarm optimization, and any other by name.

CMA-ES follows Hansen's tutorial (2016, arXiv:1604.00772), with negative weights. Its covariance matrix is quadratic in
the number of parameters, so the default network is small. PSO is that of Kennedy & Eberhart (1995) with an inertia
weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rookery.configuration import setting
from rookery.distributed import DEVICE_AXIS
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.networks.policy import PolicyConfig
from rookery.workflows.evolution.generations import ECConfig
from rookery.workflows.evolution.workflow import ECWorkflow


class SearchHyperparameters(Hyperparameters):
    """The hyper-parameters of a search by evosax."""

    initial_std: Scalar = number(
        0.5,
        low=1e-9,
        schedule=False,
        help="one unit of length of the strategy; most strategies start with a standard deviation of 1",
    )


@dataclass(frozen=True)
class CMAESConfig(ECConfig):
    """The settings of CMA-ES."""

    network: PolicyConfig = setting(PolicyConfig(hidden_sizes=(16,)))


class CMAESWorkflow(ECWorkflow):
    """Covariance matrix adaptation, by evosax."""

    agent_name = "cmaes"
    is_same_on_devices = True
    config_class = CMAESConfig
    hyperparameters_class = SearchHyperparameters

    @classmethod
    def make_optimizer(cls, config: Any, hyperparameters: Any) -> EvoOptimizer:
        return evosax_optimizer("CMA_ES", config, hyperparameters)


class PSOWorkflow(ECWorkflow):
    """Particle swarm optimization, by evosax."""

    agent_name = "pso"
    is_same_on_devices = True
    config_class = ECConfig
    hyperparameters_class = SearchHyperparameters

    @classmethod
    def make_optimizer(cls, config: Any, hyperparameters: Any) -> EvoOptimizer:
        return evosax_optimizer("PSO", config, hyperparameters)


@dataclass(frozen=True)
class EvosaxConfig(ECConfig):
    """The settings of a strategy of evosax."""

    strategy: str = setting("LM_MA_ES", help="a name in evosax.algorithms")
    params: Mapping[str, Any] = setting({}, help="parameters of the strategy, by name, that differ from its defaults")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.params.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidInputError(f"params.{name}={value!r}: expected a number.")


class EvosaxWorkflow(ECWorkflow):
    """Any strategy of evosax, by its name in evosax."""

    agent_name = "evosax"
    config_class = EvosaxConfig
    hyperparameters_class = SearchHyperparameters

    @classmethod
    def make_optimizer(cls, config: Any, hyperparameters: Any) -> EvoOptimizer:
        return evosax_optimizer(config.strategy, config, hyperparameters, config.params)


def evosax_optimizer(
    strategy: str, config: ECConfig, hyperparameters: Any, params: Mapping[str, float] | None = None
) -> EvoOptimizer:
    """Build a strategy of evosax."""
    from rookery.evolution.evosax import EvosaxOptimizer  # here, because importing evosax starts JAX's backend

    return EvosaxOptimizer(
        strategy=strategy,
        population_size=config.population_size,
        params=tuple(sorted((params or {}).items())),
        hyperparameters=hyperparameters,
        axis_name=DEVICE_AXIS,
    )
