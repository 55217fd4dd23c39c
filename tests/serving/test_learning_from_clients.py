"""Learning from clients over HTTP: every step counts once, whatever becomes of clients, requests and answers."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rookery.runners.envs.agent_spaces import AgentSpaces
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.serving.client import Client, EpisodeLostError, RefusedError, ServerGoneError
from rookery.serving.env import ServedEnv, ServedSettings
from rookery.serving.limits import Limits
from rookery.spaces import Box, Discrete
from tests.campaigns.clients import free_port
from tests.numbered_clients import EPISODES, LENGTH, start_client
from tests.runner_envs import count_rows, make_runner, rows_of

SPACES = {SINGLE_AGENT: (Box(-np.inf, np.inf, (1,)), Discrete(2))}
DEFAULTS = {"spaces": "-", "port": 0, "token_file": None}
NEVER = 30.0
"""Seconds after which a client gives up, so that a test fails instead of waiting for ever."""


class Served:
    """A served environment with a runner, and clients in threads."""

    def __init__(self, pending_seconds: float = 30.0, spaces_of: AgentSpaces = SPACES, **settings: Any) -> None:
        self.env = ServedEnv(ServedSettings(**DEFAULTS | settings), spaces_of)
        self.env.limits = Limits(pending_seconds=pending_seconds)
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


def sample_of(runner: EnvRunner) -> Sample:
    """Sample fragments; fail instead of waiting for ever."""
    sample = runner.sample_within(NEVER)
    assert sample is not None, "the clients do not go on"
    return sample


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


class UnreliableClient(Client):
    """Sends every request twice, old ones in between, and loses every fifth answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._number, self._before = 0, None

    def _exchange(self, method: str, path: str, data: bytes | None, timeout: float) -> tuple[int, dict]:
        self._number += 1
        if self._before is not None:
            super()._exchange(*self._before)
        self._before = method, path, data, timeout
        super()._exchange(method, path, data, timeout)
        answer = super()._exchange(method, path, data, timeout)
        if self._number % 5 == 0:
            raise ConnectionResetError("the answer is lost")
        return answer


def test_requests_that_are_doubled_late_or_unanswered_count_once(serve: Callable[..., Served]) -> None:
    trajectories = []
    for client_type in (Client, UnreliableClient):
        served = serve(max_episodes=1)
        runner = served.runner(rollout_fragment_length=20, num_fragments=1)
        served.play(lambda client: play_numbered(client, length=8), client_type)
        samples = [sample_of(runner) for _ in range(4)]
        steps = check_rows(samples)
        first = min(steps)
        trajectories.append(
            [(row.obs - 1000 * first, row.t, row.reward) for sample in samples for row in rows_of(sample)]
        )
        assert runner.ledger.is_exact
        assert not served.errors
        is_repeated = served.base_env.report()["serving/repeated"] > 0
        assert is_repeated == (client_type is UnreliableClient)
    assert trajectories[0] == trajectories[1]


def test_a_step_that_waits_for_long_is_sent_again_and_counts_once(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.serving.episodes.SWEEP_SECONDS", 0.02)
    served = serve(max_episodes=4, pending_seconds=0.05)
    runner = served.runner(rollout_fragment_length=10, num_fragments=4)
    for _ in range(4):
        served.play(play_numbered)
    samples = []
    for _ in range(3):
        time.sleep(0.5)  # the learner is busy, and nobody polls
        samples.append(sample_of(runner))
    check_rows(samples)
    assert runner.ledger.is_exact
    assert served.base_env.report()["serving/repeated"] > 0
    assert not served.errors


def test_clients_of_a_fleet_and_episodes_that_never_end_are_all_counted(serve: Callable[..., Served]) -> None:
    num_clients, num_steps = 200, 20
    served = serve(max_episodes=num_clients, lease=0.5)
    runner = served.runner(rollout_fragment_length=5, num_fragments=num_clients)
    refused = []

    def play(client: Client) -> None:
        ids = [client.start().id for _ in range(num_clients)]
        for extra in range(3):
            client.patience = 0.0
            with pytest.raises(RefusedError) as caught:
                client.start(id=f"extra-{extra}")
            refused.append(caught.value.status)
        client.patience = NEVER
        for t in range(num_steps + 1):
            steps = [{"episode": name, "seq": t, "reward": float(t - 1) if t else 0.0} for name in ids]
            obs = [[1000.0 * k + t] for k in range(num_clients)]
            client.request("POST", "/v1/steps", {"steps": steps, "obs": obs})

    served.play(play)
    samples = [sample_of(runner) for _ in range(num_steps // 5)]
    steps = check_rows(samples)
    assert sorted(steps) == list(range(num_clients))
    assert {len(found) for found in steps.values()} == {num_steps}
    deadline = time.monotonic() + NEVER
    while served.base_env.report()["serving/expired"] < num_clients and time.monotonic() < deadline:
        runner.sample_within(0.1)
    assert refused == [429] * 3
    assert served.base_env.report()["serving/expired"] == num_clients, "nobody ended them"
    assert runner.ledger.is_exact
    assert runner.ledger.env_steps.abandoned == num_clients, "the last action of each led nowhere"


@pytest.mark.parametrize("num_clients", [1, 64])
def test_clients_play_evaluations_while_others_train(serve: Callable[..., Served], num_clients: int) -> None:
    served = serve(max_episodes=2)
    runner = served.runner(rollout_fragment_length=20, num_fragments=2)
    done = threading.Semaphore(0)

    def evaluate(client: Client) -> None:
        for mode in ("evaluate", "watch"):
            episode = client.start(mode=mode)
            for t in range(6):
                assert episode.act([t]) == t % 2
                episode.reward(2.0)
            episode.end([6.0])
            assert episode.episode_return == 12.0
        done.release()

    served.play(play_numbered)
    for _ in range(num_clients):
        served.play(evaluate)
    samples = []
    while len([episode for sample in samples for episode in sample.evaluated]) < num_clients:
        samples.append(sample_of(runner))
    check_rows(samples)
    evaluated = [episode for sample in samples for episode in sample.evaluated]
    assert [(episode.episode_return, episode.episode_length) for episode in evaluated] == [(12.0, 6)] * num_clients
    assert not served.errors


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


def test_clients_that_are_killed_keep_their_complete_steps_and_cost_nobody_else_any(
    serve: Callable[..., Served],
) -> None:
    steps = kill_clients(serve(max_episodes=8, lease=0.5), num_rounds=3)
    survivors = [found for number, found in steps.items() if len(found) == LENGTH]
    assert len(survivors) > 10


def test_two_agents_play_over_http(serve: Callable[..., Served]) -> None:
    served = serve(max_episodes=2, spaces_of=dict.fromkeys(("left", "right"), SPACES[SINGLE_AGENT]))
    runner = served.runner(rollout_fragment_length=8, num_fragments=4)

    def play(client: Client) -> None:
        while True:
            episode = client.start(several_agents=True)
            for t in range(6):
                shown = {"left": [t]} if t > 3 else {"left": [t], "right": [t]}
                assert episode.act(shown) == dict.fromkeys(shown, t % 2)
                episode.reward({"left": 1.0, "right": 2.0} if t < 4 else {"left": 1.0})
                if t == 3:
                    episode.end_agents({"right": [4]})
            episode.end({"left": [6]})

    served.play(play)
    episodes = [episode for _ in range(4) for episode in sample_of(runner).episodes]
    assert not served.errors
    assert len(episodes) > 3
    for episode in episodes:
        assert episode.agent_returns == {"left": 6.0, "right": 8.0}
    assert runner.ledger.is_exact


@pytest.mark.parametrize(
    ("step_fn", "code", "where"),
    [
        (lambda episode: episode.act([2e9]), "range", "obs"),
        (lambda episode: episode.act(["1"]), "type", "obs"),
        (lambda episode: episode.act([1.0, 2.0]), "shape", "obs"),
        (lambda episode: episode.log([0.0], 1), "log_prob_needed", "log_prob"),
        (lambda episode: episode.log([0.0], 2, log_prob=-1.0), "range", "action"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_with_its_place(
    serve: Callable[..., Served], step_fn: Callable, code: str, where: str
) -> None:
    served = serve(max_episodes=1, max_abs=1e9)
    served.base_env.require_log_probs(True)
    runner = served.runner(rollout_fragment_length=4, num_fragments=1)
    refusals: list[RefusedError] = []

    def play(client: Client) -> None:
        episode = client.start()
        with pytest.raises(RefusedError) as caught:
            step_fn(episode)
        refusals.append(caught.value)
        for t in range(20):
            assert episode.act([t]) == t % 2

    served.play(play)
    assert [row.obs for row in rows_of(sample_of(runner))] == [0, 1, 2, 3]
    (refusal,) = refusals
    assert (refusal.status, refusal.code, refusal.where) == (422, code, where)


def test_a_server_that_ends_is_started_again(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.serving.env.CHECK_SECONDS", 0.05)
    served = serve(max_episodes=2, port=free_port())
    runner = served.runner(rollout_fragment_length=10, num_fragments=2)
    lost = []

    def play(client: Client) -> None:
        while True:
            try:
                play_numbered(client)
            except EpisodeLostError:
                lost.append(client)

    served.play(play)
    check_rows([sample_of(runner)])
    assert served.env._server is not None
    served.env._server.stop(0.0)
    samples = [sample_of(runner) for _ in range(4)]
    assert lost, "their episodes are over"
    assert any(row.t == 0 for row in rows_of(samples[-1]))
    assert runner.ledger.is_exact
