"""What DDPG and TD3 have in common: a policy without randomness that climbs the gradient of its critic."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.agents.actor_critics import ActorCriticsAgent
from rookery.agents.replay import LossInfo, Replayed, Transitions
from rookery.control_flow import cond_any
from rookery.errors import InvalidInputError, check_count
from rookery.hyperparameters import Scalar
from rookery.metrics import Mean
from rookery.networks.critic import ActorCriticsConfig, ActorCriticsNetwork
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Space
from rookery.types import Array, Key, Params, PyTreeDict, where_tree
from rookery.workflows.off_policy import OffPolicyConfig, OffPolicyHyperparameters, OffPolicyLearner, OffPolicyWorkflow


@dataclass(frozen=True)
class DeterministicConfig(OffPolicyConfig):
    """The shapes of both methods; policy and slow copies follow after every `policy_delay` updates of the critics."""

    policy_delay: int = 1
    network: ActorCriticsConfig = field(default_factory=ActorCriticsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("policy_delay", self.policy_delay)
        if self.network.gaussian.bounds != "squash":
            raise InvalidInputError(f"network.gaussian.bounds={self.network.gaussian.bounds!r} must be 'squash' here.")


class DeterministicHyperparameters(OffPolicyHyperparameters):
    """The numbers of both methods; noise is given as a share of half the range of the actions."""

    RANGES: ClassVar = OffPolicyHyperparameters.RANGES | {
        "actor_learning_rate": (0.0, float("inf")),
        "critic_learning_rate": (0.0, float("inf")),
        "target_update_rate": (0.0, 1.0),
        "exploration_noise": (0.0, float("inf")),
    }

    actor_learning_rate: Scalar = 1e-3
    critic_learning_rate: Scalar = 1e-3
    target_update_rate: Scalar = 0.005
    exploration_noise: Scalar = 0.1


class DeterministicAgent(ActorCriticsAgent):
    """Acts by the middle of its policy, and adds normal noise to explore."""

    @abstractmethod
    def target_actions(self, actions: Array, space: Box, hyperparameters: Any, key: Key) -> Array:
        """Turn the actions of the slow policy into those that targets are computed with."""

    def make_network(self, obs_space: Space, action_space: Space) -> ActorCriticsNetwork:
        if not isinstance(action_space, Box) or not action_space.bounded:
            raise InvalidInputError(f"{type(self).__name__} needs actions in a Box with finite bounds: {action_space}.")
        return super().make_network(obs_space, action_space)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        agent_state = super().init(obs_space, action_space, key)
        return agent_state.replace(action_postprocessor_state=PyTreeDict(noise=jnp.zeros(())))

    def explore_with(self, agent_state: AgentState, hyperparameters: Any) -> AgentState:
        return agent_state.replace(action_postprocessor_state=PyTreeDict(noise=hyperparameters.exploration_noise))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act with noise; the extras hold the `carry` if the agent is recurrent."""
        actions, memory = self.evaluate_actions(agent_state, sample_batch, key)
        noise = agent_state.action_postprocessor_state.noise * jax.random.normal(key, actions.shape)
        return moved(actions, noise, agent_state.extra_state.network.action_space), memory

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act without noise; the extras hold the `carry` if the agent is recurrent."""
        policy = agent_state.extra_state.network.policy
        distribution, carry = policy(agent_state.params.policy, *self.network_inputs(agent_state, sample_batch))
        return distribution.action(distribution.mode()), self.memory_extras(carry)

    def targets(
        self, agent_state: AgentState, target_params: Params, transitions: Transitions, hyperparameters: Any, key: Key
    ) -> Array:
        """Return what the critics should say of the actions that were taken, `[T, N]`: of several the lowest counts."""
        network: ActorCriticsNetwork = agent_state.extra_state.network
        _, next_features = self.features(network.policy.trunk, target_params.policy["trunk"], transitions)
        distribution = network.policy.distribution(target_params.policy, next_features, transitions.next_obs)
        actions = self.target_actions(
            distribution.action(distribution.mode()), network.action_space, hyperparameters, key
        )

        def value_of(params: Params) -> Array:
            _, next_features = self.features(network.critic.trunk, params["trunk"], transitions)
            return network.critic(params, next_features, actions)

        next_values = jnp.min(jax.vmap(value_of)(target_params.critics), axis=0)
        return jax.lax.stop_gradient(transitions.with_discounted(next_values))

    def actor_loss(
        self, agent_state: AgentState, policy_params: Params, transitions: Transitions
    ) -> tuple[Array, LossInfo]:
        """Return minus the value of the policy's actions, as the first critic sees it."""
        network: ActorCriticsNetwork = agent_state.extra_state.network
        features, _ = self.features(network.policy.trunk, policy_params["trunk"], transitions)
        distribution = network.policy.distribution(policy_params, features, transitions.obs)
        actions = distribution.action(distribution.mode())
        first = jax.tree.map(lambda leaf: leaf[0], agent_state.params.critics)
        seen, _ = self.features(network.critic.trunk, first["trunk"], transitions)
        loss = -transitions.mean(network.critic(first, seen, actions))
        return loss, LossInfo(metrics={"train/actor_loss": loss})


class DeterministicWorkflow(OffPolicyWorkflow):
    """Improves the critics, and after every `policy_delay` of these steps the policy and the slow copies of both."""

    agent: DeterministicAgent
    target_parts = ("policy", "critics")

    def update(
        self, learner: OffPolicyLearner, replayed: Replayed, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Array, OffPolicyLearner]:
        agent, agent_state = self.agent, learner.agent_state
        transitions = agent.transitions(agent_state, replayed, hyperparameters.discount)
        targets = agent.targets(agent_state, learner.target_params, transitions, hyperparameters, key)

        def critic_loss(critics: Params) -> tuple[Array, LossInfo]:
            return agent.critic_loss(agent_state, critics, transitions, targets)

        of_critics, learner = self.gradient_step(
            learner, "critics", critic_loss, hyperparameters.critic_learning_rate, hyperparameters.max_grad_norm
        )
        is_due = (learner.num_updates.low + 1) % self.config.policy_delay == 0

        def improve_policy(learner: OffPolicyLearner, _: Array) -> tuple[OffPolicyLearner, Array]:
            def actor_loss(policy: Params) -> tuple[Array, LossInfo]:
                return agent.actor_loss(learner.agent_state, policy, transitions)

            of_actor, improved = self.gradient_step(
                learner, "policy", actor_loss, hyperparameters.actor_learning_rate, hyperparameters.max_grad_norm
            )
            improved = self.follow(improved, hyperparameters.target_update_rate)
            return where_tree(is_due, improved, learner), of_actor.metrics["train/actor_loss"]

        learner, actor_loss = cond_any(is_due, improve_policy, learner, jnp.zeros(()))
        metrics = {name: Mean.of(value) for name, value in of_critics.metrics.items()} | {
            "train/actor_loss": Mean.of(actor_loss, is_due)
        }
        return metrics, of_critics.errors, learner


def moved(actions: Array, shares: Array, space: Box) -> Array:
    """Move actions by shares of half their range, and back to the bounds where that goes beyond them."""
    low, high = (jnp.broadcast_to(bound, actions.shape) for bound in (space.low, space.high))
    half_range = jnp.broadcast_to(np.asarray(space.high / 2 - space.low / 2, space.dtype), actions.shape)
    return jnp.clip(actions + shares.astype(actions.dtype) * half_range, low, high)
