"""What trainings with a strategy share: its state, its metrics, and what a run shows of it."""

from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.distributed import check_divides
from rookery.errors import InvalidInputError
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evolution import ECState, EvoOptimizer
from rookery.hyperparameters import Hyperparameters, values_at
from rookery.learners.learner import LearnerState
from rookery.learning.counter import Counter
from rookery.metrics import Latest, Mean
from rookery.types import Array
from rookery.workflows.programs import Layout
from rookery.workflows.training import Training, TrainingState

MAX_PARAMS_WITH_PATH = 100
"""Up to this number of parameters, records contain the first two parameters of the center, to plot the search."""

PREFIX = "evolution/"
"""The prefix of the metrics of a search."""
QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class EvolutionState(LearnerState):
    """The state of a search; `agent_state` is its center."""

    inherited = (*LearnerState.inherited, "evo_state")

    evo_state: ECState

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> Self:
        # The strategy has their values, which each generation sets.
        values = jax.tree.map(np.asarray, values_at(hyperparameters, 0.0))
        return (
            super()
            .with_hyperparameters(hyperparameters)
            .replace(evo_state=self.evo_state.replace(hyperparameters=values))
        )


class SearchTraining(Training):
    """A training whose state contains that of a strategy."""

    optimizer: EvoOptimizer

    @property
    def has_best(self) -> bool:  # type: ignore[override]
        return self.optimizer.has_best

    def agents(self, state: TrainingState) -> dict[str, AgentState]:
        agents = super().agents(state)
        if self.has_best:
            agents["eval/best_"] = state.agent_state.replace(params=search_of(state).evo_state.best_params)
        return agents

    def counters(self, state: TrainingState) -> dict[str, Counter]:
        counts = search_of(state).evo_state.num_invalid.astype(jnp.uint32)
        num_updates = {"train/n_updates": state.num_updates}
        return num_updates | {"evolution/num_invalid": Counter(low=counts, high=jnp.zeros_like(counts))}

    def warning(self, metrics: Mapping[str, float]) -> str:
        of_search = {
            name.removeprefix(PREFIX): float(value) for name, value in metrics.items() if name.startswith(PREFIX)
        }
        return self.optimizer.warning(of_search)

    def populations(self, state: TrainingState) -> list[dict[str, Any]]:
        described = map(self.optimizer.describe, self.layout.seeds_of(search_of(state).evo_state))
        return [population for population in described if population is not None]


def check_population(optimizer: EvoOptimizer, population_size: int, layout: Layout) -> None:
    """Raise unless the devices can have the same number of individuals, and whole pairs of a mirrored strategy."""
    check_divides("agent.population_size", population_size, layout.num_shares)
    whole = layout.num_shares * optimizer.group_size
    if population_size % whole:
        raise InvalidInputError(
            f"agent.population_size={population_size} does not split into pairs over {layout.num_shares} "
            f"devices: use a multiple of {whole}."
        )


def search_metrics(
    optimizer: EvoOptimizer, evo_state: ECState, episodes: PopulationEpisodes
) -> dict[str, Mean | Latest]:
    """Return the metrics of a generation; `episodes` are those of this device."""
    returns, lengths = optimizer.gathered((episodes.episode_returns, episodes.episode_lengths))
    metrics: dict[str, Mean | Latest] = {
        "rollout/ep_rew_mean": Mean.where(jnp.isfinite(returns), returns),
        "rollout/ep_len_mean": Mean.where(lengths > 0, lengths),
    }
    fitness = optimizer.gathered(optimizer.fitness(episodes.episode_returns, episodes.measures))
    columns = {"fitness": fitness} if fitness.ndim == 1 else {}
    for index in range(fitness.shape[1] if fitness.ndim > 1 else 0):
        columns[f"objective_{index}"] = fitness[:, index]
    for name, values in columns.items():
        valid = jnp.where(jnp.isfinite(values), values, jnp.nan)
        numbers = {quantile: jnp.nanquantile(valid, share) for quantile, share in QUANTILES.items()}
        numbers |= {"mean": jnp.nanmean(valid), "std": jnp.nanstd(valid)}
        metrics |= {f"{PREFIX}{name}_{kind}": _if_finite(number) for kind, number in numbers.items()}
    report = optimizer.report(evo_state)
    metrics |= {name if "/" in name else PREFIX + name: Latest.of(number) for name, number in report.items()}
    if fitness.ndim == 1:
        metrics["evolution/best_fitness"] = Latest.of(evo_state.best_fitness)
    center = jax.tree.leaves(optimizer.center(evo_state))
    if 2 <= sum(leaf.size for leaf in center) <= MAX_PARAMS_WITH_PATH:
        first, second = jnp.concatenate([leaf.ravel() for leaf in center])[:2]
        metrics |= {"evolution/center_0": Latest.of(first), "evolution/center_1": Latest.of(second)}
    return metrics


def search_of(state: TrainingState) -> EvolutionState:
    """Return the state of the search."""
    assert isinstance(state.learner, EvolutionState), "the state of another training"
    return state.learner


def _if_finite(number: Array) -> Mean:
    return Mean.where(jnp.isfinite(number), number)
