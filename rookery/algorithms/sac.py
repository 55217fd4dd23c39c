"""Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications").

For discrete actions the expectations over the policy are sums (Christodoulou, 2019). Departures: the default target
entropy of a discrete policy is half of the maximum, because the published 0.98 of the maximum keeps the policy nearly
uniform.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import Agent, AgentState, action_mask_of
from rookery.agents.critics import critic_loss
from rookery.agents.policy import acts_like, policy_of
from rookery.agents.replay import LossInfo, ReplayAgent, ReplayBatch, Transitions
from rookery.distributed.collectives import mean_over_devices
from rookery.hyperparameters import HyperparameterValues, Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyConfig, OffPolicyHyperparameters, OffPolicyState, ReplayLearner
from rookery.metrics import Mean
from rookery.networks.critic import ActorCriticsConfig, ActorCriticsNetwork, SquashedGaussianConfig
from rookery.networks.distributions import Categorical, Distribution
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete, Space
from rookery.types import Array, Key, Params, PyTreeDict, pytree_field
from rookery.workflows.off_policy import OffPolicyWorkflow

DISCRETE_ENTROPY_SHARE = 0.5


@dataclass(frozen=True)
class SACGaussianConfig(SquashedGaussianConfig):
    """The settings of the policy in a `Box`: the standard deviation depends on the state."""

    state_dependent_std: bool = True
    min_log_std: float = -5.0


@dataclass(frozen=True)
class SACNetworkConfig(ActorCriticsConfig):
    """The settings of the policy network and the critic networks."""

    gaussian: SACGaussianConfig = SACGaussianConfig()


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """The settings of SAC."""

    network: SACNetworkConfig = SACNetworkConfig()


class SACHyperparameters(OffPolicyHyperparameters):
    """The hyper-parameters of SAC."""

    actor_learning_rate: Scalar = number(3e-4, low=0.0, help="step size of the optimizer of the policy")
    critic_learning_rate: Scalar = number(1e-3, low=0.0, help="step size of the optimizer of the critics")
    temperature_learning_rate: Scalar = number(
        3e-4, low=0.0, help="step size of the optimizer of a learned temperature"
    )
    temperature: Scalar | None = number(None, low=1e-9, help="weight of the entropy; null: learned, starting at 1")
    target_entropy: Scalar | None = number(
        None, help="for a learned temperature; null: minus the size of a Box, half the maximum of a Discrete"
    )
    target_update_rate: Scalar = number(
        0.005, low=0.0, high=1.0, help="soft update: fraction of the way that the target critics move after an update"
    )


class SACAgent(ReplayAgent):
    """A policy that maximizes reward and entropy, and critics that count entropy as reward."""

    config: ActorCriticsConfig = pytree_field(static=True, default_factory=SACNetworkConfig)

    def make_network(self, obs_space: Space, action_space: Space) -> ActorCriticsNetwork:
        return ActorCriticsNetwork(obs_space, action_space, self.config)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Sample actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, extras = self._act(agent_state, sample_batch)
        return distribution.action(distribution.sample(key)), extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the most likely actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, extras = self._act(agent_state, sample_batch)
        return distribution.action(distribution.mode()), extras

    def acting_part(self, agent_state: AgentState) -> tuple[Agent, AgentState]:
        return policy_of(self, agent_state) if acts_like(self, SACAgent) else (self, agent_state)

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Distribution, PyTreeDict]:
        policy = agent_state.extra_state.network.policy
        return self.apply(policy, agent_state.params.policy, agent_state, sample_batch)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        agent_state = super().init(obs_space, action_space, key)
        return agent_state.replace(params=agent_state.params.replace(log_temperature=jnp.zeros(())))

    def temperature(self, params: Params, hyperparameters: HyperparameterValues) -> Array:
        """Return the weight of the entropy."""
        return jnp.exp(params.log_temperature) if hyperparameters.temperature is None else hyperparameters.temperature

    def targets(
        self, agent_state: AgentState, target_params: Params, transitions: Transitions, temperature: Array, key: Key
    ) -> Array:
        """Return the targets `[T, N]` of the critics for the taken actions (eq. 2 and 3)."""
        params, network = agent_state.params, agent_state.extra_state.network
        _, next_features = self.features(network.policy.trunk, params.policy["trunk"], transitions)
        distribution = network.policy.distribution(params.policy, next_features, transitions.next_obs)

        def next_features_of(critic_params: Params) -> Array:
            return self.features(network.critic.trunk, critic_params["trunk"], transitions)[1]

        next_values, _ = soft_values(network, target_params.critics, next_features_of, distribution, temperature, key)
        return jax.lax.stop_gradient(transitions.with_discounted(next_values))

    def actor_loss(
        self, agent_state: AgentState, policy_params: Params, transitions: Transitions, temperature: Array, key: Key
    ) -> tuple[Array, LossInfo]:
        """Return minus the soft value of the policy (eq. 7)."""
        params, network = agent_state.params, agent_state.extra_state.network
        features, _ = self.features(network.policy.trunk, policy_params["trunk"], transitions)
        distribution = network.policy.distribution(policy_params, features, transitions.obs)

        def features_of(critic_params: Params) -> Array:
            return self.features(network.critic.trunk, critic_params["trunk"], transitions)[0]

        values, entropies = soft_values(network, params.critics, features_of, distribution, temperature, key)
        loss = -transitions.mean(values)
        return loss, LossInfo(metrics={"train/actor_loss": loss, "train/entropy": transitions.mean(entropies)})

    def target_entropy(
        self, agent_state: AgentState, transitions: Transitions, hyperparameters: HyperparameterValues
    ) -> Array | float:
        """Return the mean entropy over these transitions that a learned temperature aims at."""
        if hyperparameters.target_entropy is not None:
            return hyperparameters.target_entropy
        space, mask = agent_state.extra_state.network.action_space, action_mask_of(transitions.obs)
        if not isinstance(space, Discrete):
            return -float(space.size)
        if mask is None:
            return DISCRETE_ENTROPY_SHARE * math.log(space.n)
        num_allowed = jnp.sum(mask.astype(jnp.float32), axis=-1)
        num_allowed = jnp.where(num_allowed > 0.0, num_allowed, float(space.n))  # a mask that allows nothing allows all
        return transitions.mean(DISCRETE_ENTROPY_SHARE * jnp.log(num_allowed))


def soft_values(
    network: ActorCriticsNetwork,
    critics: Params,
    features_of: Callable[[Params], Array],
    distribution: Distribution,
    temperature: Array,
    key: Key,
) -> tuple[Array, Array]:
    """Return the soft values (with entropy) and the entropies of a policy, both `[T, N]`.

    The value of an action is the minimum over the critics. The expectation over a discrete policy is a sum, over a
    continuous policy one sample.
    """
    if isinstance(distribution, Categorical):
        every = jax.vmap(lambda params: network.critic.of_all_actions(params, features_of(params)))(critics)
        probs, entropies = jnp.exp(distribution.log_probs), distribution.entropy()
        return jnp.sum(probs * jnp.min(every, axis=0), axis=-1) + temperature * entropies, entropies
    raw_actions = distribution.sample(key)
    actions, entropies = distribution.action(raw_actions), -distribution.log_prob(raw_actions)
    values = jax.vmap(lambda params: network.critic(params, features_of(params), actions))(critics)
    return jnp.min(values, axis=0) + temperature * entropies, entropies


class SAC(ReplayLearner):
    """Updates critics, policy, temperature and target critics, in this order."""

    agent_class = SACAgent
    target_parts = ("critics",)
    agent: SACAgent
    config: SACConfig = pytree_field(static=True)

    def learn_batch(
        self, state: OffPolicyState, batch: ReplayBatch, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, Array, OffPolicyState]:
        agent, agent_state = self.agent, state.agent_state
        target_key, actor_key = jax.random.split(key)
        transitions = agent.transitions(agent_state, batch, hyperparameters.discount)
        temperature = agent.temperature(agent_state.params, hyperparameters)
        targets = agent.targets(agent_state, state.target_params, transitions, temperature, target_key)

        def loss_of_critics(critics: Params) -> tuple[Array, LossInfo]:
            return critic_loss(agent, agent_state, critics, transitions, targets)

        of_critics, state = self.gradient_step(
            state, "critics", loss_of_critics, hyperparameters.critic_learning_rate, hyperparameters.max_grad_norm
        )
        improved = state.agent_state

        def loss_of_actor(policy: Params) -> tuple[Array, LossInfo]:
            return agent.actor_loss(improved, policy, transitions, temperature, actor_key)

        of_actor, state = self.gradient_step(
            state, "policy", loss_of_actor, hyperparameters.actor_learning_rate, hyperparameters.max_grad_norm
        )
        if hyperparameters.temperature is None:
            target = mean_over_devices(jnp.asarray(agent.target_entropy(agent_state, transitions, hyperparameters)))
            surplus = of_actor.metrics["train/entropy"] - target
            _, state = self.gradient_step(
                state,
                "log_temperature",
                lambda log_temperature: (log_temperature * surplus, LossInfo()),  # eq. 18, of its logarithm
                hyperparameters.temperature_learning_rate,
            )
        state = self.update_targets(state, hyperparameters.target_update_rate)
        metrics = of_critics.metrics | of_actor.metrics | {"train/ent_coef": temperature}
        return {name: Mean.of(value) for name, value in metrics.items()}, of_critics.errors, state


class SACWorkflow(OffPolicyWorkflow):
    """Soft actor-critic: updates critics, policy, temperature and target critics, in this order."""

    agent_name = "sac"
    config_class = SACConfig
    hyperparameters_class = SACHyperparameters
    learner_class = SAC
    search_space: ClassVar = {
        "actor_learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "critic_learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "temperature_learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "discount": {"low": 0.9, "high": 0.999, "scale": "complement"},
    }
