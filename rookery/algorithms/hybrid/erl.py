"""Evolutionary reinforcement learning: a population that explores for a learner (Khadka & Tumer, 2018).

The learner's actor enters the population of a genetic algorithm. Departures from the paper: the learner is TD3 instead
of DDPG; the actor takes the place of a child, because children have no fitness yet of which one could be the weakest;
the period of synchronization counts generations; no child is a cross of an elite and a winner. Mutation departs as
`row_wise` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.algorithms.hybrid.workflow import HybridConfig, HybridWorkflow
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState
from rookery.metrics import Mean
from rookery.types import where_tree
from rookery.workflows.exchange import Exchange, Generation


@dataclass(frozen=True)
class ERLConfig(HybridConfig):
    """The settings of ERL."""

    sync_interval: int = setting(1, low=1, help="generations between two injections of the learner's actor")


class Migration(Exchange):
    """Puts the learner's actor into the next population of a strategy that keeps one, in place of its last child."""

    def migrate(self, evo_state: Any, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, Any]:
        is_due = (evo_state.generation % self.config.sync_interval == 0) & (learner.num_updates.as_float() > 0.0)
        actor = jax.tree.map(lambda leaf: leaf[None], self.actor_of(learner))
        last = jnp.full(1, self.optimizer.population_size - 1, jnp.int32)
        injected = self.optimizer.inject(evo_state, actor, last)
        return {"hybrid/injections": Mean.of(is_due.astype(jnp.float32))}, where_tree(is_due, injected, evo_state)


class ERLWorkflow(HybridWorkflow):
    """Evolutionary reinforcement learning: the actor of a learner enters the population of a genetic algorithm."""

    agent_name = "erl"
    config_class = ERLConfig
    exchange_class = Migration
    strategy_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ga": {"num_elites": 2, "crossover_probability": 0.0}
    }

    def make_exchange(self, optimizer: Any, learner: Any) -> Exchange:
        if not optimizer.has_population:
            raise InvalidInputError(
                f"agent.evolution={self.config.evolution} samples its population: ERL injects into one that is kept."
            )
        return super().make_exchange(optimizer, learner)
