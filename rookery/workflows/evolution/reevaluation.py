"""Re-evaluation of an archive: its elites play again, because the fitness of an elite is often luck."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.evaluators import PopulationEvaluator
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evolution import ECState, EvoOptimizer
from rookery.types import Array, Key, Params, PyTreeDict, index_tree
from rookery.workflows.evolution.search import SearchTraining, search_of
from rookery.workflows.programs import Layout, Program
from rookery.workflows.training import CENTER, OnDevice, TrainingState

WithParams = Callable[[AgentState, Params], AgentState]
"""Puts individuals into the states of agents."""
CHUNK_SIZE = 64
"""The number of elites that play at once; chunks of empty cells cost nothing."""
REPLAY = 2**32 - 2
"""Derives the key of a re-evaluation from that of the state, so that it does not change training."""


@dataclass(frozen=True)
class Reevaluation:
    """Replays the archive of a search; of a strategy without one, it does nothing.

    The episodes follow from the state, so the report shows the numbers of the last record.
    """

    optimizer: EvoOptimizer
    layout: Layout
    program: Program

    @classmethod
    def of(
        cls, optimizer: EvoOptimizer, player: PopulationEvaluator, layout: Layout, with_params: WithParams
    ) -> "Reevaluation":
        """Make the program; every device replays the whole archive."""
        player = player.replace(axis_name=None, track_obs=False)
        replayed = layout.over_seeds(partial(_replayed, optimizer, player, with_params))
        return cls(optimizer, layout, Program(replayed, layout.enable_jit, compiler_options=layout.compiler_options))

    def metrics(self, state: TrainingState) -> PyTreeDict:
        """Return the coverage and the QD score of the archive after its elites played again."""
        if not self.optimizer.num_replays:
            return PyTreeDict()
        _, report = self.program(state)
        return PyTreeDict({f"{CENTER}corrected_{name}": report[name] for name in ("qd_score", "coverage")})

    def add_to(self, populations: list[dict[str, Any]], state: TrainingState) -> list[dict[str, Any]]:
        """Add the archive of each seed after its elites played again to its description."""
        if not self.optimizer.num_replays:
            return populations
        corrected = map(self.optimizer.describe, self.layout.seeds_of(self.program(state)[0]))
        return [
            before | {"corrected_fitness": after["fitness"]}
            for before, after in zip(populations, corrected, strict=True)
            if after is not None
        ]


class SearchOnDevice(OnDevice, SearchTraining):
    """A search whose evaluations also replay the elites of its archive, if it has one and is asked to."""

    player: PopulationEvaluator
    reevaluation: Reevaluation

    def _check_measures(self) -> None:
        """Raise if the environment has not what the strategy measures."""
        env, measures = self.player.single_env, self.player.measures

        def measure_one_step(key: Key) -> list[Array]:
            action = env.action_space.sample(key)
            env_state = env.step(env.reset(key), action)
            return [measure.at_step(action, env_state) for measure in measures]

        if measures:
            jax.eval_shape(measure_one_step, jax.random.key(0))

    def evaluate(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        metrics, evaluated = super().evaluate(state)
        return metrics | self.reevaluation.metrics(state), evaluated

    def populations(self, state: TrainingState) -> list[dict[str, Any]]:
        return self.reevaluation.add_to(super().populations(state), state)


def repeated(agent_state: AgentState, size: int) -> AgentState:
    """Return an agent state for each of `size` individuals, without parameters."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), agent_state.replace(params=None))


def _replayed(
    optimizer: EvoOptimizer, player: PopulationEvaluator, with_params: WithParams, state: TrainingState
) -> tuple[ECState, dict[str, Array]]:
    """Return the state of a search with the archive that its elites fill when they play again, and its report."""
    evo_state = search_of(state).evo_state
    elites, num_elites = optimizer.elites(evo_state)
    key = jax.random.fold_in(state.key, REPLAY)

    def play(chunk: Params, first: Array) -> PopulationEpisodes:
        agents = with_params(repeated(state.agent_state, CHUNK_SIZE), chunk)
        return player.play(agents, key, optimizer.num_replays, first)

    episodes = in_chunks(play, elites, num_elites)
    evo_state = optimizer.reevaluated(evo_state, elites, episodes.episode_returns, episodes.measures)
    return evo_state, optimizer.report(evo_state)


def in_chunks(
    play: Callable[[Params, Array], PopulationEpisodes], individuals: Params, num_played: Array
) -> PopulationEpisodes:
    """Play the first `num_played` individuals in chunks; the returns of the others are NaN."""
    total = jax.tree.leaves(individuals)[0].shape[0]
    num_chunks = -(-total // CHUNK_SIZE)
    places = jnp.arange(num_chunks * CHUNK_SIZE, dtype=jnp.int32).reshape(num_chunks, CHUNK_SIZE)

    def play_chunk(places: Array) -> PopulationEpisodes:
        chunk = index_tree(individuals, jnp.minimum(places, total - 1))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(play, chunk, places[0]))
        played = jax.lax.cond(places[0] < num_played, play, lambda *_: nothing, chunk, places[0])
        is_played = (places < num_played)[:, None]
        return played.replace(episode_returns=jnp.where(is_played, played.episode_returns, jnp.nan))

    chunks = jax.lax.map(play_chunk, places)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:total], chunks)
