"""Roll out and evaluate agents on our own CartPole, and record the best of them.

Nothing is trained here: of 1,024 networks with random weights, some happen to balance the pole. Finding them takes
less time than compiling the search.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from PIL import Image
from rich.console import Console
from rich.table import Table

from rookery import Agent, AgentState, PyTreeDict, RandomAgent, SampleBatch
from rookery.algorithms.policy_agent import PolicyAgent
from rookery.envs import AutoresetMode, VectorWrapper, create_env
from rookery.evaluators import Evaluator, PopulationEvaluator
from rookery.rollout import rollout
from rookery.spaces import Space
from rookery.types import Key

NUM_ENVS = 1024
ROLLOUT_LENGTH = 1000
POPULATION_SIZE = 1024
VIDEO = Path("demo/cartpole.gif")


class LeaningAgent(Agent):
    """A rule of thumb, to show what an agent is: push the cart to the side to which the pole leans and falls."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=PyTreeDict(weights=jnp.array([0.0, 0.0, 1.0, 0.5])))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        lean = sample_batch.obs @ agent_state.params.weights
        return (lean > 0).astype(jnp.int32), PyTreeDict()

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result of `run`, the seconds it takes to compile and those it takes afterwards."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    first = time.perf_counter() - start
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    steady = time.perf_counter() - start
    return result, max(0.0, first - steady), steady


def record(env: VectorWrapper, agent: Agent, agent_state: AgentState, key: Key, path: Path) -> None:
    """Play one episode and write it as an animated picture."""
    reset_key, *action_keys = jax.random.split(key, 201)
    env_state = env.reset(reset_key)
    evaluate_actions = jax.jit(agent.evaluate_actions)
    frames = []
    for action_key in action_keys:
        if env_state.done[0]:
            break
        frames.append(Image.fromarray(env.render(env_state)))
        actions, _ = evaluate_actions(agent_state, SampleBatch(obs=env_state.obs), action_key)
        env_state = env.step(env_state, actions)
    path.parent.mkdir(exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=20, loop=0)


def main() -> None:
    console = Console(soft_wrap=True)
    rollout_key, env_key, agent_key, population_key, search_key, evaluate_key, video_key = jax.random.split(
        jax.random.key(0), 7
    )

    env = create_env("classic/cartpole", parallel=NUM_ENVS)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, agent_key)
    env_state = env.reset(env_key)
    _, compile_seconds, seconds = timed(
        lambda: rollout(env.step, agent.compute_actions, env_state, agent_state, rollout_key, ROLLOUT_LENGTH)
    )
    console.print(
        f"Rolled out {NUM_ENVS * ROLLOUT_LENGTH:,} steps of {NUM_ENVS:,} CartPoles in {seconds:.2f} s: "
        f"{NUM_ENVS * ROLLOUT_LENGTH / seconds / 1e6:.0f} million steps/s (compiled in {compile_seconds:.1f} s)."
    )

    network = PolicyAgent()
    make_population = jax.jit(jax.vmap(lambda key: network.init(env.obs_space, env.action_space, key)))
    population = make_population(jax.random.split(population_key, POPULATION_SIZE))
    search = PopulationEvaluator(env=env, agent_fn=network.evaluate_actions, max_episode_steps=500)
    fitness, compile_seconds, seconds = timed(lambda: search.evaluate(population, search_key, num_episodes=4))
    from_worst_to_best = jnp.argsort(fitness.episode_returns.mean(axis=1))
    typical = jax.tree.map(lambda leaf: leaf[from_worst_to_best[POPULATION_SIZE // 2]], population)
    best = jax.tree.map(lambda leaf: leaf[from_worst_to_best[-1]], population)
    console.print(
        f"Tried {POPULATION_SIZE:,} random networks for 4 episodes each in {seconds:.2f} s: "
        f"{int(fitness.episode_lengths.sum()) / seconds / 1e6:.1f} million steps/s "
        f"(compiled in {compile_seconds:.1f} s)."
    )

    contenders: dict[str, tuple[Agent, AgentState]] = {
        "random actions": (agent, agent_state),
        "a typical random network": (network, typical),
        "the rule of thumb": (LeaningAgent(), LeaningAgent().init(env.obs_space, env.action_space, agent_key)),
        f"the best of {POPULATION_SIZE:,} networks": (network, best),
    }
    table = Table("agent", "mean return", "shortest", "longest", title="100 episodes of classic/cartpole")
    for column in table.columns[1:]:
        column.justify = "right"
    evaluate_env = create_env("classic/cartpole", parallel=100, autoreset_mode=AutoresetMode.DISABLED)
    for name, (contender, contender_state) in contenders.items():
        evaluator = Evaluator(env=evaluate_env, agent_fn=contender.evaluate_actions, max_episode_steps=500)
        metrics = evaluator.evaluate(contender_state, evaluate_key, num_episodes=100)
        lengths = metrics.episode_lengths
        table.add_row(name, f"{metrics.episode_returns.mean():.1f}", str(lengths.min()), str(lengths.max()))
    console.print(table)

    video_env = create_env("classic/cartpole", autoreset_mode=AutoresetMode.DISABLED)
    record(video_env, network, best, video_key, VIDEO)
    console.print(f"The best of them at work: {VIDEO}")


if __name__ == "__main__":
    main()
