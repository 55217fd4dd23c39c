"""Runners on clients over HTTP whose observations tell episode and step, so that every row can be checked."""

import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import numpy as np

from rookery.runners.envs.agent_spaces import AgentSpaces
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.serving.client import Client, RefusedError, ServerGoneError
from rookery.serving.env import ServedEnv, ServedSettings
from rookery.serving.limits import Limits
from rookery.spaces import Box, Discrete
from tests.numbered_clients import EPISODES, start_client
from tests.runner_envs import count_rows, make_runner, rows_of

SPACES = {SINGLE_AGENT: (Box(-np.inf, np.inf, (1,)), Discrete(2))}
DEFAULTS = {"spaces": "-", "port": 0, "token_file": None}
NEVER = 30.0
"""Seconds after which a client gives up, so that a test fails instead of waiting for ever."""


class Served:
    """A served environment with a runner, and clients in threads."""

    def __init__(self, pending_seconds: float = 30.0, spaces_of: AgentSpaces = SPACES, **settings: Any) -> None:
        limits = Limits(pending_seconds=pending_seconds)
        self.env = ServedEnv(ServedSettings(**DEFAULTS | {"limits": limits} | settings), spaces_of)
        self.base_env = ExternalBaseEnv([self.env])
        self.base_env.prepare()
        self.url = self.env.url
        self.errors: list[Exception] = []

    def runner(self, **settings: Any) -> EnvRunner:
        return make_runner(self.base_env, **settings)

    def play(self, play_fn: Callable[[Client], None], client_type: type[Client] = Client) -> threading.Thread:
        """Let a client play in a thread until the server is closed."""

        def run() -> None:
            client = client_type(self.url, patience=NEVER)
            try:
                play_fn(client)
            except (ServerGoneError, RefusedError) as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


NUMBERS = itertools.count()


def play_numbered(client: Client, length: int = 25, num_episodes: int | None = None) -> None:
    """Play episodes whose observations tell episode and step: 1000 k + t."""
    for _ in itertools.count() if num_episodes is None else range(num_episodes):
        episode, offset = client.start(), 1000 * next(NUMBERS)
        for t in range(length):
            assert episode.act([offset + t]) == (offset + t) % 2
            episode.reward(t)
        episode.end([offset + length], truncated=True)


def check_rows(samples: Sequence[Sample]) -> dict[int, list[int]]:
    """Check that every row is that of its step, and is there once; return the steps of each episode."""
    steps: dict[int, list[int]] = {}
    for sample in samples:
        note_rows(sample, steps)
    assert set(Counter(count_rows(samples)).values()) == {1}
    check_steps(steps)
    return steps


def note_rows(sample: Sample, steps: dict[int, list[int]]) -> None:
    """Check that every row is that of its step, and add it to the steps of its episode."""
    for row in rows_of(sample):
        number, t = divmod(int(row.obs), 1000)
        assert row.t == t
        assert row.reward == t
        assert row.successor == row.obs + 1
        steps.setdefault(number, []).append(t)


def check_steps(steps: Mapping[int, list[int]]) -> None:
    """Check that nothing is missing and nothing doubled."""
    for found in steps.values():
        assert sorted(found) == list(range(len(found)))


def sample_of(runner: EnvRunner) -> Sample:
    """Sample fragments; fail instead of waiting for ever."""
    sample = runner.sample_within(NEVER)
    assert sample is not None, "the clients do not go on"
    return sample


def kill_clients(served: Served, num_rounds: int, num_clients: int = 8, num_killed: int = 3) -> dict[int, list[int]]:
    """Kill some clients in each round and start others; return the steps of all episodes, which are checked."""
    runner = served.runner(rollout_fragment_length=10, num_fragments=8)
    draw, numbers = np.random.default_rng(0), itertools.count()
    clients = [start_client(served.url, next(numbers)) for _ in range(num_clients)]
    samples = []
    try:
        for _ in range(num_rounds):
            samples += [sample_of(runner) for _ in range(draw.integers(3, 9))]
            for place in draw.choice(num_clients, num_killed, replace=False):
                clients[place].kill()
                clients[place].wait()
                clients[place] = start_client(served.url, next(numbers))
            assert runner.ledger.is_exact
        newest = next(numbers) - 1
        deadline = time.monotonic() + NEVER
        while max(steps := check_rows(samples)) // EPISODES < newest and time.monotonic() < deadline:
            samples.append(sample_of(runner))
    finally:
        for client in clients:
            client.kill()
            client.wait()
    assert runner.ledger.is_exact
    assert max(steps) // EPISODES == newest, "the envs of killed clients are free for others"
    counts = served.base_env.report()
    assert 0 < counts["serving/expired"] <= num_rounds * num_killed
    assert counts["serving/lost"] == counts["serving/left"] == 0
    return steps


class Fleet(NamedTuple):
    """What became of a fleet."""

    answers: dict[str, int]
    """How often each status was answered."""
    num_bytes: list[int]
    """The memory of this process after each part."""


def play_fleet(served: Served, num_clients: int, num_steps: int, num_endless: int, lease: float) -> Fleet:
    """Let a process with many connections play episodes, begin others that nobody ends, and play again."""
    runner = served.runner(rollout_fragment_length=5, num_fragments=num_clients)
    arguments = map(str, (num_clients, num_steps, num_endless, lease))
    steps: dict[int, list[int]] = {}
    answers, num_bytes = Counter[str](), []

    def note_parts() -> None:
        assert fleet.stdout is not None
        for line in fleet.stdout:
            answers.update(json.loads(line))
            num_bytes.append(resident_bytes())

    with subprocess.Popen([sys.executable, "-m", "tests.fleet", served.url, *arguments], stdout=PIPE) as fleet:
        notes = threading.Thread(target=note_parts)
        notes.start()
        try:
            num_samples, deadline = 0, time.monotonic() + NEVER
            while num_samples < 2 * num_steps // 5 or served.base_env.report()["serving/expired"] < num_endless:
                assert time.monotonic() < deadline, "the clients do not go on"
                if (sample := runner.sample_within(0.1)) is not None:
                    note_rows(sample, steps)
                    num_samples, deadline = num_samples + 1, time.monotonic() + NEVER
            assert fleet.wait(NEVER) == 0
        finally:
            fleet.kill()
            notes.join()
    assert sorted(steps) == list(range(2 * num_clients))
    check_steps(steps)
    assert {len(found) for found in steps.values()} == {num_steps}
    assert runner.ledger.is_exact
    num_asked = num_endless // 2
    assert runner.ledger.env_steps.abandoned == num_asked, "the only action of each of them led nowhere"
    counts = served.base_env.report()
    assert (counts["serving/ended"], counts["serving/expired"]) == (2 * num_clients, num_endless)
    assert answers.keys() <= {"200", "201", "429", "503"}
    assert answers["201"] == 2 * num_clients + num_endless
    assert answers["200"] == 2 * num_clients * (num_steps + 1) + num_asked
    assert answers["429"], "there are more than may be open"
    return Fleet(dict(answers), num_bytes)


def resident_bytes() -> int:
    """The memory of this process, without what is free but not yet returned to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
