"""How the evolution and the gradient of a hybrid exchange individuals."""

from typing import Any, Self

import jax.numpy as jnp

from rookery.evolution import EvoOptimizer
from rookery.hyperparameters import HyperparameterValues, values_at
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState, ReplayLearner
from rookery.types import Array, Key, Params, PyTreeData, PyTreeNode, pytree_field


class Generation(PyTreeData):
    """What an exchange may need to know of the generation that is under way.

    `num_updates` is the result of `Exchange.num_updates`: in `improve` for the steps of the last generation, later for
    those of this one. It is 0 during the warm-up.
    """

    key: Key
    hyperparameters: HyperparameterValues
    num_updates: Array
    actor: Any = None
    """The parameters of the learner's actor that played."""
    fitness: Any = None
    """The fitness of the whole population, `[P]`; known after the episodes."""
    actor_fitness: Any = None
    """The mean return of the learner's actor: of its greedy episodes if it played any, else of its exploring ones."""


class Exchange(PyTreeNode):
    """How evolution and gradient help each other; the steps of a generation are called in the order of the methods.

    `learner` is the method, `OffPolicyState` its state. `actor_of` returns the part of it that evolution searches. All
    methods run on one device's share. By default the learner learns from the episodes of all, and gives nothing back.
    """

    optimizer: EvoOptimizer
    learner: ReplayLearner
    config: Any = pytree_field(static=True)

    @classmethod
    def num_greedy_episodes(cls, config: Any) -> int:
        """Return how many greedy episodes the learner's actor plays in a generation."""
        return 0

    def num_updates(self, hyperparameters: HyperparameterValues, num_steps: Array) -> Array:
        """Return the number of gradient steps for the env steps of a generation, after the warm-up."""
        return jnp.round(hyperparameters.update_ratio * num_steps.astype(jnp.float32)).astype(jnp.int32)

    def improve(
        self, evo_state: Any, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, OffPolicyState]:
        """Change individuals before they play: `evo_state.asked` is this device's share."""
        return {}, evo_state, learner

    def join(
        self, evo_state: Any, returns: Array, learner: OffPolicyState, generation: Generation
    ) -> tuple[Metrics, Any, Array, OffPolicyState]:
        """Change individuals together with their returns `[P, E]`, before the strategy is told."""
        return {}, evo_state, returns, learner

    def learn(self, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, OffPolicyState]:
        """Learn from the episodes of all generations."""
        hyperparameters = values_at(learner.hyperparameters, learner.env_steps.as_float())
        return self.learner.update_times(learner, hyperparameters, generation.key, generation.num_updates)

    def migrate(self, evo_state: Any, learner: OffPolicyState, generation: Generation) -> tuple[Metrics, Any]:
        """Change the search after the strategy was told."""
        return {}, evo_state

    # Helpers.

    def with_max_rows(self, max_rows: int) -> Self:
        """Return the exchange with a limit of the rows that a run stores: the replay buffer need not be larger."""
        return self.replace(learner=self.learner.replace(max_rows=max_rows))

    def actor_of(self, learner: OffPolicyState) -> Params:
        """Return the parameters of the learner that act."""
        return learner.agent_state.params[self.learner.agent.actor_entry]

    def with_actor(self, learner: OffPolicyState, actor: Params) -> OffPolicyState:
        """Return the learner with another actor."""
        params = learner.agent_state.params.replace(**{self.learner.agent.actor_entry: actor})
        return learner.replace(agent_state=learner.agent_state.replace(params=params))


def mean_return(returns: Array) -> Array:
    """Return the mean of finite returns; NaN without any."""
    return jnp.mean(returns, where=jnp.isfinite(returns))
