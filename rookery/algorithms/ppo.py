"""Proximal policy optimization with a clipped objective (Schulman et al., 2017).

Departures from the paper, all of them common practice: advantages are standardized per minibatch, gradients are
clipped by their norm, an episode that was cut off is bootstrapped from its true last state, and, as options, the value
is clipped like the policy and an update ends early when the policy has moved too far (`target_kl`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ActorCriticAgent
from rookery.distributed import DEVICE_AXIS, check_divides
from rookery.errors import check_count
from rookery.hyperparameters import Scalar
from rookery.learning.advantages import gae
from rookery.learning.minibatches import check_num_minibatches, epoch_indexes
from rookery.learning.moments import check_same_shape, explained_variance, standardize, weighted_mean
from rookery.learning.updates import num_chunks_for
from rookery.metrics import Mean
from rookery.rollout import Experience
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeData, PyTreeDict, where_tree
from rookery.workflows.collecting import weights_of
from rookery.workflows.config import Settings
from rookery.workflows.on_policy import (
    Learner,
    OnPolicyConfig,
    OnPolicyHyperparameters,
    OnPolicyWorkflow,
    takeable,
)


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """The shapes of PPO."""

    num_epochs: int = 4
    num_minibatches: int = 4
    standardize_advantages: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_epochs", self.num_epochs)
        self.check_minibatches(num_devices=1)

    def check_minibatches(self, num_devices: int) -> None:
        """Raise unless what one device collects can be dealt out to the minibatches."""
        num_envs = self.num_envs // num_devices
        check_num_minibatches(num_envs * (1 if self.network.core else self.rollout_length), self.num_minibatches)


class PPOHyperparameters(OnPolicyHyperparameters):
    """The numbers of PPO; `value_clip_ratio=None` does not clip values, `target_kl=None` never ends an update early."""

    RANGES: ClassVar = OnPolicyHyperparameters.RANGES | {
        "gae_lambda": (0.0, 1.0),
        "clip_ratio": (0.0, float("inf")),
        "value_clip_ratio": (0.0, float("inf")),
        "target_kl": (0.0, float("inf")),
    }

    gae_lambda: Scalar = 0.95
    clip_ratio: Scalar = 0.2
    value_clip_ratio: Scalar | None = None
    target_kl: Scalar | None = None


class PPOSamples(PyTreeData):
    """Observations with what the policy did (`policy_extras`), and what to learn from it."""

    batch: SampleBatch
    advantages: Array
    targets: Array
    weights: Array | None


class PPOAgent(ActorCriticAgent):
    """A policy and a value function, trained by PPO's loss."""

    def samples(self, agent_state: AgentState, trajectory: SampleBatch, hyperparameters: Any) -> PPOSamples:
        """Estimate advantages and the targets of the value function for every step `[T, B]`."""
        policy_extras, env_extras = trajectory.extras.policy_extras, trajectory.extras.env_extras
        values = policy_extras.value
        advantages = gae(
            trajectory.rewards,
            values,
            self.successor_values(agent_state, trajectory, values),
            env_extras.termination,
            trajectory.dones,
            hyperparameters.discount,
            hyperparameters.gae_lambda,
        )
        kept = {name: extra for name, extra in policy_extras.items() if name != "next_carry"}
        return PPOSamples(
            batch=SampleBatch(obs=trajectory.obs, extras=PyTreeDict(policy_extras=kept)),
            advantages=advantages,
            targets=advantages + values,
            weights=weights_of(trajectory),
        )

    def loss(
        self, agent_state: AgentState, samples: PPOSamples, carry: Carry, hyperparameters: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a minibatch, `[N]` or for an agent with a memory `[T, B]`, and its parts."""
        distribution, values = self.replay(agent_state, samples.batch, carry)
        before, advantages = samples.batch.extras.policy_extras, samples.advantages
        average = partial(weighted_mean, weights=samples.weights, axis_name=DEVICE_AXIS)
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


class PPOWorkflow(OnPolicyWorkflow):
    """Proximal policy optimization: several epochs of minibatches on each trajectory, with a clipped objective."""

    agent_name = "ppo"
    config_class = PPOConfig
    hyperparameters_class = PPOHyperparameters
    agent_class = PPOAgent
    agent: PPOAgent
    config: PPOConfig

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        check_divides("agent.num_envs", settings.method.num_envs, num_devices)
        settings.method.check_minibatches(num_devices)
        super().__init__(settings, num_devices, enable_jit)

    def update(
        self, learner: Learner, experience: Experience, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Learner]:
        samples = self.agent.samples(learner.agent_state, experience.trajectory, hyperparameters)
        num_samples, take = takeable(samples, experience.first_carry)
        can_be_cut = self.config.network.core is None and samples.weights is None
        num_chunks = num_chunks_for(num_samples // self.config.num_minibatches) if can_be_cut else 1

        def minibatch_step(state: tuple[Learner, Array], indexes: Array) -> tuple[tuple[Learner, Array], Any]:
            learner, stopped = state
            minibatch, carry = take(indexes)
            if self.config.standardize_advantages:
                advantages = standardize(minibatch.advantages, minibatch.weights, DEVICE_AXIS)
                minibatch = minibatch.replace(advantages=advantages)

            def loss(agent_state: AgentState, samples: PPOSamples) -> tuple[Array, dict[str, Array]]:
                return self.agent.loss(agent_state, samples, carry, hyperparameters)

            report, improved = self.gradient_step(learner, loss, minibatch, hyperparameters, num_chunks)
            metrics = {name: Mean.of(value, 1.0 - stopped) for name, value in report.items()}
            if hyperparameters.target_kl is None:
                return (improved, stopped), metrics
            too_far = report["train/approx_kl"] > 1.5 * hyperparameters.target_kl
            stopped = jnp.maximum(stopped, too_far.astype(jnp.float32))
            return (where_tree(stopped, learner, improved), stopped), metrics

        def epoch(state: tuple[Learner, Array], epoch_key: Key) -> tuple[tuple[Learner, Array], Any]:
            return jax.lax.scan(
                minibatch_step, state, epoch_indexes(epoch_key, num_samples, self.config.num_minibatches)
            )

        epoch_keys = jax.random.split(key, self.config.num_epochs)
        (learner, _), metrics = jax.lax.scan(epoch, (learner, jnp.zeros(())), epoch_keys)
        values = samples.batch.extras.policy_extras.value
        explained = explained_variance(samples.targets, values, samples.weights, DEVICE_AXIS)
        metrics = jax.tree.map(jnp.sum, metrics) | {
            "train/explained_variance": Mean.where(jnp.isfinite(explained), explained),
            "train/learning_rate": Mean.of(hyperparameters.learning_rate),
            "train/clip_range": Mean.of(hyperparameters.clip_ratio),
        }
        return metrics, learner
