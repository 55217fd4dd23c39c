"""Collecting in rounds from runners that fail, come late or deliver little; no environment is made."""

import functools
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rookery.algorithms.a2c import A2CWorkflow
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, RookeryError
from rookery.learning.experience import Experience
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.acting.roles import TRAIN
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.groups.episodes import Evaluated, EvaluationRequest
from rookery.runners.groups.group import (
    ActingSpec,
    Delivery,
    Description,
    FragmentRequest,
    LocalRunners,
    Ready,
    Reply,
    RunnerFailed,
    RunnerGroup,
    RunnerReport,
    RunnerStart,
)
from rookery.runners.groups.jobs import Chunk
from rookery.runners.groups.rounds import SETTLING_SECONDS
from rookery.runners.health import RestartPolicy
from rookery.runners.ledger import Account, Ledger
from rookery.runners.sampling import Sample
from rookery.runs.directory import RunDirectory
from rookery.sample_batch import MultiAgentBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict
from rookery.workflows.host.collector import RoundSettings, blank_experience
from rookery.workflows.host.single_agent_collector import SingleAgentCollector
from rookery.workflows.host.training import HostTrainingLoop
from tests.runner_envs import FakeTime, ParityAgent

ROLLOUT_LENGTH, NUM_COLUMNS = 4, 2
FRAGMENT = ROLLOUT_LENGTH * NUM_COLUMNS
"""The env steps of a whole fragment of one runner."""
SPACES = Box(-1.0, 1.0, (1,)), Discrete(2)

Answer = int | FaultKind | None
"""The answer to a request: a fragment with so many live steps, a failure, or none for now."""
Script = Callable[[int, int], Answer]
"""Given a slot and the number of the request to it, from 1, says what it answers whenever somebody looks."""


class ScriptedRunners(RunnerGroup):
    """Runners that answer as a script says, elsewhere and at once; otherwise time passes.

    The reward of a row is 100 times its slot and the number of its fragment. Calls in a wrong order are assertion
    errors.
    """

    works_in_receive = False
    restart = RestartPolicy(max_restarts=1, first_delay=0.0)

    def __init__(self, num_runners: int, script: Script, time: FakeTime) -> None:
        self.num_runners = num_runners
        self.script = script
        self.starting: dict[int, Answer] = {}
        """What runners that start answer; not 0: they are ready."""
        self.starts: list[RunnerStart] = []
        self.rebuilt: list[tuple[int, RunnerStart]] = []
        self.num_sampled = 0
        """Delivered steps."""
        self.num_requests: Counter[int] = Counter()
        self.requests: list[tuple[int, Any]] = []
        """All requests: the slot, and the parameters that act."""
        self._time = time
        self._started: set[int] = set()
        self._out: set[int] = set()
        self._chunks: dict[int, Chunk] = {}
        """The episodes of evaluations under way."""

    def describe(self) -> Description:
        return Description("scripted", {SINGLE_AGENT: SPACES})

    def start(self, acting: ActingSpec, request: FragmentRequest, starts: Sequence[RunnerStart] = ()) -> None:
        self.starts = list(starts)
        self._started = set(range(self.num_runners))

    def put(self, agent_states: Any) -> Any:
        return agent_states[DEFAULT_POLICY] if isinstance(agent_states, Mapping) else agent_states

    def send(self, index: int, request: Any) -> None:
        assert index not in self._out | self._started
        self._out.add(index)
        self.num_requests[index] += 1
        if isinstance(request, EvaluationRequest):
            self._chunks[index] = request.chunk
        else:
            self.requests.append((index, request.agent_states))

    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        for index in sorted(self._started):
            answer = self.starting.get(index, 0)
            if answer is not None:
                replies[index] = failure_of(index, answer) if isinstance(answer, FaultKind) else Ready()
        for index in sorted(self._out):
            answer = self.script(index, self.num_requests[index])
            if answer is not None:
                replies[index] = self._reply(index, answer)
        self._started -= set(replies)
        self._out -= set(replies)
        if not replies:
            self._time.sleep(timeout or 0.0)
        return replies

    def _reply(self, index: int, answer: int | FaultKind) -> Reply:
        if isinstance(answer, FaultKind):
            return failure_of(index, answer)
        if (chunk := self._chunks.pop(index, None)) is not None:
            numbers = np.arange(100)[chunk.jobs]
            return Evaluated(numbers[:, None] + 0.5, numbers + 1, [{}] * chunk.count)
        number = self.num_requests[index]
        self.num_sampled += answer
        account = Account(taken=answer, returned=answer, discarded=0, pending=0)
        report = RunnerReport({"number": np.int32(number)}, Ledger(account, account), Counter(), 0, {})
        return Delivery(make_sample(100 * index + number, answer), report)

    def rebuild(self, index: int, start: RunnerStart, request: FragmentRequest) -> None:
        self._out.discard(index)
        self._chunks.pop(index, None)
        self._started.add(index)
        self.rebuilt.append((index, start))

    def close(self) -> None:
        self._out, self._started, self._chunks = set(), set(), {}


def failure_of(index: int, kind: FaultKind) -> RunnerFailed:
    return RunnerFailed(Failed(kind, Phase.STEP, "gone"), f"runner {index} was {kind}.")


@functools.cache
def nothing() -> Experience:
    return blank_experience(ParityAgent(), *SPACES, NUM_COLUMNS, ROLLOUT_LENGTH)


def make_sample(reward: float, num_live: int) -> Sample:
    """Make a sample whose first steps are live."""
    experience = jax.tree.map(np.copy, nothing())
    trajectory = experience.trajectory
    trajectory.rewards[:] = reward
    trajectory.extras.env_extras.t[:] = 7
    trajectory.extras.env_extras.autoreset.ravel()[:num_live] = 0.0
    batch = MultiAgentBatch(batches=PyTreeDict({DEFAULT_POLICY: trajectory}), env_steps=np.int32(num_live))
    return Sample(batch, {DEFAULT_POLICY: experience.first_carry}, [], [], num_live, num_live)


def whole(slot: int, number: int) -> Answer:
    return FRAGMENT


def make_collector(
    num_runners: int, script: Script = whole, time: FakeTime | None = None, **settings: Any
) -> tuple[SingleAgentCollector, Any]:
    time = time or FakeTime()
    group = ScriptedRunners(num_runners, script, time)
    num_envs, rounds = num_runners * NUM_COLUMNS, RoundSettings(**settings)
    env = EnvConfig("gymnasium/Scripted-v0")
    return SingleAgentCollector(group, env, ParityAgent(), num_envs, ROLLOUT_LENGTH, rounds, time.clock), group


def rewards_of(experience: Any) -> list[float]:
    """Return the reward of each column."""
    rewards = experience.trajectory.rewards
    assert (rewards == rewards[0]).all()
    return rewards[0].tolist()


def is_dead(experience: Any) -> list[bool]:
    """Return which columns have no live row."""
    return (experience.trajectory.extras.env_extras.autoreset == 1).all(axis=0).tolist()


@dataclass(frozen=True)
class FakeState:
    """The counts of a training state."""

    env_steps: int = 0
    num_updates: int = 0
    key: object = field(default_factory=lambda: np.zeros(()))


class FakeProgram:
    """A program that needs no compiling."""

    def __init__(self, run: Callable) -> None:
        self._run = run

    def specialized(self, *args: Any) -> Callable:
        return self._run

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)


class FakeTraining:
    """Counts what a learner is given."""

    def __init__(self, collector: SingleAgentCollector, has_replay: bool = False) -> None:
        config = SimpleNamespace(num_envs=collector.num_envs, rollout_length=ROLLOUT_LENGTH)
        self.collector = collector
        self.learner = SimpleNamespace(has_replay=has_replay, config=config, warmup_steps=0)
        self.learned: list[Any] = []
        self.stored: list[Any] = []

    def update_program(self) -> FakeProgram:
        def update(state: FakeState, metrics: Any, experience: Any) -> Any:
            self.learned.append(experience)
            state = replace(self._counted(state, experience), num_updates=state.num_updates + 1)
            return state, metrics, state.num_updates

        return FakeProgram(update)

    def store_program(self) -> FakeProgram:
        def store(state: FakeState, metrics: Any, experience: Any) -> Any:
            self.stored.append(experience)
            return self._counted(state, experience), metrics

        return FakeProgram(store)

    @staticmethod
    def _counted(state: FakeState, experience: Any) -> FakeState:
        num_live = int((experience.trajectory.extras.env_extras.autoreset == 0).sum())
        return replace(state, env_steps=state.env_steps + num_live, key=np.zeros(()))

    def acting_state(self, state: FakeState) -> int:
        return state.num_updates

    def publish(self, agent_state: Any) -> None:
        self.collector.publish(TRAIN, agent_state)

    def place(self, experience: Any) -> Any:
        return experience

    def check_finite(self, agent_state: Any, error: RookeryError) -> None:
        pass


def make_loop(
    num_runners: int,
    script: Script = whole,
    total_timesteps: int = 10**6,
    has_replay: bool = False,
    **settings: Any,
) -> tuple[HostTrainingLoop, Any, Any]:
    """Make a loop, its training and its group."""
    time = FakeTime()
    collector, group = make_collector(num_runners, script, time, **settings)
    training: Any = FakeTraining(collector, has_replay)
    loop = HostTrainingLoop(training, None, total_timesteps, settings.get("max_staleness", 0) > 0, time.clock)  # type: ignore[arg-type]
    return loop, training, group


def advance(loop: Any, state: FakeState, num_iterations: int, until: int = 10**6) -> FakeState:
    return loop(state, None, np.int32(num_iterations), until)[0]


def advance_until(loop: Any, training: Any, state: FakeState, num_updates: int) -> FakeState:
    """Advance, as often as it needs, to a number of updates."""
    for _ in range(1_000):
        if state.num_updates >= num_updates or training.collector.failure is not None:
            return state
        state = advance(loop, state, num_updates - state.num_updates)
    raise AssertionError(f"only {state.num_updates} updates")


def failing(*failures: tuple[int, int], kind: FaultKind = FaultKind.KILLED) -> Script:
    """Runners of which some requests fail: `(slot, number)`."""
    return lambda slot, number: kind if (slot, number) in failures else FRAGMENT


# Columns.


def test_every_slot_has_its_columns_whoever_delivers_first() -> None:
    late = iter([None, None, None])
    collector, _ = make_collector(3, lambda slot, number: next(late, FRAGMENT) if slot == 0 else FRAGMENT)
    experience, num_steps = collector.collect(TRAIN, "parameters")
    assert rewards_of(experience) == [1, 1, 101, 101, 201, 201]
    assert num_steps == 3 * FRAGMENT
    assert not any(is_dead(experience))


def test_the_columns_of_a_runner_that_failed_are_empty_and_the_others_are_at_their_places() -> None:
    loop, training, group = make_loop(3, failing((1, 2)))
    advance_until(loop, training, FakeState(), 3)
    before, without, after = training.learned
    assert rewards_of(before) == [1, 1, 101, 101, 201, 201]
    assert rewards_of(without) == [2, 2, 0, 0, 202, 202]
    assert is_dead(without) == [False, False, True, True, False, False]
    assert rewards_of(after) == [3, 3, 103, 103, 203, 203]
    assert before.trajectory.rewards.shape == without.trajectory.rewards.shape
    assert [slot for slot, _ in group.rebuilt] == [1]


def test_a_round_without_a_live_row_makes_no_update() -> None:
    loop, training, group = make_loop(2, lambda slot, number: 0 if number in (1, 3) else FRAGMENT)
    state = advance_until(loop, training, FakeState(), 2)
    assert [rewards_of(experience) for experience in training.learned] == [[2, 2, 102, 102], [4, 4, 104, 104]]
    assert state.env_steps == group.num_sampled == 4 * FRAGMENT


def test_a_single_batch_has_a_live_row() -> None:
    collector, _ = make_collector(2, lambda slot, number: 0 if number == 1 else FRAGMENT)
    experience, num_steps = collector.collect(TRAIN, "parameters")
    assert rewards_of(experience) == [2, 2, 102, 102]
    assert num_steps == 2 * FRAGMENT


# Ledger.


def num_discarded(collector: SingleAgentCollector) -> int:
    return int(collector.report()["rollout/steps_discarded"])


@pytest.mark.parametrize("has_replay", [False, True])
@pytest.mark.parametrize(("max_staleness", "min_ready"), [(0, 1.0), (1, 1.0), (3, 0.5)])
def test_every_step_is_trained_stored_queued_or_discarded(
    max_staleness: int, min_ready: float, has_replay: bool
) -> None:
    rng = np.random.default_rng([max_staleness, has_replay])

    def at_random(slot: int, number: int) -> Answer:
        chance = rng.random()
        if chance < 0.03:
            return FaultKind.UNREACHABLE
        return None if chance < 0.4 else int(rng.integers(0, FRAGMENT + 1))

    loop, training, group = make_loop(
        3, at_random, has_replay=has_replay, max_staleness=max_staleness, min_ready=min_ready
    )
    collector, state = training.collector, FakeState()
    for step in range(150):
        state = advance(loop, state, int(rng.integers(1, 4)))
        if step % 50 == 49:
            state = replace(state, key=np.zeros(()))  # another state: what is queued does not belong to it
        assert group.num_sampled == state.env_steps + collector.num_steps_queued + num_discarded(collector)
        assert collector.report()["rollout/staleness_max"] <= max_staleness
    assert state.num_updates > 50
    assert group.rebuilt
    num_queued, before = collector.num_steps_queued, num_discarded(collector)
    saved = json.loads(json.dumps(collector.get_state()))
    assert saved["counts"]["steps_discarded"] == before + num_queued
    collector.close()
    assert collector.num_steps_queued == 0
    assert num_discarded(collector) == before + num_queued
    assert collector.get_state()["counts"] == saved["counts"]


def test_a_resumed_run_goes_on_from_the_states_and_counts_of_its_runners() -> None:
    loop, training, _ = make_loop(2, failing((1, 3)), max_staleness=2)
    collector = training.collector
    state = advance_until(loop, training, FakeState(), 4)
    assert collector.num_steps_queued > 0
    saved = json.loads(json.dumps(collector.get_state()))
    resumed, group = make_collector(2, max_staleness=2, num_unsaved_fragments=7)
    resumed.set_state(saved)
    counts = resumed.report()
    assert counts["rollout/steps_discarded"] == collector.num_steps_queued
    assert counts["faults/killed"] == counts["runners/restarts"] == counts["runners/fragments_lost"] == 1
    assert counts["rollout/steps_queued"] == 0
    resumed.collect(TRAIN, state)
    assert [start.state for start in group.starts] == saved["runners"]
    assert [start.num_fragments for start in group.starts] == [7, 7]
    assert saved["runners"][0]["number"] > 0


def test_the_steps_that_a_replay_learner_carries_over_are_in_the_checkpoint() -> None:
    loop, training, _ = make_loop(2, lambda slot, number: FRAGMENT - 3, has_replay=True)
    advance_until(loop, training, FakeState(), 3)
    carried = training.collector.carried_steps
    assert carried > 0
    resumed, _ = make_collector(2)
    resumed.set_state(json.loads(json.dumps(training.collector.get_state())))
    assert resumed.carried_steps == carried


def test_a_checkpoint_of_another_number_of_runners_is_an_error() -> None:
    collector, _ = make_collector(2)
    collector.collect(TRAIN, "parameters")
    other, _ = make_collector(3)
    with pytest.raises(InvalidInputError, match=r"2 runners.*num_env_runners=2"):
        other.set_state(collector.get_state())


# Failures.


def test_a_runner_that_failed_is_rebuilt_with_its_last_state_and_asked_with_the_newest_parameters() -> None:
    loop, training, group = make_loop(2, failing((1, 3)))
    advance_until(loop, training, FakeState(), 5)
    ((index, start),) = group.rebuilt
    assert index == 1
    assert start.state == {"number": 2}
    assert start.num_fragments == 1
    acting = [version for slot, version in group.requests if slot == 1]
    assert acting == sorted(acting)
    assert acting[2:4] == [2, 3]


def test_a_runner_that_fails_again_before_it_delivers_leaves_out_the_seeds_of_all_its_fragments() -> None:
    failures = itertools.cycle([FaultKind.UNREACHABLE] * 3 + [FRAGMENT])
    loop, training, group = make_loop(2, lambda slot, number: next(failures) if slot == 1 else FRAGMENT)
    advance_until(loop, training, FakeState(), 60)
    assert [start.num_fragments for _, start in group.rebuilt[:6]] == [1, 2, 3, 1, 2, 3]
    assert [start.state is None for _, start in group.rebuilt[:6]] == [True] * 3 + [False] * 3


def test_a_resumed_runner_that_fails_at_once_does_not_go_back_to_the_seeds_of_before() -> None:
    collector, _ = make_collector(2)
    collector.collect(TRAIN, "parameters")
    resumed, group = make_collector(2, failing((1, 1)), num_unsaved_fragments=7)
    resumed.set_state(collector.get_state())
    resumed.collect(TRAIN, "parameters")
    while not group.rebuilt:
        resumed.receive(1.0)
    ((_, start),) = group.rebuilt
    assert start == RunnerStart({"number": 1}, 8)


def test_a_run_that_resumes_from_before_its_first_fragment_leaves_out_seeds_as_well() -> None:
    saved = make_collector(2)[0].get_state()
    resumed, group = make_collector(2, num_unsaved_fragments=7)
    resumed.set_state(saved)
    resumed.collect(TRAIN, "parameters")
    assert group.starts == [RunnerStart(None, 7)] * 2


@pytest.mark.parametrize("num_up", [1, 2, 8])
def test_a_checkpoint_is_due_before_a_runner_has_begun_more_fragments_than_a_resumed_run_leaves_out(
    num_up: int,
) -> None:
    collector, group = make_collector(8, num_unsaved_fragments=10, max_staleness=1, min_ready=0.1)
    group.starting = dict.fromkeys(range(num_up, 8), FaultKind.KILLED)
    collector.publish(TRAIN, 0)
    num_rounds = 0
    while not collector.is_checkpoint_due:
        collector.ask()
        collector.receive(1.0)
        num_rounds += collector.take() is not None
    assert max(group.num_requests.values()) == 6
    collector.get_state()
    assert not collector.is_checkpoint_due


def test_a_new_run_leaves_out_no_seeds() -> None:
    collector, group = make_collector(2, num_unsaved_fragments=7)
    collector.collect(TRAIN, "parameters")
    assert group.starts == [RunnerStart(None, 0)] * 2


def always_failing(*slots: int, since: int = 2) -> Script:
    return lambda slot, number: FaultKind.KILLED if slot in slots and number >= since else FRAGMENT


def test_a_runner_that_is_lost_warns_and_training_goes_on_without_it(caplog: pytest.LogCaptureFixture) -> None:
    loop, training, _ = make_loop(2, always_failing(1))
    with caplog.at_level(logging.WARNING):
        state = advance_until(loop, training, FakeState(), 20)
    assert state.num_updates == 20
    assert training.collector.failure is None
    assert caplog.messages == [
        "runner 1 failed and is restarted: runner 1 was killed.",
        "runner 1 is given up: runner 1 was killed. Its columns stay empty.",
    ]
    assert all(is_dead(experience)[2:] == [True, True] for experience in training.learned[-5:])
    report = training.collector.report()
    assert (report["runners/lost"], report["runners/ready"], report["runners/restarts"]) == (1, 1, 1)
    assert report["runners/fragments_lost"] == report["faults/killed"] == 2


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_when_all_runners_are_lost_the_loop_returns_its_state_and_the_first_failure(max_staleness: int) -> None:
    loop, training, group = make_loop(2, always_failing(0, 1, since=4), max_staleness=max_staleness)
    state = advance_until(loop, training, FakeState(), 100)
    assert "runner 0 was killed" in str(training.collector.failure)
    assert state.num_updates == 3
    assert state.env_steps == group.num_sampled == 6 * FRAGMENT
    assert advance(loop, state, 1) == state


def test_when_all_runners_are_lost_a_single_batch_raises() -> None:
    collector, _ = make_collector(2, always_failing(0, 1, since=1))
    with pytest.raises(RookeryError, match="runner 0 was killed"):
        collector.collect(TRAIN, "parameters")


def test_if_no_runner_starts_the_first_failure_is_raised_at_once() -> None:
    collector, group = make_collector(2)
    group.starting = {0: FaultKind.RAISED, 1: FaultKind.RAISED}
    with pytest.raises(RookeryError, match="runner 0 was raised"):
        collector.collect(TRAIN, "parameters")
    assert group.rebuilt == []


def test_a_runner_that_cannot_be_built_five_times_collects_after_the_last_of_its_restarts() -> None:
    collector, group = make_collector(2)
    group.restart = RestartPolicy(max_restarts=5, first_delay=0.0, max_delay=0.0)
    collector.close()  # the next rounds have this policy
    group.starting = {1: FaultKind.RAISED}
    collector.publish(TRAIN, "parameters")
    for _ in range(20):
        collector.receive(1.0)
        if len(group.rebuilt) == 4:  # and five starts have failed
            group.starting = {}
    experience, num_steps = collector.collect(TRAIN, "parameters")
    assert num_steps == 2 * FRAGMENT
    assert not any(is_dead(experience))
    report = collector.report()
    assert (report["runners/ready"], report["runners/lost"], report["runners/restarts"]) == (2, 0, 5)


def test_too_few_runners_for_too_long_is_a_failure_that_names_the_settings() -> None:
    time = FakeTime()
    collector, group = make_collector(2, failing((1, 2)), time, min_runners=2, wait_timeout=100.0)
    collector.collect(TRAIN, "parameters")
    group.starting = {1: None}
    collector.publish(TRAIN, "parameters")
    collector.ask()
    collector.receive(1.0)
    failed_at = time.now
    while time.now <= failed_at + 100.0:
        assert collector.failure is None
        collector.receive(1.0)
    collector.receive(1.0)
    message = str(collector.failure)
    assert message == (
        "1 of 2 runners were up for 100 seconds (ray.wait_timeout), and ray.min_env_runners=2 are needed. The cause: "
        "runner 1 was killed."
    )


def test_training_waits_while_fewer_runners_are_up_than_it_needs_and_goes_on_with_what_was_delivered() -> None:
    loop, training, group = make_loop(3, failing((1, 2), (2, 2)), min_runners=2)
    state = advance_until(loop, training, FakeState(), 1)
    group.starting = {1: None, 2: None}
    for _ in range(20):
        state = advance(loop, state, 1)
    assert state.num_updates == 1
    assert group.num_requests[0] == 2
    group.starting = {2: None}
    advance_until(loop, training, state, 2)
    assert rewards_of(training.learned[1])[:2] == [2, 2]
    assert is_dead(training.learned[1]) == [False, False, False, False, True, True]
    assert training.collector.failure is None


def test_if_too_many_runners_are_given_up_the_run_ends_at_once() -> None:
    loop, training, _ = make_loop(3, always_failing(1, 2), min_runners=2, wait_timeout=10**6)
    state = advance_until(loop, training, FakeState(), 100)
    assert str(training.collector.failure) == (
        "2 of 3 runners are given up, and ray.min_env_runners=2 are needed. The cause: runner 2 was killed."
    )
    assert state.num_updates < 5


def test_the_cause_of_too_few_runners_is_not_a_failure_that_is_over() -> None:
    time = FakeTime()
    script = failing((0, 2), kind=FaultKind.HUNG)
    collector, group = make_collector(
        1, lambda slot, number: FaultKind.UNREACHABLE if number == 4 else script(slot, number), time, wait_timeout=100.0
    )
    for _ in range(2):
        collector.collect(TRAIN, "parameters")
    group.starting = {0: None}
    collector.publish(TRAIN, "parameters")
    for _ in range(200):
        collector.ask()
        collector.receive(1.0)
    assert str(collector.failure).endswith("The cause: runner 0 was unreachable.")


def test_a_failed_runner_is_restarted_when_its_time_has_come_though_nobody_replies() -> None:
    time = FakeTime()
    collector, group = make_collector(1, lambda slot, number: FaultKind.UNREACHABLE, time)
    group.restart = RestartPolicy(first_delay=0.25)
    collector.close()  # the next rounds have this policy
    collector.publish(TRAIN, "parameters")
    for _ in range(12):
        collector.ask()
        collector.receive(1.0)
    assert time.naps[:3] == [0.25, 0.5, 1.0]
    assert len(group.rebuilt) >= 3


def test_nobody_is_waited_for_if_no_reply_is_to_come() -> None:
    time = FakeTime()
    collector, _ = make_collector(1, whole, time)
    collector.publish(TRAIN, "parameters")
    collector.receive(1.0)
    assert not collector.receive(1.0)
    assert time.now == 0.0


def test_the_time_with_too_few_runners_starts_again_when_there_are_enough_and_when_the_run_is_closed() -> None:
    time = FakeTime()
    collector, group = make_collector(1, failing((0, 1)), time, wait_timeout=100.0)
    group.starting = {0: None}
    collector.publish(TRAIN, "parameters")
    for _ in range(60):
        collector.receive(1.0)
    collector.close()
    time.sleep(200.0)
    collector.publish(TRAIN, "parameters")
    for _ in range(60):
        collector.receive(1.0)
        assert collector.failure is None
    group.starting = {}
    collector.receive(1.0)
    time.sleep(200.0)
    collector.ask()
    group.starting = {0: None}
    for _ in range(60):
        collector.receive(1.0)
        assert collector.failure is None
    assert [index for index, _ in group.rebuilt] == [0]


def test_the_first_round_waits_a_minute_for_a_runner_that_does_not_start() -> None:
    loop, training, group = make_loop(2, min_runners=1)
    group.starting = {1: None}
    state, num_calls = FakeState(), 0
    while state.num_updates == 0:
        state, num_calls = advance(loop, state, 1), num_calls + 1
        assert num_calls < 100
    assert num_calls >= SETTLING_SECONDS
    assert is_dead(training.learned[0]) == [False, False, True, True]


def test_after_close_the_runners_start_again_with_the_next_call() -> None:
    loop, training, group = make_loop(2)
    state = advance(loop, FakeState(), 2)
    training.collector.close()
    state = advance_until(loop, training, state, 3)
    assert state.num_updates == 3
    assert [start.state for start in group.starts] == [{"number": 2}] * 2


# Staleness.


def test_with_staleness_runners_are_asked_during_an_update_with_the_parameters_before_it() -> None:
    loop, training, group = make_loop(1, max_staleness=1)
    advance(loop, FakeState(), 4)
    assert [version for _, version in group.requests] == [0, 0, 1, 2, 3]
    assert training.collector.report()["rollout/staleness_max"] == 1


def test_with_a_share_of_the_runners_a_slow_one_holds_up_nobody_until_its_fragment_would_be_too_old() -> None:
    answers = iter([None] * 40)

    def slow(slot: int, number: int) -> Answer:
        return next(answers, FRAGMENT) if slot == 1 else FRAGMENT

    loop, training, _ = make_loop(2, slow, max_staleness=2, min_ready=0.5)
    advance_until(loop, training, FakeState(), 4)
    assert [is_dead(experience)[2] for experience in training.learned[:3]] == [True, True, False]


# The end of a run.


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("total_timesteps", [10 * FRAGMENT, 10 * FRAGMENT + 1, 11 * FRAGMENT])
def test_no_more_steps_are_asked_for_than_the_run_has(max_staleness: int, total_timesteps: int) -> None:
    rng = np.random.default_rng(max_staleness)
    loop, training, group = make_loop(
        2, lambda slot, number: FRAGMENT if rng.random() < 0.5 else None, total_timesteps, max_staleness=max_staleness
    )
    collector, state, send = training.collector, FakeState(), group.send
    too_many = []

    def checked(index: int, request: Any) -> None:
        too_many.append(state.env_steps + collector.num_steps_under_way >= total_timesteps + FRAGMENT)
        send(index, request)

    group.send = checked
    for _ in range(200):
        state = advance(loop, state, 1, total_timesteps)
    assert not any(too_many)
    assert total_timesteps <= state.env_steps < total_timesteps + 2 * FRAGMENT
    assert group.num_sampled == state.env_steps
    assert len(group.requests) * FRAGMENT < total_timesteps + 2 * FRAGMENT


def test_the_last_rounds_do_not_wait_for_a_runner_that_is_not_asked_any_more() -> None:
    # Slot 1 is ready again when slot 0 has already delivered all that is left.
    loop, _, _ = make_loop(2, failing((1, 1)), total_timesteps=3 * FRAGMENT, max_staleness=3)
    state = FakeState()
    for _ in range(100):
        state = advance(loop, state, 1, 3 * FRAGMENT)
    assert state.env_steps >= 3 * FRAGMENT


# Replay.


def test_a_replay_learner_updates_once_for_the_live_steps_of_a_whole_batch() -> None:
    rng = np.random.default_rng(0)
    loop, training, group = make_loop(2, lambda slot, number: int(rng.integers(0, FRAGMENT + 1)), has_replay=True)
    state, batch = FakeState(), 2 * FRAGMENT
    for _ in range(100):
        state = advance(loop, state, 1)
        assert state.num_updates == state.env_steps // batch
        assert training.collector.carried_steps == state.env_steps % batch
    assert training.stored
    assert len(training.learned) == state.num_updates
    assert group.num_sampled == state.env_steps


def test_a_replay_learner_that_only_stores_publishes_no_parameters() -> None:
    loop, training, group = make_loop(2, lambda slot, number: FRAGMENT // 2, has_replay=True)
    advance_until(loop, training, FakeState(), 2)
    assert [version for slot, version in group.requests if slot == 0] == [0, 0, 1, 1]
    assert (len(training.stored), len(training.learned)) == (2, 2)


# The training loop.


def test_when_all_runners_are_lost_the_run_is_saved_and_then_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, num_fragments = LocalRunners.receive, 0

    def receive_then_fail(self: LocalRunners, timeout: float | None = None) -> dict[int, Reply]:
        nonlocal num_fragments
        replies = receive(self, timeout)
        num_fragments += isinstance(replies.get(0), Delivery)
        return {0: failure_of(0, FaultKind.KILLED)} if num_fragments > 3 else replies

    monkeypatch.setattr(LocalRunners, "receive", receive_then_fail)
    workflow = A2CWorkflow.build_from_config(
        {
            "agent": {"num_envs": 2, "rollout_length": 5, "network": {"hidden_sizes": [4]}},
            "env": {"name": "gymnasium/CartPole-v1"},
            "total_timesteps": 100,
            "recorders": [],
            "run_dir": str(tmp_path / "run"),
        }
    )
    with pytest.raises(RookeryError, match="runner 0 was killed"):
        workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()
    (last,) = sorted((RunDirectory(tmp_path / "run").checkpoints_path).iterdir())[-1:]
    assert int(last.name) == 30


def test_after_a_discarded_fragment_the_next_one_continues_nothing() -> None:
    collector, _ = make_collector(2, max_staleness=1)
    collector.publish(TRAIN, {})
    for _ in range(4):
        collector.ask()
        collector.receive(0.0)
    batch = collector.take()
    assert batch is not None
    assert collector.num_steps_queued > 0
    collector.discard()
    for is_first in (True, False):
        experience, _ = collector.collect(TRAIN, {})
        times = experience.trajectory.extras.env_extras.t
        assert np.all(times[0] == (0 if is_first else 7))
        assert np.all(times[1:] == 7)


def test_a_single_batch_asks_no_runner_ahead() -> None:
    num_looks = itertools.count()
    script = lambda slot, number: None if slot == 1 and next(num_looks) < 3 else FRAGMENT  # noqa: E731
    collector, group = make_collector(2, script, max_staleness=1)
    collector.collect(TRAIN, {})
    assert group.num_requests == {0: 1, 1: 1}


# Evaluations.


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_runners_play_an_evaluation_between_two_updates_and_training_is_the_same(max_staleness: int) -> None:
    trained = []
    for is_evaluating in (False, True):
        loop, training, group = make_loop(2, max_staleness=max_staleness)
        state = advance_until(loop, training, FakeState(), 3)
        if is_evaluating:
            evaluated = training.collector.evaluate(3, seed=5, num_episodes=7)
            assert evaluated.returns[:, 0].tolist() == [number + 0.5 for number in range(7)]
            assert evaluated.lengths.tolist() == list(range(1, 8))
        advance_until(loop, training, state, 6)
        trained.append([len(group.requests), [not all(is_dead(batch)) for batch in training.learned]])
        assert group.num_sampled == training.collector.report()["rollout/steps_sampled"]
    assert trained[0] == trained[1]


def test_an_evaluation_starts_runners_that_are_not_yet() -> None:
    collector, _ = make_collector(2)
    assert collector.evaluate(0, seed=5, num_episodes=3).lengths.tolist() == [1, 2, 3]
    assert collector.report()["rollout/steps_sampled"] == 0


def test_a_runner_that_dies_in_an_evaluation_costs_no_episode_and_no_fragment() -> None:
    collector, group = make_collector(2, failing((0, 1), (1, 1)))
    evaluated = collector.evaluate(0, seed=5, num_episodes=9)
    assert evaluated.lengths.tolist() == list(range(1, 10))
    assert evaluated.problem == ""
    assert [index for index, _ in group.rebuilt] == [0, 1]
    assert collector.report()["runners/fragments_lost"] == 0
    assert collector.report()["faults/killed"] == 2


def test_if_all_runners_are_lost_in_an_evaluation_its_episodes_are_left_out_and_the_run_ends() -> None:
    collector, group = make_collector(2)
    group.starting = dict.fromkeys(range(2), FaultKind.KILLED)
    evaluated = collector.evaluate(0, seed=5, num_episodes=4)
    assert not evaluated.lengths.any()
    assert evaluated.problem == "their runners were lost"
    assert collector.failure is not None
