"""Learning from clients over HTTP: every step counts once, whatever becomes of clients, requests and answers."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest

from rookery.agent import AgentState
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.sample_batch import SampleBatch
from rookery.serving.client import Client, EpisodeLostError, RefusedError
from rookery.types import Key, PyTreeDict
from tests.campaigns.clients import free_port
from tests.numbered_clients import LENGTH
from tests.runner_envs import ParityAgent, rows_of
from tests.served_training import SPACES, Served, check_rows, kill_clients, play_fleet, play_numbered, sample_of


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:

        def start(**settings: Any) -> Served:
            served = Served(**settings)
            stack.callback(served.base_env.close)
            return served

        yield start


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


def test_a_client_that_leaves_keeps_its_complete_steps_unless_it_says_otherwise(serve: Callable[..., Served]) -> None:
    served = serve(max_episodes=1)
    runner = served.runner(rollout_fragment_length=8, num_fragments=1)

    def play(client: Client) -> None:
        for offset, keep in ((0, True), (1000, False)):
            episode = client.start()
            for t in range(4):
                episode.act([offset + t])
                episode.reward(t)
            episode.leave(keep)
        play_numbered(client)

    served.play(play)
    rows = rows_of(sample_of(runner))
    assert [row.obs for row in rows[:3]] == [0, 1, 2]
    assert [row.truncation for row in rows[:3]] == [0, 0, 1]
    assert not any(1000 <= row.obs < 1004 for row in rows)
    steps = runner.ledger.env_steps
    assert (steps.discarded, steps.abandoned) == (3, 1)
    assert runner.ledger.is_exact


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
    play_fleet(serve(max_episodes=20), num_clients=20, num_steps=10, num_endless=30, lease=0.5)


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


class HalfAgent(ParityAgent):
    """Acts on all numbers but 3, for which it has no finite action."""

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return jnp.where(sample_batch.obs == 3, jnp.nan, sample_batch.obs), PyTreeDict()


def test_an_action_that_is_not_finite_costs_its_episode_and_is_a_fault(serve: Callable[..., Served]) -> None:
    box = SPACES[SINGLE_AGENT][0]
    served = serve(max_episodes=1, spaces_of={SINGLE_AGENT: (box, box)})
    runner = served.runner(policies=HalfAgent(), rollout_fragment_length=4, num_fragments=1)
    refusals = []

    def play(client: Client) -> None:
        for offset in (0, 1000):
            episode = client.start()
            for t in range(offset, offset + 8):
                try:
                    assert episode.act([t]) == [t]
                except (RefusedError, EpisodeLostError) as error:
                    refusals.append(error)
                episode.reward(1.0)

    served.play(play)
    sample = sample_of(runner)
    assert [row.obs for row in rows_of(sample)] == [1000, 1001, 1002, 1003]
    refused, *lost = refusals
    assert (refused.status, refused.code) == (500, "policy_fault")
    assert [type(error) for error in lost] == [EpisodeLostError] * 4
    (fault,) = sample.faults
    assert "invalid at step 3 on action [nan]: the policy gave no finite action; episode discarded" in str(fault)
    assert runner.ledger.is_exact
    steps = runner.ledger.env_steps
    assert (steps.returned, steps.discarded, steps.abandoned) == (4, 3, 0)
    assert served.base_env.report()["serving/lost"] == 1


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
