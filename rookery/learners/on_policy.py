"""On-policy learners: learn from a trajectory of the current policy, then discard it."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath, keystr

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent
from rookery.configuration import check_settings, setting
from rookery.distributed import SAME, SPLIT
from rookery.distributed.collectives import (
    device_axis,
    key_of_this_device,
    mean_over_devices,
    num_devices,
    sum_over_devices,
)
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number, values_at
from rookery.learners.learner import Learner, LearnerState, Metrics
from rookery.learning import reward_scaling
from rookery.learning.experience import Experience, num_env_steps, row_weights, starts_new_episode, zero_dead_rows
from rookery.learning.reward_scaling import RewardScaling
from rookery.learning.updates import RULES, Optimizer, OptimizerState, gradients_in_chunks
from rookery.networks import ActorCriticConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTree, Tree, pytree_field, where_tree


@dataclass(frozen=True)
class OnPolicyConfig:
    """The settings that on-policy methods share."""

    num_envs: int = setting(64, low=1, help="environments in parallel, over all devices")
    rollout_length: int = setting(128, low=1, help="steps of each environment between two updates")
    normalize_obs: bool = setting(False, help="by running mean and standard deviation")
    normalize_rewards: bool = setting(False, help="divide by the running standard deviation of the return")
    optimizer: str = setting("adam", choices=RULES)
    network: ActorCriticConfig = setting(ActorCriticConfig())

    def __post_init__(self) -> None:
        check_settings(self)


class OnPolicyHyperparameters(Hyperparameters):
    """The hyper-parameters that on-policy methods share."""

    learning_rate: Scalar = number(3e-4, low=0.0, help="step size of the optimizer")
    discount: Scalar = number(0.99, low=0.0, high=1.0, help="weight of the next step's return")
    entropy_coefficient: Scalar = number(0.0, low=0.0, help="weight of the entropy in the loss: more exploration")
    value_coefficient: Scalar = number(0.5, low=0.0, help="weight of the value loss")
    max_grad_norm: Scalar | None = number(0.5, low=1e-9, help="clip gradients to this norm; null: never")


class OnPolicyState(LearnerState):
    """The state of an on-policy learner."""

    inherited = (*LearnerState.inherited, "optimizer_state", "reward_scaling", "actor_state")

    optimizer_state: OptimizerState
    reward_scaling: RewardScaling | None
    actor_state: AgentState | None
    """The agent state that acts, if it lags behind the one that learns."""

    def with_agent(self, agent_state: AgentState) -> Self:
        actor_state = None if self.actor_state is None else agent_state
        return self.replace(agent_state=agent_state, actor_state=actor_state)


LossFn = Callable[[AgentState, PyTree, Carry, HyperparameterValues], tuple[Array, dict[str, Array]]]
"""Given the agent state, samples, their first recurrent state and the hyper-parameters, returns loss and metrics."""


class OnPolicyLearner(Learner[OnPolicyState, Experience]):
    """Prepares a trajectory and calls the method's `update`.

    Observation statistics are updated after `update`, so that the losses use the policy that acted.
    """

    needs_log_prob = True

    agent: ActorCriticAgent
    config: OnPolicyConfig = pytree_field(static=True)

    @classmethod
    def of(cls, config: OnPolicyConfig) -> "OnPolicyLearner":
        """Build the learner and its agent."""
        return cls(agent=cls.make_agent(config), config=config)

    @classmethod
    def make_agent(cls, config: OnPolicyConfig) -> ActorCriticAgent:
        return cls.agent_class(config=config.network, normalize_obs=config.normalize_obs)  # type: ignore[call-arg, return-value]

    @property
    def actor_lag(self) -> int:
        """The number of iterations for which the same parameters act."""
        return 1

    @abstractmethod
    def update(
        self, state: OnPolicyState, experience: Experience, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, OnPolicyState]:
        """Learn from experience. `key` differs between devices."""

    @property
    def optimizer(self) -> Optimizer:
        return Optimizer(self.config.optimizer)

    def init(
        self,
        obs_space: Space,
        action_space: Space,
        hyperparameters: Hyperparameters,
        key: Key,
        trajectory: SampleBatch | None = None,
    ) -> OnPolicyState:
        agent_state = self.agent.init(obs_space, action_space, key)
        num_envs = self.config.num_envs // num_devices()
        return OnPolicyState.first(
            agent_state,
            hyperparameters,
            optimizer_state=self.optimizer.init(agent_state.params),
            reward_scaling=reward_scaling.init(num_envs) if self.config.normalize_rewards else None,
            actor_state=agent_state if self.actor_lag > 1 else None,
        )

    def specs(self, state: OnPolicyState) -> OnPolicyState:
        def spec(path: KeyPath, _: Array) -> PartitionSpec:
            return SPLIT if keystr(path) == ".reward_scaling.returns" else SAME

        return jax.tree.map_with_path(spec, state)

    def acting_state(self, state: OnPolicyState) -> AgentState:
        return state.agent_state if state.actor_state is None else state.actor_state

    def restarted(self, state: OnPolicyState, is_due: Array) -> OnPolicyState:
        if (scaling := state.reward_scaling) is None:
            return state
        return state.replace(reward_scaling=scaling.replace(returns=jnp.where(is_due, 0.0, scaling.returns)))

    def learn(self, state: OnPolicyState, experience: Experience, key: Key) -> tuple[Metrics, OnPolicyState]:
        hyperparameters: HyperparameterValues = values_at(state.hyperparameters, state.env_steps.as_float())
        trajectory, weights = zero_dead_rows(experience.trajectory), row_weights(experience.trajectory)
        experience = experience.replace(trajectory=trajectory, weights=weights)
        if state.reward_scaling is not None:
            rewards, scaling = self._scale_rewards(state.reward_scaling, experience, hyperparameters.discount)
            experience = experience.replace(trajectory=trajectory.replace(rewards=rewards))
            state = state.replace(reward_scaling=scaling)
        metrics, state = self.update(state, experience, hyperparameters, key_of_this_device(key))
        agent_state = self.agent.update_obs_statistics(state.agent_state, trajectory.obs, weights, device_axis())
        iterations, actor_state = state.iterations.add(1), state.actor_state
        if actor_state is not None:
            actor_state = where_tree(iterations.low % self.actor_lag == 0, agent_state, actor_state)
        state = state.replace(
            agent_state=agent_state,
            actor_state=actor_state,
            iterations=iterations,
            env_steps=state.env_steps.add(num_env_steps(trajectory)),
        )
        return metrics | sum_over_devices(experience.metrics), state

    @staticmethod
    def _scale_rewards(scaling: RewardScaling, experience: Experience, discount: Array) -> tuple[Array, RewardScaling]:
        trajectory = experience.trajectory
        starts = starts_new_episode(trajectory)
        if starts is not None:
            scaling = scaling.replace(returns=jnp.where(starts, 0.0, scaling.returns))
        return reward_scaling.scale(
            scaling, trajectory.rewards, trajectory.dones, discount, experience.weights, device_axis()
        )

    def gradient_step(
        self,
        state: OnPolicyState,
        loss_fn: LossFn,
        samples: Tree,
        carry: Carry,
        hyperparameters: HyperparameterValues,
        num_chunks: int = 1,
    ) -> tuple[dict[str, Array], OnPolicyState]:
        """Take one gradient step on `loss_fn(agent_state, samples, carry, hyperparameters)`; return its metrics.

        A loss that is a mean over samples `[N]` may be computed in `num_chunks` chunks.
        """

        def loss(params: Params, samples: Tree) -> tuple[Array, dict[str, Array]]:
            return loss_fn(state.agent_state.replace(params=params), samples, carry, hyperparameters)

        gradients, metrics = mean_over_devices(gradients_in_chunks(loss, state.agent_state.params, samples, num_chunks))
        params, optimizer_state, norm = self.optimizer.step(
            gradients,
            state.optimizer_state,
            state.agent_state.params,
            hyperparameters.learning_rate,
            hyperparameters.max_grad_norm,
        )
        return metrics | {"train/grad_norm": norm}, state.replace(
            agent_state=state.agent_state.replace(params=params),
            optimizer_state=optimizer_state,
            num_updates=state.num_updates.add(1),
        )
