"""Episodes: running ones, the figures of those that ended, and containers of their steps."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import numpy as np

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import AgentID, End
from rookery.sample_batch import SampleBatch

Tree = Any
UNKNOWN_TIME = -1


@dataclass(slots=True)
class LiveEpisode:
    """A running episode, as callbacks and the policy mapping see it."""

    number: int
    """Its number among the episodes of the runner."""
    env_index: int
    seed: int | None
    length: int = 0
    agent_returns: dict[AgentID, float] = field(default_factory=dict)
    """The sum of the raw rewards of each agent."""
    policies: dict[AgentID, str] = field(default_factory=dict)
    """The policy of each agent, for the whole episode."""
    infos: Mapping[AgentID, Mapping] = field(default_factory=dict)
    """The infos of the last step."""
    metrics: dict[str, float] = field(default_factory=dict)
    """For callbacks: numbers to report with this episode."""
    user_data: dict[str, Any] = field(default_factory=dict)
    """For callbacks: anything to keep during the episode."""

    @property
    def episode_return(self) -> float:
        """The sum of the raw rewards of all agents."""
        return float(sum(self.agent_returns.values()))


@dataclass(slots=True)
class EpisodeMetric:
    """The figures of an episode that ended, with raw rewards."""

    episode_return: float
    episode_length: int
    env_index: int
    number: int
    seed: int | None
    how: End
    """How it ended for its agent, or for the last of several."""
    agent_returns: dict[AgentID, float]
    policies: dict[AgentID, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers from callbacks, and from infos such as those of a whole Atari game."""

    @classmethod
    def of(cls, episode: LiveEpisode, how: End) -> Self:
        """Return the figures of an episode that ended this way."""
        return cls(
            episode_return=episode.episode_return,
            episode_length=episode.length,
            env_index=episode.env_index,
            number=episode.number,
            seed=episode.seed,
            how=how,
            agent_returns=episode.agent_returns,
            policies=episode.policies,
            metrics=episode.metrics,
        )

    @property
    def is_faulty(self) -> bool:
        return self.how is End.FAULTY

    @property
    def is_finished(self) -> bool:
        """Whether it was played to its end, so that its return counts."""
        return self.how not in (End.FAULTY, End.ABANDONED)


class EpisodeMeans:
    """The means of the metrics that environments and callbacks report of their episodes, over those that have them."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Include the metrics of an episode."""
        for name, value in metrics.items():
            self._values[name].append(value)

    def take(self) -> dict[str, float]:
        """Return the means and begin again."""
        means = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values.clear()
        return means


@dataclass(frozen=True)
class Episode:
    """The steps of one agent in an episode or a part of it, with one observation more than steps."""

    id: int
    observations: Tree
    """Leaves `[steps + 1, ...]`; the last one is the true successor of the last step."""
    actions: Tree
    """Leaves `[steps, ...]`."""
    rewards: np.ndarray
    times: np.ndarray
    """The env step of each observation, `[steps + 1]`; an agent that acts in turns skips some. The last may be
    `UNKNOWN_TIME`."""
    end: End = End.RUNNING
    extras: Tree = field(default_factory=dict)
    """More values, leaves `[steps, ...]`."""

    def __post_init__(self) -> None:
        num_observations = {len(leaf) for leaf in jax.tree.leaves((self.observations, self.times))}
        num_rows = {len(leaf) for leaf in jax.tree.leaves((self.actions, self.rewards, self.extras))}
        if num_rows != {len(self)} or num_observations != {len(self) + 1}:
            raise InvalidInputError(
                f"an episode of {len(self)} steps has {len(self) + 1} observations and times, and {len(self)} of "
                f"everything else; got {sorted(num_observations)} and {sorted(num_rows)}."
            )

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def is_done(self) -> bool:
        return self.end is not End.RUNNING

    @property
    def t_started(self) -> int:
        """The env step with which this part begins."""
        return int(self.times[0])

    @property
    def t(self) -> int:
        """The env step with which the episode continues, or `UNKNOWN_TIME`."""
        return int(self.times[-1])

    @property
    def episode_return(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))

    def __getitem__(self, index: slice) -> Self:
        """Return consecutive steps with the observations around them: `episode[2:]` skips the first two."""
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise InvalidInputError(f"an episode takes slices of consecutive steps, like [2:10], not {index!r}.")
        start, stop, _ = index.indices(len(self))
        stop = max(start, stop)
        return replace(
            self,
            observations=jax.tree.map(lambda leaf: leaf[start : stop + 1], self.observations),
            actions=jax.tree.map(lambda leaf: leaf[start:stop], self.actions),
            rewards=self.rewards[start:stop],
            extras=jax.tree.map(lambda leaf: leaf[start:stop], self.extras),
            times=self.times[start : stop + 1],
            end=self.end if stop == len(self) else End.RUNNING,
        )

    def cut(self) -> Self:
        """Return the next part, still empty: it starts with the last observation of this one."""
        if self.is_done:
            raise InvalidInputError(f"episode {self.id} has ended ({self.end.name}): nothing follows.")
        return self[len(self) :]

    def concatenate(self, other: "Episode") -> Self:
        """Return this part and its successor as one part."""
        if other.id != self.id:
            raise InvalidInputError(f"episode {other.id} does not continue episode {self.id}.")
        if self.is_done:
            raise InvalidInputError(f"episode {self.id} has ended ({self.end.name}): nothing follows.")
        last_act = int(self.times[:-1].max(initial=UNKNOWN_TIME))
        if self.t == UNKNOWN_TIME and UNKNOWN_TIME < other.t_started <= last_act:
            raise InvalidInputError(
                f"episode {self.id} goes on after step {last_act}; this part starts at {other.t_started}."
            )
        if self.t not in (UNKNOWN_TIME, other.t_started):
            raise InvalidInputError(
                f"episode {self.id} goes on at step {self.t}; this part starts at {other.t_started}. Of agents that "
                "act in turns, parts are made by episodes_of(batch, acts_in_turns=True)."
            )
        ours, theirs = jax.tree.leaves(self.observations), jax.tree.leaves(other.observations)
        if any(
            not np.array_equal(mine[-1], its[0], equal_nan=_may_hold_nan(mine))
            for mine, its in zip(ours, theirs, strict=True)
        ):
            raise InvalidInputError(
                f"the part of episode {self.id} from step {other.t_started} starts with another observation than the "
                "last one: something is missing between them."
            )

        def join(mine: np.ndarray, its: np.ndarray) -> np.ndarray:
            return np.concatenate([mine, its])

        return replace(
            self,
            observations=jax.tree.map(lambda mine, its: join(mine, its[1:]), self.observations, other.observations),
            actions=jax.tree.map(join, self.actions, other.actions),
            rewards=join(self.rewards, other.rewards),
            times=join(self.times[:-1], other.times),
            extras=jax.tree.map(join, self.extras, other.extras),
            end=other.end,
        )


def episodes_of(batch: SampleBatch, acts_in_turns: bool = False) -> list[Episode]:
    """Cut the trajectory `[T, columns]` of a runner into episodes or parts of them.

    Every agent of an env has its own, with the same `id`. With `acts_in_turns` an agent may skip steps, and a batch
    does not hold the time after its last row: compare observations to find the part of another batch that follows.
    """
    return list(_episodes_of(batch, acts_in_turns))


def _episodes_of(batch: SampleBatch, acts_in_turns: bool) -> Iterable[Episode]:
    env_extras = batch.extras.env_extras
    is_live = env_extras.autoreset == 0
    numbers, ends, times = env_extras.episode, env_extras.end, env_extras.t
    for column in range(is_live.shape[1]):
        length = int(is_live[:, column].sum())
        borders = np.flatnonzero((ends[:length, column] != End.RUNNING) | _changes(numbers[:length, column])) + 1
        for start, stop in zip([0, *borders], [*borders, length], strict=True):
            if start == stop:
                continue
            part = slice(start, stop)

            def rows(tree: Tree, part: slice = part, column: int = column) -> Tree:
                return jax.tree.map(lambda leaf: leaf[part, column], tree)

            last = jax.tree.map(
                lambda leaf, row=stop - 1, column=column: leaf[row : row + 1, column], env_extras.ori_obs
            )
            yield Episode(
                id=int(numbers[start, column]),
                observations=jax.tree.map(lambda *leaves: np.concatenate(leaves), rows(batch.obs), last),
                actions=rows(batch.actions),
                rewards=batch.rewards[part, column],
                times=np.append(times[part, column], UNKNOWN_TIME if acts_in_turns else times[stop - 1, column] + 1),
                end=End(int(ends[stop - 1, column])),
                extras=rows(dict(batch.extras.policy_extras)),
            )


def _changes(numbers: np.ndarray) -> np.ndarray:
    """Return where the next entry has another value."""
    return np.append(numbers[1:] != numbers[:-1], False) if len(numbers) else np.zeros(0, bool)


def _may_hold_nan(leaf: np.ndarray) -> bool:
    return leaf.dtype.kind == "f"
