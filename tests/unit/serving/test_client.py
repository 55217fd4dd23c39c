"""The Python client: what it sends, and when it repeats a request."""

import array
import ast
import base64
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.serving import client as client_module
from rookery.serving.client import Client, EpisodeLostError, RefusedError, ServerGoneError
from tests.fake_server import HANG_UP, FakeServer, serving

STARTED = (201, {"episode": "a"})


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    with contextlib.ExitStack() as stack:
        yield lambda *answers: stack.enter_context(serving(*answers))


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.001)


def error(status: int, code: str) -> tuple[int, dict]:
    return status, {"error": {"code": code, "message": "why", "where": "obs"}}


def test_a_step_carries_what_the_last_action_led_to(serve: Callable[..., FakeServer]) -> None:
    server = serve(STARTED, (200, {"action": 1, "version": 3}), (200, {"action": 0}), (200, {"ended": True}))
    episode = Client(server.url).start(mode="learn", lease=5.0)
    assert episode.act([0.5]) == 1
    episode.reward(1)
    episode.reward(np.float32(0.5))
    episode.act(np.array([1.5], np.float32))
    episode.end([2.5], truncated=True)
    start, *steps = [body for _, _, body in server.requests]
    assert start["mode"] == "learn"
    assert start["lease"] == 5.0
    assert steps == [
        {"seq": 0, "obs": [0.5]},
        {"seq": 1, "obs": [1.5], "reward": 1.5},
        {"seq": 2, "obs": [2.5], "truncated": True},
    ]
    assert episode.version == 3


def test_logged_actions_and_several_agents_have_their_own_fields(serve: Callable[..., FakeServer]) -> None:
    server = serve(STARTED, (200, {"actions": {"left": 1}}))
    episode = Client(server.url).start(several_agents=True)
    assert episode.act({"left": [0.0], "right": [1.0]}) == {"left": 1}
    episode.reward({"right": 2.0}, info={"right": {"episode_metrics": {"goals": 1}}})
    episode.log({"left": [3.0]}, {"left": 0}, {"left": -0.7})
    episode.end_agents({"left": None})
    episode.end({"right": [4.0]})
    assert [body for _, _, body in server.requests[1:]] == [
        {"seq": 0, "agents": {"left": {"obs": [0.0]}, "right": {"obs": [1.0]}}},
        {
            "seq": 1,
            "agents": {
                "left": {"obs": [3.0], "action": 0, "log_prob": -0.7},
                "right": {"reward": 2.0, "info": {"episode_metrics": {"goals": 1}}},
            },
        },
        {"seq": 2, "agents": {"left": {"terminated": True}, "right": {"obs": [4.0]}}, "terminated": True},
    ]


@pytest.mark.parametrize("failure", [HANG_UP, error(503, "pending"), error(429, "rate"), error(408, "slow"), (502, {})])
def test_a_request_is_repeated_with_the_same_number_unless_the_refusal_is_final(
    serve: Callable[..., FakeServer], failure: Any
) -> None:
    server = serve(STARTED, failure, failure, (200, {"action": 1}))
    episode = Client(server.url).start()
    if failure == (502, {}):
        with pytest.raises(RefusedError):
            episode.act([0.0])
        return
    assert episode.act([0.0]) == 1
    assert server.requests[1] == server.requests[2] == server.requests[3]


def test_a_start_is_repeated_with_the_same_id(serve: Callable[..., FakeServer]) -> None:
    server = serve(HANG_UP, STARTED)
    Client(server.url).start()
    assert server.requests[0] == server.requests[1]


def test_a_refused_step_changes_nothing(serve: Callable[..., FakeServer]) -> None:
    server = serve(STARTED, (200, {"action": 0}), error(422, "shape"), (200, {"action": 1}))
    episode = Client(server.url).start()
    episode.act([0.0])
    episode.reward(1.0)
    with pytest.raises(RefusedError, match=r"shape: why \(at obs\)") as caught:
        episode.act([0.0, 1.0])
    assert (caught.value.status, caught.value.code, caught.value.where) == (422, "shape", "obs")
    episode.act([1.0])
    assert server.requests[-1][2] == {"seq": 1, "obs": [1.0], "reward": 1.0}


def test_a_step_without_an_action_counts_if_the_policy_was_at_fault(serve: Callable[..., FakeServer]) -> None:
    fault = error(500, "policy_fault")
    server = serve(STARTED, (200, {"action": 0}), fault, error(500, "internal"), (200, {"action": 1}))
    episode = Client(server.url).start()
    episode.act([0.0])
    episode.reward(1.0)
    with pytest.raises(RefusedError, match="policy_fault"):
        episode.act([1.0])
    episode.reward(2.0)
    with pytest.raises(RefusedError, match="internal"):
        episode.act([2.0])
    assert episode.act([2.0]) == 1
    assert [body for _, _, body in server.requests[2:]] == [
        {"seq": 1, "obs": [1.0], "reward": 1.0},
        {"seq": 2, "obs": [2.0], "reward": 2.0},
        {"seq": 2, "obs": [2.0], "reward": 2.0},
    ]


@pytest.mark.parametrize("status", [404, 410])
def test_an_episode_that_the_server_has_lost_is_named_so(serve: Callable[..., FakeServer], status: int) -> None:
    server = serve(STARTED, error(status, "over"))
    client = Client(server.url)
    episode = client.start()
    with pytest.raises(EpisodeLostError):
        episode.act([0.0])
    client.close()
    assert [method for method, *_ in server.requests] == ["POST", "POST"], "an episode that is over is not left"


def test_a_server_that_is_gone_for_too_long_is_an_error(serve: Callable[..., FakeServer]) -> None:
    server = serve()
    server.shutdown()
    server.server_close()
    with pytest.raises(ServerGoneError, match="does not answer"):
        Client(server.url, patience=0.01).start()


def test_a_closing_client_leaves_its_open_episodes(serve: Callable[..., FakeServer]) -> None:
    server = serve(STARTED)
    client = Client(server.url, token="secret")
    client.start()
    client.close()
    assert server.requests[1][:2] == ("DELETE", "/v1/episodes/a")
    assert all(headers["Authorization"] == "Bearer secret" for headers in server.headers)


def test_arrays_are_sent_as_numbers_if_they_are_few_and_as_bytes_if_they_are_many(
    serve: Callable[..., FakeServer],
) -> None:
    server = serve(*[(200, {"actions": [1]})] * 4)
    client = Client(server.url)
    image = np.arange(2 * 5 * 7, dtype=np.uint8).reshape(2, 5, 7)
    given = [array.array("f", [0.5, 1.0]), image[:, ::-1], {"a": np.float64(0.1), "b": np.int64(3)}, np.zeros((1, 99))]
    for obs in given:
        assert client.act(obs) == ([1], None)
    sent = [body["obs"] for _, _, body in server.requests]
    assert sent[0] == [0.5, 1.0]
    assert (sent[1]["dtype"], sent[1]["shape"]) == ("uint8", [2, 5, 7])
    assert base64.b64decode(sent[1]["base64"]) == image[:, ::-1].tobytes()
    assert sent[2] == {"a": 0.1, "b": 3}
    assert sent[3] == [[0.0] * 99]
    with pytest.raises(ValueError, match="JSON"):
        client.act([float("nan")])


def test_an_episode_that_is_lost_is_played_again(serve: Callable[..., FakeServer]) -> None:
    server = serve(STARTED, error(404, "unknown"), STARTED, *[(200, {"action": 0})] * 20)
    (episode_return,) = Client(server.url).play(gymnasium.make("CartPole-v1"), episodes=1)
    assert 5 < episode_return < 15, "the pole falls soon, if all actions are 0"
    assert [path for _, path, _ in server.requests].count("/v1/episodes") == 2
    assert server.requests[-1][2]["terminated"]


def test_the_client_is_one_short_file_that_needs_python_alone() -> None:
    source = Path(client_module.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    assert source.count("\n") < 300
