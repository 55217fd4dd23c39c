"""Episodes: cut, put together, and found again in what a runner returns."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import ALL, End
from rookery.runners.recording.episode import UNKNOWN_TIME, Episode, LiveEpisode, episodes_of
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error
from tests.runner_envs import Moment, ParityAgent, ScriptedEnv, in_dicts, make_runner, vectorized


def make_episode(num_steps: int = 5, **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "id": 3,
        "observations": {"x": np.arange(num_steps + 1.0), "y": np.arange(2.0 * num_steps + 2).reshape(-1, 2)},
        "actions": np.arange(num_steps),
        "rewards": np.arange(num_steps, dtype=np.float32),
        "times": np.arange(num_steps + 1),
        "extras": {"log_prob": np.arange(num_steps) / 10},
    }
    return Episode(**(fields | changes))


def test_an_episode_has_one_observation_more_than_steps() -> None:
    with pytest.raises(InvalidInputError, match=r"an episode of 5 steps has 6 observations.*got \[5, 6\]"):
        make_episode(observations=np.arange(5.0))
    with pytest.raises(InvalidInputError, match=r"5 of everything else.*\[4, 5\]"):
        make_episode(actions=np.arange(4))
    with pytest.raises(InvalidInputError, match=r"6 observations and times.*\[5, 6\]"):
        make_episode(times=np.arange(5))


@pytest.mark.parametrize(
    "part", [slice(2, None), slice(None, 3), slice(1, 4), slice(-2, None), slice(5, None), slice(4, 1)]
)
def test_a_slice_has_the_steps_that_a_slice_of_the_rewards_has(part: slice) -> None:
    episode = make_episode()[part]
    numbers = np.arange(5)[part]
    np.testing.assert_array_equal(episode.rewards, numbers)
    np.testing.assert_array_equal(episode.actions, numbers)
    np.testing.assert_allclose(episode.extras["log_prob"], numbers / 10)
    assert len(episode.observations["x"]) == len(numbers) + 1
    np.testing.assert_array_equal(episode.observations["x"][:-1], numbers)
    assert episode.t_started == episode.observations["x"][0]
    assert episode.t == episode.observations["x"][-1]


def test_only_consecutive_steps_can_be_cut_out() -> None:
    for index in (slice(None, None, 2), slice(None, None, -1), 3):
        with pytest.raises(InvalidInputError, match="consecutive steps"):
            make_episode()[index]


def test_the_end_stays_with_the_last_step() -> None:
    episode = make_episode(end=End.TRUNCATED)
    assert [part.end for part in (episode[:4], episode[3:], episode[:])] == [End.RUNNING, End.TRUNCATED, End.TRUNCATED]
    assert episode.is_done
    assert not episode[:4].is_done


def test_any_two_parts_that_follow_one_another_make_the_whole() -> None:
    episode = make_episode(end=End.TERMINATED)
    for border in range(6):
        first, second = episode[:border], episode[border:]
        if first.is_done:
            continue
        whole = first.concatenate(second)
        for name in ("x", "y"):
            np.testing.assert_array_equal(whole.observations[name], episode.observations[name])
        np.testing.assert_array_equal(whole.rewards, episode.rewards)
        np.testing.assert_array_equal(whole.extras["log_prob"], episode.extras["log_prob"])
        assert (whole.t_started, whole.end, whole.id) == (0, End.TERMINATED, 3)


def test_observations_that_hold_nan_still_fit_together() -> None:
    episode = make_episode(observations=np.full((6, 1), np.nan))
    assert len(episode[:2].concatenate(episode[2:])) == 5


def test_a_return_is_summed_in_double_precision() -> None:
    rewards = np.array([2.0**24, 1.0, 1.0], np.float32)
    episode = make_episode(3, rewards=rewards)
    assert episode.episode_return == 2.0**24 + 2


def test_a_live_episode_adds_up_its_agents() -> None:
    assert LiveEpisode(0, 0, None, agent_returns={"a": 1.5, "b": 2.0}).episode_return == 3.5


def test_fragments_of_a_runner_can_be_put_together_to_its_episodes() -> None:
    class SeededEnv(CountingEnv):
        """Shows a number of its own in every step of an episode, so that parts cannot be mistaken."""

        def __init__(self) -> None:
            super().__init__(7, truncates=True)
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def _obs(self) -> np.ndarray:
            if not self.num_steps:
                self.start = float(self.np_random.random())
            return np.array([self.num_steps, self.start], np.float32)

    runner = make_runner(vectorized(lambda index: SeededEnv(), num_envs=3), rollout_fragment_length=5)
    episodes: dict[int, Episode] = {}
    metrics = {}
    for _ in range(6):
        sample = runner.sample()
        metrics.update({episode.number: episode for episode in sample.episodes})
        for part in episodes_of(sample.batch.batches.default):
            episodes[part.id] = episodes[part.id].concatenate(part) if part.id in episodes else part
    assert len(metrics) == 12
    for number, metric in metrics.items():
        episode = episodes[number]
        assert (len(episode), episode.end, episode.t_started) == (7, End.TRUNCATED, 0)
        assert episode.episode_return == metric.episode_return == 7.0
        np.testing.assert_array_equal(episode.observations[:, 0], np.arange(8))
        assert len(set(episode.observations[:, 1].tolist())) == 1


# Agents that act in turns.

TURNS = [
    Moment({"a": 0}),
    Moment({"b": 1}),
    Moment({}, {"a": 1.0}),
    Moment({"a": 3, "b": 3}, {"a": 2.0, "b": 5.0}),
    Moment({"b": 4}),
    Moment({"a": 5}),
    Moment({"b": 6}, terminated=[ALL]),
]


@pytest.mark.parametrize("fragment_length", [1, 2, 3, 4, 6])
def test_fragments_of_an_agent_that_acts_in_turns_can_be_put_together(fragment_length: int) -> None:
    runner = make_runner(
        in_dicts(ScriptedEnv(TURNS)),
        {"a": ParityAgent(), "b": ParityAgent()},
        lambda agent, episode: agent,
        rollout_fragment_length=fragment_length,
    )
    whole: dict[tuple[str, int], Episode] = {}
    for _ in range(12 // fragment_length):
        for policy, batch in runner.sample().batch.batches.items():
            for part in episodes_of(batch, acts_in_turns=True):
                name = policy, part.id
                whole[name] = whole[name].concatenate(part) if name in whole else part
    times = {"a": [0, 3, 5], "b": [1, 3, 4]}
    rewards = {"a": [3.0, 0.0, 0.0], "b": [5.0, 0.0, 0.0]}
    ends = {"a": End.GONE_TERMINATED, "b": End.TERMINATED}
    assert sorted(whole) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for (policy, _), episode in whole.items():
        assert episode.times.tolist() == [*times[policy], UNKNOWN_TIME]
        assert episode.observations[:-1, 0].tolist() == times[policy]
        assert (episode.rewards.tolist(), episode.end) == (rewards[policy], ends[policy])


def in_turns(*times: int) -> Episode:
    """A part whose observations are the steps of the env at which they were made."""
    observations = np.array(times, np.float32)[:, None]
    rows = len(times) - 1
    return Episode(3, observations, np.zeros(rows), np.zeros(rows), np.array(times))


def with_unknown_end(*times: int) -> Episode:
    return replace(in_turns(*times), times=np.array([*times[:-1], UNKNOWN_TIME]))


def test_a_slice_keeps_the_steps_of_the_env() -> None:
    episode = in_turns(1, 4, 6, 7)
    part = episode[1:3]
    assert (len(part), part.t_started, part.t, part.times.tolist()) == (2, 4, 7, [4, 6, 7])
    assert (episode.cut().t_started, len(episode.cut())) == (7, 0)
    assert episode[:1].concatenate(episode[1:]).times.tolist() == [1, 4, 6, 7]
    with pytest.raises(InvalidInputError, match="goes on at step 4; this part starts at 6"):
        episode[:1].concatenate(episode[2:])


def test_of_parts_whose_end_is_not_known_the_order_and_the_observations_tell_whether_they_fit() -> None:
    first, second = with_unknown_end(0, 2, 6), with_unknown_end(6, 7, 9)
    assert first.concatenate(second).times.tolist() == [0, 2, 6, 7, UNKNOWN_TIME]
    assert len(first.concatenate(first.cut())) == 2
    assert first.cut().concatenate(second).times.tolist() == second.times.tolist()
    with pytest.raises(InvalidInputError, match="goes on after step 2; this part starts at 2"):
        first.concatenate(in_turns(2, 6))
    with pytest.raises(InvalidInputError, match="from step 5 starts with another observation"):
        first.concatenate(in_turns(5, 6))


def test_a_part_that_must_follow_at_once_says_how_parts_of_turns_are_made() -> None:
    with pytest.raises(InvalidInputError, match=r"goes on at step 2; this part starts at 3.*acts_in_turns=True"):
        in_turns(0, 1, 2).concatenate(in_turns(3, 4))


def test_no_part_of_a_faulty_episode_is_found_in_the_fragment_where_it_failed() -> None:
    runner = make_runner(
        vectorized(lambda index: FaultyEnv(raise_error, at_step=3, length=10)), rollout_fragment_length=8
    )
    sample = runner.sample()
    faulty = {episode.number for episode in sample.episodes}
    parts = episodes_of(sample.batch.batches.default)
    assert faulty
    assert not faulty & {part.id for part in parts}
    assert sum(map(len, parts)) == sample.agent_steps
