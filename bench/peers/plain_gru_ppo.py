"""Recurrent PPO as one writes it in JAX, without any tuning; a minibatch is a group of environments."""

from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.peers.plain_ppo import Transition, clipped_loss, gae, log_prob_of
from bench.peers.sizes import (
    CORE_SIZE,
    HIDDEN_SIZES,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_EPOCHS,
    NUM_MINIBATCHES,
    ROLLOUT_LENGTH,
)


class ResettingGRU(nn.Module):
    """A GRU over the time axis whose state is zero where an episode starts."""

    @nn.compact
    def __call__(self, carry: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def step(cell: nn.GRUCell, carry: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            features, is_start = row
            return cell(jnp.where(is_start[:, None], 0.0, carry), features)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(nn.GRUCell(CORE_SIZE), carry, inputs)


class RecurrentActorCritic(nn.Module):
    """A policy and a value function on the features of one GRU: `[T, B]`."""

    num_actions: int

    @nn.compact
    def __call__(self, carry: jax.Array, obs: jax.Array, is_start: jax.Array) -> tuple[jax.Array, tuple]:
        hidden = obs
        for size in HIDDEN_SIZES:
            hidden = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2**0.5))(hidden))
        carry, hidden = ResettingGRU()(carry, (hidden, is_start))
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden)
        return carry, (logits, nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(hidden)[..., 0])


class Runner(NamedTuple):
    """All that an iteration changes."""

    train_state: TrainState
    env_state: Any
    obs: jax.Array
    is_start: jax.Array
    carry: jax.Array
    key: jax.Array


class PlainGRUPPO:
    """Trains on CartPole; `iterate` is one rollout and one update."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.env, self.env_params = gymnax.make("CartPole-v1")
        self.network = RecurrentActorCritic(self.env.action_space(self.env_params).n)

    def init(self, key: jax.Array) -> Runner:
        params_key, reset_key, key = jax.random.split(key, 3)
        reset_keys = jax.random.split(reset_key, self.num_envs)
        obs, env_state = jax.vmap(self.env.reset, (0, None))(reset_keys, self.env_params)
        is_start, carry = jnp.ones(self.num_envs, bool), jnp.zeros((self.num_envs, CORE_SIZE))
        optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
        params = self.network.init(params_key, carry, obs[None], is_start[None])
        train_state = TrainState.create(apply_fn=self.network.apply, params=params, tx=optimizer)
        return Runner(train_state, env_state, obs, is_start, carry, key)

    def iterate(self, runner: Runner) -> Runner:
        """Train for one iteration."""
        first_carry = runner.carry
        runner, (trajectory, starts) = jax.lax.scan(self._env_step, runner, length=ROLLOUT_LENGTH)
        _, (_, last_value) = self._apply(runner)
        advantages = gae(trajectory, last_value[0])
        samples = (trajectory, advantages, advantages + trajectory.value)

        def epoch(train_state: TrainState, epoch_key: jax.Array) -> tuple[TrainState, jax.Array]:
            permutation = jax.random.permutation(epoch_key, self.num_envs)

            def groups(leaf: jax.Array) -> jax.Array:
                """Split the environments, the second axis, into minibatches."""
                shuffled = jnp.take(leaf, permutation, axis=1)
                grouped = shuffled.reshape(leaf.shape[0], NUM_MINIBATCHES, -1, *leaf.shape[2:])
                return jnp.swapaxes(grouped, 0, 1)

            return jax.lax.scan(minibatch_step, train_state, jax.tree.map(groups, (samples, starts, first_carry[None])))

        key, epochs_key = jax.random.split(runner.key)
        train_state, _ = jax.lax.scan(epoch, runner.train_state, jax.random.split(epochs_key, NUM_EPOCHS))
        return runner._replace(train_state=train_state, key=key)

    def _apply(self, runner: Runner) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return self.network.apply(runner.train_state.params, runner.carry, runner.obs[None], runner.is_start[None])

    def _env_step(self, runner: Runner, _: None) -> tuple[Runner, tuple[Transition, jax.Array]]:
        key, action_key, step_key = jax.random.split(runner.key, 3)
        carry, (logits, value) = self._apply(runner)
        logits, value = logits[0], value[0]
        action = jax.random.categorical(action_key, logits)
        step_keys = jax.random.split(step_key, self.num_envs)
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(self.env.step, (0, 0, 0, None))(
            step_keys, runner.env_state, action, self.env_params
        )
        done = terminated | truncated
        transition = Transition(runner.obs, action, log_prob_of(logits, action), value, reward, done, reward)
        next_runner = runner._replace(env_state=env_state, obs=obs, is_start=done, carry=carry, key=key)
        return next_runner, (transition, runner.is_start)


def minibatch_step(train_state: TrainState, minibatch: tuple) -> tuple[TrainState, jax.Array]:
    """One gradient step."""
    samples, starts, first_carry = minibatch

    def loss_of(params: Any) -> jax.Array:
        _, (logits, value) = train_state.apply_fn(params, first_carry[0], samples[0].obs, starts)
        return clipped_loss(logits, value, samples)

    loss, gradients = jax.value_and_grad(loss_of)(train_state.params)
    return train_state.apply_gradients(grads=gradients), loss
