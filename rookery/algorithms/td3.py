"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, "Addressing function approximation error").

TD3 adds three things to DDPG: targets take the minimum of two critics (eq. 10), the policy is updated less often than
the critics (`policy_delay`), and noise on the actions of the target policy smooths the targets (eq. 14). DDPG is the
special case of one critic, no delay and no noise.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.agents.critics import critic_loss
from rookery.agents.policy import acts_like
from rookery.agents.replay import LossInfo, ReplayAgent, ReplayBatch, Transitions
from rookery.configuration import setting
from rookery.control_flow import cond_any
from rookery.errors import InvalidInputError
from rookery.hyperparameters import HyperparameterValues, Scalar, number
from rookery.learners.actor_critic import ActorCriticLearner
from rookery.learners.learner import Metrics
from rookery.learners.replay import LossFn, OffPolicyConfig, OffPolicyHyperparameters, OffPolicyState
from rookery.metrics import Mean
from rookery.networks.critic import ActorCriticsConfig, ActorCriticsNetwork
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Space
from rookery.types import Array, Key, Params, PyTreeDict, index_tree, pytree_field, where_tree
from rookery.workflows.off_policy import OffPolicyWorkflow


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """The settings of TD3."""

    smooth_targets: ClassVar[bool] = True
    policy_delay: int = setting(
        2, low=1, help="updates of the critics per update of the policy and the target networks"
    )
    network: ActorCriticsConfig = setting(ActorCriticsConfig())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network.gaussian.bounds != "squash":
            raise InvalidInputError(f"network.gaussian.bounds={self.network.gaussian.bounds!r} must be 'squash' here.")


class DeterministicHyperparameters(OffPolicyHyperparameters):
    """The hyper-parameters that DDPG and TD3 share."""

    actor_learning_rate: Scalar = number(1e-3, low=0.0, help="step size of the optimizer of the policy")
    critic_learning_rate: Scalar = number(1e-3, low=0.0, help="step size of the optimizer of the critics")
    target_update_rate: Scalar = number(
        0.005, low=0.0, high=1.0, help="soft update: fraction of the way that the target networks move with the policy"
    )
    exploration_noise: Scalar = number(
        0.1, low=0.0, help="standard deviation of action noise, as a fraction of half the range of actions"
    )


class TD3Hyperparameters(DeterministicHyperparameters):
    """The hyper-parameters of TD3."""

    target_noise: Scalar = number(0.2, low=0.0, help="the same for the actions in targets")
    max_target_noise: Scalar = number(0.5, low=0.0, help="upper limit of the noise in targets")


class TD3Agent(ReplayAgent):
    """Acts by the mode of its policy, and adds Gaussian noise to explore."""

    config: ActorCriticsConfig = pytree_field(static=True, default_factory=ActorCriticsConfig)
    smooth_targets: bool = pytree_field(static=True, default=True)

    def make_network(self, obs_space: Space, action_space: Space) -> ActorCriticsNetwork:
        if not isinstance(action_space, Box) or not action_space.bounded:
            advice = "" if isinstance(action_space, Box) else " Use dqn or sac; in a hybrid, agent.gradient=dqn."
            raise InvalidInputError(f"DDPG and TD3 need actions in a Box with finite bounds: {action_space}.{advice}")
        return ActorCriticsNetwork(obs_space, action_space, self.config)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        agent_state = super().init(obs_space, action_space, key)
        return agent_state.replace(action_postprocessor_state=PyTreeDict(noise=jnp.zeros(())))

    def explore_with(self, agent_state: AgentState, hyperparameters: HyperparameterValues) -> AgentState:
        return agent_state.replace(action_postprocessor_state=PyTreeDict(noise=hyperparameters.exploration_noise))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act with noise; the extras hold the `carry` if the agent is recurrent."""
        actions, extras = self.evaluate_actions(agent_state, sample_batch, key)
        noise = agent_state.action_postprocessor_state.noise * jax.random.normal(key, actions.shape)
        return with_noise(actions, noise, agent_state.extra_state.network.action_space), extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act without noise; the extras hold the `carry` if the agent is recurrent."""
        policy = agent_state.extra_state.network.policy
        distribution, extras = self.apply(policy, agent_state.params.policy, agent_state, sample_batch)
        return distribution.action(distribution.mode()), extras

    def acting_part(self, agent_state: AgentState) -> tuple["TD3Agent", AgentState]:
        if not acts_like(self, TD3Agent):
            return self, agent_state
        return self, agent_state.replace(params=PyTreeDict(policy=agent_state.params["policy"]))

    def targets(
        self,
        agent_state: AgentState,
        target_params: Params,
        transitions: Transitions,
        hyperparameters: HyperparameterValues,
        key: Key,
    ) -> Array:
        """Return the targets `[T, N]` of the critics, from the minimum over the target critics."""
        network: ActorCriticsNetwork = agent_state.extra_state.network
        _, next_features = self.features(network.policy.trunk, target_params.policy["trunk"], transitions)
        distribution = network.policy.distribution(target_params.policy, next_features, transitions.next_obs)
        actions = distribution.action(distribution.mode())
        if self.smooth_targets:
            limit = hyperparameters.max_target_noise
            noise = jnp.clip(hyperparameters.target_noise * jax.random.normal(key, actions.shape), -limit, limit)
            actions = with_noise(actions, noise, network.action_space)

        def value_of(params: Params) -> Array:
            _, next_features = self.features(network.critic.trunk, params["trunk"], transitions)
            return network.critic(params, next_features, actions)

        next_values = jnp.min(jax.vmap(value_of)(target_params.critics), axis=0)
        return jax.lax.stop_gradient(transitions.with_discounted(next_values))

    def actor_loss(
        self, agent_state: AgentState, policy_params: Params, transitions: Transitions
    ) -> tuple[Array, LossInfo]:
        """Return minus the value of the policy's actions, by the first critic."""
        network: ActorCriticsNetwork = agent_state.extra_state.network
        features, _ = self.features(network.policy.trunk, policy_params["trunk"], transitions)
        distribution = network.policy.distribution(policy_params, features, transitions.obs)
        actions = distribution.action(distribution.mode())
        first = index_tree(agent_state.params.critics, 0)
        critic_features, _ = self.features(network.critic.trunk, first["trunk"], transitions)
        loss = -transitions.mean(network.critic(first, critic_features, actions))
        return loss, LossInfo(metrics={"train/actor_loss": loss})


class TD3(ActorCriticLearner):
    """Updates the critics, and after every `policy_delay` updates also the policy and the target networks."""

    agent_class = TD3Agent
    target_parts = ("policy", "critics")
    agent: TD3Agent
    config: TD3Config = pytree_field(static=True)

    @classmethod
    def make_agent(cls, config: TD3Config) -> ReplayAgent:  # type: ignore[override]
        return super().make_agent(config).replace(smooth_targets=config.smooth_targets)

    def learn_batch(
        self, state: OffPolicyState, batch: ReplayBatch, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, Array, OffPolicyState]:
        transitions = self.agent.transitions(state.agent_state, batch, hyperparameters.discount)
        loss_of_critics = self.loss_of_critics(state, transitions, hyperparameters, key)
        of_critics, state = self.gradient_step(
            state, "critics", loss_of_critics, hyperparameters.critic_learning_rate, hyperparameters.max_grad_norm
        )
        is_due = (state.num_updates.low + 1) % self.config.policy_delay == 0

        def update_policy(trained: tuple[AgentState, Params, PyTreeDict], _: Array) -> tuple[Any, Array]:
            before = state.replace(agent_state=trained[0], target_params=trained[1], optimizer_states=trained[2])
            loss_of_actor = self.loss_of_actor(before, transitions, hyperparameters, key)
            of_actor, after = self.gradient_step(
                before, "policy", loss_of_actor, hyperparameters.actor_learning_rate, hyperparameters.max_grad_norm
            )
            after = self.update_targets(after, hyperparameters.target_update_rate)
            return where_tree(is_due, _trained(after), trained), of_actor.metrics["train/actor_loss"]

        # The replay buffer is not an argument of the branch, which would copy it.
        trained, actor_loss = cond_any(is_due, update_policy, _trained(state), jnp.zeros(()))
        state = state.replace(agent_state=trained[0], target_params=trained[1], optimizer_states=trained[2])
        metrics = {name: Mean.of(value) for name, value in of_critics.metrics.items()} | {
            "train/actor_loss": Mean.of(actor_loss, is_due)
        }
        return metrics, of_critics.errors, state

    def loss_of_critics(
        self, state: OffPolicyState, transitions: Transitions, hyperparameters: HyperparameterValues, key: Key
    ) -> LossFn:
        agent, agent_state = self.agent, state.agent_state
        targets = agent.targets(agent_state, state.target_params, transitions, hyperparameters, key)
        return lambda critics: critic_loss(agent, agent_state, critics, transitions, targets)

    def loss_of_actor(
        self, state: OffPolicyState, transitions: Transitions, hyperparameters: HyperparameterValues, key: Key
    ) -> LossFn:
        return lambda policy: self.agent.actor_loss(state.agent_state, policy, transitions)


def _trained(state: OffPolicyState) -> tuple[AgentState, Params, PyTreeDict]:
    return state.agent_state, state.target_params, state.optimizer_states


def with_noise(actions: Array, noise: Array, space: Space) -> Array:
    """Add noise, given as a fraction of half the range of the actions, and clip to the bounds."""
    assert isinstance(space, Box), "make_network accepts only a Box"
    low, high = (jnp.broadcast_to(bound, actions.shape) for bound in (space.low, space.high))
    half_range = jnp.broadcast_to(np.asarray(space.high / 2 - space.low / 2, space.dtype), actions.shape)
    return jnp.clip(actions + noise.astype(actions.dtype) * half_range, low, high)


class TD3Workflow(OffPolicyWorkflow):
    """Twin delayed DDPG: updates the policy and the target networks less often than the two critics."""

    agent_name = "td3"
    config_class = TD3Config
    hyperparameters_class = TD3Hyperparameters
    learner_class = TD3
