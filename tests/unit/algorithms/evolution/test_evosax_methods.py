"""The methods that evosax implements, as workflows."""

from typing import Any

import jax
import pytest

from rookery.errors import InvalidInputError, UnknownNameError
from rookery.registry import build_workflow


def build(**agent: Any) -> Any:
    return build_workflow({"agent": {"population_size": 8, **agent}, "recorders": []})


@pytest.mark.parametrize(("name", "strategy"), [("cmaes", "CMA_ES"), ("pso", "PSO"), ("evosax", "LM_MA_ES")])
def test_a_method_is_a_strategy_of_evosax(name: str, strategy: str) -> None:
    workflow = build(name=name, initial_std=0.25)
    assert workflow.training.optimizer.strategy == strategy
    assert workflow.training.optimizer.population_size == 8
    assert float(workflow.training.optimizer.hyperparameters.initial_std) == 0.25


def test_strategy_and_parameters_come_from_the_config() -> None:
    optimizer = build(
        name="evosax", strategy="PSO", params={"social_coeff": 1.0, "inertia_coeff": 0.5}
    ).training.optimizer
    assert optimizer.strategy == "PSO"
    assert optimizer.params == (("inertia_coeff", 0.5), ("social_coeff", 1.0))


def test_a_misspelt_strategy_or_parameter_is_an_error_when_the_workflow_is_built() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'SimpleGA'"):
        build(name="evosax", strategy="Simple_GA")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'social_coeff'"):
        build(name="evosax", strategy="PSO", params={"social_coef": 1.0})


def test_a_parameter_that_is_no_number_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"^agent: params\.social_coeff='much': expected a number\.$"):
        build(name="evosax", strategy="PSO", params={"social_coeff": "much"})


def test_cma_es_refuses_a_large_network_in_one_sentence() -> None:
    workflow = build(name="cmaes", network={"hidden_sizes": [64, 64]})
    with pytest.raises(
        InvalidInputError, match=r"4610 parameters are too many, the limit is 2000\. Use a smaller network"
    ):
        workflow.init(jax.random.key(0))
