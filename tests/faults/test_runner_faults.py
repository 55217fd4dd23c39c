"""A runner on environments that raise, lie, hang, crash and are killed: neighbors lose nothing, all is counted."""

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rookery.runners.callbacks import Callbacks, EpisodeEvent, FaultEvent
from rookery.runners.envs.base_env import ALL
from rookery.runners.envs.conversion import to_base_env
from rookery.runners.faults import EnvFaultError, FaultKind, Phase
from rookery.runners.health import RestartPolicy
from rookery.runners.runner import EnvRunner
from rookery.testing.misbehaving_envs import (
    BadCloseEnv,
    CountingEnv,
    FaultyEnv,
    FlakyEnv,
    LyingEnv,
    exit_process,
    fork_child,
    hang,
    kill_process,
    print_a_lot,
    raise_error,
    raise_system_exit,
    raise_unpicklable,
    raise_without_arguments,
    segfault,
    with_nan_reward,
)
from tests.runner_envs import FakeTime, Moment, ScriptedEnv, everyone, in_dicts, make_runner, rows_of, vectorized

AT_ONCE = RestartPolicy(good_steps=1)
"""An env that has made a step is restarted without waiting."""


def one_bad_of_three(fault_fn: Callable[[], None], at_step: int = 4, **where: Any) -> EnvRunner:
    """Three envs with episodes of 20 steps; the second does harm at a step of each episode."""

    def make_env(index: int) -> CountingEnv:
        return FaultyEnv(fault_fn, at_step=at_step, length=20) if index == 1 else CountingEnv(20)

    return make_runner(vectorized(make_env, num_envs=3, **where), rollout_fragment_length=10, restart=AT_ONCE)


def check_neighbors(runner: EnvRunner, num_samples: int = 2) -> list[Any]:
    """Sample, and check that the neighbors of the bad env lost nothing; return the faults."""
    faults = []
    times: dict[int, list[int]] = {0: [], 2: []}
    for _ in range(num_samples):
        sample = runner.sample()
        faults += sample.faults
        assert runner.ledger.is_exact
        assert len(rows_of(sample)) == sample.env_steps
        for column in times:
            times[column] += [row.t for row in rows_of(sample) if row.column == column]
        bad = [episode for episode in sample.episodes if episode.is_faulty]
        assert {episode.env_index for episode in bad} <= {1}
        assert not {episode.number for episode in bad} & {row.episode for row in rows_of(sample)}
    runner.close()
    assert times[0] == times[2] == [t % 20 for t in range(10 * num_samples)]
    return faults


@pytest.mark.parametrize("fault_fn", [raise_error, raise_without_arguments, raise_unpicklable, raise_system_exit])
def test_any_exception_costs_the_episode_of_its_env_alone(fault_fn: Callable[[], None]) -> None:
    faults = check_neighbors(one_bad_of_three(fault_fn))
    assert len(faults) == 4  # among 20 steps, one after every fourth that others follow
    for fault in faults:
        assert (fault.env_index, fault.step, fault.failed.kind, fault.failed.phase) == (
            1,
            4,
            FaultKind.RAISED,
            Phase.STEP,
        )
        assert fault_fn.__name__ in fault.failed.traceback
        assert fault.action in (0, 1)


PROCESS_FAULTS = {
    raise_unpicklable: (FaultKind.RAISED, "UnpicklableError"),
    exit_process: (FaultKind.EXITED, "3"),
    kill_process: (FaultKind.KILLED, "SIGKILL"),
    segfault: (FaultKind.KILLED, "SIGSEGV"),
}


@pytest.mark.parametrize("fault_fn", PROCESS_FAULTS, ids=lambda fault_fn: fault_fn.__name__)
def test_a_process_that_dies_costs_the_episode_of_its_env_alone(fault_fn: Callable[[], None]) -> None:
    kind, message = PROCESS_FAULTS[fault_fn]
    faults = check_neighbors(one_bad_of_three(fault_fn, at_step=15, processes=True))
    assert [(fault.env_index, fault.step, fault.failed.kind) for fault in faults] == [(1, 15, kind)]
    assert message in str(faults[0])


def test_a_process_that_hangs_costs_its_own_episode_and_the_others_nothing() -> None:
    runner = one_bad_of_three(hang, at_step=15, processes=True, step_timeout=3.0)
    samples = [runner.sample()]
    while not samples[-1].faults:
        assert runner.ledger.is_exact
        samples.append(runner.sample())
    runner.close()
    (fault,) = samples[-1].faults
    assert (fault.env_index, fault.step, fault.failed.kind) == (1, 15, FaultKind.HUNG)
    assert len(samples) > 10
    rows = [row for sample in samples for row in rows_of(sample)]
    times = [[row.t for row in rows if row.column == column] for column in range(3)]
    assert times[0] == times[2] == [t % 20 for t in range(10 * len(samples))]
    assert times[1] == [*range(15)]


class SlowEnv(CountingEnv):
    """Takes a time to be built, and for the last step of its first episode."""

    def __init__(self, length: int, build_seconds: float = 0.0, last_seconds: float = 0.0) -> None:
        super().__init__(length)
        time.sleep(build_seconds)
        self._length, self._last_seconds = length, last_seconds

    def step(self, action: Any) -> Any:
        if self.num_steps == self._length - 1:
            time.sleep(self._last_seconds)
            self._last_seconds = 0.0
        return super().step(action)


def test_the_first_sample_waits_for_envs_that_are_being_built() -> None:
    base_env = vectorized(lambda index: SlowEnv(5, build_seconds=0.8 * index), 2, processes=True, step_timeout=2.0)
    runner = make_runner(base_env, rollout_fragment_length=4)
    assert runner.sample().env_steps == 8
    runner.close()


def test_fresh_episodes_have_the_shape_of_a_fragment_after_an_env_was_late() -> None:
    base_env = vectorized(lambda index: SlowEnv(4, last_seconds=1.0 * index), 2, processes=True, step_timeout=5.0)
    runner = make_runner(base_env, rollout_fragment_length=8)
    assert runner.sample().env_steps == 8 + 3
    sample = runner.sample(force_reset=True)
    assert [row.t for row in rows_of(sample)] == [*range(4)] * 4
    assert sample.batch.batches.default.rewards.shape == (8, 2)
    assert runner.ledger.is_exact
    runner.close()


def test_all_envs_that_fail_together_are_accounted_for_before_the_error() -> None:
    runner = make_runner(
        vectorized(lambda index: LyingEnv(with_nan_reward), 2), rollout_fragment_length=8, on_invalid="raise"
    )
    for num_faults in (2, 4):
        with pytest.raises(EnvFaultError, match="on_invalid='raise' ends the run"):
            runner.sample()
        assert runner.fault_counts["invalid"] == num_faults
    assert runner.ledger.is_exact
    runner.close()


def test_a_process_that_is_killed_from_outside_is_replaced(tmp_path: Path) -> None:
    class NamedEnv(CountingEnv):
        def __init__(self, index: int) -> None:
            super().__init__(1000)
            with (tmp_path / str(index)).open("a") as log:
                log.write(f"{os.getpid()}\n")

    def processes_of(index: int) -> list[int]:
        return [int(line) for line in (tmp_path / str(index)).read_text().split()]

    runner = make_runner(vectorized(NamedEnv, num_envs=3, processes=True), rollout_fragment_length=10)
    runner.sample()
    os.kill(processes_of(1)[-1], signal.SIGKILL)
    samples = [runner.sample() for _ in range(3)]
    runner.close()
    faults = [fault for sample in samples for fault in sample.faults]
    assert [(fault.env_index, fault.failed.kind) for fault in faults] == [(1, FaultKind.KILLED)]
    assert len(set(processes_of(1))) == 2
    assert [row.t for sample in samples for row in rows_of(sample) if row.column == 0] == [*range(10, 40)]
    assert rows_of(samples[-1])[-1].t == 39
    assert runner.ledger.is_exact


class StartTimes(Callbacks):
    """Notes when the first observation of each episode has come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_episode_start(self, event: EpisodeEvent) -> None:
        self.times.append(monotonic())


@pytest.mark.parametrize(("fault_fn", "patience"), [(kill_process, 0.0), (hang, 1.0)])
def test_a_process_that_dies_or_hangs_is_replaced_within_two_seconds_and_the_start_of_its_env(
    fault_fn: Callable[[], None], patience: float, tmp_path: Path
) -> None:
    moment = tmp_path / "moment"

    def fail_once() -> None:
        if not moment.exists():
            moment.write_text(str(monotonic()))
            fault_fn()

    began = monotonic()
    base_env = vectorized(lambda index: FaultyEnv(fail_once, at_step=5), processes=True, step_timeout=patience or None)
    start = monotonic() - began
    episodes = StartTimes()
    runner = make_runner(base_env, rollout_fragment_length=8, callbacks=episodes)
    sample = runner.sample()
    runner.close()
    assert len(sample.faults) == 1
    seconds = episodes.times[1] - float(moment.read_text()) - patience
    # The start counts three times, because how busy the machine is changes in between.
    assert seconds < 2.0 + 3 * start


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")  # of Gymnasium, when it is ended by force
@pytest.mark.parametrize("is_idle", [True, False], ids=["while idle", "in a step"])
def test_a_process_of_gymnasiums_own_vector_env_that_is_killed_is_named_and_all_are_replaced(is_idle: bool) -> None:
    made: list[AsyncVectorEnv] = []

    def make_vector_env(index: int = 0) -> AsyncVectorEnv:
        step_of_death = None if is_idle or made else 3
        make_env = functools.partial(FaultyEnv, kill_process, at_step=step_of_death, length=50)
        made.append(
            AsyncVectorEnv(
                [functools.partial(CountingEnv, 50), make_env],
                context="spawn",
                autoreset_mode=AutoresetMode.DISABLED,
            )
        )
        return made[-1]

    runner = make_runner(to_base_env(make_env=make_vector_env, num_envs=2), rollout_fragment_length=5)
    samples = [runner.sample()]
    if is_idle:
        os.kill(made[0].processes[1].pid, signal.SIGKILL)
        samples.append(runner.sample())
    runner.close()
    faults = [fault for sample in samples for fault in sample.faults]
    assert [(fault.env_index, fault.failed.kind) for fault in faults] == [(0, FaultKind.KILLED), (1, FaultKind.KILLED)]
    assert all("process of env 1 was ended by SIGKILL" in str(fault) for fault in faults)
    assert samples[-1].env_steps == (10 if is_idle else 4)
    assert len(made) == 2
    assert not any(process.is_alive() for vector_env in made for process in vector_env.processes)
    assert runner.ledger.is_exact


def test_gymnasiums_own_vector_env_is_closed_although_a_process_was_killed_before() -> None:
    vector_env = AsyncVectorEnv([functools.partial(CountingEnv, 5)] * 2, context="spawn")
    runner = make_runner(to_base_env(vector_env), rollout_fragment_length=2)
    runner.sample()
    os.kill(vector_env.processes[0].pid, signal.SIGKILL)
    runner.close()
    assert not any(process.is_alive() for process in vector_env.processes)


@pytest.mark.parametrize("harmless_fn", [print_a_lot, fork_child])
def test_envs_that_print_or_fork_make_no_difference(
    harmless_fn: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    runner = one_bad_of_three(harmless_fn, at_step=4, processes=True, envs_per_process=3)
    assert check_neighbors(runner) == []


def test_an_env_that_cannot_be_closed_is_replaced_like_any_other() -> None:
    class BadEnv(FaultyEnv, BadCloseEnv): ...

    runner = make_runner(vectorized(lambda index: BadEnv(raise_error, at_step=2)), rollout_fragment_length=6)
    assert len(runner.sample().faults) == 2
    runner.close()


def test_what_a_fault_says_is_all_there_is_to_know() -> None:
    runner = one_bad_of_three(raise_error)
    (fault, *_) = runner.sample().faults
    assert str(fault).startswith(f"env 1 (test, seed {fault.seed}) raised at step 4 on action 0: ValueError('bad leg')")
    assert str(fault).endswith("; episode discarded, restart 1 of 5.")
    assert runner.fault_counts == {"raised": 2, "restarts": 2}


def test_the_action_of_a_fault_is_the_one_that_was_sent() -> None:
    class Picky(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 3:
                raise ValueError(f"got {action}")
            return super().step(action)

    runner = make_runner(vectorized(lambda index: Picky(10), num_envs=2), rollout_fragment_length=5)
    for fault in runner.sample().faults:
        assert f"got {fault.action}" in fault.failed.error
    script = [Moment({"a": 0, "b": 1}), Moment({"a": 3, "b": 4}), Moment({"a": "nonsense"})]  # type: ignore[dict-item]
    (fault, *_) = make_runner(in_dicts(ScriptedEnv(script))).sample(num_steps=2).faults
    assert {agent: int(action) for agent, action in fault.action.items()} == {"a": 1, "b": 0}


def test_a_fault_at_a_reset_says_nothing_of_the_episode_before() -> None:
    runner = make_runner(vectorized(lambda index: FaultyEnv(raise_error, at_reset=1, length=6)))
    sample = runner.sample(num_steps=9)
    (fault,) = sample.faults
    assert (fault.failed.phase, fault.step, fault.action) == (Phase.RESET, 0, None)
    good, bad = sample.episodes
    assert (good.episode_length, good.episode_return, good.is_faulty) == (6, 6.0, False)
    assert (bad.episode_length, bad.episode_return, bad.is_faulty) == (0, 0.0, True)
    assert sample.env_steps == 9
    account = runner.ledger.env_steps
    assert (account.taken, account.discarded) == (9, 0)


def test_an_env_that_cannot_be_built_is_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    time = FakeTime()

    def make_env(index: int) -> CountingEnv:
        return FlakyEnv(log, 2, fails_in="make") if index else CountingEnv(10)

    runner = make_runner(
        vectorized(make_env, num_envs=2), rollout_fragment_length=8, clock=time.clock, sleep=time.sleep
    )
    first = runner.sample()
    assert [fault.failed.phase for fault in first.faults] == [Phase.MAKE, Phase.MAKE]
    time.now += 10.0
    second = runner.sample()
    assert Counter(row.column for row in rows_of(second)) == {0: 8, 1: 8}


def test_a_fault_costs_all_agents_of_the_episode_and_nothing_else() -> None:
    def script(episode: int) -> list[Moment]:
        bad = Moment({"a": 13, "b": 13}, {"a": float("nan")})
        steps = [Moment({"a": t, "b": t}, {"a": 1.0}, terminated=["b"] if t == 2 else ()) for t in range(3)]
        steps[0].rewards = {}
        if episode % 2:
            return [*steps, bad]
        return [*steps, Moment({"a": 3}, {"a": 1.0}, terminated=[ALL])]

    env = ScriptedEnv(script)
    runner = make_runner(in_dicts(env, ScriptedEnv(everyone("ab", 4))), rollout_fragment_length=9)
    sample = runner.sample()
    (fault,) = sample.faults
    assert fault.failed.kind is FaultKind.INVALID
    assert fault.step == 2
    rows = [row for row in rows_of(sample) if row.episode == fault.episode]
    assert rows == []
    assert runner.ledger.rows.discarded == 4
    assert runner.ledger.env_steps.discarded == 2
    assert runner.ledger.is_exact


def test_a_part_of_an_episode_that_was_returned_before_its_fault_stays_returned() -> None:
    runner = make_runner(
        vectorized(lambda index: FaultyEnv(raise_error, at_step=7, length=20)), rollout_fragment_length=5
    )
    first, second = runner.sample(), runner.sample()
    assert [row.t for row in rows_of(first)] == [*range(5)]
    assert [row.t for row in rows_of(second)] == [0, 1, 2]
    account = runner.ledger.env_steps
    assert (account.taken, account.returned, account.discarded) == (10, 8, 2)


def test_a_lying_env_costs_its_neighbors_nothing_when_it_lies_at_its_last_step() -> None:
    def make_env(index: int) -> CountingEnv:
        return LyingEnv(with_nan_reward, at_step=4, length=5) if index else CountingEnv(5)

    runner = make_runner(vectorized(make_env, num_envs=2), rollout_fragment_length=10, restart=AT_ONCE)
    sample = runner.sample()
    assert [episode.env_index for episode in sample.episodes if not episode.is_faulty] == [0, 0]
    assert [row.column for row in rows_of(sample)] == [0] * 10 + [1] * 2
    assert runner.ledger.is_exact


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_random_faults_are_counted_exactly(batch_mode: str) -> None:
    num_envs = 8
    time = FakeTime(tick=0.01)

    def make_env(index: int) -> CountingEnv:
        return FaultyEnv(raise_error, probability=0.05 if index < 2 else 0.0, length=15)

    runner = make_runner(
        vectorized(make_env, num_envs=num_envs),
        rollout_fragment_length=16,
        batch_mode=batch_mode,
        clock=time.clock,
        sleep=time.sleep,
    )
    seen: Counter[tuple[int, int]] = Counter()
    num_faults = 0
    returned = 0
    for _ in range(20):
        sample = runner.sample()
        rows = rows_of(sample)
        seen.update((row.episode, row.t) for row in rows)
        num_faults += len(sample.faults)
        returned += sample.env_steps
        faulty = {episode.number for episode in sample.episodes if episode.is_faulty}
        assert not faulty & {row.episode for row in rows}
        assert runner.ledger.is_exact
        for episode in sample.episodes:
            if not episode.is_faulty:
                assert (episode.episode_length, episode.episode_return) == (15, 15.0)
    assert num_faults > 5
    assert set(seen.values()) == {1}
    assert runner.ledger.env_steps.returned == returned == len(seen)


class FaultLimit(Callbacks):
    """Ends what would go on for ever."""

    def __init__(self, max_faults: int) -> None:
        self.num_left = max_faults

    def on_env_fault(self, event: FaultEvent) -> None:
        self.num_left -= 1
        assert self.num_left, "the env is restarted for ever"


@pytest.mark.parametrize("at_step", [8, 30])
def test_an_env_that_never_finishes_an_episode_is_not_tried_for_ever(at_step: int) -> None:
    time = FakeTime()
    runner = make_runner(
        vectorized(lambda index: FaultyEnv(raise_error, at_step=at_step, length=50)),
        callbacks=FaultLimit(100),
        clock=time.clock,
        sleep=time.sleep,
    )
    with pytest.raises(EnvFaultError, match="bad leg"):
        runner.sample(num_episodes=1)


def test_when_all_envs_are_lost_the_error_tells_of_the_first_fault_with_its_traceback() -> None:
    def make_env(index: int) -> CountingEnv:
        def fail() -> None:
            raise ValueError(f"leg {index} is bad")

        return FaultyEnv(fail, at_step=[6, 2, 4][index])

    runner = make_runner(vectorized(make_env, num_envs=3), restart=RestartPolicy(max_restarts=0))
    with pytest.raises(EnvFaultError, match=r"the first fault: env 1 .*at step 2 on .*leg 1 is bad") as raised:
        runner.sample(num_steps=30)
    _, traceback = str(raised.value).split("Traceback")
    assert "ValueError: leg 1 is bad" in traceback
    assert not any(f"leg {other} is bad" in str(raised.value) for other in (0, 2))
    assert raised.value.fault.env_index == 1


def test_retries_are_spaced_and_the_others_do_not_wait() -> None:
    time = FakeTime()
    attempts: list[float] = []

    def make_env(index: int) -> CountingEnv:
        if index == 0:
            return CountingEnv(5)
        attempts.append(time.now)
        raise OSError("no display")

    class Ticking(Callbacks):
        def on_sample_end(self, event: Any) -> None:
            time.now += 0.25

    runner = make_runner(
        vectorized(make_env, num_envs=2),
        rollout_fragment_length=5,
        restart=RestartPolicy(max_restarts=4, first_delay=0.5, max_delay=2.0),
        callbacks=Ticking(),
        clock=time.clock,
        sleep=time.sleep,
    )
    samples = [runner.sample() for _ in range(30)]
    assert time.naps == []
    assert attempts == [0.0, 0.0, 0.5, 1.5, 3.5]
    assert runner.num_lost_envs == 1
    assert all(len(rows_of(sample)) == 5 for sample in samples)
    np.testing.assert_array_equal(np.diff(attempts), [0.0, 0.5, 1.0, 2.0])
