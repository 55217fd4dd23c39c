"""Runners on Ray: the same fragments as in this process, and failures that stay with their runner."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.errors import InvalidInputError, RookeryError
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.acting.roles import TRAIN
from rookery.runners.envs.own import name_own_env
from rookery.runners.faults import FaultKind
from rookery.runners.groups.group import (
    ActingSpec,
    Delivery,
    EnvSpec,
    FragmentRequest,
    Ready,
    Reply,
    RunnerFailed,
    RunnerGroup,
    RunnerSpec,
    RunnerStart,
)
from rookery.runners.ray.group import RayRunners
from rookery.runners.ray.settings import RaySettings
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, LyingEnv, raise_error
from tests.ray.kills import Twins, check_seeds, commanded_env, receive, start
from tests.ray.processes import children_of, is_running, wait_until
from tests.ray_envs import give_command
from tests.runner_envs import ParityAgent, SummingAgent

SAMPLE_TIMEOUT = 100.0
NUM_ENVS, NUM_STEPS = 3, 7


def spec_of(env: EnvConfig) -> RunnerSpec:
    return RunnerSpec(EnvSpec(env, NUM_ENVS), NUM_STEPS, seed=5)


def sample(group: RunnerGroup, request: FragmentRequest) -> dict[int, Reply]:
    for index in range(group.num_runners):
        group.send(index, request)
    return receive(group, group.num_runners)


@pytest.fixture
def closing() -> Iterator[Callable[[RunnerGroup], Any]]:
    """Close groups at the end of a test."""
    groups: list[RunnerGroup] = []

    def keep(group: RunnerGroup) -> Any:
        groups.append(group)
        return group

    yield keep
    for group in groups:
        group.close()


class Ahead:
    """A clock that is ahead of the real one."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.seconds


@dataclass(frozen=True)
class Commanded:
    """Two runners whose environments do what a file in `folder` says. Each test leaves them ready."""

    group: RayRunners
    request: FragmentRequest
    folder: Path
    clock: Ahead

    def sample(self) -> dict[int, Reply]:
        return sample(self.group, self.request)

    def rebuild(self, index: int, start: RunnerStart) -> None:
        self.group.rebuild(index, start, self.request)
        assert receive(self.group, 1) == {index: Ready()}


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commanded]:
    folder = tmp_path_factory.mktemp("commands")
    env, clock = EnvConfig(name_own_env(commanded_env(folder))), Ahead()
    group = RayRunners(spec_of(env), 2, RaySettings(sample_timeout=SAMPLE_TIMEOUT), clock)
    yield Commanded(group, start(group, ParityAgent()), folder, clock)
    group.close()


@pytest.mark.parametrize("agent", [ParityAgent(), SummingAgent()], ids=["feedforward", "recurrent"])
def test_runners_on_ray_return_the_bytes_of_runners_here_also_around_a_kill(agent: Any) -> None:
    with contextlib.closing(Twins(spec_of(EnvConfig("gymnasium/CartPole-v1", episode_length=20)), 2, agent)) as twins:
        for killed in (None, None, 1, None, None):
            twins.sample(killed)


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        ("exit", FaultKind.KILLED, "its process "),
        ("segfault", FaultKind.KILLED, "its process "),
        ("hang in C", FaultKind.HUNG, "it did not answer request for 100 s; ray.sample_timeout sets the limit."),
        ("stop", FaultKind.HUNG, "it did not answer request for 100 s; ray.sample_timeout sets the limit."),
    ],
)
def test_a_runner_that_fails_is_rebuilt_with_new_seeds_and_the_other_goes_on(
    command: str, kind: FaultKind, message: str, commanded: Commanded
) -> None:
    group, before = commanded.group, commanded.sample()
    give_command(commanded.folder, command)
    for index in range(2):
        group.send(index, commanded.request)
    replies = receive(group, 1 if kind is FaultKind.HUNG else 2)
    if kind is FaultKind.HUNG:
        assert group.receive(0.0) == {}
        commanded.clock.seconds += SAMPLE_TIMEOUT
        replies |= receive(group, 1)
    (failed_at,) = [index for index, reply in replies.items() if isinstance(reply, RunnerFailed)]
    failure, last = replies[failed_at], before[failed_at]
    assert isinstance(failure, RunnerFailed)
    assert isinstance(last, Delivery)
    assert failure.failed.kind is kind
    assert failure.message.startswith(message)
    assert len(failure.message) < 400
    assert isinstance(replies[1 - failed_at], Delivery)
    commanded.rebuild(failed_at, RunnerStart(last.report.state))
    for reply in commanded.sample().values():
        assert isinstance(reply, Delivery)
        assert reply.sample.env_steps == NUM_ENVS * NUM_STEPS
    check_seeds(commanded.folder)


def test_an_environment_that_ends_its_process_costs_its_episode_and_all_end_with_their_runner(
    closing: Any, tmp_path: Path
) -> None:
    env = EnvConfig(name_own_env(commanded_env(tmp_path)), runner=RunnerSettings(processes=True))
    group = closing(RayRunners(spec_of(env), 1, RaySettings()))
    request = start(group, ParityAgent())
    give_command(tmp_path, "segfault")
    reply = sample(group, request)[0]
    assert isinstance(reply, Delivery)
    assert [fault.failed.kind for fault in reply.sample.faults] == [FaultKind.KILLED]
    pid = group._slots[0].greeting.pid
    started = children_of(pid)[1:]
    assert len(started) >= NUM_ENVS
    os.kill(pid, signal.SIGKILL)
    group.send(0, request)
    assert isinstance(receive(group, 1)[0], RunnerFailed)
    assert wait_until(lambda: not any(map(is_running, started)))


@pytest.mark.parametrize("command", ["raise", "raise nothing", "system exit"])
def test_an_environment_that_raises_costs_its_episode_and_not_the_runner(command: str, commanded: Commanded) -> None:
    give_command(commanded.folder, command)
    replies = [reply for reply in commanded.sample().values() if isinstance(reply, Delivery)]
    assert len(replies) == 2
    (fault,) = [fault for reply in replies for fault in reply.sample.faults]
    assert fault.failed.kind is FaultKind.RAISED


def test_a_runner_that_cannot_act_fails_before_its_first_fragment(commanded: Commanded) -> None:
    group, request = commanded.group, commanded.request
    group.rebuild(0, RunnerStart(), FragmentRequest("nobody", request.agent_states))
    (failure,) = receive(group, 1).values()
    assert isinstance(failure, RunnerFailed)
    assert "nobody" in failure.message
    commanded.rebuild(0, RunnerStart())
    assert all(isinstance(reply, Delivery) for reply in commanded.sample().values())


@pytest.fixture(scope="module")
def twins() -> Iterator[Twins]:
    """Runners whose environments raise now and then; with this seed none twice in ten steps, after which it waits."""
    env = EnvConfig(name_own_env(partial(FaultyEnv, raise_error, probability=0.01)))
    with contextlib.closing(Twins(replace(spec_of(env), seed=10), 2, ParityAgent())) as twins:
        yield twins


def test_environments_that_raise_now_and_then_return_the_same_bytes_on_ray_and_here(twins: Twins) -> None:
    num_faults = sum(len(sampled.sample.faults) for _ in range(20) for sampled in twins.sample().values())
    assert num_faults >= 5


@pytest.mark.parametrize("place", ["here", "there"])
def test_a_slot_takes_one_request_at_a_time_and_a_reply_after_a_rebuild_is_ignored(place: str, twins: Twins) -> None:
    group = getattr(twins, place)
    request = twins.requests[group]
    group.send(0, request)
    with pytest.raises(InvalidInputError, match="runner 0 has a request under way"):
        group.send(0, request)
    group.rebuild(0, RunnerStart(), request)
    assert receive(group, 1) == {0: Ready()}
    assert group.receive(0.2) == {}
    assert all(isinstance(reply, Delivery) for reply in sample(group, request).values())


@pytest.mark.parametrize("place", ["here", "there"])
def test_nothing_is_under_way_after_close_and_a_group_starts_again(place: str, twins: Twins) -> None:
    group = getattr(twins, place)
    group.send(0, twins.requests[group])
    group.close()
    group.close()
    assert group.receive() == {}
    again = start(group, ParityAgent())
    assert all(isinstance(reply, Delivery) for reply in sample(group, again).values())


def test_a_runner_whose_environment_returns_nonsense_ends_the_run_if_the_settings_say_so(closing: Any) -> None:
    lying = partial(LyingEnv, lambda result: (None, *result[1:]))
    env = EnvConfig(name_own_env(lying), runner=RunnerSettings(on_invalid="raise"))
    group = closing(RayRunners(spec_of(env), 1, RaySettings()))
    failure = sample(group, start(group, ParityAgent()))[0]
    assert isinstance(failure, RunnerFailed)
    assert failure.is_fatal
    assert "on_invalid='raise' ends the run" in failure.message


def test_one_runner_that_cannot_be_made_fails_and_the_other_describes_the_environments(
    closing: Any, tmp_path: Path
) -> None:
    env = EnvConfig(name_own_env(commanded_env(tmp_path)))
    give_command(tmp_path, "make: raise nothing")
    group = closing(RayRunners(spec_of(env), 2, RaySettings()))
    agent = ParityAgent()
    state = agent.init(*group.describe().spaces["agent"], jax.random.key(0))
    request = FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: state}))
    group.start(ActingSpec({TRAIN: agent}), request)
    replies = receive(group, 2)
    (failed_at,) = [index for index, reply in replies.items() if isinstance(reply, RunnerFailed)]
    assert replies[1 - failed_at] == Ready()
    group.rebuild(failed_at, RunnerStart(), request)
    assert receive(group, 1) == {failed_at: Ready()}


def test_if_no_runner_can_be_made_the_error_has_the_traceback_of_the_first(closing: Any, tmp_path: Path) -> None:
    env = EnvConfig(name_own_env(FailsElsewhere(os.getpid())))
    group = closing(RayRunners(spec_of(env), 2, RaySettings()))
    with pytest.raises(RookeryError, match=r"only here(.|\n)*Traceback(.|\n)*in __call__"):
        group.describe()


class FailsElsewhere:
    """Makes environments in one process alone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __call__(self) -> CountingEnv:
        if os.getpid() != self.pid:
            raise RuntimeError("only here")
        return CountingEnv()


def test_a_runner_without_room_is_named_once_while_it_waits(closing: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock, settings = Ahead(), RaySettings(num_cpus_per_env_runner=6, wait_timeout=60.0)
    group = closing(RayRunners(spec_of(EnvConfig("gymnasium/CartPole-v1")), 2, settings, clock))
    agent = ParityAgent()
    state = agent.init(*group.describe().spaces["agent"], jax.random.key(0))
    request = FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: state}))
    group.start(ActingSpec({TRAIN: agent}), request)
    ((up, _),) = receive(group, 1).items()
    caplog.clear()
    clock.seconds = 30.0
    for _ in range(2):
        assert group.receive(0.0) == {}
    expected = "1 of 2 runners are up; 1 waits for 6 CPU, the cluster has "
    assert [message[: len(expected)] for message in caplog.messages] == [expected]
    group.rebuild(1 - up, RunnerStart(), request)
    group.receive(0.0)
    assert len(caplog.messages) == 1
    clock.seconds = 60.0
    group.receive(0.0)
    assert [message[: len(expected)] for message in caplog.messages] == [expected] * 2


def test_if_no_runner_finds_room_the_start_ends_and_says_what_is_missing(closing: Any) -> None:
    clock = Ahead()
    settings = RaySettings(resources_per_env_runner={"simulator": 1}, wait_timeout=100.0)
    group = closing(RayRunners(spec_of(EnvConfig("gymnasium/CartPole-v1")), 2, settings, clock))
    timer = threading.Timer(0.5, setattr, (clock, "seconds", 200.0))
    timer.start()
    with pytest.raises(
        RookeryError, match=r"no runner has found room for 100 seconds \(ray.wait_timeout\): 0 of 2 .*"
    ) as info:
        group.describe()
    assert str(info.value).endswith("0 of 0 simulator free.")
