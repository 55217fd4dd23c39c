"""Policy gradient assisted MAP-Elites: elites that vary, and elites that climb a critic (Nilsson & Cully, 2021).

Departures from the paper: elites that climb share their batches. The first random individuals are samples around the
initial network. The archive takes a whole generation at once.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.algorithms.evolution.map_elites import MAPElites
from rookery.algorithms.hybrid.parts import Part
from rookery.algorithms.hybrid.workflow import HybridConfig, HybridWorkflow
from rookery.configuration import setting
from rookery.distributed import DEVICE_AXIS
from rookery.distributed.collectives import key_of_this_device, num_devices
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.evolution.emitters import Elites, Emitter, IsoLine
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number
from rookery.learners.actor_critic import ActorCriticLearner
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState, ReplayLearner
from rookery.metrics import Mean
from rookery.types import Array, Key, Params, PyTree, index_tree, where_tree
from rookery.workflows.evolution.exchange import Exchange, Generation

ARCHIVE = {"archive": "cvt", "cells": [1024], "iso_std": 0.005, "line_std": 0.05}
LEARNER = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "batch_size": 256}


@dataclass(frozen=True)
class PGAMEConfig(HybridConfig):
    """The settings of PGA-MAP-Elites."""

    evolution: str = setting("map_elites", help="the strategy: map_elites, or your own MAPElites as module:Class")
    gradient: str = setting("td3", help="the learner: td3, ddpg or sac")
    population_size: int = setting(
        100, low=3, help="children per generation, over all devices; one is the learner's actor"
    )
    learner_episodes: int = setting(
        0, low=0, help="episodes of the learner's actor per generation, with exploration; a multiple of num_episodes"
    )
    variation_share: float = setting(
        0.5, low=0.0, high=1.0, help="share of the children that vary two elites; the others climb the critic"
    )
    num_random: int = setting(500, low=0, help="individuals around the initial network before the first children")
    num_critic_steps: int = setting(300, low=1, help="gradient steps of the learner per generation")
    num_climbing_steps: int = setting(100, low=1, help="gradient steps of each elite that climbs the critic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.num_varied < self.population_size - 1:
            raise InvalidInputError(
                f"variation_share={self.variation_share:g} of population_size={self.population_size} leaves no "
                "children that vary, or none that climb: choose a share nearer to 0.5."
            )

    @property
    def num_varied(self) -> int:
        """The number of children that vary elites."""
        return round(self.variation_share * self.population_size)

    @property
    def num_climbing(self) -> int:
        """The number of children that climb the critic; one place is that of the actor."""
        return self.population_size - self.num_varied - 1


class PGAMEHyperparameters(Hyperparameters):
    """The hyper-parameters of PGA-MAP-Elites, besides those of its strategy and its learner."""

    climbing_rate: Scalar = number(1e-3, low=0.0, help="step size of the optimizer of elites that climb the critic")


class Climbing(Emitter):
    """Draws elites, which the exchange lets climb the critic before they play."""

    metric = "qd/added_by_gradient"

    def emit(self, elites: Elites, state: PyTree, hyperparameters: Any, key: Key, num_children: int) -> Params:
        return elites.sample(key, num_children)


class Actor(Climbing):
    """Keeps a place, which the exchange gives to the learner's actor."""

    metric = "qd/added_actor"


class Climb(Exchange):
    """Lets elites climb the learner's critic, and puts its actor into the last place."""

    optimizer: MAPElites
    learner: ActorCriticLearner

    def num_updates(self, hyperparameters: HyperparameterValues, num_steps: Array) -> Array:
        return jnp.int32(self.config.num_critic_steps)

    def improve(
        self, evo_state: Any, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, OffPolicyState]:
        is_random, last = self.optimizer.is_random(evo_state.generation), self.optimizer.population_size - 1
        can_climb = ~is_random & self.learner.is_ready(learner)
        places = self.own_places()
        elites = index_tree(evo_state.population, jnp.minimum(places, last))
        climbed = jax.lax.cond(can_climb, lambda: self.climb(elites, learner, generation), lambda: elites)
        evo_state = self.optimizer.inject(evo_state, climbed, places)
        actor = where_tree(is_random, index_tree(evo_state.population, last), self.actor_of(learner))
        actor = jax.tree.map(lambda leaf: leaf[None], actor)
        return {}, self.optimizer.inject(evo_state, actor, jnp.full(1, last, jnp.int32)), learner

    def own_places(self) -> Array:
        """Return the places of the elites that climb on this device; those past the population do not exist."""
        config = self.config
        size = -(-config.num_climbing // num_devices())
        numbers = jax.lax.axis_index(DEVICE_AXIS) * size + jnp.arange(size, dtype=jnp.int32)
        return jnp.where(numbers < config.num_climbing, config.num_varied + numbers, config.population_size)

    def climb(self, policies: Params, state: OffPolicyState, generation: Generation) -> Params:
        """Take gradient steps with each policy `[K, ...]` up the first critic; a step has one batch for all."""
        learner, climbing_rate = self.learner, generation.hyperparameters.climbing_rate
        hyperparameters: Any = generation.hyperparameters.learner

        def step(trained: tuple[Params, PyTree], key: Key) -> tuple[tuple[Params, PyTree], None]:
            sample_key, loss_key = jax.random.split(key)
            batch, _ = learner.sample_batch(state.buffer_state, hyperparameters, sample_key, learner.config.batch_size)
            transitions = learner.agent.transitions(state.agent_state, batch, hyperparameters.discount)
            loss_fn = learner.loss_of_actor(state, transitions, hyperparameters, loss_key)

            def step_one(policy: Params, optimizer_state: PyTree) -> tuple[Params, PyTree]:
                gradients, _ = jax.grad(loss_fn, has_aux=True)(policy)
                return learner.optimizer.step(gradients, optimizer_state, policy, climbing_rate)[:2]

            return jax.vmap(step_one)(*trained), None

        keys = jax.random.split(key_of_this_device(generation.key), self.config.num_climbing_steps)
        first = policies, jax.vmap(learner.optimizer.init)(policies)
        return jax.lax.scan(step, first, keys)[0][0]

    def join(
        self, evo_state: Any, returns: Array, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, Array, OffPolicyState]:
        fitness = generation.fitness[-1]
        is_actor = jnp.isfinite(fitness) & ~self.optimizer.is_random(evo_state.generation)
        return {"qd/actor_fitness": Mean.where(is_actor, fitness)}, evo_state, returns, learner


class PGAMEWorkflow(HybridWorkflow):
    """PGA-MAP-Elites: a MAP-Elites half of whose children climb the critic of a learner."""

    agent_name = "pga_me"
    config_class = PGAMEConfig
    hyperparameters_class = PGAMEHyperparameters
    exchange_class = Climb
    strategy_options: ClassVar = {"map_elites": ARCHIVE}
    learner_options: ClassVar = {"td3": LEARNER, "ddpg": LEARNER}

    def make_optimizer(self, strategy: Part) -> MAPElites:
        config: PGAMEConfig = self.config
        optimizer = super().make_optimizer(strategy)
        if not isinstance(optimizer, MAPElites):
            raise InvalidInputError(f"agent.evolution={config.evolution} has no archive: use map_elites.")
        emitters = (IsoLine(), config.num_varied), (Climbing(), config.num_climbing), (Actor(), 1)
        return optimizer.replace(emitters=emitters, num_random=config.num_random)

    def check_parts(self, optimizer: EvoOptimizer, learner: ReplayLearner) -> None:
        if not isinstance(learner, ActorCriticLearner):
            raise InvalidInputError(
                f"agent.gradient={self.config.gradient} has no actor that climbs a critic: use td3, ddpg or sac."
            )
