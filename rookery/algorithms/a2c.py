"""Advantage actor-critic, synchronous (Mnih et al., 2016, "A3C" without the asynchrony).

Departures from the paper: all environments step together, and each batch gives one gradient step. Advantages are
estimated by GAE; `gae_lambda=1` gives the n-step advantages of the paper.
"""

from dataclasses import dataclass

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent, AdvantageSamples
from rookery.hyperparameters import HyperparameterValues, Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.on_policy import OnPolicyConfig, OnPolicyHyperparameters, OnPolicyLearner, OnPolicyState
from rookery.learning.experience import Experience
from rookery.learning.moments import check_same_shape
from rookery.metrics import Mean
from rookery.types import Array, Key
from rookery.workflows.on_policy import OnPolicyWorkflow


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """The settings of A2C."""

    num_envs: int = 16
    rollout_length: int = 8
    optimizer: str = "rmsprop"


class A2CHyperparameters(OnPolicyHyperparameters):
    """The hyper-parameters of A2C."""

    learning_rate: Scalar = 7e-4
    gae_lambda: Scalar = number(
        1.0, low=0.0, high=1.0, help="0: advantages from one step (low variance), 1: from all (no bias)"
    )


class A2CAgent(ActorCriticAgent):
    """A policy and a value function; the value is the baseline of the policy gradient."""

    def loss(
        self,
        agent_state: AgentState,
        samples: AdvantageSamples,
        carry: Carry,
        hyperparameters: HyperparameterValues,
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a trajectory `[T, B]` and its parts."""
        distribution, values = self.replay(agent_state, samples.batch, carry)
        log_prob = distribution.log_prob(samples.batch.extras.policy_extras.raw_action)
        check_same_shape(values=values, targets=samples.targets, advantages=samples.advantages, log_prob=log_prob)
        average = samples.mean
        policy_loss = -average(log_prob * samples.advantages)
        value_loss = average((values - samples.targets) ** 2)
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


class A2C(OnPolicyLearner):
    """One gradient step on each short trajectory."""

    agent_class = A2CAgent
    agent: A2CAgent

    def update(
        self, state: OnPolicyState, experience: Experience, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, OnPolicyState]:
        samples = self.agent.samples(
            state.agent_state, experience, hyperparameters.discount, hyperparameters.gae_lambda
        )
        explained = samples.explained_variance(samples.targets, samples.batch.extras.policy_extras.value)
        metrics, state = self.gradient_step(state, self.agent.loss, samples, experience.first_carry, hyperparameters)
        return {name: Mean.of(value) for name, value in metrics.items()} | {
            "train/explained_variance": explained,
            "train/learning_rate": Mean.of(hyperparameters.learning_rate),
        }, state


class A2CWorkflow(OnPolicyWorkflow):
    """Advantage actor-critic: one gradient step on each short trajectory."""

    agent_name = "a2c"
    config_class = A2CConfig
    hyperparameters_class = A2CHyperparameters
    learner_class = A2C
