"""Who may ask the application, from where, and in which form. There is no socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rookery.serving.limits import Limits
from rookery.serving.routes import ROUTES
from rookery.serving.tokens import Tokens
from tests.asgi import HOST, JSON, Reply, Serving


@pytest.fixture(scope="module")
def serving() -> Serving:
    return Serving()


def ask(serving: Serving, *arguments: Any, **settings: Any) -> Reply:
    return asyncio.run(serving.ask(*arguments, **settings))


def test_every_route_but_the_first_needs_a_token(tmp_path: Path) -> None:
    tokens = Tokens.open(tmp_path / "tokens")
    token = (tmp_path / "tokens").read_text().split()[2].encode()
    serving = Serving(tokens=tokens)
    wrong = [b"", b"Bearer", b"Bearer " + token[:-1], b"Bearer " + b"x" * 2**20, b"Basic " + token, token]
    for path in [*(route.path.format(policy="default", id="a") for route in ROUTES), "/", "/v2", "/v1/episodes/../x"]:
        for method in ("GET", "POST", "DELETE", "PUT", "HEAD", "TRACE", "OPTIONS"):
            for value in wrong:
                reply = ask(serving, method, path, None, [*JSON, (b"authorization", value)])
                assert reply.status == (200 if (method, path) == ("GET", "/healthz") else 401), (method, path, value)
            assert token not in reply.body
    assert ask(serving, "GET", f"/v1?token={token.decode()}").status == 401
    assert ask(serving, "GET", "/v1", None, [*JSON, (b"authorization", b"bearer " + token)]).status == 200


def test_a_token_that_may_read_may_not_act(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"watcher read {'a' * 40}\n")
    serving = Serving(tokens=Tokens.open(file))
    headers = [*JSON, (b"authorization", b"Bearer " + b"a" * 40)]
    for route in ROUTES:
        reply = ask(serving, route.method, route.path.format(policy="default", id="a"), None, headers)
        assert reply.status == (403 if route.scope == "act" else 200), route.name


def test_who_sends_too_much_is_told_to_wait() -> None:
    serving = Serving(limits=Limits(requests_per_second=0.001, burst=3))
    statuses = [ask(serving, "GET", "/v1").status for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        (b"host", b"evil.example", 403),
        (b"host", b"127.0.0.1.evil.example", 403),
        (b"host", b"", 403),
        (b"host", b"localhost:8642", 200),
        (b"host", b"[::1]:8642", 200),
        (b"origin", b"https://evil.example", 403),
        (b"origin", b"null", 403),
        (b"origin", b"https://good.example", 200),
        (b"sec-fetch-site", b"cross-site", 403),
        (b"sec-fetch-site", b"same-site", 403),
        (b"sec-fetch-site", b"none", 200),
    ],
)
def test_pages_of_other_sites_may_not_ask(header: bytes, value: bytes, status: int) -> None:
    serving = Serving(allowed_origins=["https://good.example"])
    headers = [*(pair for pair in JSON if pair[0] != header), (header, value)]
    for method, path in (("GET", "/healthz"), ("GET", "/v1"), ("POST", "/v1/episodes")):
        assert ask(serving, method, path, None, headers).status in ((status,) if status == 403 else (200, 201))


def test_only_an_allowed_origin_is_answered_before_its_request() -> None:
    serving = Serving(allowed_origins=["https://good.example"])
    reply = ask(serving, "OPTIONS", "/v1/episodes", None, [*HOST, (b"origin", b"https://good.example")])
    assert reply.status == 204
    assert reply.headers[b"access-control-allow-origin"] == b"https://good.example"
    assert b"authorization" in reply.headers[b"access-control-allow-headers"]
    foreign = ask(serving, "OPTIONS", "/v1/episodes", None, [*HOST, (b"origin", b"https://evil.example")])
    assert foreign.status == 403
    assert b"access-control-allow-origin" not in foreign.headers
    assert ask(serving, "OPTIONS", "/v1/episodes", None, HOST).status == 405


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/episodes", 405),
        ("PUT", "/v1/episodes/a", 405),
        ("POST", "/v1/episodes/a%2Fb/step", 404),
        ("GET", "/v1/episodes/..", 404),
        ("GET", "/v1/policies/%2e%2e%2fetc", 404),
        ("GET", "/v1?a=b", 422),
        ("DELETE", "/v1/episodes/a?keep=maybe", 422),
        ("DELETE", "/v1/episodes/a?keep=false&keep=false", 422),
    ],
)
def test_other_paths_methods_and_parameters_are_refused(serving: Serving, method: str, path: str, status: int) -> None:
    assert ask(serving, method, path).status == status


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ([(b"content-encoding", b"gzip")], 415),
        ([(b"content-type", b"application/json")], 400),
        ([(b"host", b"127.0.0.1")], 400),
        ([(b"x-twice", b"1"), (b"x-twice", b"2")], 201),
    ],
)
def test_headers_that_decide_are_clear(serving: Serving, extra: list[tuple[bytes, bytes]], status: int) -> None:
    reply = ask(serving, "POST", "/v1/episodes", {"episode": f"x{status}"}, [*JSON, *extra])
    assert reply.status == status


def test_a_body_must_be_json_of_limited_size(serving: Serving) -> None:
    for content_type in (b"text/plain", b"application/x-www-form-urlencoded", b""):
        headers = [*HOST, (b"content-type", content_type)]
        assert ask(serving, "POST", "/v1/episodes", {}, headers).error == (415, "content_type", None)
    small = Serving(limits=Limits(body=1000))
    for chunks in (1, 7):
        assert ask(small, "POST", "/v1/episodes", b" " * 1001, chunks=chunks).error == (413, "body", None)
    assert ask(serving, "POST", "/v1/episodes", {"episode": "chunked"}, chunks=5).status == 201


@pytest.mark.parametrize("num_sent", [0, 2])
def test_a_body_that_does_not_come_in_time_is_refused_under_any_server(
    monkeypatch: pytest.MonkeyPatch, num_sent: int
) -> None:
    monkeypatch.setattr("rookery.serving.app.SWEEP_SECONDS", 0.02)

    async def scenario() -> None:
        serving = Serving(limits=Limits(receive_seconds=0.1))
        body = {"episode": "slow"}
        late = asyncio.create_task(serving.ask("POST", "/v1/episodes", body, chunks=5, num_sent=num_sent))
        for _ in range(3):
            assert (await serving.post("/v1/episodes")).status == 201
            await asyncio.sleep(0.04)
        reply = await late
        assert reply.error == (408, "receive", None)
        assert reply.headers[b"retry-after"] == b"1"
        assert reply.headers[b"connection"] == b"close"
        ended = asyncio.create_task(serving.ask("POST", "/v1/episodes", body, chunks=5, num_sent=num_sent))
        await asyncio.sleep(0.01)
        ended.cancel()
        assert (await ended).error == (503, "closed", None), "the server ends"
        assert (await serving.ask("POST", "/v1/episodes", body, chunks=5)).status == 201

    asyncio.run(asyncio.wait_for(scenario(), 30.0))


def test_a_server_with_a_lifespan_is_told_that_the_application_starts_and_stops(serving: Serving) -> None:
    events = ["lifespan.startup", "lifespan.shutdown"]
    sent = []

    async def receive() -> dict[str, str]:
        return {"type": events[len(sent)]}

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    asyncio.run(asyncio.wait_for(serving.app({"type": "lifespan"}, receive, send), 30.0))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
