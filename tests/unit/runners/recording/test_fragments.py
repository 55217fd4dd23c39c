"""The memory of a fragment against plain lists of transitions."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

from rookery.runners.acting.packing import Packing
from rookery.runners.envs.base_env import End
from rookery.runners.recording.fragments import ALL_COLUMNS, FragmentBuffer, PolicyOutput
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict


def acts_of(numbers: Any) -> PolicyOutput:
    actions = np.asarray(numbers, np.int32)
    tree = (actions, PyTreeDict(log_prob=actions.astype(np.float32) / 10))
    packing = Packing.of(tree)
    return PolicyOutput(actions, [np.asarray(array) for array in packing.pack(tree)], packing)


def numbers_of(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


def play(memory: FragmentBuffer, columns: Any, start: int, num_steps: int, episode: int = 0) -> None:
    """Let some columns act and see what comes of it: observations count on from `start`, rewards are their halves."""
    width = memory.num_columns if columns is ALL_COLUMNS else len(columns)
    for t in range(start, start + num_steps):
        memory.act(columns, acts_of([t] * width), np.full(width, t), np.full(width, episode))
        memory.follow(columns, numbers_of([t + 1] * width))
        memory.complete(columns, np.full(width, t / 2), np.zeros(width, np.uint8), np.full(width, float(t)))
        memory.observe(columns, numbers_of([t + 1] * width))


def take(memory: FragmentBuffer, num_rows: int | None = None, open_columns: Any = (), **options: Any) -> SampleBatch:
    batch, num_complete = memory.take(num_rows, np.array(open_columns, np.int64), memory.num_rows, **options)
    assert batch is not None
    assert num_complete == (batch.extras.env_extras.autoreset == 0).sum()
    return batch


def test_rows_are_where_they_were_written() -> None:
    memory = FragmentBuffer(4, 2)
    memory.observe(ALL_COLUMNS, numbers_of([0, 0]))
    play(memory, ALL_COLUMNS, 0, 4, episode=3)
    batch = take(memory, 4)
    np.testing.assert_array_equal(batch.obs[..., 0], np.tile(np.arange(4.0)[:, None], 2))
    np.testing.assert_array_equal(batch.next_obs[..., 0], np.tile(np.arange(1.0, 5.0)[:, None], 2))
    np.testing.assert_array_equal(batch.actions[:, 1], [0, 1, 2, 3])
    np.testing.assert_allclose(batch.extras.policy_extras.log_prob[:, 1], [0.0, 0.1, 0.2, 0.3])
    np.testing.assert_array_equal(batch.rewards[:, 0], [0.0, 0.5, 1.0, 1.5])
    env_extras = batch.extras.env_extras
    np.testing.assert_array_equal(env_extras.steps[:, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(env_extras.episode, np.full((4, 2), 3))
    assert not batch.dones.any()
    assert not env_extras.autoreset.any()


def test_the_fields_have_the_types_of_trajectories() -> None:
    memory = FragmentBuffer(2, 1)
    memory.observe(ALL_COLUMNS, numbers_of([0]))
    play(memory, ALL_COLUMNS, 0, 2)
    batch = take(memory, 2)
    env_extras = batch.extras.env_extras
    for name in ("termination", "truncation", "autoreset", "episode_return"):
        assert env_extras[name].dtype == np.float32, name
    for name in ("steps", "t", "episode"):
        assert env_extras[name].dtype == np.int32, name
    assert env_extras.end.dtype == np.uint8
    assert batch.rewards.dtype == batch.dones.dtype == np.float32


def test_a_column_that_stops_early_ends_as_at_a_time_limit_and_then_holds_nothing() -> None:
    memory = FragmentBuffer(4, 2)
    memory.observe(ALL_COLUMNS, numbers_of([0, 0]))
    play(memory, np.array([0]), 0, 4)
    play(memory, np.array([1]), 0, 2)
    batch = take(memory, 4)
    env_extras = batch.extras.env_extras
    np.testing.assert_array_equal(env_extras.autoreset.T, [[0, 0, 0, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(env_extras.truncation.T, [[0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(batch.dones, env_extras.truncation)
    np.testing.assert_array_equal(env_extras.ori_obs[:2, 1, 0], [1.0, 2.0])
    assert env_extras.end[1, 1] == End.RUNNING  # the episode goes on in the next fragment


def test_a_last_observation_is_the_successor_and_the_next_episode_begins_with_its_own() -> None:
    memory = FragmentBuffer(3, 1)
    column = np.array([0])
    memory.observe(column, numbers_of([0]))
    memory.act(column, acts_of([7]), np.array([0]), np.array([0]))
    memory.follow(column, numbers_of([50]))
    memory.complete(column, np.ones(1), np.array([End.TRUNCATED], np.uint8), np.ones(1))
    memory.end_episode(0)
    memory.observe(column, numbers_of([100]))
    play(memory, column, 100, 2, episode=1)
    batch = take(memory, 3)
    np.testing.assert_array_equal(batch.obs[:, 0, 0], [0.0, 100.0, 101.0])
    np.testing.assert_array_equal(batch.extras.env_extras.ori_obs[:, 0, 0], [50.0, 101.0, 102.0])
    np.testing.assert_array_equal(batch.dones[:, 0], [1.0, 0.0, 0.0])


def test_a_discarded_episode_leaves_nothing_behind() -> None:
    memory = FragmentBuffer(6, 2)
    memory.observe(ALL_COLUMNS, numbers_of([0, 0]))
    play(memory, np.array([0]), 0, 6)
    play(memory, np.array([1]), 0, 2)
    memory.end_episode(1)
    memory.observe(np.array([1]), numbers_of([500]))
    play(memory, np.array([1]), 500, 3, episode=1)
    assert memory.discard(1) == 3
    memory.observe(np.array([1]), numbers_of([700]))
    play(memory, np.array([1]), 700, 1, episode=2)
    batch = take(memory, 6)
    is_live = batch.extras.env_extras.autoreset[:, 1] == 0
    np.testing.assert_array_equal(batch.obs[is_live, 1, 0], [0.0, 1.0, 700.0])
    np.testing.assert_array_equal(batch.next_obs[is_live, 1, 0], [1.0, 2.0, 701.0])
    for rows in (batch.obs, batch.next_obs, batch.rewards, batch.dones):
        assert not rows[~is_live, 1].any()
    np.testing.assert_array_equal(batch.extras.env_extras.end[~is_live, 1], End.RUNNING)


def test_an_open_row_goes_on_in_the_next_fragment() -> None:
    memory = FragmentBuffer(2, 2)
    column = np.array([1])
    memory.observe(ALL_COLUMNS, numbers_of([0, 30]))
    memory.act(ALL_COLUMNS, acts_of([0, 9]), np.array([0, 4]), np.array([0, 2]))
    memory.follow(np.array([0]), numbers_of([1]))
    memory.complete(np.array([0]), np.ones(1), np.zeros(1, np.uint8), np.ones(1))
    memory.observe(np.array([0]), numbers_of([1]))
    first = take(memory, 2, open_columns=[1])
    assert (first.extras.env_extras.autoreset[:, 1] == 1).all()
    memory.follow(column, numbers_of([31]))
    memory.complete(column, np.array([5.0]), np.array([End.TERMINATED], np.uint8), np.array([6.0]))
    second = take(memory, 2)
    env_extras = second.extras.env_extras
    row = (second.obs[0, 1, 0], second.actions[0, 1], second.rewards[0, 1], env_extras.ori_obs[0, 1, 0])
    assert row == (30.0, 9, 5.0, 31.0)
    assert (env_extras.t[0, 1], env_extras.episode[0, 1], env_extras.end[0, 1]) == (4, 2, End.TERMINATED)
    assert second.extras.policy_extras.log_prob[0, 1] == pytest.approx(0.9)


def test_agents_that_see_nothing_after_their_act_keep_what_they_acted_on() -> None:
    def shown(*numbers: float) -> PyTreeDict:
        return PyTreeDict(a=numbers_of(numbers), b=np.array(numbers, np.int64))

    memory = FragmentBuffer(4, 3)
    memory.observe(ALL_COLUMNS, shown(1, 2, 3))
    for columns in (np.array([1]), np.array([0, 1, 2]), np.array([2, 0])):
        width = len(columns)
        memory.act(columns, acts_of([0] * width), np.zeros(width), np.zeros(width))
        memory.follow(columns, None)
        memory.complete(columns, np.zeros(width), np.full(width, End.GONE_TRUNCATED, np.uint8), np.zeros(width))
        memory.observe(columns, shown(*(10 * memory.cursor[columns] + columns)))
    batch = take(memory)
    jax.tree.map(np.testing.assert_array_equal, batch.next_obs, batch.obs)
    assert batch.next_obs.b[:2].tolist() == [[1, 2, 3], [10, 11, 12]]
    assert (batch.next_obs.a.dtype, batch.next_obs.b.dtype) == (np.float32, np.int64)
    assert batch.extras.env_extras.truncation[:2].all()


def test_rows_of_running_episodes_wait_if_only_whole_ones_are_wanted() -> None:
    memory = FragmentBuffer(8, 2)
    memory.observe(ALL_COLUMNS, numbers_of([0, 0]))
    play(memory, ALL_COLUMNS, 0, 3)
    memory.ends[2, 0] = End.TERMINATED
    memory.end_episode(0)
    memory.observe(np.array([0]), numbers_of([0]))
    first = take(memory, num_kept=memory.num_in_episode)
    np.testing.assert_array_equal((first.extras.env_extras.autoreset == 0).sum(axis=0), [3, 0])
    play(memory, np.array([1]), 3, 2)
    second = take(memory)
    is_live = second.extras.env_extras.autoreset[:, 1] == 0
    np.testing.assert_array_equal(second.obs[is_live, 1, 0], np.arange(5.0))
    np.testing.assert_array_equal(second.next_obs[is_live, 1, 0], np.arange(1.0, 6.0))
    np.testing.assert_array_equal(second.rewards[is_live, 1], np.arange(5.0) / 2)


def test_what_was_handed_over_is_not_written_to_any_more() -> None:
    memory = FragmentBuffer(2, 1)
    memory.observe(ALL_COLUMNS, numbers_of([0]))
    play(memory, ALL_COLUMNS, 0, 2)
    batch = take(memory, 2)
    before = jax.tree.map(np.copy, batch)
    play(memory, ALL_COLUMNS, 2, 2)
    take(memory, 2)
    jax.tree.map(np.testing.assert_array_equal, before, batch)


def test_there_is_no_batch_before_anybody_acted() -> None:
    assert FragmentBuffer(3, 2).take(3, np.array([], np.int64), 3) == (None, 0)


@dataclass
class PlainColumn:
    """One column, written down step by step."""

    rows: list[list[float]] = field(default_factory=list)
    """Observation, action, reward, successor, end; the last one may be open."""
    num_before: int = 0
    """Rows of earlier episodes."""
    now: float = 0.0
    is_open: bool = False
    counter: int = 0


@pytest.mark.parametrize("whole_episodes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events_gives_what_plain_lists_give(seed: int, whole_episodes: bool) -> None:
    rng = np.random.default_rng(seed)
    memory = FragmentBuffer(3, 2)
    columns = [PlainColumn(), PlainColumn()]
    memory.observe(ALL_COLUMNS, numbers_of([0, 0]))
    taken: list[list[list[float]]] = [[], []]
    expected: list[list[list[float]]] = [[], []]
    value = 1.0

    def collect() -> None:
        open_columns = [index for index, column in enumerate(columns) if column.is_open]
        batch, num_complete = memory.take(
            None, np.array(open_columns, np.int64), 3, memory.num_in_episode if whole_episodes else None
        )
        for index, column in enumerate(columns):
            stop = column.num_before if whole_episodes else len(column.rows) - column.is_open
            expected[index] += column.rows[:stop]
            num_complete -= stop
            column.rows, column.num_before = column.rows[stop:], 0
        assert num_complete == 0
        if batch is None:
            return
        env_extras = batch.extras.env_extras
        for index in range(len(columns)):
            for t in np.flatnonzero(env_extras.autoreset[:, index] == 0):
                cells = (batch.obs[t, index, 0], batch.actions[t, index], batch.rewards[t, index])
                taken[index].append(
                    [*map(float, cells), float(env_extras.ori_obs[t, index, 0]), env_extras.end[t, index]]
                )

    for _ in range(300):
        event = rng.random()
        index = int(rng.integers(len(columns)))
        column, which = columns[index], np.array([index])
        if event < 0.05 and len(columns) < 5:
            columns.append(PlainColumn())
            memory.add_columns(len(columns))
            memory.observe(np.array([len(columns) - 1]), numbers_of([0]))
        elif event < 0.1:
            collect()
        elif event < 0.15:
            assert memory.discard(index) == len(column.rows) - column.is_open - column.num_before
            column.rows, column.is_open = column.rows[: column.num_before], False
            column.now = value = value + 1
            memory.observe(which, numbers_of([column.now]))
        elif not column.is_open:
            if int(memory.cursor.max()) >= memory.num_rows:
                memory.add_rows(2 * memory.num_rows)
            action = int(rng.integers(100))
            memory.act(which, acts_of([action]), which, which)
            column.rows.append([column.now, action])
            column.is_open = True
        else:
            value += 1
            end = End.TERMINATED if rng.random() < 0.2 else End.RUNNING
            memory.follow(which, numbers_of([value]))
            memory.complete(which, np.array([value / 2]), np.array([end], np.uint8), np.zeros(1))
            column.rows[-1] += [value / 2, value, end]
            column.is_open = False
            if end is End.TERMINATED:
                memory.end_episode(index)
                column.num_before = len(column.rows)
                value += 1
            column.now = value
            memory.observe(which, numbers_of([value]))
        taken += [[] for _ in range(len(columns) - len(taken))]
        expected += [[] for _ in range(len(columns) - len(expected))]
    collect()
    assert sum(map(len, expected)) > 50
    assert taken == expected
