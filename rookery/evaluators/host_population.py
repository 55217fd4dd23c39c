"""Evaluation of a population on host environments."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.envs.config import EnvConfig
from rookery.errors import RookeryError
from rookery.evaluators.evaluation_player import MAX_EPISODE_STEPS, AgentStates, EvaluationSpec, joined
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.population import merge_all, population_size_of
from rookery.evaluators.population_player import PopulationSpec
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.faults import fault_report
from rookery.runners.groups.dispatcher import JobDispatcher
from rookery.runners.groups.episodes import EpisodesRequest, Evaluated, EvaluationRequest, Plan, Played, RandomRequest
from rookery.runners.groups.group import PATIENCE, ActingSpec, EnvSpec, RunnerGroup, check_one_agent
from rookery.runners.groups.jobs import Chunk, default_chunk_size
from rookery.runners.recording.episode import EpisodeMeans
from rookery.types import Array, Key, Obs, Params, PyTree, Tree, as_mappable_key, as_one_key, where_tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """What runners make individuals from, and the data of the key that they use; see `EvoOptimizer.recipe`."""

    contents: PyTree
    sample_key: Array


class HostPopulation:
    """Plays the episodes of a population in host environments, by a group of runners.

    The population is dealt to the runners in chunks of `chunk_size` individuals; None: one for each runner. Seeds and
    random actions depend on the key, the individual and the episode, and results are merged in the order of the jobs.
    So the result does not depend on the runners, the chunks, nor on runners that were lost and replaced.

    An episode that fails too often, or whose individual loses too many runners, has a return of NaN: the policy may
    cause that. An episode that does not end is cut after `MAX_EPISODE_STEPS` steps, and counts.

    The runners play evaluations as well, each in at most `num_envs` environments.
    """

    def __init__(
        self,
        group: RunnerGroup,
        spec: PopulationSpec,
        chunk_size: int | None = None,
        min_runners: int = 1,
        wait_timeout: float = 600.0,
        num_envs: int = 1,
    ) -> None:
        description = group.describe()
        check_one_agent(spec.env, description)
        self.obs_space, self.action_space = description.spaces[SINGLE_AGENT]
        for measure in spec.measures:
            measure.check(self.obs_space, self.action_space)
        self.group = group
        self.num_begun = 0
        """The number of generations that were begun."""
        self._spec = spec
        self._chunk_size = chunk_size
        self._num_envs = num_envs
        acting = ActingSpec({}, player=spec, evaluator=EvaluationSpec(spec.env, spec.agent, num_envs))
        self._jobs = JobDispatcher(group, acting, min_runners, wait_timeout)
        self._plan: Plan | None = None
        """Of the generation under way."""
        self._counts: Counter[str] = Counter()
        """Episodes that were given up or cut."""
        self._means = EpisodeMeans()
        """Of the episodes since the last record."""
        self._merge_finished = jax.jit(_merge_finished)

    # Generations.

    def play(self, agent_state: AgentState, population: Params, key: Key, num_episodes: int) -> PopulationEpisodes:
        """Play `num_episodes` episodes of every individual; individuals share the rest of `agent_state`.

        An unfinished episode has a return of NaN and a length of 0. If the spec keeps rows, `recorded` has those of all
        finished episodes, one after the other.
        """
        self.begin(agent_state, population, key, num_episodes)
        while (episodes := self.poll(PATIENCE)) is None:
            if self.failure is not None:
                failure = self.failure
                self.close()
                raise failure
        return episodes

    def begin(
        self, agent_state: AgentState, population: Params, key: Key, num_episodes: int, recipe: Recipe | None = None
    ) -> int:
        """Start a generation; return its number. With a `recipe`, runners make the individuals themselves."""
        seed_key, action_key = jax.random.split(as_mappable_key(as_one_key(key)))
        num_individuals = population_size_of(population)
        chunk_size = min(self._chunk_size or -(-num_individuals // self.group.num_runners), num_individuals)
        self._plan = plan = Plan(
            agent_state=agent_state.replace(params=None),
            key=jax.random.key_data(action_key),
            recipe=None if recipe is None else recipe.contents,
            sample_key=None if recipe is None else recipe.sample_key,
            seed=int(jax.random.bits(seed_key)),
            num_individuals=num_individuals,
            num_episodes=num_episodes,
            chunk_size=chunk_size,
        )
        handle = self.group.put(plan)
        if recipe is None and chunk_size < num_individuals:
            population = jax.tree.map(np.asarray, population)

        def request(chunk: Chunk) -> EpisodesRequest:
            carried = None if recipe is not None else _padded_slice(population, chunk, chunk_size)
            return EpisodesRequest(handle, chunk, carried)

        self._jobs.begin(num_individuals, chunk_size, request)
        self.num_begun += 1
        return self.num_begun

    def poll(self, timeout: float) -> PopulationEpisodes | None:
        """Play on for about `timeout` seconds; return the episodes of the generation once all are played.

        None if they are not yet, or never will be: then `failure` says why.
        """
        assert self._plan is not None, "a generation is begun first"
        until = time.monotonic() + timeout
        try:
            while not self._jobs.is_finished and self.failure is None:
                self._jobs.pump(timeout)
                if time.monotonic() >= until:
                    break
            if self.failure is not None or not self._jobs.is_finished:
                return None
            return self._take(self._plan)
        except BaseException:
            self.close()  # the envs are in unfinished episodes
            raise

    def evaluate(self, agent_state: AgentStates, seed: int, num_episodes: int) -> Evaluated:
        """Let the runners play episodes of an evaluation; a generation under way is dropped."""
        self._plan = None
        self.num_begun += 1
        handle = self.group.put(agent_state)
        chunk_size = default_chunk_size(num_episodes, self.group.num_runners, self._num_envs)
        self._jobs.begin(num_episodes, chunk_size, partial(EvaluationRequest, handle, seed, num_episodes))
        while not self._jobs.is_finished and self.failure is None:
            self._jobs.pump()
        return joined(self._jobs.evaluated, num_episodes, 1, "their runners were lost")

    def no_episodes(self, population_size: int, num_episodes: int) -> PopulationEpisodes:
        """Return a result of zeros with the shapes of `play`."""
        shape = population_size, num_episodes
        arrays: dict[str, PyTree] = {
            "episode_returns": np.zeros(shape, np.float32),
            "episode_lengths": np.zeros(shape, np.int32),
            "measures": np.zeros((*shape, len(self._spec.measures)), np.float32),
        }
        statistics = running_statistics.init(self.obs_space) if self._spec.track_obs else None
        return PopulationEpisodes(**arrays, obs_statistics=statistics)

    def play_at_random(self, num_envs: int, num_steps: int, seed: int) -> tuple[Obs, Array]:
        """Act at random in new envs; return the observations and their weights, 0 for dead rows, `[T, B, ...]`."""
        played = self._jobs.play_at_random(RandomRequest(num_envs, num_steps, seed))
        return played.obs, jnp.asarray(played.weights)

    def _take(self, plan: Plan) -> PopulationEpisodes:
        """Merge the results of a generation in the order of its jobs, and count them."""
        played, given_up = self._jobs.played, self._jobs.given_up
        parts = [(chunk.first, of_chunk) for chunk, of_chunk in played.items()]
        parts += [(individual, self._nothing_played(plan.num_episodes)) for individual in given_up]
        results = [result for _, result in sorted(parts, key=lambda part: part[0])]
        lengths = _joined([result.lengths for result in results])
        self._count(results, lengths)
        if not lengths.any():
            raise self._jobs.error(f"none of {len(lengths)} episodes could be finished")
        statistics: Any = None
        if self._spec.track_obs:
            statistics = self._merge_finished(_joined([result.obs_statistics for result in results]), lengths > 0)
        shape = plan.num_individuals, plan.num_episodes
        arrays: dict[str, PyTree] = {
            "episode_returns": _joined([result.returns for result in results]).reshape(shape),
            "episode_lengths": lengths.reshape(shape),
            "measures": _joined([result.measures for result in results]).reshape(*shape, len(self._spec.measures)),
        }
        rows = [result.rows for result in results if result.rows is not None]
        return PopulationEpisodes(**arrays, obs_statistics=statistics, recorded=_joined(rows) if rows else None)

    def _nothing_played(self, num_jobs: int) -> Played:
        """Make the result of an individual that was given up."""
        empty = running_statistics.init(self.obs_space) if self._spec.track_obs else None
        return Played(
            returns=np.full(num_jobs, np.nan, np.float32),
            lengths=np.zeros(num_jobs, np.int32),
            measures=np.full((num_jobs, len(self._spec.measures)), np.nan, np.float32),
            obs_statistics=jax.tree.map(lambda leaf: np.zeros((num_jobs, *leaf.shape), leaf.dtype), empty),
            metrics=(),
            faults=(),
            num_given_up=num_jobs,
            counts=Counter(),
            num_lost_envs=0,
        )

    # Records and checkpoints.

    is_checkpoint_due = False
    """Seeds follow from the training state."""

    @property
    def failure(self) -> RookeryError | None:
        """Why no runner will play again, if that is so."""
        return self._jobs.failure

    @property
    def env_name(self) -> str:
        return self._spec.env.name

    def report(self) -> dict[str, float]:
        """Return the counts of faults and discarded steps, and episode metrics since the last call."""
        report = fault_report(self._jobs.counts, self._jobs.num_lost_envs)
        report |= {f"rollout/{name}": mean for name, mean in self._means.take().items()}
        if not self.group.works_in_receive:
            report |= self._jobs.report()
        return report | {
            "faults/unfinished_episodes": self._counts["unfinished_episodes"],
            "rollout/episodes_cut": self._counts["episodes_cut"],
        }

    def get_state(self) -> dict[str, Any]:
        """Return the counts. Nothing else is saved: a generation starts new episodes, seeded by the training state."""
        return {"counts": dict(self._counts + self._jobs.get_counts())}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue counting from `get_state`."""
        counts = Counter(state["counts"])
        self._counts = Counter({name: counts.pop(name, 0) for name in ("unfinished_episodes", "episodes_cut")})
        self._jobs.set_counts(counts)

    def describe_restart(self) -> str:
        return f"{self.env_name} restarts, as in every generation"

    def close(self) -> None:
        """Close the environments; the next generation makes new ones. May be called twice."""
        self._plan = None
        self.num_begun += 1  # whoever waits for the generation under way begins it again
        self._jobs.close()

    def _count(self, results: Sequence[Played], lengths: np.ndarray) -> None:
        self._counts["unfinished_episodes"] += sum(result.num_given_up for result in results)
        for result in results:
            for metrics in result.metrics:
                self._means.add(metrics)
        num_cut = 0 if self._spec.env.episode_length else int(np.sum(lengths == MAX_EPISODE_STEPS))
        if num_cut and not self._counts["episodes_cut"]:
            logger.warning(
                "%d episodes of %s did not end and were cut after %s steps: set env.episode_length.",
                num_cut,
                self.env_name,
                f"{MAX_EPISODE_STEPS:,}",
            )
        self._counts["episodes_cut"] += num_cut


def population_envs(env: EnvConfig, num_envs: int) -> EnvSpec:
    """Return how the environments of one runner are made that plays individuals."""
    return EnvSpec(env, num_envs, longest_episode=MAX_EPISODE_STEPS)


def _padded_slice(population: Params, chunk: Chunk, size: int) -> Params:
    """Return the individuals of a chunk, `[size, ...]`; the last one is repeated."""
    if chunk.first == 0 and size == population_size_of(population):
        return population
    indexes = np.minimum(np.arange(size), chunk.count - 1) + chunk.first
    return jax.tree.map(lambda leaf: leaf[indexes], population)


def _joined(parts: Sequence[Tree]) -> Tree:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _merge_finished(statistics: RunningStatistics, is_finished: Array) -> RunningStatistics:
    return merge_all(where_tree(is_finished, statistics, jax.tree.map(jnp.zeros_like, statistics)))
