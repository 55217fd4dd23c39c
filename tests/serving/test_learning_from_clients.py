"""Learning from clients over HTTP: every step counts once, whatever becomes of clients, requests and answers."""

import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.serving.client import Client, EpisodeLostError, RefusedError, ServerGoneError
from rookery.serving.env import ServedEnv, ServedSettings
from rookery.serving.limits import Limits
from rookery.spaces import Box, Discrete
from tests.runner_envs import count_rows, make_runner, rows_of

SPACES = {SINGLE_AGENT: (Box(-np.inf, np.inf, (1,)), Discrete(2))}
NEVER = 30.0
"""Seconds after which a client gives up, so that a test fails instead of waiting for ever."""


class Served:
    """A served environment with a runner, and clients in threads."""

    def __init__(self, pending_seconds: float = 30.0, **settings: Any) -> None:
        self.env = ServedEnv(ServedSettings(spaces="-", port=0, token_file=None, drain=0.0, **settings), SPACES)
        self.env.limits = Limits(pending_seconds=pending_seconds)
        self.base_env = ExternalBaseEnv([self.env])
        self.base_env.prepare()
        self.url = self.env.url
        self.errors: list[Exception] = []

    def runner(self, **settings: Any) -> EnvRunner:
        self.runner_ = make_runner(self.base_env, **settings)
        return self.runner_

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


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:

        def start(**settings: Any) -> Served:
            served = Served(**settings)
            stack.callback(served.base_env.close)
            return served

        yield start


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
        for row in rows_of(sample):
            number, t = divmod(int(row.obs), 1000)
            assert row.t == t
            assert row.reward == t
            assert row.successor == row.obs + 1
            steps.setdefault(number, []).append(t)
    assert set(Counter(count_rows(samples)).values()) == {1}
    for found in steps.values():
        assert sorted(found) == list(range(len(found))), "nothing is missing and nothing doubled"
    return steps


@pytest.mark.parametrize(("mode", "num_rows"), [("complete_episodes", 50), ("truncate_episodes", 40)])
def test_a_client_gives_the_same_batches_as_any_other_env(
    serve: Callable[..., Served], mode: str, num_rows: int
) -> None:
    served = serve(max_episodes=1)
    runner = served.runner(rollout_fragment_length=40, batch_mode=mode)
    served.play(play_numbered)
    samples = [runner.sample() for _ in range(3)]
    for sample in samples:
        assert len(rows_of(sample)) == sample.env_steps == num_rows
    assert runner.ledger.is_exact
    check_rows(samples)
