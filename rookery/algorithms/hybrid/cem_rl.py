"""CEM-RL: half of a Gaussian population climbs a critic before it is judged (Pourchot & Sigaud, 2019).

The cross-entropy method then fits its distribution to the best, whether they climbed or not. There is no action noise:
the spread of the population explores. Departures from the paper: the actors climb side by side, see `joint_updates`;
learning rates are smaller, for small networks; the improved individuals are at fixed places of the population, which
is a random half, because samples are independent.

With `agent.evolution=openes`, improved individuals would lie far outside the noise and dominate the estimated gradient.
There they count as at most 3 times as far from the mean as noise is (`max_deviation`), which is ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from rookery.algorithms.hybrid.joint_updates import climb
from rookery.algorithms.hybrid.workflow import HybridConfig, HybridWorkflow
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.evolution.fitness import without_invalid
from rookery.learners.actor_critic import ActorCriticLearner
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState, ReplayLearner
from rookery.metrics import Mean
from rookery.types import Array, index_tree
from rookery.workflows.evolution.exchange import Exchange, Generation


@dataclass(frozen=True)
class CEMRLConfig(HybridConfig):
    """The settings of CEM-RL."""

    evolution: str = "sepcem"
    learner_episodes: int = 0
    warmup_steps: int = 10_000
    num_improved: int | None = setting(
        None, low=1, help="individuals that climb the critic, over all devices; null: half of the population"
    )

    def improved(self, group_size: int) -> np.ndarray:
        """Return the places of the individuals that climb: evenly spread, and whole pairs of a mirrored strategy."""
        num_groups = self.population_size // group_size
        num_improved = self.population_size // 2 if self.num_improved is None else self.num_improved
        count = max(1, num_improved // group_size)
        first = np.arange(count) * num_groups // count * group_size
        return (first[:, None] + np.arange(group_size)).ravel().astype(np.int32)


class Improvement(Exchange):
    """Improves some individuals before they play; the policy of the learner is the fittest of them."""

    learner: ActorCriticLearner

    def improve(
        self, evo_state: Any, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, OffPolicyState]:
        size, places = self.optimizer.share_size, jnp.asarray(self.places)
        own = self.optimizer.share(places)
        actors = index_tree(evo_state.asked, own % size)
        metrics, actors, learner = climb(self.learner, learner, actors, generation.num_updates, generation.key)
        is_improved = (generation.num_updates > 0).astype(jnp.float32)
        metrics |= {"hybrid/injections": Mean.of(is_improved * places.size)}
        return metrics, self.optimizer.inject(evo_state, actors, own), learner

    def join(
        self, evo_state: Any, returns: Array, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, Array, OffPolicyState]:
        places = jnp.asarray(self.places)
        fitness, _ = without_invalid(generation.fitness)
        winner = places[jnp.argmax(fitness[places])]
        best_half = jnp.argsort(-fitness)[: (fitness.size + 1) // 2]
        share = jnp.mean(jnp.isin(best_half, places).astype(jnp.float32))
        metrics = {
            "hybrid/rl_fitness": Mean.of(fitness[winner]),
            "hybrid/elites_from_gradient": Mean.of(share, learner.num_updates.as_float() > 0.0),
        }
        return metrics, evo_state, returns, self.with_actor(learner, self.optimizer.individual(evo_state.asked, winner))

    def learn(self, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, OffPolicyState]:
        """Do nothing: the critics learn while individuals climb them."""
        return {}, learner

    @property
    def places(self) -> np.ndarray:
        return self.config.improved(self.optimizer.group_size)


class CEMRLWorkflow(HybridWorkflow):
    """CEM-RL: half of the population climbs a critic, then the cross-entropy method fits the best."""

    agent_name = "cem_rl"
    config_class = CEMRLConfig
    exchange_class = Improvement
    strategy_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sepcem": {
            "initial_std": math.sqrt(1e-3),
            "elite_fraction": 0.5,
            "spread_factor": 0.2,
            "extra_noise": 1e-3,
            "extra_noise_end": 1e-5,
            "extra_noise_decay": 0.95,
        },
        "openes": {"mirrored": False, "max_deviation": 3.0},
    }
    learner_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"batch_size": 100, "actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
        for name in ("td3", "ddpg", "sac")
    }

    def check_parts(self, optimizer: EvoOptimizer, learner: ReplayLearner) -> None:
        if not isinstance(learner, ActorCriticLearner):
            raise InvalidInputError(
                f"agent.gradient={self.config.gradient} has no actor that could climb a critic: use td3, ddpg or sac."
            )
        if learner.config.prioritized:
            raise InvalidInputError("agent.learner.prioritized=true: the actors of cem_rl draw uniformly, set false.")
        if not optimizer.has_best:
            raise InvalidInputError(
                f"agent.evolution={self.config.evolution} has several objectives, so no individual is the fittest: use "
                "a strategy with one, such as sepcem."
            )
        config, num_devices = self.config, self.layout.num_shares
        num_improved, whole = config.improved(optimizer.group_size).size, num_devices * optimizer.group_size
        given = num_improved if config.num_improved is None else config.num_improved
        if given > config.population_size or given != num_improved or given % whole:
            raise InvalidInputError(
                f"agent.num_improved={given} must be a multiple of {whole}, for {num_devices} devices and "
                f"groups of {optimizer.group_size}, and at most agent.population_size={config.population_size}."
            )
