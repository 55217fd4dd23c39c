"""Hybrids on host environments: runners play the episodes of a generation, whose steps fill the replay buffer."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rookery.agent import AgentState
from rookery.compilation import run_once_options
from rookery.distributed import DEVICE_AXIS, SAME, SPLIT
from rookery.evaluators.host import HostEvaluator
from rookery.evaluators.host_population import HostPopulation
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.hyperparameters import Hyperparameters
from rookery.metrics import Mean, Metrics
from rookery.replay_buffers.replay_buffer import ReplayState
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, Params, Tree
from rookery.workflows.evolution.exchange import Exchange
from rookery.workflows.evolution.generations import HostSearch
from rookery.workflows.evolution.hybrids import NOT_FINITE, Asked, Crew, HybridGenerations, hybrid_of, with_buffer
from rookery.workflows.host.collector import check_not_traced
from rookery.workflows.programs import Layout, specs_of
from rookery.workflows.training import TrainingState

BLOCK_ROWS = 1024
"""Rows that a device stores at a time, so that one compiled program stores generations of any length."""
ROWS = PartitionSpec(None, DEVICE_AXIS)


class HostHybrids(HostSearch, HybridGenerations):
    """Plays the episodes of a generation in host environments.

    A device stores the episodes of its share of the agents, one after the other: its replay buffer has one column.
    """

    def __init__(
        self,
        exchange: Exchange,
        crew: Crew,
        hyperparameters: Hyperparameters,
        layout: Layout,
        player: HostPopulation,
        evaluator: HostEvaluator,
        num_evaluations: int,
        clips_rewards: bool,
    ) -> None:
        self.player = self.environments = player
        super().__init__(exchange, crew, hyperparameters, layout)
        self.evaluator = evaluator
        self.evaluation = self._make_evaluation(num_evaluations, is_compiled=False)
        self._clips_rewards = clips_rewards
        num_devices = layout.num_shares
        self._shares = [np.concatenate(crew.numbers_on(device, num_devices)) for device in range(num_devices)]
        """The numbers of the agents whose episodes each device learns from."""
        specs = self.specs()
        of_buffer, without_buffer = hybrid_of(specs).gradient.buffer_state, with_buffer(specs, None)
        asked = specs_of(Asked, state=specs, metrics=SAME)
        self._make_host_programs(self._start, self._tell, asked, player.no_episodes(crew.size, crew.num_episodes))
        asked = asked.replace(state=without_buffer)
        self._ask_all = layout.program(self._ask_crew, (specs,), (asked, SPLIT, SAME, SAME))
        self._add = layout.program(self._add_rows, (of_buffer, ROWS, ROWS), of_buffer, donate=(0,))
        self._begin_refill = layout.program(
            self._emptied_crew, (without_buffer,), (of_buffer, SAME, SAME), options=run_once_options()
        )

    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        buffer_state = hybrid_of(state).gradient.buffer_state
        return super().step(with_buffer(state, jax.tree.map(jnp.copy, buffer_state)))

    def refill(self, state: TrainingState) -> TrainingState:
        empty, crew, key = self._begin_refill(state)
        episodes = self.player.play(*self._on_first_device((crew, crew.params, key)), self.crew.num_episodes)
        return with_buffer(state, self._store(empty, episodes)[0])

    def metrics_shape(self, state: TrainingState) -> Metrics:
        asked, population, *_ = jax.eval_shape(self._ask_all, state)
        asked = asked.with_buffer(hybrid_of(state).gradient.buffer_state)
        return jax.eval_shape(self._tell_all, asked, population, self.example)[0]

    # For `HostGenerationsLoop`.

    def begin(self, state: TrainingState) -> tuple[Asked, Params, int]:
        check_not_traced(self.player.env_name, state)
        asked, population, crew, key = self._ask_all(state)
        number = self.player.begin(*self._on_first_device((crew, crew.params, key)), self.crew.num_episodes)
        return asked.with_buffer(hybrid_of(state).gradient.buffer_state), population, number

    def take_in(self, asked: Asked, episodes: PopulationEpisodes) -> tuple[Asked, PopulationEpisodes]:
        buffer_state, num_not_finite = self._store(hybrid_of(asked.state).gradient.buffer_state, episodes)
        count = self.layout.place(Mean.of(jnp.float32(num_not_finite)), SAME)
        stored = asked.with_buffer(buffer_state).replace(metrics={**asked.metrics, NOT_FINITE: count})
        order = np.concatenate(self._shares)
        by_device = episodes.replace(
            episode_returns=episodes.episode_returns[order],
            episode_lengths=episodes.episode_lengths[order],
            measures=episodes.measures[order],
            recorded=None,
        )
        return super().take_in(stored, by_device)

    def _on_first_device(self, tree: Tree) -> Tree:
        """Move a tree to where agents act."""
        return jax.device_put(tree, self.layout.mesh.devices.flat[0])

    def _store(self, buffer_state: ReplayState, episodes: PopulationEpisodes) -> tuple[ReplayState, int]:
        """Store the steps of a generation, and count those that are not finite; the given buffer is overwritten."""
        if episodes.recorded is None:
            return buffer_state, 0
        rows: SampleBatch = episodes.recorded
        if self._clips_rewards:
            rows = rows.replace(rewards=np.sign(rows.rewards))
        is_finite = finite_rows(rows)
        if self.learner.config.window_length > 1:  # no window continues past a row that is left out
            rows = rows.replace(dones=np.maximum(rows.dones, np.append(~is_finite[1:], False)))
        columns = self._columns(is_finite, np.asarray(episodes.episode_lengths))
        for first in range(0, max(map(len, columns)), BLOCK_ROWS):
            parts = [column[first : first + BLOCK_ROWS] for column in columns]
            is_live = np.arange(BLOCK_ROWS)[:, None] < np.array([len(part) for part in parts])  # [R, D]
            block = jax.tree.map(partial(_block, parts=parts), rows)
            buffer_state = self._add(buffer_state, *self.layout.place((block, is_live), ROWS))
        return buffer_state, int(np.sum(~is_finite))

    def _columns(self, is_finite: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """Return the indexes of the rows that each device stores: finite ones of its agents."""
        episodes = np.repeat(np.arange(lengths.size), lengths.ravel())
        agents = episodes // lengths.shape[1]
        return [np.flatnonzero(np.isin(agents, share) & is_finite) for share in self._shares]

    # For one device's share.

    def _ask_crew(self, state: TrainingState) -> tuple[Asked, Params, AgentState, Key]:
        """Start a generation: return the whole crew as well; what was asked comes without the replay buffer."""
        asked, population, play_key = self._ask(state)
        asked = asked.replace(metrics={**asked.metrics, NOT_FINITE: Mean.of(jnp.float32(0.0))})
        return asked.with_buffer(None), population, self._whole_crew(asked.state, population), play_key

    def _emptied_crew(self, state: TrainingState) -> tuple[ReplayState, AgentState, Key]:
        empty, population, play_key = self._emptied(state)
        return hybrid_of(empty).gradient.buffer_state, self._whole_crew(empty, population), play_key

    def _whole_crew(self, state: TrainingState, population: Params) -> AgentState:
        """Return the agents of all devices: what they share, and the parameters of each."""
        num_copies = self.crew.size - self.crew.population_size
        return self._with_actor(*self._agents(hybrid_of(state), self.optimizer.gathered(population), num_copies))

    def _add_rows(self, buffer_state: ReplayState, rows: SampleBatch, is_live: Array) -> ReplayState:
        return self.learner.buffer.add(buffer_state, rows, is_live)


def finite_rows(rows: SampleBatch) -> np.ndarray:
    """Tell which rows have finite numbers alone."""
    leaves = jax.tree.leaves(rows)
    return np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves], axis=0)


def _block(leaf: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return some rows for each device, `[R, D, ...]`."""
    block = np.zeros((BLOCK_ROWS, len(parts), *leaf.shape[1:]), leaf.dtype)
    for device, part in enumerate(parts):
        block[: len(part), device] = leaf[part]
    return block
