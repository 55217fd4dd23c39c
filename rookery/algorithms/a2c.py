"""Advantage actor-critic, synchronous (Mnih et al., 2016, "A3C" without the asynchrony).

Departures from the paper: all environments step together and one gradient is taken of the whole batch; advantages are
those of GAE, which with `gae_lambda=1` are the n-step advantages of the paper.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent
from rookery.distributed import DEVICE_AXIS
from rookery.hyperparameters import Scalar
from rookery.learning.advantages import gae
from rookery.learning.moments import check_same_shape, explained_variance, weighted_mean
from rookery.metrics import Mean
from rookery.rollout import Experience
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key
from rookery.workflows.collecting import weights_of
from rookery.workflows.on_policy import (
    Learner,
    OnPolicyConfig,
    OnPolicyHyperparameters,
    OnPolicyWorkflow,
)


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """The shapes of A2C."""

    num_envs: int = 16
    rollout_length: int = 8
    optimizer: str = "rmsprop"


class A2CHyperparameters(OnPolicyHyperparameters):
    """The numbers of A2C."""

    RANGES: ClassVar = OnPolicyHyperparameters.RANGES | {"gae_lambda": (0.0, 1.0)}

    learning_rate: Scalar = 7e-4
    gae_lambda: Scalar = 1.0


class A2CAgent(ActorCriticAgent):
    """A policy and a value function, trained by the policy gradient with the value as baseline."""

    def loss(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        advantages: Array,
        targets: Array,
        carry: Carry,
        hyperparameters: Any,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a trajectory `[T, B]` and its parts."""
        distribution, values = self.replay(agent_state, trajectory, carry)
        log_prob = distribution.log_prob(trajectory.extras.policy_extras.raw_action)
        check_same_shape(values=values, targets=targets, advantages=advantages, log_prob=log_prob)
        average = partial(weighted_mean, weights=weights_of(trajectory), axis_name=DEVICE_AXIS)
        policy_loss = -average(log_prob * advantages)
        value_loss = average((values - targets) ** 2)
        entropy_loss = -average(distribution.entropy())
        loss = (
            policy_loss
            + hyperparameters.value_coefficient * value_loss
            + hyperparameters.entropy_coefficient * entropy_loss
        )
        return loss, {
            "train/loss": loss,
            "train/policy_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy_loss": entropy_loss,
        }


class A2CWorkflow(OnPolicyWorkflow):
    """Advantage actor-critic: one gradient step on each short trajectory."""

    agent_name = "a2c"
    config_class = A2CConfig
    hyperparameters_class = A2CHyperparameters
    agent_class = A2CAgent
    agent: A2CAgent

    def update(
        self, learner: Learner, experience: Experience, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Learner]:
        trajectory = experience.trajectory
        values = trajectory.extras.policy_extras.value
        advantages = gae(
            trajectory.rewards,
            values,
            self.agent.successor_values(learner.agent_state, trajectory, values),
            trajectory.extras.env_extras.termination,
            trajectory.dones,
            hyperparameters.discount,
            hyperparameters.gae_lambda,
        )
        targets = advantages + values

        def loss(agent_state: AgentState, trajectory: SampleBatch) -> tuple[Array, dict[str, Array]]:
            return self.agent.loss(
                agent_state, trajectory, advantages, targets, experience.first_carry, hyperparameters
            )

        explained = explained_variance(targets, values, weights_of(trajectory), DEVICE_AXIS)
        report, learner = self.gradient_step(learner, loss, trajectory, hyperparameters)
        metrics = {name: Mean.of(value) for name, value in report.items()} | {
            "train/explained_variance": Mean.where(jnp.isfinite(explained), explained),
            "train/learning_rate": Mean.of(hyperparameters.learning_rate),
        }
        return metrics, learner
