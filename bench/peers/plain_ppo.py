"""PPO as one writes it in a single file of JAX, in the manner of PureJaxRL (Lu et al., 2022), without any tuning.

The environments are gymnax's, which reset inside their own step.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.peers.sizes import (
    CLIP_RATIO,
    DISCOUNT,
    ENTROPY_COEFFICIENT,
    GAE_LAMBDA,
    HIDDEN_SIZES,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_EPOCHS,
    NUM_MINIBATCHES,
    ROLLOUT_LENGTH,
    VALUE_COEFFICIENT,
)


class ActorCritic(nn.Module):
    """A policy and a value function with networks of their own."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def network(num_outputs: int, scale: float) -> jax.Array:
            hidden = obs
            for size in HIDDEN_SIZES:
                hidden = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2**0.5))(hidden))
            return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(hidden)

        return network(self.num_actions, 0.01), network(1, 1.0)[..., 0]


class ConvolutionalActorCritic(nn.Module):
    """A policy and a value function on the features of one convolutional network, that of MinAtar."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        orthogonal = nn.initializers.orthogonal(2**0.5)
        hidden = nn.relu(nn.Conv(16, (3, 3), padding="VALID", kernel_init=orthogonal)(obs.astype(jnp.float32)))
        hidden = nn.relu(nn.Dense(128, kernel_init=orthogonal)(hidden.reshape(*hidden.shape[:-3], -1)))
        for size in HIDDEN_SIZES:
            hidden = nn.tanh(nn.Dense(size, kernel_init=orthogonal)(hidden))
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden)
        return logits, nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(hidden)[..., 0]


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array
    ended_return: jax.Array


class Runner(NamedTuple):
    """All that an iteration changes."""

    train_state: TrainState
    env_state: Any
    obs: jax.Array
    episode_return: jax.Array
    mean_return: jax.Array
    key: jax.Array


class PlainPPO:
    """Trains on an environment of gymnax; `iterate` is one rollout and one update."""

    def __init__(self, num_envs: int, env: str = "CartPole-v1", network_class: type[nn.Module] = ActorCritic) -> None:
        self.num_envs = num_envs
        self.env, self.env_params = gymnax.make(env)
        self.network = network_class(self.env.action_space(self.env_params).n)

    def init(self, key: jax.Array) -> Runner:
        params_key, reset_key, key = jax.random.split(key, 3)
        reset_keys = jax.random.split(reset_key, self.num_envs)
        obs, env_state = jax.vmap(self.env.reset, (0, None))(reset_keys, self.env_params)
        optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
        train_state = TrainState.create(
            apply_fn=self.network.apply, params=self.network.init(params_key, obs), tx=optimizer
        )
        return Runner(train_state, env_state, obs, jnp.zeros(self.num_envs), jnp.zeros(()), key)

    def iterate(self, runner: Runner) -> Runner:
        """Train for one iteration; `mean_return` is that of the episodes that ended in it."""
        runner, trajectory = jax.lax.scan(self._env_step, runner, length=ROLLOUT_LENGTH)
        _, last_value = runner.train_state.apply_fn(runner.train_state.params, runner.obs)
        advantages = gae(trajectory, last_value)
        samples = (trajectory, advantages, advantages + trajectory.value)

        def epoch(train_state: TrainState, epoch_key: jax.Array) -> tuple[TrainState, jax.Array]:
            num_samples = ROLLOUT_LENGTH * self.num_envs
            permutation = jax.random.permutation(epoch_key, num_samples)

            def shuffle(leaf: jax.Array) -> jax.Array:
                flat = leaf.reshape(num_samples, *leaf.shape[2:])
                return jnp.take(flat, permutation, axis=0).reshape(NUM_MINIBATCHES, -1, *leaf.shape[2:])

            return jax.lax.scan(minibatch_step, train_state, jax.tree.map(shuffle, samples))

        key, epochs_key = jax.random.split(runner.key)
        train_state, _ = jax.lax.scan(epoch, runner.train_state, jax.random.split(epochs_key, NUM_EPOCHS))
        mean_return = jnp.sum(trajectory.ended_return) / jnp.maximum(jnp.sum(trajectory.done), 1)
        return runner._replace(train_state=train_state, mean_return=mean_return, key=key)

    def _env_step(self, runner: Runner, _: None) -> tuple[Runner, Transition]:
        key, action_key, step_key = jax.random.split(runner.key, 3)
        logits, value = runner.train_state.apply_fn(runner.train_state.params, runner.obs)
        action = jax.random.categorical(action_key, logits)
        step_keys = jax.random.split(step_key, self.num_envs)
        next_obs, env_state, reward, terminated, truncated, _ = jax.vmap(self.env.step, (0, 0, 0, None))(
            step_keys, runner.env_state, action, self.env_params
        )
        done = terminated | truncated
        episode_return = runner.episode_return + reward
        ended_return = jnp.where(done, episode_return, 0.0)
        transition = Transition(runner.obs, action, log_prob_of(logits, action), value, reward, done, ended_return)
        runner = runner._replace(
            env_state=env_state, obs=next_obs, episode_return=jnp.where(done, 0.0, episode_return), key=key
        )
        return runner, transition


def gae(trajectory: Transition, last_value: jax.Array) -> jax.Array:
    """Generalized advantage estimation (Schulman et al., 2016)."""

    def step(carry: tuple[jax.Array, jax.Array], row: Transition) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        delta = row.reward + DISCOUNT * next_value * (1 - row.done) - row.value
        advantage = delta + DISCOUNT * GAE_LAMBDA * (1 - row.done) * advantage
        return (advantage, row.value), advantage

    return jax.lax.scan(step, (jnp.zeros_like(last_value), last_value), trajectory, reverse=True)[1]


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def minibatch_step(train_state: TrainState, samples: tuple) -> tuple[TrainState, jax.Array]:
    """One gradient step."""

    def loss_of(params: Any) -> jax.Array:
        return clipped_loss(*train_state.apply_fn(params, samples[0].obs), samples)

    loss, gradients = jax.value_and_grad(loss_of)(train_state.params)
    return train_state.apply_gradients(grads=gradients), loss


def clipped_loss(logits: jax.Array, value: jax.Array, samples: tuple) -> jax.Array:
    """The objective of PPO (Schulman et al., 2017)."""
    trajectory, advantages, targets = samples
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = jnp.exp(log_prob_of(logits, trajectory.action) - trajectory.log_prob)
    clipped_ratio = jnp.clip(ratio, 1 - CLIP_RATIO, 1 + CLIP_RATIO)
    policy_loss = -jnp.minimum(ratio * advantages, clipped_ratio * advantages).mean()
    value_loss = jnp.square(value - targets).mean()
    log_probs = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    return policy_loss + VALUE_COEFFICIENT * value_loss - ENTROPY_COEFFICIENT * entropy
