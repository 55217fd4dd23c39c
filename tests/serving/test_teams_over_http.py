"""Several agents with a policy each, which learn from a client over HTTP: the rows are those of any other env."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.runners.sampling import Sample
from rookery.serving.client import Client
from tests.runner_envs import ParityAgent, rows_of
from tests.served_training import SPACES, Served

Step = dict[str, Any]


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served(max_episodes=1, spaces_of=dict.fromkeys(("a", "b"), SPACES[SINGLE_AGENT]))
    yield served
    served.base_env.close()


def played(served: Served, steps: Sequence[Step]) -> Sample:
    """Return the sample of one episode with these steps."""
    policies = {"a": ParityAgent(), "b": ParityAgent()}
    runner = served.runner(policies=policies, mapping=lambda agent, episode: agent)

    def play(client: Client) -> None:
        path = f"/v1/episodes/{client.request('POST', '/v1/episodes', {})['episode']}/step"
        for seq, step in enumerate(steps):
            answer = client.request("POST", path, {"seq": seq} | step)
            acting = {name: part["obs"] for name, part in step["agents"].items() if "obs" in part and len(part) < 3}
            if "actions" in answer:
                assert answer["actions"] == {name: obs[0] % 2 for name, obs in acting.items()}

    thread = served.play(play)
    sample = runner.sample(num_episodes=1)
    thread.join(30.0)
    assert not thread.is_alive()
    assert not served.errors
    assert runner.ledger.is_exact
    return sample


def test_rewards_of_a_silent_agent_are_summed_into_the_transition_that_spans_them(served: Served) -> None:
    steps = [
        {"agents": {"a": {"obs": [0]}, "b": {"obs": [0]}}},
        {"agents": {"a": {"obs": [1], "reward": 1}, "b": {"reward": 3}}},
        {"agents": {"a": {"obs": [2], "reward": 1}, "b": {"reward": 4}}},
        {"agents": {"a": {"obs": [3], "reward": 1}, "b": {"obs": [3], "reward": 5}}},
        {"agents": {"a": {"obs": [4], "reward": 1}, "b": {"obs": [4], "reward": 1}}, "terminated": True},
    ]
    sample = played(served, steps)
    assert [(row.t, row.obs, row.successor, row.reward, row.end) for row in rows_of(sample, "b")] == [
        (0, 0.0, 3.0, 12.0, End.RUNNING),
        (3, 3.0, 4.0, 1.0, End.TERMINATED),
    ]
    assert [row.t for row in rows_of(sample, "a")] == [0, 1, 2, 3]


def test_a_late_agent_has_rows_from_its_first_observation_on(served: Served) -> None:
    steps = [
        {"agents": {"a": {"obs": [0]}}},
        {"agents": {"a": {"obs": [1], "reward": 1}, "b": {"obs": [1], "reward": 7}}},
        {"agents": {"a": {"obs": [2], "reward": 1}, "b": {"obs": [2], "reward": 1}}},
        {"agents": {"a": {"obs": [3], "reward": 1}, "b": {"obs": [3], "reward": 1}}, "terminated": True},
    ]
    sample = played(served, steps)
    assert [row.t for row in rows_of(sample, "a")] == [0, 1, 2]
    assert [(row.t, row.reward) for row in rows_of(sample, "b")] == [(1, 1.0), (2, 1.0)]
    (episode,) = sample.episodes
    assert episode.agent_returns == {"a": 3.0, "b": 9.0}
    assert (episode.episode_return, episode.episode_length) == (12.0, 3)


@pytest.mark.parametrize(("flag", "end"), [("terminated", End.GONE_TERMINATED), ("truncated", End.GONE_TRUNCATED)])
def test_an_agent_without_a_last_observation_keeps_its_last_real_one(served: Served, flag: str, end: End) -> None:
    steps = [
        {"agents": {"a": {"obs": [0]}, "b": {"obs": [5]}}},
        {"agents": {"a": {"obs": [1], "reward": 1}, "b": {"reward": 3}}},
        {"agents": {"a": {"obs": [2], "reward": 1}}, flag: True},
    ]
    sample = played(served, steps)
    (row,) = rows_of(sample, "b")
    assert (row.obs, row.successor, row.reward, row.end) == (5.0, 5.0, 3.0, end)
    assert rows_of(sample, "a")[-1].end == (End.TERMINATED if flag == "terminated" else End.TRUNCATED)


def test_an_agent_that_dies_early_leaves_the_others_playing(served: Served) -> None:
    steps = [
        {"agents": {"a": {"obs": [0]}, "b": {"obs": [0]}}},
        {"agents": {"a": {"obs": [1], "reward": 1}, "b": {"obs": [1], "reward": 2, "terminated": True}}},
        {"agents": {"a": {"obs": [2], "reward": 1}}},
        {"agents": {"a": {"obs": [3], "reward": 1, "truncated": True}}},
    ]
    sample = played(served, steps)
    assert [(row.t, row.end) for row in rows_of(sample, "b")] == [(0, End.TERMINATED)]
    assert [(row.t, row.end) for row in rows_of(sample, "a")] == [
        (0, End.RUNNING),
        (1, End.RUNNING),
        (2, End.TRUNCATED),
    ]
