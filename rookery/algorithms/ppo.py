"""Proximal policy optimization with a clipped objective (Schulman et al., 2017).

Departures from the paper, all common practice: advantages are standardized per minibatch, gradients are clipped by
their norm, and a truncated episode bootstraps from its true last state. Optional: the value is clipped like the policy
(`value_clip_ratio`), and an update stops early when the policy has changed too much (`target_kl`).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent, AdvantageSamples
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.hyperparameters import HyperparameterValues, Scalar, number
from rookery.learners.learner import Metrics
from rookery.learners.on_policy import OnPolicyConfig, OnPolicyHyperparameters, OnPolicyLearner, OnPolicyState
from rookery.learning.experience import Experience
from rookery.learning.minibatches import check_num_minibatches, scan_minibatches
from rookery.learning.moments import check_same_shape
from rookery.metrics import Mean
from rookery.types import Array, Key, pytree_field, where_tree
from rookery.workflows.on_policy import OnPolicyWorkflow


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """The settings of PPO."""

    num_epochs: int = setting(4, low=1, help="passes over each trajectory")
    num_minibatches: int = setting(
        4, low=1, help="parts of a pass; divides num_envs * rollout_length, with a core num_envs"
    )
    standardize_advantages: bool = setting(
        True, help="per minibatch: subtract the mean, divide by the standard deviation"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minibatches(num_devices=1)

    def check_minibatches(self, num_devices: int) -> None:
        """Raise unless `num_minibatches` divides the samples of one device and leaves more than one in each."""
        num_envs = self.num_envs // num_devices
        check_num_minibatches(num_envs * (1 if self.network.core else self.rollout_length), self.num_minibatches)
        if self.standardize_advantages and self.num_envs * self.rollout_length == self.num_minibatches:
            raise InvalidInputError(
                f"num_minibatches={self.num_minibatches} leaves one sample per minibatch, whose standardized advantage "
                "is 0, so nothing is learned: use fewer minibatches, or standardize_advantages=false."
            )


class PPOHyperparameters(OnPolicyHyperparameters):
    """The hyper-parameters of PPO."""

    gae_lambda: Scalar = number(
        0.95, low=0.0, high=1.0, help="0: advantages from one step (low variance), 1: from all (no bias)"
    )
    clip_ratio: Scalar = number(
        0.2, low=0.0, help="how far the probability ratio may leave 1 before its gradient stops"
    )
    value_clip_ratio: Scalar | None = number(
        None, low=0.0, help="how far a value may move in one update; null: any distance"
    )
    target_kl: Scalar | None = number(
        None, low=0.0, help="end an update early beyond 1.5 times this divergence; null: never"
    )


class PPOAgent(ActorCriticAgent):
    """A policy and a value function, trained by PPO's loss."""

    def loss(
        self, agent_state: AgentState, samples: AdvantageSamples, carry: Carry, hyperparameters: HyperparameterValues
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a minibatch, `[N]` or for a recurrent agent `[T, B]`, and its parts."""
        distribution, values = self.replay(agent_state, samples.batch, carry)
        before, advantages, average = samples.batch.extras.policy_extras, samples.advantages, samples.mean
        check_same_shape(
            values=values,
            targets=samples.targets,
            advantages=advantages,
            log_prob=before.log_prob,
            value=before.value,
        )

        log_ratio = distribution.log_prob(before.raw_action) - before.log_prob
        ratio, clip_ratio = jnp.exp(log_ratio), hyperparameters.clip_ratio
        clipped_ratio = jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
        policy_loss = -average(jnp.minimum(ratio * advantages, clipped_ratio * advantages))  # eq. 7

        value_error = (values - samples.targets) ** 2
        if hyperparameters.value_clip_ratio is not None:
            limit = hyperparameters.value_clip_ratio
            clipped_values = before.value + jnp.clip(values - before.value, -limit, limit)
            value_error = jnp.maximum(value_error, (clipped_values - samples.targets) ** 2)
        value_loss = average(value_error)
        entropy_loss = -average(distribution.entropy())

        loss = (
            policy_loss
            + hyperparameters.value_coefficient * value_loss
            + hyperparameters.entropy_coefficient * entropy_loss
        )  # eq. 9
        return loss, {
            "train/loss": loss,
            "train/policy_gradient_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy_loss": entropy_loss,
            "train/approx_kl": average(ratio - 1.0 - log_ratio),
            "train/clip_fraction": average((jnp.abs(ratio - 1.0) > clip_ratio).astype(jnp.float32)),
        }


class PPO(OnPolicyLearner):
    """Several epochs of minibatches on each trajectory, with a clipped objective."""

    agent_class = PPOAgent
    agent: PPOAgent
    config: PPOConfig = pytree_field(static=True)

    def check(self, num_devices: int) -> None:
        super().check(num_devices)
        self.config.check_minibatches(num_devices)

    def update(
        self, state: OnPolicyState, experience: Experience, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, OnPolicyState]:
        samples = self.agent.samples(
            state.agent_state, experience, hyperparameters.discount, hyperparameters.gae_lambda
        )

        def step(
            carry: tuple[OnPolicyState, Array], minibatch: AdvantageSamples, first_carry: Carry, num_chunks: int
        ) -> tuple[tuple[OnPolicyState, Array], Metrics]:
            state, stopped = carry
            if self.config.standardize_advantages:
                minibatch = minibatch.replace(advantages=minibatch.standardize(minibatch.advantages))
            metrics, improved = self.gradient_step(
                state, self.agent.loss, minibatch, first_carry, hyperparameters, num_chunks
            )
            means = {name: Mean.of(value, 1.0 - stopped) for name, value in metrics.items()}
            if hyperparameters.target_kl is None:
                return (improved, stopped), means
            too_far = metrics["train/approx_kl"] > 1.5 * hyperparameters.target_kl
            stopped = jnp.maximum(stopped, too_far.astype(jnp.float32))
            return (where_tree(stopped, state, improved), stopped), means

        epoch_keys = jax.random.split(key, self.config.num_epochs)
        (state, _), metrics = scan_minibatches(
            step, (state, jnp.zeros(())), samples, experience.first_carry, epoch_keys, self.config.num_minibatches
        )
        values = samples.batch.extras.policy_extras.value
        return metrics | {
            "train/explained_variance": samples.explained_variance(samples.targets, values),
            "train/learning_rate": Mean.of(hyperparameters.learning_rate),
            "train/clip_range": Mean.of(hyperparameters.clip_ratio),
        }, state


class PPOWorkflow(OnPolicyWorkflow):
    """Proximal policy optimization: several epochs of minibatches on each trajectory, with a clipped objective."""

    agent_name = "ppo"
    config_class = PPOConfig
    hyperparameters_class = PPOHyperparameters
    learner_class = PPO
    search_space: ClassVar = {
        "learning_rate": {"low": 1e-5, "high": 3e-2, "scale": "log"},
        "entropy_coefficient": {"low": 1e-4, "high": 0.1, "scale": "log"},
        "discount": {"low": 0.9, "high": 0.999, "scale": "complement"},
        "gae_lambda": {"low": 0.8, "high": 0.99, "scale": "complement"},
        "clip_ratio": {"low": 0.05, "high": 0.5},
    }
