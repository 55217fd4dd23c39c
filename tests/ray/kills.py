"""Runners that are killed while they train or play, and what must hold then; `train` trains in this process."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.configs import compose
from rookery.registry import build_workflow
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.acting.roles import TRAIN
from rookery.runners.envs.own import name_own_env
from rookery.runners.faults import FaultKind
from rookery.runners.groups.group import (
    ActingSpec,
    Delivery,
    FragmentRequest,
    LocalRunners,
    Ready,
    Reply,
    RunnerFailed,
    RunnerGroup,
    RunnerSpec,
    RunnerStart,
)
from rookery.runners.ray import group as ray_group
from rookery.runners.ray.group import RayRunners
from rookery.runners.ray.settings import RaySettings
from rookery.workflows.host.collector import Collector
from tests.ray.processes import wait_until
from tests.ray_envs import CommandedEnv, seeds_in

NUM_RUNNERS = 4
NUM_QUIET_ROUNDS, NUM_UNDISTURBED_ROUNDS = 3, 40
"""Rounds before the first kill, and those that are compared with a run without kills."""
IMPALA = [
    "agent=impala",
    "agent.num_envs=8",
    "agent.rollout_length=16",
    "agent.network.hidden_sizes=[16]",
    f"num_env_runners={NUM_RUNNERS}",
    "record_interval=512",
    "total_timesteps=10000000",
]


def train(overrides: list[str], on_record: Any = None) -> tuple[list[dict], Any]:
    """Train without a run directory; return the records, without times, and the last agent state."""
    records: list[dict] = []

    def keep(event: Any) -> None:
        records.append({name: value for name, value in event.metrics.items() if not name.startswith("time/")})
        if on_record is not None:
            on_record(event)

    workflow = build_workflow(compose([*overrides, "evaluation.interval=null", "recorders=[]"]))
    try:
        state = workflow.learn(workflow.init(workflow.make_key()), keep)
    finally:
        workflow.close()
    return records, jax.tree.map(np.asarray, state.agent_state)


def put_runners_here(patch: pytest.MonkeyPatch) -> None:
    """Let runners work in this process instead of on Ray."""
    patch.setattr(ray_group, "RayRunners", lambda spec, num_runners, settings: LocalRunners(spec, num_runners))


def start(group: RunnerGroup, agent: Any) -> FragmentRequest:
    """Start all runners; return a request for fragments."""
    state = agent.init(*group.describe().spaces["agent"], jax.random.key(0))
    request = FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: state}))
    group.start(ActingSpec({TRAIN: agent}), request)
    assert receive(group, group.num_runners) == dict.fromkeys(range(group.num_runners), Ready())
    return request


def receive(group: RunnerGroup, num_replies: int) -> dict[int, Reply]:
    """Wait for as many replies."""
    replies: dict[int, Reply] = {}
    assert wait_until(lambda: replies.update(group.receive(0.1)) or len(replies) >= num_replies), replies
    return replies


class Twins:
    """Runners on Ray and as many in this process, which return the same bytes, whoever is killed on Ray."""

    def __init__(self, spec: RunnerSpec, num_runners: int, agent: Any) -> None:
        self.there, self.here = RayRunners(spec, num_runners, RaySettings()), LocalRunners(spec, num_runners)
        assert self.there.describe() == self.here.describe()
        self.requests = {group: start(group, agent) for group in (self.there, self.here)}
        self._starts = [RunnerStart(None, 1)] * num_runners
        """What a replacement goes on from."""

    def sample(self, killed: int | None = None) -> dict[int, Delivery]:
        """Sample a fragment of every runner, compare and return them; kill one in its fragment and replace it."""
        if killed is not None:
            pid = self.there._slots[killed].greeting.pid  # type: ignore[union-attr]
            os.kill(pid, signal.SIGSTOP)  # so that it does not reply before it is killed
        for group, request in self.requests.items():
            for index in range(group.num_runners):
                if group is self.there or index != killed:
                    group.send(index, request)
        if killed is not None:
            os.kill(pid, signal.SIGKILL)
        theirs, ours = receive(self.there, self.there.num_runners), self.here.receive()
        sampled: dict[int, Delivery] = {}
        for index, expected in ours.items():
            reply = theirs.pop(index)
            assert isinstance(reply, Delivery), reply
            assert isinstance(expected, Delivery)
            check_equal(reply, expected)
            sampled[index] = expected
            self._starts[index] = RunnerStart(reply.report.state, 1)
        assert list(theirs) == ([] if killed is None else [killed])
        for index, failure in theirs.items():
            assert isinstance(failure, RunnerFailed)
            assert failure.failed.kind is FaultKind.KILLED
            self._replace(index)
        return sampled

    def _replace(self, index: int) -> None:
        for group, request in self.requests.items():
            group.rebuild(index, self._starts[index], request)
            assert receive(group, 1) == {index: Ready()}

    def close(self) -> None:
        self.there.close()
        self.here.close()


def check_equal(reply: Delivery, expected: Delivery) -> None:
    """Check that two runners have sampled the same bytes, and that the reply keeps nothing in the store of Ray."""
    jax.tree.map(np.testing.assert_array_equal, reply.sample.batch, expected.sample.batch)
    jax.tree.map(np.testing.assert_array_equal, reply.sample.first_carries, expected.sample.first_carries)
    assert reply.sample.episodes == expected.sample.episodes
    assert reply.report.ledger == expected.report.ledger
    assert reply.report.counts == expected.report.counts
    assert all(leaf.flags.owndata for leaf in jax.tree.leaves(reply.report.state)), "the store is kept full"


class Killer:
    """Watches rounds, and kills a runner that is up a little after some of them.

    In every round, all delivered steps are taken or queued. Until a fragment is lost, batches are those of
    `undisturbed`; in the round of the first loss the columns of the others are.
    """

    def __init__(self, num_kills: int, undisturbed: list[Any], seed: int) -> None:
        self.num_left = num_kills
        self.killed: Counter[int] = Counter()
        self.rebuilt: Counter[int] = Counter()
        self.num_rounds = self.num_sampled = self.num_taken = self.num_compared = 0
        self._undisturbed = undisturbed
        self._random = random.Random(seed)
        self._pids: set[int] = set()
        self._timer: threading.Timer | None = None

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        note, take, rebuild = Collector._note, Collector.take, RayRunners.rebuild

        def noted(collector: Any, index: int, reply: Any) -> None:
            note(collector, index, reply)
            if isinstance(reply, Delivery):
                self.num_sampled += reply.sample.env_steps
                assert reply.report.ledger.is_exact

        def taken(collector: Any, is_asking: bool = True) -> Any:
            batch = take(collector, is_asking)
            if batch is not None:
                self._check(collector, *batch)
                self._kill(collector)
            return batch

        def rebuilt(group: Any, index: int, *args: Any) -> None:
            self.rebuilt[index] += 1
            rebuild(group, index, *args)

        patch.setattr(Collector, "_note", noted)
        patch.setattr(Collector, "take", taken)
        patch.setattr(RayRunners, "rebuild", rebuilt)

    def _check(self, collector: Any, experience: Any, num_steps: int) -> None:
        self.num_rounds += 1
        self.num_taken += num_steps
        assert self.num_sampled == self.num_taken + collector.num_steps_queued
        if self._undisturbed and self.num_rounds == self.num_compared + 1:
            expected = self._undisturbed[self.num_compared]
            is_live = (experience.trajectory.extras.env_extras.autoreset == 0).any(axis=0)
            jax.tree.map(
                lambda leaf, other: np.testing.assert_array_equal(leaf[:, is_live], other[:, is_live]),
                experience.trajectory,
                expected,
            )
            if is_live.all() and self.num_rounds < len(self._undisturbed):
                self.num_compared += 1

    def _kill(self, collector: Any) -> None:
        pids = {index: slot.greeting.pid for index, slot in enumerate(collector.group._slots) if slot.greeting}
        up = [index for index, pid in pids.items() if collector._rounds.slots[index].is_up and pid not in self._pids]
        is_over = self._timer is None or not self._timer.is_alive()
        if self.num_left and len(up) > 1 and is_over and self.num_rounds >= NUM_QUIET_ROUNDS:
            index = self._random.choice(up)
            self.num_left -= 1
            self.killed[index] += 1
            self._pids.add(pids[index])
            self._timer = threading.Timer(self._random.uniform(0.0, 0.05), os.kill, (pids[index], signal.SIGKILL))
            self._timer.start()


def batches_without_kills(overrides: list[str]) -> list[Any]:
    """Train with runners in this process; return the trajectory of each round."""
    take, batches = Collector.take, []

    def taken(collector: Any, is_asking: bool = True) -> Any:
        batch = take(collector, is_asking)
        if batch is not None:
            batches.append(jax.tree.map(np.copy, batch[0].trajectory))
        return batch

    with pytest.MonkeyPatch.context() as patch:
        put_runners_here(patch)
        patch.setattr(Collector, "take", taken)
        train(overrides)
    return batches


def train_with_kills(max_staleness: int, num_kills: int, seed: int, folder: Path) -> Killer:
    """Train on four runners of which one after the other is killed, until all are back; check what must hold."""
    batches = []
    if max_staleness == 0:  # otherwise the parameters that act depend on the time
        (folder / "undisturbed").mkdir()
        env = name_own_env(commanded_env(folder / "undisturbed"))
        num_steps = NUM_UNDISTURBED_ROUNDS * 8 * 16
        batches = batches_without_kills([*IMPALA, f"env={env}", f"total_timesteps={num_steps}"])
    killer = Killer(num_kills, batches, seed)

    def stop_when_all_are_back(event: Any) -> None:
        if killer.rebuilt.total() == num_kills and event.metrics["runners/ready"] == NUM_RUNNERS:
            event.stop("all were killed and are back")

    with pytest.MonkeyPatch.context() as patch:
        killer.watch(patch)
        env = name_own_env(commanded_env(folder))
        records, _ = train([*IMPALA, f"env={env}", f"max_staleness={max_staleness}"], stop_when_all_are_back)
    assert killer.rebuilt == killer.killed
    assert killer.killed.total() == num_kills
    assert records[-1]["runners/restarts"] == records[-1]["faults/killed"] == num_kills
    assert records[-1]["runners/lost"] == 0
    assert max(record["rollout/staleness_max"] for record in records) <= max_staleness
    assert max_staleness > 0 or NUM_QUIET_ROUNDS <= killer.num_compared < NUM_UNDISTURBED_ROUNDS
    check_seeds(folder)
    return killer


def commanded_env(folder: Path) -> Callable[[], CommandedEnv]:
    def make() -> CommandedEnv:
        return CommandedEnv(str(folder))

    return make


def check_seeds(folder: Path) -> int:
    """Check that no two episodes had the same seed; return their number."""
    seeds = seeds_in(folder)
    assert len(seeds) == len(set(seeds)), f"{len(seeds)} episodes with {len(set(seeds))} seeds"
    return len(seeds)


def check_ledger(record: dict[str, float]) -> None:
    """Check that all delivered steps were trained on, are queued or were discarded."""
    parts = ("time/total_timesteps", "rollout/steps_queued", "rollout/steps_discarded")
    assert record["rollout/steps_sampled"] == sum(record[name] for name in parts), record
