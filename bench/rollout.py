"""Rollout with a random agent against a bare `lax.scan` over vmapped gymnax CartPole."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnax
import jax

from bench.table import Row
from bench.timing import cpu_seconds
from rookery import RandomAgent
from rookery.envs import AutoresetMode, VectorWrapper, create_env
from rookery.rollout import rollout

ROLLOUT_LENGTH = 128
NUM_ENVS = (64, 1024, 8192)


def bare_gymnax(num_envs: int) -> Callable[[], Any]:
    """A handwritten rollout; gymnax resets inside its own step."""
    env, params = gymnax.make("CartPole-v1")
    reset_key, rollout_key = jax.random.split(jax.random.key(0))
    obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, num_envs), params)

    @jax.jit
    def run(obs: Any, state: Any, key: Any) -> Any:
        def step(carry: tuple, step_key: Any) -> tuple[tuple, tuple]:
            obs, state = carry
            action_key, env_key = jax.random.split(step_key)
            actions = jax.random.randint(action_key, (num_envs,), 0, 2)
            env_keys = jax.random.split(env_key, num_envs)
            next_obs, state, rewards, terminated, truncated, _ = jax.vmap(env.step, (0, 0, 0, None))(
                env_keys, state, actions, params
            )
            return (next_obs, state), (obs, actions, rewards, next_obs, terminated, truncated)

        return jax.lax.scan(step, (obs, state), jax.random.split(key, ROLLOUT_LENGTH))

    return lambda: run(obs, state, rollout_key)


def our_rollout(num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NORMAL) -> Callable[[], Any]:
    """The same with `rollout`."""
    return random_rollout(create_env("classic/cartpole", parallel=num_envs, autoreset_mode=autoreset_mode))


def random_rollout(env: VectorWrapper) -> Callable[[], Any]:
    """Roll out a random agent; also records returns, terminations, truncations and true successors."""
    agent = RandomAgent()
    env_key, agent_key, rollout_key = jax.random.split(jax.random.key(0), 3)
    agent_state = agent.init(env.obs_space, env.action_space, agent_key)
    env_state = env.reset(env_key)
    fields = ("termination", "truncation", "episode_return")
    return lambda: rollout(env.step, agent.compute_actions, env_state, agent_state, rollout_key, ROLLOUT_LENGTH, fields)


def rows() -> Iterator[Row]:
    for num_envs in NUM_ENVS:
        seconds = cpu_seconds({"bare": bare_gymnax(num_envs), "rookery": our_rollout(num_envs)})
        num_steps = num_envs * ROLLOUT_LENGTH
        yield Row(
            name=f"rollout, {num_envs} envs",
            ours=f"{num_steps / seconds['rookery'] / 1e6:.1f} M steps/s",
            other=f"bare scan over gymnax {num_steps / seconds['bare'] / 1e6:.1f} M steps/s",
            ratio=seconds["bare"] / seconds["rookery"],
        )
