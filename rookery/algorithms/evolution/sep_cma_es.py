"""CMA-ES with a diagonal covariance, whose cost is linear in the size of an individual (Ros & Hansen, 2008).

Equations and constants are those of Hansen's tutorial (2016, arXiv:1604.00772, appendix A) with positive weights only;
the learning rates of the covariance are (n + 2) / 3 times as large (Ros & Hansen, 2008, section 3).

Departures from the papers: individuals of equal fitness share their weights; the learning rates of the covariance sum
to at most 1.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InvalidInputError
from rookery.evolution.fitness import weights_by_rank
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow

TINY = float(np.finfo(np.float32).tiny)
"""The minimum step size and variance. They shrink where rounding removes the noise, and 0 would give 0 / 0."""


class SepCMAESHyperparameters(Hyperparameters):
    """The hyper-parameters of Sep-CMA-ES; `Rates` derives the others."""

    initial_std: Scalar = number(
        0.1, low=1e-9, schedule=False, help="first standard deviation of individuals around their mean"
    )


class SepCMAESState(GaussianState):
    """The distribution of the next population, N(mean, step_size^2 variance), and the evolution paths."""

    variance: Params
    step_size: Array
    step_path: Params
    variance_path: Params


class SepCMAES(GaussianOptimizer):
    """Adapts the mean, the step size and the diagonal covariance of a Gaussian to the fittest individuals."""

    hyperparameters: SepCMAESHyperparameters = pytree_field(default_factory=SepCMAESHyperparameters)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population_size < 2:
            raise InvalidInputError(
                f"population_size={self.population_size} must be at least 2: the better half is recombined."
            )

    def init(self, params: Params, key: Key) -> SepCMAESState:
        common = self.common_fields(params, key)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SepCMAESState(
            **common,
            mean=params,
            variance=jax.tree.map(jnp.ones_like, params),
            step_size=common["hyperparameters"].initial_std,
            step_path=zeros,
            variance_path=zeros,
        )

    def std(self, state: SepCMAESState) -> Params:
        return jax.tree.map(lambda variance: state.step_size * jnp.sqrt(variance), state.variance)

    def update(self, state: SepCMAESState, fitness: Array, key: Key) -> SepCMAESState:
        num_dims = sum(leaf.size for leaf in jax.tree.leaves(state.mean))
        rates = Rates.derived(num_dims, self.population_size)
        weights = weights_by_rank(fitness, jnp.asarray(rates.weights))
        steps = jax.tree.map(lambda deviation: deviation / state.step_size, self.deviations(state))
        mean_step = self.weighted_sum(weights, steps)  # equation (41)
        squared_steps = self.weighted_sum(weights, jax.tree.map(jnp.square, steps))
        mean = self.moved(state.mean, state.step_size, mean_step)  # equation (42)

        step_path = jax.tree.map(
            lambda path, step, variance: (
                (1.0 - rates.step) * path + _path_scale(rates.step, rates) * step / jnp.sqrt(variance)
            ),
            state.step_path,
            mean_step,
            state.variance,
        )  # (43)
        length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(step_path)))
        step_size = state.step_size * jnp.exp(
            rates.step / rates.damping * (length / rates.expected_length - 1.0)
        )  # (44)

        num_steps = 2.0 * (state.generation.astype(jnp.float32) + 1.0)
        unbiased_length = length / jnp.sqrt(1.0 - (1.0 - rates.step) ** num_steps)
        is_calm = (unbiased_length < (1.4 + 2.0 / (num_dims + 1.0)) * rates.expected_length).astype(jnp.float32)
        variance_path = jax.tree.map(
            lambda path, step: (1.0 - rates.path) * path + is_calm * _path_scale(rates.path, rates) * step,
            state.variance_path,
            mean_step,
        )  # (45)
        kept = 1.0 - rates.rank_one - rates.rank_mu + rates.rank_one * (1.0 - is_calm) * rates.path * (2.0 - rates.path)
        variance = jax.tree.map(
            lambda variance, path, squared: jnp.maximum(
                kept * variance + rates.rank_one * path**2 + rates.rank_mu * squared, TINY
            ),
            state.variance,
            variance_path,
            squared_steps,
        )  # (47)
        return state.replace(
            mean=mean,
            variance=variance,
            step_size=jnp.maximum(step_size, TINY),
            step_path=step_path,
            variance_path=variance_path,
        )

    def report(self, state: SepCMAESState) -> dict[str, Array]:
        stds = jnp.concatenate([jnp.sqrt(leaf).ravel() for leaf in jax.tree.leaves(state.variance)])
        return {"step_size": state.step_size * jnp.mean(stds)}


@dataclass(frozen=True)
class Rates:
    """The constants that the tutorial derives from the number of dimensions and the population size (table 1)."""

    weights: np.ndarray
    effective_size: float
    step: float
    damping: float
    path: float
    rank_one: float
    rank_mu: float
    expected_length: float

    @classmethod
    def derived(cls, num_dims: int, population_size: int) -> "Rates":
        n = float(num_dims)
        places = np.arange(1, population_size + 1)
        raw = np.where(
            places <= population_size // 2, math.log((population_size + 1) / 2) - np.log(places), 0.0
        )  # (49)
        mu_eff = raw.sum() ** 2 / (raw**2).sum()  # (8)
        step = (mu_eff + 2.0) / (n + mu_eff + 5.0)  # (55)
        faster = (n + 2.0) / 3.0
        rank_one = min(1.0, faster * 2.0 / ((n + 1.3) ** 2 + mu_eff))  # (57)
        rank_mu = faster * 2.0 * (mu_eff - 2.0 + 1.0 / mu_eff) / ((n + 2.0) ** 2 + mu_eff)  # (58)
        return cls(
            weights=(raw / raw.sum()).astype(np.float32),
            effective_size=float(mu_eff),
            step=float(step),
            damping=float(1.0 + 2.0 * max(0.0, math.sqrt((mu_eff - 1.0) / (n + 1.0)) - 1.0) + step),
            path=float((4.0 + mu_eff / n) / (n + 4.0 + 2.0 * mu_eff / n)),  # (56)
            rank_one=float(rank_one),
            rank_mu=float(min(1.0 - rank_one, rank_mu)),
            expected_length=math.sqrt(n) * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n**2)),
        )


def _path_scale(rate: float, rates: Rates) -> float:
    """Return the factor of a step with which a path of random steps keeps the variance of one step."""
    return math.sqrt(rate * (2.0 - rate) * rates.effective_size)


class SepCMAESWorkflow(ECWorkflow):
    """CMA-ES with a diagonal covariance."""

    agent_name = "sep_cma_es"
    is_same_on_devices = True
    optimizer_class = SepCMAES
