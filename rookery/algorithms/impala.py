"""IMPALA: an actor-critic whose actors may lag behind the learner, corrected by V-trace (Espeholt et al., 2018).

Departures from the paper: actors and learner alternate in one compiled program instead of running in parallel, so the
lag is a setting (`actor_lag`) and does not depend on the machine. The learner splits a trajectory into groups of
environments and takes one gradient step on each. Later groups are off-policy too; V-trace corrects that.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent
from rookery.configuration import setting
from rookery.hyperparameters import HyperparameterValues, Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.on_policy import OnPolicyConfig, OnPolicyHyperparameters, OnPolicyLearner, OnPolicyState
from rookery.learning.advantages import vtrace
from rookery.learning.experience import Experience
from rookery.learning.minibatches import check_num_minibatches, epoch_indexes
from rookery.learning.moments import check_same_shape
from rookery.metrics import Mean
from rookery.types import Array, Key, pytree_field
from rookery.workflows.on_policy import OnPolicyWorkflow


@dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    """The settings of IMPALA."""

    num_envs: int = 32
    rollout_length: int = 32
    num_minibatches: int = setting(4, low=1, help="groups of environments, one gradient step each; divides num_envs")
    actor_lag: int = setting(1, low=1, help="iterations between two updates of the parameters that act")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_num_minibatches(self.num_envs, self.num_minibatches)


class IMPALAHyperparameters(OnPolicyHyperparameters):
    """The hyper-parameters of IMPALA."""

    trace_lambda: Scalar = number(
        1.0, low=0.0, high=1.0, help="0: targets from one step (low variance), 1: from all (no bias)"
    )
    max_target_ratio: Scalar = number(1.0, low=0.0, help="rho-bar: upper limit of the importance ratios of targets")
    max_trace_ratio: Scalar = number(1.0, low=0.0, help="c-bar: upper limit of the importance ratios of traces")


class IMPALAAgent(ActorCriticAgent):
    """A policy and a value function, trained on the experience of an older policy."""

    def loss(
        self, agent_state: AgentState, experience: Experience, carry: Carry, hyperparameters: HyperparameterValues
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a trajectory `[T, B]` and its parts."""
        trajectory, average = experience.trajectory, experience.mean
        policy_extras, env_extras = trajectory.extras.policy_extras, trajectory.extras.env_extras
        distribution, values = self.replay(agent_state, trajectory, carry)
        log_prob, fixed_values = distribution.log_prob(policy_extras.raw_action), jax.lax.stop_gradient(values)
        fixed_state = jax.lax.stop_gradient(agent_state)
        estimates = vtrace(
            jax.lax.stop_gradient(log_prob) - policy_extras.log_prob,
            trajectory.rewards,
            fixed_values,
            self.successor_values(fixed_state, trajectory, fixed_values),
            env_extras.termination,
            trajectory.dones,
            hyperparameters.discount,
            hyperparameters.trace_lambda,
            hyperparameters.max_target_ratio,
            hyperparameters.max_trace_ratio,
            hyperparameters.max_target_ratio,
        )
        check_same_shape(values=values, targets=estimates.targets, advantages=estimates.advantages)
        policy_loss = -average(log_prob * estimates.advantages)
        value_loss = average((values - estimates.targets) ** 2)
        entropy_loss = -average(distribution.entropy())
        loss = (
            policy_loss
            + hyperparameters.value_coefficient * value_loss
            + hyperparameters.entropy_coefficient * entropy_loss
        )
        log_ratio = log_prob - policy_extras.log_prob
        return loss, {
            "train/loss": loss,
            "train/policy_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy_loss": entropy_loss,
            "train/approx_kl": average(jnp.exp(log_ratio) - 1.0 - log_ratio),
        }


class IMPALA(OnPolicyLearner):
    """One gradient step on each group of environments; actors may lag behind, corrected by V-trace."""

    agent_class = IMPALAAgent
    max_staleness = None
    agent: IMPALAAgent
    config: IMPALAConfig = pytree_field(static=True)

    def check(self, num_devices: int) -> None:
        super().check(num_devices)
        check_num_minibatches(self.config.num_envs // num_devices, self.config.num_minibatches)

    @property
    def actor_lag(self) -> int:
        return self.config.actor_lag

    def update(
        self, state: OnPolicyState, experience: Experience, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, OnPolicyState]:
        def step(state: OnPolicyState, indexes: Array) -> tuple[OnPolicyState, Metrics]:
            group = experience.take_envs(indexes)
            metrics, state = self.gradient_step(state, self.agent.loss, group, group.first_carry, hyperparameters)
            return state, {name: Mean.of(value) for name, value in metrics.items()}

        num_envs = experience.trajectory.rewards.shape[1]
        state, metrics = jax.lax.scan(step, state, epoch_indexes(key, num_envs, self.config.num_minibatches))
        metrics = jax.tree.map(jnp.sum, metrics)
        return metrics | {"train/learning_rate": Mean.of(hyperparameters.learning_rate)}, state


class IMPALAWorkflow(OnPolicyWorkflow):
    """IMPALA: the actors may lag behind the learner; V-trace corrects for it."""

    agent_name = "impala"
    config_class = IMPALAConfig
    hyperparameters_class = IMPALAHyperparameters
    learner_class = IMPALA
