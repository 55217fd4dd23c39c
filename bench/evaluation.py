"""Evaluation of one agent, and of a population, against mapping whole episodes."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from bench.table import Row
from bench.timing import cpu_seconds
from rookery.agent import AgentState
from rookery.agents.policy import PolicyAgent
from rookery.envs import AutoresetMode, Env, create_env
from rookery.evaluators import Evaluator, PopulationEvaluator
from rookery.rollout import act

MAX_STEPS = 500
POPULATION_SIZE = 1024
NUM_EPISODES = 128


def whole_episode(env: Env, agent: PolicyAgent) -> Callable[[AgentState, Any], Any]:
    """One episode as a `while_loop`, to be vmapped over agents or keys: all wait for the longest episode."""

    def play(agent_state: AgentState, key: Any) -> Any:
        reset_key, action_key = jax.random.split(key)

        def step(state: tuple) -> tuple:
            env_state, episode_return, length = state
            step_key = jax.random.fold_in(action_key, length)
            actions, _, _ = act(agent.evaluate_actions, agent_state, env_state, (), step_key)
            env_state = env.step(env_state, actions)
            return env_state, episode_return + env_state.reward, length + 1

        start = (env.reset(reset_key), jnp.zeros(()), jnp.zeros((), jnp.int32))
        return jax.lax.while_loop(lambda state: (state[0].done == 0) & (state[2] < MAX_STEPS), step, start)[1:]

    return play


def rows() -> Iterator[Row]:
    env = create_env("classic/cartpole", parallel=NUM_EPISODES, autoreset_mode=AutoresetMode.DISABLED)
    agent = PolicyAgent()  # 64 x 64 tanh
    agent_keys, evaluate_key = jax.random.split(jax.random.key(0), POPULATION_SIZE), jax.random.key(1)
    population = jax.vmap(lambda key: agent.init(env.obs_space, env.action_space, key))(agent_keys)
    first = jax.tree.map(lambda leaf: leaf[0], population)
    episode = whole_episode(env.env, agent)

    one_agent = jax.jit(jax.vmap(episode, in_axes=(None, 0)))
    evaluator = Evaluator(env=env, agent_fn=agent.evaluate_actions, max_episode_steps=MAX_STEPS)
    keys = jax.random.split(evaluate_key, NUM_EPISODES)
    seconds = cpu_seconds(
        {
            "mapped": lambda: one_agent(first, keys),
            "rookery": lambda: evaluator.evaluate(first, evaluate_key, NUM_EPISODES),
        }
    )
    yield Row(
        name=f"evaluate one agent, {NUM_EPISODES} episodes",
        ours=f"{seconds['rookery'] * 1e3:.2f} ms",
        other=f"vmap over while_loop {seconds['mapped'] * 1e3:.2f} ms",
        ratio=seconds["mapped"] / seconds["rookery"],
    )

    everybody = jax.jit(jax.vmap(episode))
    keys = jax.random.split(evaluate_key, POPULATION_SIZE)
    for num_lanes in (16, 32, 64):
        lanes = PopulationEvaluator(
            env=env, agent_fn=agent.evaluate_actions, max_episode_steps=MAX_STEPS, num_lanes=num_lanes
        )
        mean_length = lanes.evaluate(population, evaluate_key).episode_lengths.mean()
        seconds = cpu_seconds(
            {
                "mapped": lambda: everybody(population, keys),
                "rookery": lambda lanes=lanes: lanes.evaluate(population, evaluate_key),
            }
        )
        yield Row(
            name=f"{POPULATION_SIZE} agents on {num_lanes} lanes, mean length {mean_length:.0f}",
            ours=f"{seconds['rookery'] * 1e3:.1f} ms",
            other=f"vmap over while_loop {seconds['mapped'] * 1e3:.1f} ms",
            ratio=seconds["mapped"] / seconds["rookery"],
        )
