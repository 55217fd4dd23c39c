"""The exact cases that every runner must get right, with their numbers; then the rules behind them."""

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rookery.agent import RandomAgent
from rookery.agents.policy import PolicyAgent
from rookery.errors import InvalidInputError
from rookery.networks.policy import PolicyConfig
from rookery.runners.acting.connectors import ClipActions, Unsquash
from rookery.runners.callbacks import Callbacks, EpisodeEndEvent, EpisodeEvent, FaultEvent, SampleEvent
from rookery.runners.envs.base_env import ALL, Actions, BaseEnv, End
from rookery.runners.envs.conversion import to_base_env
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv, VectorStep
from rookery.runners.faults import EnvFaultError
from rookery.runners.health import RestartPolicy
from rookery.runners.recording.episode import Episode
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.runners.seeds import episode_seed
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.making import make_transport
from rookery.runners.transports.subprocesses import ProcessTransport
from rookery.testing.misbehaving_envs import (
    CountingEnv,
    FaultyEnv,
    FlakyEnv,
    LyingEnv,
    ReusedBufferEnv,
    raise_error,
    with_four_values,
    with_list_info,
    with_nan_reward,
    with_two_rewards,
    with_wrong_dtype,
    with_wrong_shape,
)
from tests.runner_envs import (
    NUMBER,
    ConstantAgent,
    FakeTime,
    Moment,
    ParityAgent,
    ScriptedEnv,
    StaggeredEnvs,
    count_rows,
    everyone,
    in_dicts,
    make_runner,
    rows_of,
    times_of,
    vectorized,
)

WHOLE = "complete_episodes"


def counting(length: int, num_envs: int = 1, **settings: Any) -> EnvRunner:
    return make_runner(vectorized(lambda index: CountingEnv(length), num_envs), **settings)


# Case 1.


def test_a_fragment_has_exactly_its_length_and_goes_on_where_the_last_one_ended() -> None:
    runner = counting(10, rollout_fragment_length=15)
    first, second = runner.sample(), runner.sample()
    assert times_of(first) == [*range(10), *range(5)]
    assert times_of(second) == [*range(5, 10), *range(10)]
    for sample in (first, second):
        assert sample.env_steps == sample.agent_steps == sample.batch.env_steps == 15
        assert [row.done for row in rows_of(sample)] == [float(row.t == 9) for row in rows_of(sample)]
        assert [row.obs for row in rows_of(sample)] == [row.t for row in rows_of(sample)]
        assert [row.successor for row in rows_of(sample)] == [row.t + 1 for row in rows_of(sample)]
    assert runner.ledger.is_exact


# Case 2.


def test_fragments_shorter_than_episodes_report_each_episode_once() -> None:
    runner = counting(20, num_envs=8, rollout_fragment_length=2)
    samples = [runner.sample() for _ in range(16)]
    assert {sample.env_steps for sample in samples} == {16}
    assert sum(len(sample.episodes) for sample in samples[:8]) == 0
    assert sum(len(sample.episodes) for sample in samples) == 8
    assert {episode.episode_length for sample in samples for episode in sample.episodes} == {20}


# Case 3.


@pytest.mark.parametrize(("fragment_length", "num_rows"), [(5, 10), (15, 20)])
def test_complete_episodes_are_collected_until_the_fragment_is_full(fragment_length: int, num_rows: int) -> None:
    runner = counting(10, rollout_fragment_length=fragment_length, batch_mode=WHOLE)
    for _ in range(2):
        sample = runner.sample()
        assert times_of(sample) == [*range(10)] * (num_rows // 10)
        assert sample.env_steps == num_rows


# Case 4.


@pytest.mark.parametrize(("unit", "env_steps", "agent_steps"), [("env_steps", 9, 18), ("agent_steps", 5, 10)])
def test_a_fragment_is_counted_in_steps_of_envs_or_of_agents(unit: str, env_steps: int, agent_steps: int) -> None:
    env = ScriptedEnv(everyone("ab", 100))
    runner = make_runner(in_dicts(env), rollout_fragment_length=9, count_steps_by=unit)
    for _ in range(2):
        sample = runner.sample()
        assert (sample.env_steps, sample.agent_steps) == (env_steps, agent_steps)
        assert len(rows_of(sample)) == agent_steps
        assert runner.ledger.is_exact


# Case 5.


def test_every_policy_gets_the_rows_of_its_agents() -> None:
    env = ScriptedEnv(everyone(range(5), 25), agents=range(5))
    policies = {"p0": ParityAgent(), "p1": ParityAgent()}
    runner = make_runner(in_dicts(env), policies, lambda agent, episode: f"p{agent % 2}", rollout_fragment_length=50)
    sample = runner.sample()
    assert sample.env_steps == 50
    assert len(rows_of(sample, "p0")) == 150
    assert len(rows_of(sample, "p1")) == 100


# Case 6.


def test_the_first_step_of_a_runner_only_resets() -> None:
    runner = make_runner(in_dicts(ScriptedEnv(everyone("ab", 10))))
    counts = []
    for _ in range(2):
        runner.step()
        counts.append((runner.ledger.env_steps.taken, runner.ledger.rows.taken))
    assert counts == [(0, 0), (1, 2)]


# Case 7.

SILENCE = [
    Moment({"a": 0, "b": 0}),
    Moment({"a": 1}, {"a": 1.0, "b": 3.0}),
    Moment({"a": 2}, {"a": 1.0, "b": 4.0}),
    Moment({"a": 3, "b": 3}, {"a": 1.0, "b": 5.0}),
    Moment({"a": 4, "b": 4}, {"a": 1.0, "b": 1.0}, terminated=[ALL]),
]


@pytest.mark.parametrize(
    ("group_type", "fragment_length"),
    [(LocalTransport, 1), (LocalTransport, 2), (LocalTransport, 3), (LocalTransport, 4), (ProcessTransport, 4)],
)
def test_rewards_of_a_silent_agent_are_summed_into_the_transition_that_spans_them(
    group_type: type, fragment_length: int
) -> None:
    group = group_type([lambda: ScriptedEnv(SILENCE)])
    policies = {"a": ParityAgent(), "b": ParityAgent()}
    runner = make_runner(
        in_dicts(group=group), policies, lambda agent, episode: agent, rollout_fragment_length=fragment_length
    )
    samples = [runner.sample() for _ in range(-(-4 // fragment_length))]
    rows = [row for sample in samples for row in rows_of(sample, "b")][:2]
    assert [(row.t, row.obs, row.successor, row.reward, row.end) for row in rows] == [
        (0, 0.0, 3.0, 12.0, End.RUNNING),
        (3, 3.0, 4.0, 1.0, End.TERMINATED),
    ]
    runner.close()


# Case 8.


def test_a_late_agent_has_rows_from_its_first_observation_on() -> None:
    script = [
        Moment({"a": 0}),
        Moment({"a": 1, "b": 1}, {"a": 1.0, "b": 7.0}),
        Moment({"a": 2, "b": 2}, {"a": 1.0, "b": 1.0}),
        Moment({"a": 3, "b": 3}, {"a": 1.0, "b": 1.0}, terminated=[ALL]),
    ]
    policies = {"a": ParityAgent(), "b": ParityAgent()}
    runner = make_runner(in_dicts(ScriptedEnv(script)), policies, lambda agent, episode: agent)
    sample = runner.sample(num_episodes=1)
    assert times_of(sample, "a") == [0, 1, 2]
    assert times_of(sample, "b") == [1, 2]
    assert [row.reward for row in rows_of(sample, "b")] == [1.0, 1.0]
    (episode,) = sample.episodes
    assert episode.agent_returns == {"a": 3.0, "b": 9.0}
    assert episode.episode_return == 12.0
    assert episode.episode_length == 3


# Case 9.


@pytest.mark.parametrize(("is_truncated", "end"), [(False, End.GONE_TERMINATED), (True, End.GONE_TRUNCATED)])
def test_an_agent_without_a_last_observation_keeps_its_last_real_one(is_truncated: bool, end: End) -> None:
    flags: dict[str, Any] = {"truncated": [ALL]} if is_truncated else {"terminated": [ALL]}
    script = [Moment({"a": 0, "b": 5}), Moment({"a": 1}, {"a": 1.0, "b": 3.0}), Moment({"a": 2}, {"a": 1.0}, **flags)]
    policies = {"a": ParityAgent(), "b": ParityAgent()}
    runner = make_runner(in_dicts(ScriptedEnv(script)), policies, lambda agent, episode: agent)
    sample = runner.sample(num_episodes=1)
    (row,) = rows_of(sample, "b")
    assert (row.obs, row.successor, row.reward, row.end) == (5.0, 5.0, 3.0, end)
    assert (row.termination, row.truncation, row.done) == (1.0 - is_truncated, float(is_truncated), 1.0)
    assert rows_of(sample, "a")[-1].end == (End.TRUNCATED if is_truncated else End.TERMINATED)


# Case 10.


class Diary(Callbacks):
    """Writes down what is called."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.faults: list[Any] = []

    def on_episode_created(self, event: EpisodeEvent) -> None:
        self.entries.append("created")

    def on_episode_start(self, event: EpisodeEvent) -> None:
        self.entries.append("start")

    def on_episode_step(self, event: EpisodeEvent) -> None:
        self.entries.append("step")

    def on_env_fault(self, event: FaultEvent) -> None:
        self.entries.append("fault")
        self.faults.append(event.fault)

    def on_episode_end(self, event: EpisodeEndEvent) -> None:
        self.entries.append("end")
        self.faults.append(event.fault)

    def on_sample_end(self, event: SampleEvent) -> None:
        self.entries.append("sample")


def test_callbacks_are_called_in_order() -> None:
    diary = Diary()
    counting(2, callbacks=diary).sample(num_episodes=2)
    episode = ["created", "start", "step", "step", "end"]
    assert diary.entries == [*episode, *episode, "sample"]
    assert diary.faults == [None, None]


def test_a_faulty_episode_gets_its_fault_and_its_end_once() -> None:
    diary = Diary()
    runner = make_runner(vectorized(lambda index: FaultyEnv(raise_error, at_step=2, length=10)), callbacks=diary)
    sample = runner.sample(num_steps=4)
    faulty = ["created", "start", "step", "step", "fault", "end"]
    assert diary.entries == [*faulty, "created", "start", "step", "step", "sample"]
    (fault,) = sample.faults
    assert diary.faults == [fault, fault]


# Case 11.


def test_an_env_that_raises_costs_its_own_episode_only() -> None:
    made: list[int] = []
    seeds: dict[int, list[int | None]] = {index: [] for index in range(4)}

    class NotedEnv(FaultyEnv):
        def __init__(self, index: int) -> None:
            super().__init__(raise_error, at_step=8 if index == 3 else None, length=50)
            self.index = index
            made.append(index)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
            seeds[self.index].append(seed)
            return super().reset(seed=seed)

    runner = make_runner(vectorized(NotedEnv, num_envs=4))
    sample = runner.sample(num_steps=40)
    for column in range(3):
        assert [row.t for row in rows_of(sample) if row.column == column] == [*range(10)]
    assert [row.t for row in rows_of(sample) if row.column == 3] == [0, 1]
    assert made.count(3) == 2
    assert [made.count(index) for index in range(3)] == [1, 1, 1]
    assert sample.env_steps == sample.agent_steps == len(rows_of(sample)) == 32
    account = runner.ledger.env_steps
    assert (account.taken, account.returned, account.discarded, account.pending) == (40, 32, 8, 0)
    assert runner.ledger.is_exact
    (fault,) = sample.faults
    assert (fault.env_index, fault.step) == (3, 8)
    assert "bad leg" in str(fault)
    (episode,) = sample.episodes
    assert episode.is_faulty
    assert (episode.seed, seeds[3]) == (fault.seed, [fault.seed, episode_seed(0, 0, 1 * 4 + 3)])
    assert len(set(seeds[3])) == 2


# Case 12.


def test_an_env_whose_reset_fails_three_times_is_built_four_times(tmp_path: Path) -> None:
    log = tmp_path / "log"
    time = FakeTime()
    runner = make_runner(vectorized(lambda index: FlakyEnv(log, 3)), clock=time.clock, sleep=time.sleep)
    sample = runner.sample(num_steps=5)
    assert log.read_text().split().count("make") == 4
    assert len(sample.faults) == 3
    assert times_of(sample) == [*range(5)]
    assert time.naps == pytest.approx([0.1, 0.2])  # the first try comes at once


def test_an_env_whose_reset_always_fails_is_given_up_and_the_others_run_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    time = FakeTime(tick=0.05)
    runner = make_runner(
        vectorized(lambda index: FlakyEnv(log, 10**6) if index == 1 else CountingEnv(10), num_envs=3),
        rollout_fragment_length=20,
        restart=RestartPolicy(max_restarts=3),
        clock=time.clock,
        sleep=time.sleep,
    )
    samples = [runner.sample() for _ in range(5)]
    assert runner.num_lost_envs == 1
    assert sum(len(sample.faults) for sample in samples) == 4
    assert log.read_text().split().count("make") == 4
    for sample in samples:
        assert [row.column for row in rows_of(sample)] == [0] * 20 + [2] * 20
        assert sample.env_steps == 40
    assert "given up" in str(samples[-1].faults or [fault for sample in samples for fault in sample.faults][-1])


def test_when_all_envs_are_lost_there_is_one_error_with_the_first_traceback(tmp_path: Path) -> None:
    time = FakeTime()
    runner = make_runner(
        vectorized(lambda index: FlakyEnv(tmp_path / f"log{index}", 10**6), num_envs=2),
        restart=RestartPolicy(max_restarts=4, first_delay=1.0, max_delay=3.0),
        clock=time.clock,
        sleep=time.sleep,
    )
    with pytest.raises(EnvFaultError, match=r"(?s)all 2 environments are lost.*Traceback.*reset does not work yet"):
        runner.sample()
    assert time.now == pytest.approx(1.0 + 2.0 + 3.0)


# Case 13.


def test_steps_and_episodes_at_once_or_negative_numbers_are_an_error() -> None:
    runner = counting(10)
    with pytest.raises(InvalidInputError, match="num_steps=5 and num_episodes=1"):
        runner.sample(num_steps=5, num_episodes=1)
    with pytest.raises(InvalidInputError, match="num_steps=-1"):
        runner.sample(num_steps=-1)
    with pytest.raises(InvalidInputError, match="num_episodes=-1"):
        runner.sample(num_episodes=-1)


@pytest.mark.parametrize("has_sampled", [False, True])
@pytest.mark.parametrize("what", ["num_steps", "num_episodes"])
def test_zero_gives_an_empty_result(what: str, has_sampled: bool) -> None:
    runner = counting(10)
    if has_sampled:
        runner.sample(num_steps=13)
    sample = runner.sample(**{what: 0})
    assert rows_of(sample) == []
    assert sample.env_steps == sample.agent_steps == 0
    assert sample.episodes == []
    assert times_of(runner.sample(num_steps=2)) == ([3, 4] if has_sampled else [0, 1])


# Case 14.


class LoggingBoxEnv(CountingEnv):
    """Keeps the actions it gets."""

    def __init__(self) -> None:
        super().__init__(5)
        self.action_space = gymnasium.spaces.Box(-2.0, 1.0, (2,), np.float32)
        self.actions: list[np.ndarray] = []

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return super().step(action)


def test_actions_are_stored_as_chosen_and_reach_the_env_unsquashed_and_clipped() -> None:
    env = LoggingBoxEnv()
    runner = make_runner(
        vectorized(lambda index: env),
        ConstantAgent(action=(3.0, -0.5)),
        action_connectors=lambda policy: [Unsquash(), ClipActions()],
    )
    sample = runner.sample(num_steps=3)
    np.testing.assert_array_equal(sample.batch.batches.default.actions[:, 0], [[3.0, -0.5]] * 3)
    np.testing.assert_allclose(env.actions, [[1.0, -1.25]] * 3)
    for action in env.actions:
        assert action.dtype == np.float32
        assert not action.flags.writeable


class LoggingDictEnv(ScriptedEnv):
    """Two agents that act in a box; `received` keeps their actions."""

    def __init__(self) -> None:
        super().__init__(everyone("ab", 5))
        self.action_spaces = dict.fromkeys("ab", gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32))


class LoggingBoxSimulator(ExternalEnv):
    """Keeps the actions it gets."""

    def __init__(self) -> None:
        super().__init__(NUMBER, gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.actions: list[np.ndarray] = []

    def run(self) -> None:
        episode = self.start_episode()
        while True:
            self.actions.append(self.get_action(episode, np.zeros(1, np.float32)))


def test_actions_are_read_only_for_every_kind_of_env() -> None:
    alone, in_vector_env, society, simulator = LoggingBoxEnv(), LoggingBoxEnv(), LoggingDictEnv(), LoggingBoxSimulator()
    for base_env in (
        vectorized(lambda index: alone),
        to_base_env(SyncVectorEnv([lambda: in_vector_env])),
        in_dicts(society),
        ExternalBaseEnv([simulator]),
    ):
        runner = make_runner(base_env, ConstantAgent(action=(0.5, -0.5)))
        runner.sample(num_steps=3)
        runner.close()
    in_dict = [action for actions in society.received for action in actions.values()]
    for received in (alone.actions, in_vector_env.actions, in_dict, simulator.actions):
        assert len(received) >= 3
        assert not any(action.flags.writeable for action in received)


# Case 15.


class Simulator(ExternalEnv):
    """Plays episodes of 25 steps, for as long as it is let."""

    def __init__(self, max_episodes: int = 1) -> None:
        super().__init__(
            gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2), max_episodes
        )
        self.errors: list[Exception] = []
        self.has_tried = threading.Event()

    def run(self) -> None:
        while True:
            episode = self.start_episode()
            for t in range(25):
                self.get_action(episode, np.array([t], np.float32))
                self.log_returns(episode, 1.0)
            self.end_episode(episode, np.array([25], np.float32))


@pytest.mark.parametrize(("mode", "num_rows"), [(WHOLE, 50), ("truncate_episodes", 40)])
def test_a_served_env_gives_the_same_batches_as_any_other(mode: str, num_rows: int) -> None:
    runner = make_runner(ExternalBaseEnv([Simulator()]), rollout_fragment_length=40, batch_mode=mode)
    times = []
    for _ in range(3):
        sample = runner.sample()
        assert len(rows_of(sample)) == sample.env_steps == num_rows
        times += times_of(sample)
        assert runner.ledger.is_exact
    runner.close()
    assert times == [t % 25 for t in range(3 * num_rows)]


def test_served_envs_out_of_step_give_exactly_a_fragment() -> None:
    env = StaggeredEnvs([25, 25, 25], np.random.default_rng(0), is_external=True)
    runner = make_runner(env, rollout_fragment_length=40)
    for _ in range(5):
        sample = runner.sample()
        assert len(rows_of(sample)) == sample.env_steps == 40
        assert runner.ledger.is_exact


class CarelessSimulator(Simulator):
    """Names episodes that it must not before it plays as it should."""

    def run(self) -> None:
        first = self.start_episode("first")
        for call in (
            lambda: self.get_action("unknown", np.zeros(1, np.float32)),
            lambda: self.start_episode("first"),
        ):
            self._try(call)
        self.get_action(first, np.zeros(1, np.float32))
        self.end_episode(first, np.ones(1, np.float32))
        self._try(lambda: self.get_action("first", np.zeros(1, np.float32)))
        self.has_tried.set()
        super().run()

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except InvalidInputError as error:
            self.errors.append(error)


def test_a_wrong_episode_id_is_an_error_for_that_client_alone() -> None:
    simulator = CarelessSimulator(max_episodes=2)
    runner = make_runner(ExternalBaseEnv([simulator, Simulator()]))
    sample = runner.sample(num_steps=200)
    assert simulator.has_tried.wait(60)
    assert len(simulator.errors) == 3
    assert sample.faults == []
    assert sample.env_steps == 200
    runner.close()


# Case 16.


def make_episode(num_steps: int, end: End = End.RUNNING, **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "id": 7,
        "observations": np.arange(num_steps + 1, dtype=np.float32)[:, None],
        "actions": np.arange(num_steps),
        "rewards": np.ones(num_steps, np.float32),
        "times": np.arange(num_steps + 1),
        "end": end,
    }
    return Episode(**(fields | changes))


def test_an_episode_is_cut_by_steps() -> None:
    episode = make_episode(9, End.TERMINATED)
    rest = episode[2:]
    assert len(rest) == 7
    assert (rest.t_started, rest.t, rest.end) == (2, 9, End.TERMINATED)
    np.testing.assert_array_equal(rest.observations[:, 0], np.arange(2, 10))
    assert episode[:2].end is End.RUNNING


def test_the_successor_of_a_cut_episode_starts_where_it_was_cut() -> None:
    successor = make_episode(100).cut()
    assert (successor.id, successor.t_started, len(successor)) == (7, 100, 0)
    np.testing.assert_array_equal(successor.observations, [[100.0]])


def test_parts_of_episodes_that_do_not_follow_one_another_are_not_put_together() -> None:
    whole = make_episode(9, End.TRUNCATED)
    joined = whole[:4].concatenate(whole[4:])
    np.testing.assert_array_equal(joined.observations, whole.observations)
    assert (len(joined), joined.end) == (9, End.TRUNCATED)
    with pytest.raises(InvalidInputError, match="goes on at step 4; this part starts at 5"):
        whole[:4].concatenate(whole[5:])
    with pytest.raises(InvalidInputError, match="episode 8 does not continue episode 7"):
        whole[:4].concatenate(make_episode(5, id=8, times=np.arange(4, 10)))
    with pytest.raises(InvalidInputError, match="ended"):
        whole.concatenate(make_episode(1, times=np.arange(9, 11)))
    with pytest.raises(InvalidInputError, match="another observation"):
        whole[:4].concatenate(make_episode(5, times=np.arange(4, 10)))
    with pytest.raises(InvalidInputError, match="ended"):
        whole.cut()


# Case 17.

make_cartpole = functools.partial(gymnasium.make, "CartPole-v1")


def collect_cartpole(base_env: BaseEnv, num_samples: int = 5) -> list[Sample]:
    """Collect 10,000 steps, or 2,000 a sample, with sampled actions of a policy that is always the same."""
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(8,), output_init_scale=1.0))
    runner = make_runner(base_env, agent, rollout_fragment_length=500, seed=5)
    samples = [runner.sample() for _ in range(num_samples)]
    runner.close()
    assert sum(len(sample.episodes) for sample in samples) > 20 * num_samples
    return samples


def vectorized_cartpole(**where: Any) -> BaseEnv:
    return vectorized(lambda index: gymnasium.make("CartPole-v1"), num_envs=4, **where)


def cartpole_of_gymnasium(mode: AutoresetMode, is_async: bool) -> BaseEnv:
    envs = [make_cartpole] * 4
    if is_async:
        return to_base_env(AsyncVectorEnv(envs, context="spawn", autoreset_mode=mode))
    return to_base_env(SyncVectorEnv(envs, autoreset_mode=mode))


def assert_same_bytes(first: list[Sample], second: list[Sample]) -> None:
    for mine, its in zip(first, second, strict=True):
        for left, right in zip(jax.tree.leaves(mine.batch), jax.tree.leaves(its.batch), strict=True):
            assert left.tobytes() == right.tobytes()
        assert mine.episodes == its.episodes


@pytest.fixture(scope="module")
def collected_here() -> list[Sample]:
    return collect_cartpole(vectorized_cartpole())


def test_envs_in_processes_give_the_same_bytes_as_envs_in_this_one(collected_here: list[Sample]) -> None:
    assert_same_bytes(collected_here, collect_cartpole(vectorized_cartpole(processes=True, envs_per_process=2)))


class DelayedCartPole(gymnasium.Wrapper):
    """CartPole whose steps and resets take a random time, by a clock of its own."""

    def __init__(self, index: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._random = np.random.default_rng([index, os.getpid()])

    def reset(self, **options: Any) -> Any:
        time.sleep(self._random.exponential(0.005))
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        time.sleep(self._random.choice([0.0, 0.0, 0.001, 0.004]))
        return super().step(action)


def test_envs_that_are_ready_at_random_times_give_the_same_bytes(collected_here: list[Sample]) -> None:
    base_env = vectorized(DelayedCartPole, num_envs=4, processes=True)
    assert_same_bytes(collected_here[:1], collect_cartpole(base_env, num_samples=1))


def test_agents_of_envs_that_are_ready_at_random_times_give_the_same_bytes() -> None:
    class Delayed(ScriptedEnv):
        def step(self, actions: dict) -> Any:
            time.sleep(np.random.default_rng([os.getpid(), time.monotonic_ns()]).choice([0.0, 0.0, 0.002]))
            return super().step(actions)

    def collect(env_class: type[ScriptedEnv], **where: Any) -> list[Sample]:
        scripts = [[Moment(), *everyone(agents, length)] for agents, length in (("ab", 5), ("abc", 7), ("c", 4))]
        transport = make_transport(lambda index: env_class(scripts[index], agents="abc"), num_envs=3, **where)
        runner = make_runner(MultiAgentBaseEnv(transport), RandomAgent(), rollout_fragment_length=20, seed=5)
        samples = [runner.sample() for _ in range(3)]
        runner.close()
        return samples

    assert_same_bytes(collect(ScriptedEnv), collect(Delayed, processes=True))


@pytest.mark.parametrize("is_async", [False, True])
def test_vector_envs_of_gymnasium_that_do_not_reset_themselves_give_the_same_bytes(
    collected_here: list[Sample], is_async: bool
) -> None:
    assert_same_bytes(collected_here, collect_cartpole(cartpole_of_gymnasium(AutoresetMode.DISABLED, is_async)))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_envs_of_gymnasium_that_reset_themselves_give_the_same_bytes_from_processes(mode: AutoresetMode) -> None:
    here, elsewhere = (collect_cartpole(cartpole_of_gymnasium(mode, is_async), 2) for is_async in (False, True))
    assert_same_bytes(here, elsewhere)


# Case 18.


def test_observations_of_an_env_that_reuses_its_buffer_are_the_true_ones() -> None:
    runner = make_runner(vectorized(lambda index: ReusedBufferEnv(4), num_envs=2), rollout_fragment_length=10)
    for sample in (runner.sample(), runner.sample()):
        for row in rows_of(sample):
            assert (row.obs, row.successor) == (row.t, row.t + 1)


class ReusedBuffersEnv(ScriptedEnv):
    """Shows all agents the same array every time."""

    def __init__(self, length: int) -> None:
        super().__init__(everyone("ab", length))
        self._buffer = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return self._in_buffer(*super().reset(seed=seed))

    def step(self, actions: dict) -> Any:
        return self._in_buffer(*super().step(actions))

    def _in_buffer(self, obs: dict, *others: Any) -> Any:
        self._buffer[:] = obs["a"]
        return dict.fromkeys(obs, self._buffer), *others


def test_observations_of_a_dict_env_that_reuses_its_buffer_are_the_true_ones() -> None:
    runner = make_runner(in_dicts(ReusedBuffersEnv(4)), rollout_fragment_length=10)
    for sample in (runner.sample(), runner.sample()):
        for row in rows_of(sample):
            assert (row.obs, row.successor) == (row.t, row.t + 1)


# Rules: the interface.


def test_no_env_is_reset_before_the_first_poll() -> None:
    env = ScriptedEnv(everyone("ab", 3))
    base_env = in_dicts(env)
    runner = make_runner(base_env)
    assert env.seeds == []
    polled = base_env.poll()
    assert len(env.seeds) == 1
    assert list(polled.resets) == [0]
    assert not polled.rewards.any()
    assert not polled.ends.any()
    assert polled.is_reset.all()
    runner.close()


def test_every_env_is_reset_once_before_it_acts_with_the_seed_of_its_episode() -> None:
    envs = [ScriptedEnv(everyone("ab", 3)) for _ in range(3)]
    runner = make_runner(in_dicts(*envs), rollout_fragment_length=2, seed=11)
    runner.sample()
    assert [env.seeds for env in envs] == [[episode_seed(11, 0, index)] for index in range(3)]


def test_an_env_that_is_over_and_not_reset_takes_no_actions() -> None:
    dicts, vector = in_dicts(ScriptedEnv(everyone("ab", 1))), vectorized(lambda index: CountingEnv(1))
    one = np.array([0])
    both = Actions(one, [0, 0], ["a", "b"], np.array([0, 0]))
    for base_env, actions in ((dicts, both), (vector, Actions(one, np.array([0])))):
        base_env.poll()
        base_env.send_actions(actions)
        assert list(base_env.poll().over) == [0]
        with pytest.raises(InvalidInputError, match=r"env 0.*is over"):
            base_env.send_actions(actions)


def test_an_env_in_which_nobody_acts_gets_an_empty_dict() -> None:
    script = [
        Moment({"a": 0}),
        Moment({}, {"a": 1.0}),
        Moment({"a": 2}, {"a": 1.0}),
        Moment({"a": 3}, terminated=[ALL]),
    ]
    env = ScriptedEnv(script)
    runner = make_runner(in_dicts(env))
    sample = runner.sample(num_episodes=1)
    assert [sorted(actions) for actions in env.received] == [["a"], [], ["a"]]
    assert times_of(sample) == [0, 2]


def test_an_episode_may_begin_with_nobody() -> None:
    script = [Moment(), Moment({}, {"b": 2.0}), Moment({"b": 2}, {"b": 4.0}), Moment({"b": 3}, {"b": 1.0}, [ALL])]
    env = ScriptedEnv(script)
    diary = Diary()
    runner = make_runner(in_dicts(env), callbacks=diary)
    sample = runner.sample(num_episodes=2)
    assert len(env.seeds) == 2
    assert env.received[:2] == [{}, {}]
    assert [(row.t, row.reward) for row in rows_of(sample)] == [(2, 1.0), (2, 1.0)]
    assert [episode.agent_returns for episode in sample.episodes] == [{"b": 7.0}] * 2
    assert diary.entries.count("start") == 2
    assert sample.env_steps == 6


def test_an_episode_may_pass_without_anybody() -> None:
    runner = make_runner(in_dicts(ScriptedEnv([Moment(), Moment(), Moment(terminated=[ALL])])))
    sample = runner.sample(num_episodes=2)
    assert [episode.episode_length for episode in sample.episodes] == [2, 2]
    assert (sample.env_steps, sample.agent_steps) == (4, 0)
    assert runner.ledger.is_exact


# Rules: rows.


@pytest.mark.parametrize("fragment_length", [1, 2, 3, 7])
def test_an_agent_that_ended_early_is_emitted_once_whatever_the_fragments(fragment_length: int) -> None:
    script = [
        Moment({"a": 100, "b": 200}),
        Moment({"a": 101, "b": 201}, {"a": 1.0, "b": 1.0}, terminated=["a"]),
        Moment({"b": 202}, {"b": 1.0}),
        Moment({"b": 203, "c": 303}, {"b": 1.0}),
        Moment({"b": 204, "c": 304}, {"b": 1.0, "c": 1.0}),
        Moment({"b": 205}, {"b": 1.0, "c": 1.0}, terminated=[ALL]),
    ]
    env = ScriptedEnv(script, agents="abc")
    runner = make_runner(in_dicts(env), rollout_fragment_length=fragment_length)
    samples = []
    while runner.ledger.env_steps.taken < 20:
        samples.append(runner.sample())
        assert runner.ledger.is_exact
        assert samples[-1].env_steps == fragment_length
    runner.close()
    rows = list(count_rows(samples))
    assert len(set(rows)) == len(rows)
    first = sorted((seen, t) for episode, seen, t in rows if episode == 0)
    assert first == [(100.0, 0), (200.0, 0), (201.0, 1), (202.0, 2), (203.0, 3), (204.0, 4), (303.0, 3), (304.0, 4)]


def test_one_agent_may_terminate_while_another_is_truncated() -> None:
    script = [
        Moment({"a": 0, "b": 0}),
        Moment({"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, terminated=["a"], truncated=["b", ALL]),
    ]
    policies = {"a": ParityAgent(), "b": ParityAgent()}
    runner = make_runner(in_dicts(ScriptedEnv(script)), policies, lambda agent, episode: agent)
    sample = runner.sample(num_episodes=1)
    (mine,), (its,) = rows_of(sample, "a"), rows_of(sample, "b")
    assert (mine.end, mine.termination, mine.truncation) == (End.TERMINATED, 1.0, 0.0)
    assert (its.end, its.termination, its.truncation) == (End.TRUNCATED, 0.0, 1.0)


def test_an_agent_that_is_terminated_and_truncated_at_once_is_terminated() -> None:
    script = [Moment({"a": 0}), Moment({"a": 1}, {"a": 1.0}, terminated=["a"], truncated=["a", ALL])]
    (row,) = rows_of(make_runner(in_dicts(ScriptedEnv(script))).sample(num_episodes=1))
    assert (row.end, row.termination, row.truncation) == (End.TERMINATED, 1.0, 0.0)


def test_the_end_of_an_agent_is_not_that_of_the_episode() -> None:
    script = [
        Moment({"a": 0, "b": 0}),
        Moment({"a": 1, "b": 1}, terminated=["a", "b"]),
        Moment({}, {}),
        Moment({}, {}, truncated=[ALL]),
    ]
    env = ScriptedEnv(script, agents="abc")  # "c" may still appear
    sample = make_runner(in_dicts(env)).sample(num_episodes=1)
    assert len(env.received) == 3
    assert sample.episodes[0].episode_length == 3
    assert len(rows_of(sample)) == 2


def test_an_agent_first_seen_as_done_has_no_rows_and_no_policy() -> None:
    asked = []

    def mapping(agent: str, episode: Any) -> str:
        asked.append(agent)
        return "default"

    script = [
        Moment({"a": 0}),
        Moment({"a": 1, "b": 1}, {"a": 1.0, "b": 8.0}, terminated=["b"]),
        Moment({"a": 2}, {"a": 1.0}, terminated=[ALL]),
    ]
    env = ScriptedEnv(script)
    runner = make_runner(in_dicts(env), {"default": ParityAgent()}, mapping)
    sample = runner.sample(num_episodes=1)
    assert asked == ["a"]
    assert [sorted(actions) for actions in env.received] == [["a"], ["a"]]
    assert len(rows_of(sample)) == 2
    assert sample.episodes[0].agent_returns == {"a": 2.0, "b": 8.0}
    assert "b" not in sample.episodes[0].policies


@pytest.mark.parametrize("late", [Moment({"a": 2, "b": 2}), Moment({"a": 2}, {"b": 1.0})])
def test_data_for_an_agent_that_is_done_is_an_error_that_names_env_agent_and_step(late: Moment) -> None:
    script = [Moment({"a": 0, "b": 0}), Moment({"a": 1, "b": 1}, terminated=["b"]), late]
    runner = make_runner(in_dicts(ScriptedEnv(everyone("ab", 5)), ScriptedEnv(script)), on_invalid="raise")
    with pytest.raises(EnvFaultError, match=r"env 1 .*step 1.*agent 'b'"):
        runner.sample()


# Rules: policies.


def test_the_mapping_is_asked_once_for_each_agent_of_an_episode() -> None:
    asked: list[tuple[int, str]] = []

    def mapping(agent: str, episode: Any) -> str:
        asked.append((episode.number, agent))
        return "default"

    runner = make_runner(
        in_dicts(ScriptedEnv(everyone("ab", 5))), {"default": ParityAgent()}, mapping, rollout_fragment_length=3
    )
    for _ in range(5):
        runner.sample()
    assert asked == [(number, agent) for number in range(4) for agent in "ab"]


def test_a_removed_policy_acts_on_until_its_episode_ends() -> None:
    names = {"present": "old"}
    runner = make_runner(
        in_dicts(ScriptedEnv(everyone("ab", 6))),
        {"old": ParityAgent(), "other": ParityAgent()},
        lambda agent, episode: names["present"] if agent == "a" else "other",
        rollout_fragment_length=4,
    )
    runner.sample()
    runner.policies.add("new", ParityAgent(), ParityAgent().init(NUMBERLESS, NUMBERLESS, jax.random.key(0)))
    runner.policies.remove("old")
    names["present"] = "new"
    second = runner.sample()
    assert times_of(second, "old") == [4, 5]
    assert times_of(second, "new") == [0, 1]
    third = runner.sample()
    assert "old" not in third.batch.batches
    assert times_of(third, "new") == [2, 3, 4, 5]
    assert runner.ledger.is_exact


LATE = {
    "while another has it": [
        Moment({"a": 0}),
        Moment({"a": 1}),
        Moment({"a": 2, "b": 2}),
        Moment({"a": 3, "b": 3}, terminated=[ALL]),
    ],
    "after another had it": [
        Moment({"a": 0}),
        Moment({"a": 1}, terminated=["a"]),
        Moment(),
        Moment({"b": 3}),
        Moment({"b": 4}, terminated=[ALL]),
    ],
}


@pytest.mark.parametrize("when", LATE)
def test_a_removed_policy_stays_for_agents_that_appear_late_in_an_episode_that_uses_it(when: str) -> None:
    runner = make_runner(
        in_dicts(ScriptedEnv(LATE[when])),
        {"old": ParityAgent()},
        lambda agent, episode: "old" if episode.number == 0 else "new",
        rollout_fragment_length=1,
    )
    samples = [runner.sample()]
    runner.policies.add("new", ParityAgent(), ParityAgent().init(NUMBERLESS, NUMBERLESS, jax.random.key(0)))
    runner.policies.remove("old")
    samples += [runner.sample() for _ in LATE[when][1:]]
    old = [(row.t, row.obs) for sample in samples for row in rows_of(sample, "old")]
    expected = {
        "while another has it": [(0, 0.0), (1, 1.0), (2, 2.0), (2, 2.0)],
        "after another had it": [(0, 0.0), (3, 3.0)],
    }
    assert old == expected[when]
    assert times_of(samples[-1], "new") == [0]
    assert runner.ledger.is_exact


NUMBERLESS: Any = None
"""Spaces that an agent without parameters does not look at."""


# Rules: figures of episodes.


def test_returns_are_exact_sums_of_raw_rewards() -> None:
    class TinyRewards(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, _, *others = super().step(action)
            return (obs, 16777216.0 if self.num_steps == 1 else 0.5, *others)

    runner = make_runner(vectorized(lambda index: TinyRewards(9)), rollout_fragment_length=4)
    episodes = [episode for _ in range(5) for episode in runner.sample().episodes]
    assert [episode.episode_return for episode in episodes] == [16777220.0] * 2


def test_every_episode_of_every_env_and_runner_has_its_own_seed() -> None:
    seeds = [
        episode.seed
        for run_seed in range(2)
        for runner_index in range(2)
        for episode in counting(1, num_envs=4, seed=run_seed, runner_index=runner_index)
        .sample(num_episodes=40)
        .episodes
    ]
    assert len(seeds) == len(set(seeds)) == 160


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", WHOLE])
def test_short_episodes_are_not_favored(batch_mode: str) -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv((2, 30)[index]), num_envs=2), batch_mode=batch_mode)
    sample = runner.sample(num_episodes=6)
    assert sorted(episode.episode_length for episode in sample.episodes) == [2, 2, 2, 30, 30, 30]
    assert sample.env_steps == len(rows_of(sample)) == 96


def test_fewer_episodes_than_envs_come_from_different_envs() -> None:
    diary = Diary()
    runner = counting(3, num_envs=4, callbacks=diary)
    for num_episodes in (2, 3, 6, 1):
        sample = runner.sample(num_episodes=num_episodes)
        assert len(sample.episodes) == num_episodes
        assert sample.env_steps == len(rows_of(sample)) == 3 * num_episodes
        assert None not in {episode.seed for episode in sample.episodes}
        assert all(row.episode >= 0 for row in rows_of(sample))
        assert runner.ledger.is_exact
    assert diary.entries.count("created") == diary.entries.count("start") == diary.entries.count("end") == 12


# Rules: actions.


class LoggingSimulator(Simulator):
    """Plays episodes of 6 steps, of which it chooses every second itself: 0, then 1, then 0."""

    def run(self) -> None:
        while True:
            episode = self.start_episode()
            for t in range(6):
                obs = np.array([t], np.float32)
                if t % 2:
                    self.log_action(episode, obs, np.int64(t // 2 % 2))
                else:
                    self.get_action(episode, obs)
                self.log_returns(episode, 1.0)
            self.end_episode(episode, np.array([6], np.float32))


@pytest.mark.parametrize("has_mapping", [False, True])
def test_a_logged_action_is_stored_with_the_log_probability_that_the_policy_gives_it(has_mapping: bool) -> None:
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,), output_init_scale=1.0))
    mapping = (lambda agent, episode: "default") if has_mapping else None
    runner = make_runner(ExternalBaseEnv([LoggingSimulator()]), {"default": agent}, mapping)
    agent_state = agent.init(*runner.spaces_of(), jax.random.key(0))
    sample = runner.sample(num_episodes=3)
    runner.close()
    batch = sample.batch.batches.default
    times = batch.extras.env_extras.t[:, 0]
    is_logged = times % 2 == 1
    assert is_logged.sum() == 9
    np.testing.assert_array_equal(batch.actions[is_logged, 0], times[is_logged] // 2 % 2)
    log_prob = agent.replay(agent_state, batch).log_prob(batch.actions)
    np.testing.assert_allclose(batch.extras.policy_extras.log_prob, log_prob, atol=1e-5)


def test_logged_actions_are_stored_by_an_agent_that_does_not_explore() -> None:
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,), output_init_scale=1.0))
    runner = make_runner(ExternalBaseEnv([LoggingSimulator()]), agent, explore=False)
    batch = runner.sample(num_episodes=3).batch.batches.default
    runner.close()
    times = batch.extras.env_extras.t[:, 0]
    np.testing.assert_array_equal(batch.actions[times % 2 == 1, 0], [0, 1, 0] * 3)
    own = batch.actions[:, 0][times % 2 == 0].reshape(3, 3)
    np.testing.assert_array_equal(own, own[:1].repeat(3, axis=0))


# Rules: what is not valid.


def infinite_reward(truth: Any) -> Any:
    obs, _, *others = truth
    return (obs, np.float32(np.inf), *others)


LIES = {
    with_nan_reward: "InvalidRewardError",
    infinite_reward: "InvalidRewardError",
    with_two_rewards: "InvalidRewardError",
    with_wrong_shape: "InvalidObservationError",
    with_wrong_dtype: "InvalidObservationError",
    with_list_info: "InvalidInfoError",
    with_four_values: "InvalidReplyError",
}


@pytest.mark.parametrize("lie_fn", LIES, ids=lambda lie_fn: lie_fn.__name__)
def test_what_is_not_valid_costs_the_episode_or_the_run(lie_fn: Callable) -> None:
    def make(on_invalid: str) -> EnvRunner:
        envs = vectorized(lambda index: LyingEnv(lie_fn, at_step=3) if index else CountingEnv(10), num_envs=2)
        return make_runner(envs, on_invalid=on_invalid, rollout_fragment_length=5)

    with pytest.raises(EnvFaultError, match=rf"env 1 \(test, seed \d+\).* step 3 on action .*{LIES[lie_fn]}"):
        make("raise").sample()
    runner = make("abort")
    sample = runner.sample()
    assert [fault.env_index for fault in sample.faults] == [1]
    assert [row.t for row in rows_of(sample) if row.column == 0] == [*range(5)]
    assert [row.t for row in rows_of(sample) if row.column == 1] == [0, 1]
    assert runner.ledger.is_exact


def test_observations_out_of_bounds_are_found_out_before_long() -> None:
    class WanderingEnv(CountingEnv):
        def _obs(self) -> np.ndarray:
            return np.array([-self.num_steps], np.float32)

    runner = make_runner(vectorized(lambda index: WanderingEnv(10**6)), on_invalid="raise")
    with pytest.raises(EnvFaultError, match="InvalidObservationError"):
        runner.sample(num_steps=3000)


GOOD_REWARDS = [1, 1.0, np.float32(1.0), np.int8(1), np.array(1.0), np.array([1.0]), np.array([1])]


@pytest.mark.parametrize("reward", GOOD_REWARDS, ids=repr)
def test_numbers_in_any_form_are_rewards(reward: Any) -> None:
    def with_reward(truth: Any) -> Any:
        obs, _, *others = truth
        return (obs, reward, *others)

    class Info(dict):
        pass

    def with_info(truth: Any) -> Any:
        *others, _ = with_reward(truth)
        return (*others, Info(a=1))

    runner = make_runner(vectorized(lambda index: LyingEnv(with_info, at_step=1)), on_invalid="raise")
    assert [row.reward for row in rows_of(runner.sample(num_steps=3))] == [1.0, 1.0, 1.0]
    runner = make_runner(in_dicts(ScriptedEnv([Moment({"a": 0}), Moment({"a": 1}, {"a": reward}, ["__all__"])])))
    assert runner.sample(num_episodes=1).episodes[0].agent_returns == {"a": 1.0}


BAD_MOMENTS = {
    "a reward that is no number": (Moment({"a": 1, "b": 1}, {"b": "x"}), "agent 'b'.*reward"),
    "a reward that is not finite": (Moment({"a": 1, "b": 1}, {"b": float("inf")}), "agent 'b'.*finite"),
    "an info of nobody": (Moment({"a": 1}, infos={"b": {"x": 1}}), "info for agent 'b'"),
    "an info that is no dict": (Moment({"a": 1}, infos={"a": [1]}), "agent 'a'.*info"),
    "an agent that nobody knows": (Moment({"a": 1, "z": 1}), "'z'"),
}


@pytest.mark.parametrize("name", BAD_MOMENTS)
def test_what_is_not_valid_in_a_dict_env_names_the_agent(name: str) -> None:
    moment, message = BAD_MOMENTS[name]
    script = [Moment({"a": 0, "b": 0}), moment]
    good = ScriptedEnv(everyone("ab", 10))
    runner = make_runner(in_dicts(good, ScriptedEnv(script)), on_invalid="raise")
    with pytest.raises(EnvFaultError, match=rf"env 1 .*step 0 on action .*{message}"):
        runner.sample()


@pytest.mark.parametrize("name", BAD_MOMENTS)
def test_what_is_not_valid_in_a_dict_env_costs_that_episode_alone(name: str) -> None:
    script = [Moment({"a": 100, "b": 100}), Moment({"a": 101, "b": 101}, {"a": 1.0}), BAD_MOMENTS[name][0]]
    runner = make_runner(
        in_dicts(ScriptedEnv(everyone("ab", 10)), ScriptedEnv(script)), on_invalid="abort", rollout_fragment_length=2
    )
    sample = runner.sample()
    assert [(fault.env_index, fault.step) for fault in sample.faults] == [(1, 1)]
    seen = sorted((row.obs, row.t) for row in rows_of(sample) if row.episode != sample.faults[0].episode)
    assert seen == [(0.0, 0), (0.0, 0), (1.0, 1), (1.0, 1), (100.0, 0), (100.0, 0)]  # the last two are new episodes
    account = runner.ledger.rows
    assert (account.returned, account.discarded) == (6, 2)
    assert runner.ledger.is_exact


@pytest.mark.parametrize("name", ["terminateds", "truncateds"])
def test_flags_without_all_are_not_valid(name: str) -> None:
    class Forgetful(ScriptedEnv):
        def step(self, actions: dict) -> Any:
            obs, rewards, terminateds, truncateds, infos = super().step(actions)
            del {"terminateds": terminateds, "truncateds": truncateds}[name][ALL]
            return obs, rewards, terminateds, truncateds, infos

    runner = make_runner(in_dicts(Forgetful(everyone("ab", 3))), on_invalid="raise")
    with pytest.raises(EnvFaultError, match=f"{name} has no entry '__all__'"):
        runner.sample()


def test_an_info_that_belongs_to_no_agent_is_valid() -> None:
    script = [Moment({"a": 0}), Moment({"a": 1}, infos={"__common__": {"x": 1}}, terminated=[ALL])]
    assert make_runner(in_dicts(ScriptedEnv(script))).sample(num_episodes=1).faults == []


# Rules: no cost for what is not used.


class ArrayEnv(VectorEnv):
    """Envs that step as arrays, in episodes without end."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(NUMBER, gymnasium.spaces.Discrete(2), num_envs)

    def vector_reset(self, seeds: Any = None) -> tuple[Any, dict]:
        return np.zeros((self.num_envs, 1), np.float32), {}

    def reset_at(self, index: int, seed: int | None = None) -> tuple[Any, dict]:
        return np.zeros(1, np.float32), {}

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        no_flags = np.zeros(self.num_envs, np.bool_)
        return VectorStep(np.zeros((self.num_envs, 1), np.float32), np.ones(self.num_envs), no_flags, no_flags)


class EndlessEnv(gymnasium.Env):
    """One of many, whose `step` calls no other function."""

    observation_space, action_space = NUMBER, gymnasium.spaces.Discrete(2)
    obs = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.obs, 1.0, False, False, {}


def calls_in_steps(base_env: BaseEnv, num_steps: int) -> Counter[str]:
    """Count the calls of Python functions while every env makes this number of steps, by the name of the function."""
    runner = make_runner(base_env, rollout_fragment_length=2 * num_steps)
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    for _ in range(3):
        runner.step()
    sys.setprofile(count)
    try:
        for _ in range(num_steps):
            runner.step()
    finally:
        sys.setprofile(None)
    return calls


def test_envs_that_step_as_arrays_cost_the_same_calls_however_many_they_are() -> None:
    few, many = (calls_in_steps(VectorBaseEnv(ArrayEnv(num_envs)), 20) for num_envs in (4, 64))
    assert few["ArrayEnv.vector_step"] == 20
    assert few == many


def test_envs_one_by_one_cost_a_call_of_their_own_step_and_no_other() -> None:
    few, many = (calls_in_steps(vectorized(lambda index: EndlessEnv(), num_envs), 20) for num_envs in (4, 64))
    assert many - few == {"EndlessEnv.step": 60 * 20}
    assert few - many == {}


# Rules: envs out of lockstep.


def by_env(samples: list[Sample]) -> dict[int, list[tuple]]:
    """What happened in each env, in order."""
    rows: dict[int, list[tuple]] = {}
    for sample in samples:
        batch = sample.batch.batches.default
        extras = batch.extras.env_extras
        for column in range(batch.rewards.shape[1]):
            for t in np.flatnonzero(extras.autoreset[:, column] == 0):
                row = (
                    *batch.obs[t, column].tolist(),
                    *extras.ori_obs[t, column].tolist(),
                    *(float(leaf[t, column]) for leaf in (batch.actions, batch.rewards, extras.t, extras.end)),
                    *(float(leaf[t, column]) for leaf in (extras.steps, extras.episode_return, batch.dones)),
                )
                rows.setdefault(int(batch.obs[t, column, 0]), []).append(row)
    return rows


@pytest.mark.parametrize("has_mapping", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_envs_out_of_lockstep_give_what_they_give_in_lockstep(seed: int, has_mapping: bool) -> None:
    def collect(rng: np.random.Generator | None) -> list[Sample]:
        env = StaggeredEnvs([3, 7, 4, 1, 5], rng, fails_at={2: 2, 4: 0})
        mapping = (lambda agent, episode: "default") if has_mapping else None
        runner = make_runner(env, mapping=mapping, rollout_fragment_length=6)
        samples = [runner.sample() for _ in range(4)]
        for sample in samples:
            assert len(rows_of(sample)) == sample.agent_steps
        assert runner.ledger.is_exact
        return samples

    in_step, out_of_step = by_env(collect(None)), by_env(collect(np.random.default_rng(seed)))
    assert in_step.keys() == out_of_step.keys() == set(range(5))
    for env, rows in in_step.items():
        assert rows == out_of_step[env]


def test_random_actions_reach_the_env_that_they_are_stored_for() -> None:
    env = StaggeredEnvs([3, 7, 4, 1, 5], np.random.default_rng(3))
    runner = make_runner(env, RandomAgent(), rollout_fragment_length=30)
    batch = runner.sample().batch.batches.default
    for column in range(5):
        received = [action for index, action in env.received if index == column]
        assert batch.actions[:, column].tolist() == received
