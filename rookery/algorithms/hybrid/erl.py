"""Evolutionary reinforcement learning: a population that explores for a learner (Khadka & Tumer, 2018).

The learner learns from the episodes of the population, and its actor enters the search. How it enters depends on the
strategy: as an individual of the next population (as published), as an individual of the current one with its own
fitness, or as a point that pulls the mean. Departures from the paper: the learner is TD3 instead of DDPG; the actor
takes the place of a child, because children have no fitness yet of which one could be the weakest; the period of
synchronization counts generations; no child is a cross of an elite and a winner. Mutation departs as `row_wise` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.algorithms.evolution.ars import ARS
from rookery.algorithms.evolution.open_es import OpenES
from rookery.algorithms.hybrid.workflow import HybridConfig, HybridWorkflow
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.evolution.gaussian import GaussianOptimizer
from rookery.hyperparameters import Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState
from rookery.metrics import Mean
from rookery.types import Array, Params, is_finite, where_tree
from rookery.workflows.evolution.exchange import Exchange, Generation
from rookery.workflows.evolution.hybrids import HybridHyperparameters


class ERLExchange(Exchange):
    """Lets the learner's actor enter the search every `sync_interval` generations, once it has learned.

    An actor that is not finite stays out.
    """

    sync_interval: ClassVar[int] = 1
    """The default of the setting."""

    def is_due(self, evo_state: Any, learner: OffPolicyState, actor: Params) -> Array:
        interval = self.config.sync_interval or self.sync_interval
        has_learned = learner.num_updates.as_float() > 0.0
        return (evo_state.generation % interval == 0) & has_learned & is_finite(actor)


class Migration(ERLExchange):
    """The actor takes the last place of the next population, which is that of a child and never of an elite."""

    def migrate(self, evo_state: Any, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, Any]:
        actor = self.actor_of(learner)
        is_due = self.is_due(evo_state, learner, actor)
        metrics = {"hybrid/injections": Mean.of(is_due.astype(jnp.float32))}
        if hasattr(evo_state, "from_outside"):  # strategies with elites and descent
            of_elites = evo_state.from_outside[: self.optimizer.num_elites]  # type: ignore[attr-defined]
            metrics["hybrid/elites_from_gradient"] = Mean.of(jnp.mean(of_elites.astype(jnp.float32)))
        actor = jax.tree.map(lambda leaf: leaf[None], actor)
        last = jnp.full(1, self.optimizer.population_size - 1, jnp.int32)
        return metrics, where_tree(is_due, self.optimizer.inject(evo_state, actor, last), evo_state)


class Joining(ERLExchange):
    """The actor takes the place of the least fit individual, with the mean return of its own greedy episodes.

    It stays out if none of them was finished.
    """

    @classmethod
    def num_greedy_episodes(cls, config: Any) -> int:
        return config.learner_eval_episodes

    def join(
        self, evo_state: Any, returns: Array, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, Array, OffPolicyState]:
        is_due = self.is_due(evo_state, learner, generation.actor) & jnp.isfinite(generation.actor_fitness)
        fitness = jnp.where(jnp.isfinite(generation.fitness), generation.fitness, -jnp.inf)
        place = jnp.argmin(fitness).astype(jnp.int32)[None]
        actor, of_actor = jax.tree.map(
            lambda leaf: leaf[None], (generation.actor, jnp.full(returns.shape[1], generation.actor_fitness))
        )
        injected = self.optimizer.inject(evo_state, actor, place)
        replaced = self.optimizer.with_places(returns, of_actor, place)
        evo_state, returns = where_tree(is_due, (injected, replaced), (evo_state, returns))
        return {"hybrid/injections": Mean.of(is_due.astype(jnp.float32))}, evo_state, returns, learner


class Pulling(ERLExchange):
    """The mean moves towards the actor if the actor's greedy episodes were better than the median individual."""

    sync_interval = 10

    @classmethod
    def num_greedy_episodes(cls, config: Any) -> int:
        return config.learner_eval_episodes

    def migrate(self, evo_state: Any, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, Any]:
        fitness = jnp.where(jnp.isfinite(generation.fitness), generation.fitness, jnp.nan)
        is_better = generation.actor_fitness > jnp.nanmedian(fitness)
        is_due = self.is_due(evo_state, learner, generation.actor) & is_better
        rate = generation.hyperparameters.injection_rate
        pulled = jax.tree.map(lambda mean, actor: mean + rate * (actor - mean), evo_state.mean, generation.actor)
        mean = where_tree(is_due, pulled, evo_state.mean)
        return {"hybrid/injections": Mean.of(is_due.astype(jnp.float32))}, evo_state.replace(mean=mean)


EXCHANGES = {"migrate": Migration, "join": Joining, "pull": Pulling}


@dataclass(frozen=True)
class ERLConfig(HybridConfig):
    """The settings of ERL."""

    exchange: str | None = setting(
        None,
        choices=EXCHANGES,
        help="how the actor enters: migrate, join or pull; null: by the strategy, as the table of exchanges says",
    )
    sync_interval: int | None = setting(
        None, low=1, help="generations between two entries of the actor; null: 1, and 10 with pull"
    )
    learner_eval_episodes: int = setting(
        1, low=1, help="join, pull: greedy episodes of the actor per generation; a multiple of num_episodes"
    )


class ERLHyperparameters(HybridHyperparameters):
    """The hyper-parameters of ERL, besides those of its strategy and its learner."""

    injection_rate: Scalar = number(0.1, low=0.0, high=1.0, help="pull: fraction of the way from the mean to the actor")


class ERLWorkflow(HybridWorkflow):
    """Evolutionary reinforcement learning: the actor of a learner enters the population of a genetic algorithm."""

    agent_name = "erl"
    config_class = ERLConfig
    hyperparameters_class = ERLHyperparameters
    strategy_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ga": {
            "num_elites": 2,
            "crossover_probability": 0.0,
            "mutation": "row_wise",
            "noise_std": 0.1,
            "mutation_probability": 0.05,
            "mutated_fraction": 0.9,
        }
    }

    def exchange_for(self, optimizer: EvoOptimizer) -> type[Exchange]:
        given, has_mean = self.config.exchange, isinstance(optimizer, GaussianOptimizer)
        if given is None:
            by_mean = "pull" if isinstance(optimizer, (OpenES, ARS)) else "join"
            return EXCHANGES["migrate" if optimizer.has_population else by_mean]
        strategy = f"agent.evolution={self.config.evolution}"
        if given == "migrate" and not optimizer.has_population:
            raise InvalidInputError(f"agent.exchange=migrate needs a strategy that keeps a population, not {strategy}.")
        if given == "pull" and not has_mean:
            raise InvalidInputError(f"agent.exchange=pull moves a mean, which {strategy} does not have: use openes.")
        if given == "join" and optimizer.measures:
            raise InvalidInputError(f"agent.exchange=join gives a fitness, and {strategy} needs measures: use migrate.")
        return EXCHANGES[given]


@dataclass(frozen=True)
class ERLESConfig(ERLConfig):
    """The settings of ERL with a (mu, lambda) evolution strategy."""

    evolution: str = "vanilla_es"


class ERLESWorkflow(ERLWorkflow):
    """ERL with an evolution strategy: the actor joins the population with a fitness of its own."""

    agent_name = "erl_es"
    config_class = ERLESConfig


@dataclass(frozen=True)
class ERLEDAConfig(ERLConfig):
    """The settings of ERL with OpenES."""

    evolution: str = "openes"


class ERLEDAWorkflow(ERLWorkflow):
    """ERL with OpenES: the actor pulls the mean of the search."""

    agent_name = "erl_eda"
    config_class = ERLEDAConfig
