"""Generations of OpenES against evosax: its strategy, with whole episodes mapped over the population.

Both evolve the same network (64 x 64 tanh) in the same environment code, with the mean return of an individual's
episode as its fitness. Ask, play and tell are one program. Every call runs the same generation of the same search.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.table import Row
from bench.timing import cpu_seconds
from rookery.algorithms.evolution.open_es import OpenESWorkflow
from rookery.rollout import act

POPULATION_SIZE = 1024
NOISE_STD, LEARNING_RATE = 0.05, 0.01


def rows() -> Iterator[Row]:
    yield row("OpenES, CartPole, first generation", "classic/cartpole")
    yield row("OpenES, CartPole, solved", "classic/cartpole", num_generations=60)
    yield row("OpenES, Pendulum", "classic/pendulum")


def row(name: str, env: str, num_generations: int = 0) -> Row:
    """Compare generations of a search after `num_generations` generations."""
    workflow = make_workflow(env)
    state = workflow.init(workflow.make_key())
    for _ in range(num_generations):
        _, state = workflow.step(state)
    metrics, _ = workflow.step(state)
    seconds = cpu_seconds(
        {"rookery": lambda: workflow.step(state), "evosax": evosax_generation(workflow, state.agent_state)}
    )
    return Row(
        name=f"{name}, mean length {metrics['rollout/ep_len_mean']:.0f}",
        ours=f"{1 / seconds['rookery']:.2f} generations/s",
        other=f"evosax and mapped episodes {1 / seconds['evosax']:.2f} generations/s",
        ratio=seconds["evosax"] / seconds["rookery"],
    )


def make_workflow(env: str) -> OpenESWorkflow:
    agent = {"population_size": POPULATION_SIZE, "noise_std": NOISE_STD, "learning_rate": LEARNING_RATE}
    return OpenESWorkflow.build_from_config({"agent": agent, "env": {"name": env}})


def evosax_generation(workflow: OpenESWorkflow, agent_state: Any) -> Callable[[], Any]:
    """One generation of evosax's OpenES around the same parameters."""
    from evosax.algorithms import Open_ES

    strategy = Open_ES(
        POPULATION_SIZE,
        agent_state.params,
        optimizer=optax.adam(LEARNING_RATE),
        std_schedule=optax.constant_schedule(NOISE_STD),
    )
    params = strategy.default_params
    state = strategy.init(jax.random.key(0), agent_state.params, params)
    play = whole_episode(workflow)

    @jax.jit
    def generation(key: Any) -> Any:
        ask_key, play_key, tell_key = jax.random.split(key, 3)
        population, asked = strategy.ask(ask_key, state, params)
        keys = jax.random.split(play_key, POPULATION_SIZE)
        returns = jax.vmap(lambda params, key: play(agent_state.replace(params=params), key))(population, keys)
        return strategy.tell(tell_key, population, -returns, asked, params)[0]

    return lambda: generation(jax.random.key(1))


def whole_episode(workflow: Any) -> Callable[[Any, Any], Any]:
    """One episode of full length, to be vmapped over the population; steps after its end do not count."""
    player, agent = workflow.training.player, workflow.agent
    env = player.single_env

    def play(agent_state: Any, key: Any) -> Any:
        reset_key, action_key = jax.random.split(key)

        def step(carry: tuple, time: Any) -> tuple:
            env_state, alive, total = carry
            step_key = jax.random.fold_in(action_key, time)
            actions, _, _ = act(agent.evaluate_actions, agent_state, env_state, (), step_key)
            env_state = env.step(env_state, actions)
            return (env_state, alive * (1.0 - env_state.done), total + alive * env_state.reward), None

        start = (env.reset(reset_key), jnp.ones(()), jnp.zeros(()))
        times = jnp.arange(player.max_episode_steps)
        return jax.lax.scan(step, start, times)[0][2]

    return play
