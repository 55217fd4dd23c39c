"""Deep Q-networks (Mnih et al., 2015) with the improvements of Rainbow (Hessel et al., 2018) except noisy networks.

Each is an option and they combine: `double` (van Hasselt et al., 2016), `network.dueling` (Wang et al., 2016),
`prioritized` (Schaul et al., 2016), `n_step`, and `network.head` "categorical" (C51, Bellemare et al., 2017) or
"quantile" (QR-DQN, Dabney et al., 2018). Departures: the target network gets a soft update after every gradient step;
`target_update_interval` copies the trained network instead, as published.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, action_mask_of, sample_allowed
from rookery.agents.replay import LossInfo, ReplayAgent, ReplayBatch, Transitions
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.hyperparameters import HyperparameterValues, LinearSchedule, Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyConfig, OffPolicyHyperparameters, OffPolicyState, ReplayLearner
from rookery.learning.moments import check_same_shape
from rookery.learning.targets import categorical_projection, huber, quantile_huber_loss
from rookery.metrics import Mean
from rookery.networks.q_network import QNetwork, QNetworkConfig, outputs_of
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete, Space
from rookery.types import Array, Key, Params, PyTreeDict, pytree_field
from rookery.workflows.off_policy import OffPolicyWorkflow


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """The settings of DQN."""

    num_envs: int = 4
    updates_per_step: float = 0.5
    batch_size: int = 128
    buffer_capacity: int = 100_000
    double: bool = setting(True, help="the trained network chooses the next action, the target network evaluates it")
    target_update_interval: int | None = setting(
        None, low=1, help="gradient steps between two copies into the target network; null: soft updates"
    )
    network: QNetworkConfig = setting(QNetworkConfig())


class DQNHyperparameters(OffPolicyHyperparameters):
    """The hyper-parameters of DQN."""

    learning_rate: Scalar = number(5e-4, low=0.0, help="step size of the optimizer")
    epsilon: Scalar = number(
        LinearSchedule(start=1.0, end=0.05, steps=50_000.0), low=0.0, high=1.0, help="fraction of random actions"
    )
    target_update_rate: Scalar = number(
        0.005, low=0.0, high=1.0, help="soft update: fraction of the way that the target network moves after an update"
    )


class DQNAgent(ReplayAgent):
    """Acts epsilon-greedily on the values of a Q-network."""

    actor_entry = "q"
    config: QNetworkConfig = pytree_field(static=True, default_factory=QNetworkConfig)
    double: bool = pytree_field(static=True, default=True)

    def make_network(self, obs_space: Space, action_space: Space) -> QNetwork:
        if not isinstance(action_space, Discrete):
            raise InvalidInputError(
                f"dqn computes the value of every action and needs a Discrete action space, not {action_space}."
            )
        return QNetwork(obs_space, action_space, self.config)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        agent_state = super().init(obs_space, action_space, key)
        return agent_state.replace(
            params=PyTreeDict(q=agent_state.params), action_postprocessor_state=PyTreeDict(epsilon=jnp.ones(()))
        )

    def explore_with(self, agent_state: AgentState, hyperparameters: HyperparameterValues) -> AgentState:
        epsilon = jnp.asarray(hyperparameters.epsilon, jnp.float32)
        return agent_state.replace(action_postprocessor_state=PyTreeDict(epsilon=epsilon))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act at random with probability epsilon, else greedily; the extras hold the `carry` of a recurrent agent."""
        greedy, extras = self._best_actions(agent_state, sample_batch)
        choice_key, action_key = jax.random.split(key)
        space, mask = agent_state.extra_state.network.action_space, action_mask_of(sample_batch.obs)
        is_random = jax.random.uniform(choice_key, greedy.shape) < agent_state.action_postprocessor_state.epsilon
        random = space.sample(action_key, greedy.shape) if mask is None else sample_allowed(action_key, mask, space)
        return jnp.where(is_random, random, greedy), extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the best actions; the extras hold the `carry` if the agent is recurrent."""
        return self._best_actions(agent_state, sample_batch)

    def _best_actions(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Array, PyTreeDict]:
        network: QNetwork = agent_state.extra_state.network
        values, extras = self.apply(network, agent_state.params.q, agent_state, sample_batch)
        return network.action(network.best(values, sample_batch.obs)), extras

    def targets(self, agent_state: AgentState, target_params: Params, transitions: Transitions) -> Array:
        """Return the targets `[T, N, K]` of the outputs for the taken actions; a categorical head has probabilities.

        The target network evaluates the next action; with `double` the trained network chooses it.
        """
        network: QNetwork = agent_state.extra_state.network

        def next_outputs(q: Params) -> Array:
            return network.head(q, self.features(network.trunk, q["trunk"], transitions)[1])

        outputs = next_outputs(target_params.q)  # [T, N, n, K]
        choosing = next_outputs(agent_state.params.q) if self.double else outputs
        outputs = outputs_of(outputs, network.best(network.values(choosing), transitions.next_obs))  # [T, N, K]
        with_discounted = jax.vmap(transitions.with_discounted, in_axes=-1, out_axes=-1)
        if self.config.head != "categorical":
            return with_discounted(outputs)
        returns = with_discounted(jnp.broadcast_to(network.atoms, outputs.shape))
        # After a termination all returns are equal, so any finite distribution gives the same projection.
        probabilities = jax.nn.softmax(jnp.where(transitions.discounts[..., None] > 0.0, outputs, 0.0))
        flat = (-1, self.config.num_atoms)
        projected = categorical_projection(
            probabilities.reshape(flat), returns.reshape(flat), jnp.asarray(network.atoms)
        )
        return projected.reshape(outputs.shape)

    def loss(
        self, agent_state: AgentState, q: Params, transitions: Transitions, targets: Array
    ) -> tuple[Array, LossInfo]:
        """Return the loss of the outputs for the taken actions."""
        network: QNetwork = agent_state.extra_state.network
        features, _ = self.features(network.trunk, q["trunk"], transitions)
        outputs = outputs_of(network.head(q, features), network.index(transitions.actions))
        losses, errors = self._losses(outputs, targets)
        loss = transitions.corrected_mean(losses)
        metrics = {"train/loss": loss, "train/value": transitions.mean(network.values(outputs))}
        return loss, LossInfo(metrics=metrics, errors=transitions.errors_that_count(errors))

    def _losses(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Return the losses of the rows `[T, N]`, and their errors, which set the priorities in replay."""
        check_same_shape(outputs=outputs, targets=targets)
        if self.config.head == "expected":
            errors = (targets - outputs)[..., 0]
            return huber(errors), jnp.abs(errors)
        if self.config.head == "quantile":
            flat = (-1, self.config.num_atoms)
            losses = quantile_huber_loss(outputs.reshape(flat), targets.reshape(flat)).reshape(outputs.shape[:-1])
        else:
            # The KL divergence, which is the priority in Rainbow. C51's cross entropy has the same gradient.
            losses = jnp.sum(jax.scipy.special.xlogy(targets, targets) - targets * jax.nn.log_softmax(outputs), axis=-1)
        return losses, losses


class DQN(ReplayLearner):
    """A step towards the targets, then an update of the target network."""

    agent_class = DQNAgent
    target_parts = ("q",)
    agent: DQNAgent
    config: DQNConfig = pytree_field(static=True)

    @classmethod
    def make_agent(cls, config: DQNConfig) -> ReplayAgent:  # type: ignore[override]
        return super().make_agent(config).replace(double=config.double)

    def learn_batch(
        self, state: OffPolicyState, batch: ReplayBatch, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, Array, OffPolicyState]:
        agent, agent_state = self.agent, state.agent_state
        transitions = agent.transitions(agent_state, batch, hyperparameters.discount)
        targets = agent.targets(agent_state, state.target_params, transitions)

        def loss(q: Params) -> tuple[Array, LossInfo]:
            return agent.loss(agent_state, q, transitions, targets)

        info, state = self.gradient_step(state, "q", loss, hyperparameters.learning_rate, hyperparameters.max_grad_norm)
        state = self.update_targets(state, self._target_update_rate(state, hyperparameters))
        metrics = info.metrics | {
            "train/learning_rate": hyperparameters.learning_rate,
            "rollout/exploration_rate": hyperparameters.epsilon,
        }
        return {name: Mean.of(value) for name, value in metrics.items()}, info.errors, state

    def _target_update_rate(self, state: OffPolicyState, hyperparameters: HyperparameterValues) -> Array:
        """Return the rate of the target update: `target_update_rate`, or with an interval 1 if due and else 0."""
        interval = self.config.target_update_interval
        if interval is None:
            return hyperparameters.target_update_rate
        # The lower half of the counter is enough: it wraps every 2^32 updates and shortens one interval.
        is_due = state.num_updates.add(1).low % interval == 0
        return is_due.astype(jnp.float32)


class DQNWorkflow(OffPolicyWorkflow):
    """Deep Q-learning: a step towards the targets, then an update of the target network."""

    agent_name = "dqn"
    config_class = DQNConfig
    hyperparameters_class = DQNHyperparameters
    learner_class = DQN
