"""Clients that send nonsense, wait, or have no right to ask; `tests.campaigns.serving` has them in large numbers."""

import asyncio
import contextlib
import http.client
import itertools
import logging
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rookery.serving.client import Client
from rookery.serving.routes import ROUTES
from rookery.serving.tokens import Scope, Tokens
from tests.asgi import JSON, Serving, ask
from tests.campaigns import serving as campaign
from tests.served import PATIENCE, Echo, connect, exchange, read_to_end, served

TOKEN, READER = "a" * 43, "r" * 43
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "TRACE")
POST = b"POST /open HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"

SERVER = """
import sys, time
from rookery.policy import Policy
from rookery.runs.interruption import StopSignals
from tests.served_policy import served_policy

act = Policy.act

def act_slowly(*arguments):
    print("open", flush=True)
    time.sleep(float(sys.argv[1]))
    return act(*arguments)

Policy.act = act_slowly
with StopSignals() as signals, served_policy(acts_in_thread=True) as server:
    print(server.port, flush=True)
    server.serve_until(signals, float(sys.argv[2]))
    sys.exit(128 + signals.requested)
"""


def test_malformed_requests_are_refused_or_end_with_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "RATE", 10_000)
    serving = Serving()
    with served(serving.app, metrics=serving.metrics) as server:
        requests = campaign.malformed_requests(seed=0)
        faults = asyncio.run(campaign.attack(("127.0.0.1", server.port), requests, 700))
        assert [(name, fault) for name, fault in faults if fault] == []
        assert serving.metrics.refusals["internal"] == 0
        actions, _ = Client(server.url).act([[0.0] * 4])
        assert actions[0] in (0, 1, 2)


def test_a_request_without_an_answer_is_a_fault_unless_it_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Echo):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(60.0)

    monkeypatch.setattr(campaign, "ANSWER_SECONDS", 0.3)
    with served(Silent()) as server:
        address = ("127.0.0.1", server.port)
        request = campaign.Request("whole", POST + b"left")
        assert asyncio.run(campaign.fault_of(address, request)) == "no answer within 0.3 s"
        assert asyncio.run(campaign.fault_of(address, request._replace(may_be_incomplete=True))) is None


def test_honest_clients_are_answered_while_others_are_slow() -> None:
    with served(Serving().app) as server, ExitStack() as stack:
        for sent in [b"", b"GET /v1 HTT", POST + b"ab"] * 20:
            stack.enter_context(connect(server.port)).sendall(sent)
        episode = Client(server.url, patience=0.0).start()
        assert all(episode.act([0.0] * 4) in (0, 1, 2) for _ in range(20))


def test_without_its_token_every_route_but_the_first_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"robot act {TOKEN}\nmonitor read {READER}\n")
    headers = {"none": {}, "wrong": bearer("b" * 43), "cut": bearer(TOKEN[:-1]), "long": bearer(TOKEN * 300)}
    with served(Serving(tokens=Tokens.open(file)).app) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for route, method, kind in itertools.product(ROUTES, METHODS, ("query", "scope", *headers)):
            path = route.path.format(policy="default", id="a")
            header = bearer(READER) if kind == "scope" else headers.get(kind, {})
            client.request(method, f"{path}?token={TOKEN}" if kind == "query" else path, headers=header)
            response = client.getresponse()
            response.read()
            if (route.path, method) == ("/healthz", "GET"):
                assert response.status == 200
            elif kind == "scope":
                may_read = route.scope is Scope.READ or method not in ("POST", "DELETE")
                assert may_read or response.status in (403, 405), (method, path)
            else:
                assert response.status == 401, (method, path, kind)
        status, _ = exchange(server, b"GET /v1 HTTP/1.1\r\nauthorization: Bearer " + b"a" * 1_000_000)
        assert status == 431
    printed = capfd.readouterr()
    assert not any(secret in caplog.text + printed.out + printed.err for secret in (TOKEN, READER))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def same_requests(count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield requests of all kinds: method, path, body."""
    rng = random.Random(0)
    observations = [*campaign.OBSERVATIONS, b"[0.5,0,0,0]", b"[1,1,1,1]"]
    paths = [path.decode() for path in campaign.PATHS if path.isascii()]
    for number in range(count):
        episode, obs = f"e{number % 7}", rng.choice(observations)
        posted = rng.choice([campaign.ACT, "/v1/steps", f"/v1/episodes/{episode}/step"])
        yield rng.choice(
            [
                ("GET", rng.choice(["/v1", "/healthz", "/v1/policies/default", "/v1/policies/x", "/v1?a=b"]), b""),
                (rng.choice(["GET", "POST", "DELETE", "PUT"]), rng.choice(paths), b""),
                ("POST", campaign.ACT, b'{"obs":[%s]}' % obs),
                ("POST", posted, rng.choice(campaign.BODIES)),
                ("POST", "/v1/episodes", b'{"episode":"%s"}' % episode.encode()),
                ("POST", f"/v1/episodes/{episode}/step", b'{"seq":%d,"obs":%s}' % (number % 3, obs)),
                ("POST", "/v1/steps", b'{"steps":[{"episode":"%s","obs":[0,0,0,1]}]}' % episode.encode()),
                ("DELETE", f"/v1/episodes/{episode}", b""),
            ]
        )


def test_uvicorn_and_a_bare_caller_get_the_same_answers() -> None:
    requests = list(same_requests(1000))

    async def call() -> list[tuple[int, Any]]:
        app = Serving().app
        replies = [await ask(app, method, path, body) for method, path, body in requests]
        return [(reply.status, without_ids(reply.body)) for reply in replies]

    expected = asyncio.run(call())
    with served(Serving().app) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        headers = {name.decode(): value.decode() for name, value in JSON}
        for request, (status, body) in zip(requests, expected, strict=True):
            client.request(*request, headers=headers)
            response = client.getresponse()
            assert (response.status, without_ids(response.read())) == (status, body), request
    statuses = {status for status, _ in expected}
    assert statuses >= {200, 201, 400, 404, 405, 409, 410, 422}


def without_ids(body: bytes) -> bytes:
    """Return an answer without the ids of its errors, which are random."""
    return re.sub(rb'"id":"\w+"', b"", body)


@contextlib.contextmanager
def server_with_an_open_step(seconds: float, drain: float) -> Iterator[tuple[subprocess.Popen, int, socket.socket]]:
    """Start a process whose policy takes some seconds; yield it, its port, and a connection with an open step."""
    command = [sys.executable, "-c", SERVER, str(seconds), str(drain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            episode = Client(f"http://127.0.0.1:{port}").start()
            with connect(port) as step:
                step.sendall(campaign.post(f"{episode.path}/step", b'{"seq": 0, "obs": [0, 0, 0, 0]}'))
                assert process.stdout.readline() == b"open\n"
                yield process, port, step
        finally:
            process.kill()


def test_at_a_signal_open_steps_are_answered_and_slow_clients_are_not_waited_for() -> None:
    # Longer than the grace that answers which are being written have without a drain.
    with server_with_an_open_step(seconds=3.0, drain=30.0) as (process, port, step), ExitStack() as stack:
        for sent in [b"", b"GET /v1 HTT"] * 50:
            stack.enter_context(connect(port)).sendall(sent)
        process.send_signal(signal.SIGTERM)
        assert b'"action":' in read_to_end(step)
        assert process.wait(PATIENCE) == 143


def test_a_second_signal_ends_at_once() -> None:
    with server_with_an_open_step(seconds=100.0, drain=100.0) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
