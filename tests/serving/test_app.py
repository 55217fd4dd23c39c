"""The application, without a socket: what is refused, and what is answered."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rookery.json_values import as_json
from rookery.runners.envs.episode_messages import Mode
from rookery.serving.limits import Limits
from rookery.serving.tokens import Tokens
from rookery.spaces import Box, Dict, Discrete, MultiBinary
from tests.asgi import HOST, JSON, Reply, Serving, policy_of

ZEROS = [0, 0, 0, 0]
Scenario = Callable[[], Awaitable[None]]


def run(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30.0))


@pytest.fixture(scope="module")
def serving() -> Serving:
    return Serving()


def ask(serving: Serving, *arguments: Any, **settings: Any) -> Reply:
    return asyncio.run(serving.ask(*arguments, **settings))


def test_an_episode_is_played_from_its_start_to_its_end() -> None:
    async def scenario() -> None:
        serving = Serving()
        reply = await serving.post("/v1/episodes", {"episode": "a"})
        assert reply.status == 201
        assert reply.json == {
            "episode": "a",
            "mode": "watch",
            "explore": False,
            "lease": 60.0,
            "policies": {"agent": {"policy": "default", "version": 12}},
        }
        for seq, obs in enumerate(np.eye(4)):
            reply = await serving.post("/v1/episodes/a/step", {"seq": seq, "obs": obs.tolist(), "reward": float(seq)})
            action = serving.policies.team.policies["default"](obs.astype(np.float32))
            assert reply.json == {"seq": seq, "action": int(action), "version": 12}
        reply = await serving.post("/v1/episodes/a/step", {"seq": 4, "reward": 0.5})
        assert reply.json == {"seq": 4}
        status = await serving.ask("GET", "/v1/episodes/a")
        assert status.json == {"seq": 4, "answer": {"seq": 4}, "seconds_left": 60.0}
        reply = await serving.post("/v1/episodes/a/step", {"seq": 5, "obs": ZEROS, "terminated": True})
        assert reply.json == {"seq": 5, "ended": True, "episode_return": 6.5, "episode_length": 4}

    run(scenario)


def test_without_fields_the_server_chooses_the_id() -> None:
    async def scenario() -> None:
        serving = Serving()
        one = await serving.ask("POST", "/v1/episodes", b"", HOST)
        other = await serving.post("/v1/episodes", {})
        assert one.status == other.status == 201
        assert one.json["episode"] != other.json["episode"]

    run(scenario)


def test_unknown_finished_and_doubled_ids_are_refused() -> None:
    async def scenario() -> None:
        serving = Serving()
        path = await serving.start(episode="a")
        repeated = await serving.post("/v1/episodes", {"episode": "a"})
        assert repeated.status == 200
        assert (await serving.post("/v1/episodes", {"episode": "a", "lease": 5})).error == (409, "taken", None)
        assert (await serving.post("/v1/episodes/b/step", {"obs": ZEROS})).error == (404, "unknown", None)
        assert (await serving.ask("DELETE", path)).json == {"episode": "a", "left": True}
        assert (await serving.post(f"{path}/step", {"obs": ZEROS})).error == (410, "over", None)
        assert (await serving.ask("DELETE", path)).json == {"episode": "a", "left": True}, "a repeated request"
        assert (await serving.ask("GET", path)).error == (410, "over", None)

    run(scenario)


def test_the_episodes_of_others_are_as_good_as_unknown(tmp_path: Path) -> None:
    def key(name: str) -> list[tuple[bytes, bytes]]:
        return [*JSON, (b"authorization", b"Bearer " + name.encode() * 40)]

    async def scenario() -> None:
        file = tmp_path / "tokens"
        file.touch(0o600)
        file.write_text(f"alice act {'a' * 40}\nbob act {'b' * 40}\n")
        serving = Serving(tokens=Tokens.open(file))
        path = "/v1/episodes/x"
        assert (await serving.ask("POST", "/v1/episodes", {"episode": "x"}, key("a"))).status == 201
        assert (await serving.ask("POST", f"{path}/step", {"seq": 0, "obs": ZEROS}, key("a"))).status == 200
        for method, place, body in (
            ("GET", path, None),
            ("DELETE", path, None),
            ("POST", f"{path}/step", {"seq": 0, "obs": ZEROS}),
            ("POST", f"{path}/step", {"seq": 1, "terminated": True}),
        ):
            assert (await serving.ask(method, place, body, key("b"))).error == (404, "unknown", None)
        assert (await serving.ask("POST", "/v1/episodes", {"episode": "x"}, key("b"))).status == 409
        assert (await serving.ask("POST", f"{path}/step", {"seq": 1, "obs": ZEROS}, key("a"))).status == 200

    run(scenario)


def test_a_repeated_step_gets_the_same_answer_and_other_numbers_are_refused() -> None:
    async def scenario() -> None:
        serving = Serving()
        path = await serving.start()
        body = {"seq": 0, "obs": ZEROS}
        first, second = await serving.post(f"{path}/step", body), await serving.post(f"{path}/step", body)
        assert first.body == second.body
        assert b"rookery-replayed" not in first.headers
        assert second.headers[b"rookery-replayed"] == b"1"
        other = await serving.post(f"{path}/step", {"seq": 0, "obs": [1, 0, 0, 0]})
        assert other.error == (409, "seq_conflict", None)
        late = await serving.post(f"{path}/step", {"seq": 5, "obs": ZEROS})
        assert late.json["error"]["expected"] == 1
        (batched,) = (await serving.post("/v1/steps", {"steps": [body | {"episode": path[13:]}]})).json["answers"]
        assert batched == first.json

    run(scenario)


def test_steps_of_many_episodes_are_answered_in_order_and_an_error_costs_itself_alone() -> None:
    async def scenario() -> None:
        serving = Serving()
        for name in "abc":
            await serving.start(episode=name)
        steps: list[Any] = [
            {"episode": "a", "seq": 0, "obs": ZEROS},
            {"episode": "nobody", "obs": ZEROS},
            {"episode": "b", "seq": 0, "obs": [0, 0, "1", 0]},
            {"episode": "a", "seq": 0, "obs": ZEROS},
            {"episode": "c", "seq": 0, "obs": ZEROS, "rewards": 1},
            7,
        ]
        answers = (await serving.post("/v1/steps", {"steps": steps})).json["answers"]
        assert answers[0] == {"seq": 0, "action": answers[0]["action"], "version": 12}
        errors = [(answer["error"]["code"], answer["error"].get("where")) for answer in answers[1:]]
        assert errors == [
            ("unknown", None),
            ("type", "steps[2].obs"),
            ("episode", "steps[3].episode"),
            ("unknown_field", "steps[4].rewards"),
            ("type", "steps[5]"),
        ]
        again = [{"episode": name, "seq": 0, "obs": ZEROS} for name in "bc"]
        answers = (await serving.post("/v1/steps", {"steps": again})).json["answers"]
        assert [answer["seq"] for answer in answers] == [0, 0]

    run(scenario)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_the_observations_of_many_steps_may_stand_outside(as_bytes: bool) -> None:
    async def scenario() -> None:
        serving = Serving(max_episodes=32)
        rows = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
        obs = as_json(rows) if as_bytes else rows.tolist()
        names = [await serving.start() for _ in rows]
        steps = [{"episode": name.rpartition("/")[2], "seq": 0} for name in names]
        answers = (await serving.post("/v1/steps", {"steps": steps, "obs": obs})).json["answers"]
        expected = serving.policies.team.policies["default"].predict(rows)[0]
        assert [answer["action"] for answer in answers] == expected.tolist()
        assert (await serving.post("/v1/steps", {"steps": steps, "obs": obs})).json["answers"] == answers
        swapped = [*steps[1::-1], *steps[2:]]
        conflicts = (await serving.post("/v1/steps", {"steps": swapped, "obs": obs})).json["answers"]
        assert ["error" in answer for answer in conflicts] == [True, True] + [False] * 30
        shorter = await serving.post("/v1/steps", {"steps": steps[:1], "obs": obs})
        assert b"32 rows for 1 steps" in shorter.body

    run(scenario)


@pytest.mark.parametrize(("num_rows", "value", "code"), [(8, np.nan, "range"), (9, 0.0, "shape")])
def test_observations_outside_of_many_steps_that_are_refused_are_decoded_once(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, value: float, code: str
) -> None:
    decode = Mock(side_effect=base64.b64decode)
    monkeypatch.setattr("rookery.json_values.base64.b64decode", decode)

    async def scenario() -> None:
        serving = Serving()
        steps = [{"episode": (await serving.start()).rpartition("/")[2]} for _ in range(8)]
        content = base64.b64encode(np.full((num_rows, 4), value, "<f4").tobytes()).decode()
        obs = {"dtype": "float32", "shape": [num_rows, 4], "base64": content}
        answers = (await serving.post("/v1/steps", {"steps": steps, "obs": obs})).json["answers"]
        assert [answer["error"]["code"] for answer in answers] == [code] * 8
        assert decode.call_count == 1

    run(scenario)


REFUSED: dict[str, tuple[Any, tuple[int, str, str | None]]] = {
    "not JSON": (b"{", (400, "json", None)),
    "not UTF-8": (b'{"obs": "\xff"}', (400, "json", None)),
    "a byte order mark": (b'\xef\xbb\xbf{"obs": [0, 0, 0, 0]}', (400, "json", None)),
    "UTF-16": ('{"obs": [0, 0, 0, 0]}'.encode("utf-16"), (400, "json", None)),
    "NaN": (b'{"obs": [NaN, 0, 0, 0]}', (400, "json", None)),
    "1e400": (b'{"obs": [1e400, 0, 0, 0]}', (400, "json", None)),
    "nesting": (b'{"obs": ' + b"[" * 200_000, (400, "json", None)),
    "deep info": (b'{"info": ' + b'{"a": ' * 40 + b"1" + b"}" * 41, (422, "depth", "info")),
    "a deep observation": (b'{"seq": 0, "obs": ' + b"[" * 500 + b"]" * 500 + b"}", (422, "depth", None)),
    "a deep reward": (b'{"reward": ' + b"[" * 500 + b"]" * 500 + b"}", (422, "depth", None)),
    "a long info": ({"info": {"text": "a" * 20_000}}, (422, "info", "info")),
    "a list": ([1], (422, "type", None)),
    "an unknown field": ({"observation": ZEROS}, (422, "unknown_field", "observation")),
    "a wrong shape": ({"obs": [0, 0, 0]}, (422, "shape", "obs")),
    "a string": ({"obs": [0, 0, 0, "1"]}, (422, "type", "obs")),
    "a reward that is a boolean": ({"reward": True}, (422, "type", "reward")),
    "a reward that is a string": ({"reward": "1"}, (422, "type", "reward")),
    "a reward that is null": ({"reward": None}, (422, "type", "reward")),
    "an observation that is null": ({"obs": None}, (422, "type", "obs")),
    "an action that is null": ({"obs": ZEROS, "action": None}, (422, "type", "action")),
    "a reward beyond float32": ({"reward": 1e39}, (422, "range", "reward")),
    "a reward for nothing": ({"reward": 1}, (422, "reward", None)),
    "an action that is a float": ({"obs": ZEROS, "action": 1.0}, (422, "type", "action")),
    "an action out of range": ({"obs": ZEROS, "action": 3}, (422, "range", "action")),
    "an action without an observation": ({"action": 1}, (422, "action", "action")),
    "a log-probability without an action": ({"obs": ZEROS, "log_prob": -1}, (422, "action", "action")),
    "a log-probability that is text": ({"obs": ZEROS, "action": 1, "log_prob": "x"}, (422, "type", "log_prob")),
    "a flag that is a number": ({"obs": ZEROS, "terminated": 1}, (422, "type", "terminated")),
    "a seq that is a float": ({"seq": 0.0, "obs": ZEROS}, (422, "type", "seq")),
    "a seq below 0": ({"seq": -1, "obs": ZEROS}, (422, "type", "seq")),
    "agents where there is one": ({"agents": {}}, (422, "agent", "agents")),
    "an info that is a list": ({"info": []}, (422, "type", "info")),
    "65 binary arrays with escaped names": (
        b'{"info": [' + b'"b\\u0061se6\\u0034",' * 64 + b'"base64"]}',
        (422, "num_arrays", None),
    ),
    "65 binary arrays": (b'{"info": [' + b'"base64",' * 64 + b'"base64"]}', (422, "num_arrays", None)),
}


@pytest.mark.parametrize(("body", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_step_that_is_not_exactly_right_is_refused(body: Any, expected: Any) -> None:
    async def scenario() -> None:
        serving = Serving()
        path = await serving.start()
        assert (await serving.post(f"{path}/step", body)).error == expected
        assert serving.book.counts["steps"] == 0

    run(scenario)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"episode": "a b"}, (422, "episode", "episode")),
        ({"episode": "a" * 65}, (422, "episode", "episode")),
        ({"episode": 5}, (422, "episode", "episode")),
        ({"mode": "learn"}, (422, "mode", "mode")),
        ({"mode": "play"}, (422, "mode", "mode")),
        ({"mode": []}, (422, "mode", "mode")),
        ({"mode": "evaluate", "explore": True}, (422, "explore", "explore")),
        ({"lease": 0}, (422, "range", "lease")),
        ({"lease": 3601}, (422, "range", "lease")),
        ({"lease": "60"}, (422, "type", "lease")),
        ({"policies": {"agent": "other"}}, (422, "policies", "policies.agent")),
        ({"policies": {"agent": 1}}, (422, "type", "policies")),
        ({"policies": "default"}, (422, "type", "policies")),
        ({"policies": {}}, (422, "type", "policies")),
        ({"policies": {"a b": "default"}}, (422, "type", "policies")),
        ({"policies": {f"a{k}": "default" for k in range(65)}}, (422, "type", "policies")),
        ({"info": {"text": "a" * 20_000}}, (422, "info", "info")),
        ({"epsiode": "a"}, (422, "unknown_field", "epsiode")),
    ],
    ids=str,
)
def test_a_start_that_is_not_exactly_right_is_refused(serving: Serving, body: Any, expected: Any) -> None:
    assert ask(serving, "POST", "/v1/episodes", body).error == expected


def test_an_unknown_field_is_refused_with_the_nearest_name(serving: Serving) -> None:
    reply = ask(serving, "POST", "/v1/episodes", {"epsiode": "a"})
    assert "'episode'" in reply.json["error"]["message"]


def test_more_episodes_than_max_episodes_are_refused_until_one_is_over() -> None:
    async def scenario() -> None:
        serving = Serving(max_episodes=2)
        paths = [await serving.start() for _ in range(2)]
        refused = await serving.post("/v1/episodes")
        assert refused.error == (429, "full", None)
        assert refused.headers[b"retry-after"] == b"1"
        await serving.ask("DELETE", paths[0])
        await serving.start()

    run(scenario)


def test_actions_without_an_episode_are_those_of_the_policy(serving: Serving) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (21, 4)).astype(np.float32)  # more than a batch
    reply = ask(serving, "POST", "/v1/policies/default/act", {"obs": rows.tolist()})
    expected = serving.policies.team.policies["default"].predict(rows)[0]
    assert reply.json == {"actions": expected.tolist(), "version": 12}
    explored = ask(serving, "POST", "/v1/policies/default/act", {"obs": [ZEROS] * 64, "explore": True})
    assert len(set(explored.json["actions"])) > 1


def test_requests_of_one_turn_get_their_own_actions() -> None:
    async def scenario() -> None:
        serving = Serving()
        rows = np.random.default_rng(1).uniform(-1, 1, (12, 4)).astype(np.float32)
        path = await serving.start()
        acts = [serving.post("/v1/policies/default/act", {"obs": part.tolist()}) for part in (rows[:5], rows[5:11])]
        *replies, step = await asyncio.gather(*acts, serving.post(f"{path}/step", {"obs": rows[11].tolist()}))
        expected = serving.policies.team.policies["default"].predict(rows)[0].tolist()
        assert [action for reply in replies for action in reply.json["actions"]] == expected[:11]
        assert step.json["action"] == expected[11]

    run(scenario)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, "shape", "obs")),
        ({"obs": []}, (422, "num_steps", "obs")),
        ({"obs": ZEROS}, (422, "shape", "obs[0]")),
        ({"obs": [ZEROS], "carry": [[0]]}, (422, "carry", "carry")),
        ({"obs": [ZEROS, [0, 0, 0, True]]}, (422, "type", "obs[1]")),
        ({"obs": [ZEROS], "carry": []}, (422, "carry", "carry")),
        ({"obs": [ZEROS], "deterministic": True}, (422, "unknown_field", "deterministic")),
        ({"obs": [ZEROS], "explore": 1}, (422, "type", "explore")),
    ],
    ids=str,
)
def test_a_request_for_actions_that_is_not_exactly_right_is_refused(
    serving: Serving, body: Any, expected: tuple[int, str, str]
) -> None:
    assert ask(serving, "POST", "/v1/policies/default/act", body).error == expected


def test_the_server_describes_itself(serving: Serving) -> None:
    described = ask(serving, "GET", "/v1").json
    assert described["policies"] == {"agent": "default"}
    assert described["limits"]["body"] == Limits().body
    policy = ask(serving, "GET", "/v1/policies/default").json
    assert policy["observation"] == described["agents"]["agent"]["observation"]
    assert (policy["version"], policy["recurrent"], policy["masks"]) == (12, False, False)
    assert ask(serving, "GET", "/v1/policies/other").error == (404, "policy", None)


def test_prometheus_reads_the_metrics() -> None:
    async def scenario() -> None:
        serving = Serving()
        path = await serving.start()
        await serving.post(f"{path}/step", {"obs": [2, 0, 0, 0]})
        await serving.post(f"{path}/step", {"obs": 1})
        text = (await serving.ask("GET", "/metrics")).body.decode()
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["rookery_requests_total", "step", "200"] == 1
        assert samples["rookery_requests_total", "step", "422"] == 1
        assert samples["rookery_refusals_total", "shape"] == 1
        assert samples["rookery_open_episodes",] == 1
        assert samples["rookery_outside_bounds",] == 1
        assert samples["rookery_policy_version", "default"] == 12
        assert samples["rookery_batch_rows_sum",] == 1

    run(scenario)


def test_a_failure_of_our_own_is_an_id_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    serving = Serving()
    serving.episodes.start = lambda *arguments: 1 / 0  # type: ignore[method-assign]
    reply = ask(serving, "POST", "/v1/episodes", {})
    assert reply.status == 500
    assert reply.json["error"]["code"] == "internal"
    assert b"ZeroDivision" not in reply.body
    assert reply.json["error"]["id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_policy_whose_actions_are_not_finite_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        policy = policy_of(action_space=Box(-1.0, 1.0, (2,)))
        nan = policy.with_state(jax.tree.map(lambda leaf: leaf * np.nan, policy.agent_state), 13)
        serving = Serving({"default": policy})
        path = await serving.start()
        serving.policies.replace({"default": nan}, 13)
        for seq in range(3):
            reply = await serving.post(f"{path}/step", {"seq": seq, "obs": ZEROS})
            assert reply.error == (500, "policy_fault", None)
        assert (await serving.post("/v1/policies/default/act", {"obs": [ZEROS]})).status == 500
        serving.policies.replace({"default": policy}, 14)
        assert (await serving.post(f"{path}/step", {"seq": 3, "obs": ZEROS})).json["version"] == 14
        assert serving.metrics.num_faulty == 3
        assert caplog.text.count("no finite action") == 1

    run(scenario)


def test_while_it_loads_or_drains_the_server_says_so() -> None:
    async def scenario() -> None:
        serving = Serving()
        serving.app.is_ready = False
        assert (await serving.ask("GET", "/healthz")).json == {"live": True, "ready": False}
        assert (await serving.post("/v1/episodes")).error == (503, "loading", None)
        serving.app.is_ready = True
        path = await serving.start()
        serving.app.drain()
        assert (await serving.ask("GET", "/healthz")).status == 503
        assert (await serving.post("/v1/episodes")).error == (503, "draining", None)
        assert (await serving.post(f"{path}/step", {"obs": ZEROS})).status == 200

    run(scenario)


def test_silence_for_the_lease_ends_an_episode() -> None:
    async def scenario() -> None:
        serving = Serving()
        path = await serving.start(lease=0.05)
        for _ in range(100):
            if serving.book.num_open == 0:
                break
            await asyncio.sleep(0.05)
        assert (await serving.post(f"{path}/step", {"obs": ZEROS})).error == (410, "over", None)

    run(scenario)


def test_every_request_about_an_episode_renews_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("rookery.serving.episodes.time", clock)

    async def scenario() -> None:
        serving = Serving()
        path = await serving.start(lease=60)
        for clock.now in (50.0, 100.0, 150.0):
            assert serving.book.expire(clock.now) == []
            assert (await serving.ask("GET", path)).json["seconds_left"] == 60
        assert serving.book.expire(209.0) == []
        assert len(serving.book.expire(211.0)) == 1

    run(scenario)


def test_a_step_that_waits_too_long_is_answered_and_joined_by_its_repetition() -> None:
    async def scenario() -> None:
        serving = Serving()
        serving.episodes._pending_seconds = 0.0
        path = await serving.start()
        wake, serving.episodes._notify = serving.episodes._notify, lambda: None
        body = {"seq": 0, "obs": ZEROS}
        reply = await serving.post(f"{path}/step", body)
        assert reply.error == (503, "pending", None)
        assert reply.headers[b"retry-after"] == b"1"
        serving.episodes._pending_seconds = 30.0
        serving.episodes._notify = wake
        assert (await serving.post(f"{path}/step", body)).json["seq"] == 0
        assert serving.app.num_open_steps == 0

    run(scenario)


def test_a_mode_is_learned_from_only_in_training() -> None:
    assert ask(Serving(), "POST", "/v1/episodes", {"mode": Mode.LEARN}).error == (422, "mode", "mode")


def test_masks_and_names_of_observations_are_checked() -> None:
    async def scenario() -> None:
        space = Dict(obs=Box(-1.0, 1.0, (2,)), action_mask=MultiBinary(3))
        serving = Serving({"default": policy_of(obs_space=space, action_space=Discrete(3))})
        path = await serving.start(explore=True)
        for only in range(3):
            mask = [int(action == only) for action in range(3)]
            reply = await serving.post(f"{path}/step", {"obs": {"obs": [0, 0], "action_mask": mask}})
            assert reply.json["action"] == only
        reply = await serving.post(f"{path}/step", {"obs": {"obs": [0, 0], "action_mask": [0, 0, 0]}})
        assert reply.error == (422, "mask", "obs.action_mask")
        assert (await serving.ask("GET", "/v1/policies/default")).json["masks"] is True

    run(scenario)
