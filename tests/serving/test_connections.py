"""Connections: what breaks a limit is refused before the application sees it; what is slow is closed."""

import json
import socket
import time
from typing import Any
from unittest.mock import Mock

import pytest

from rookery.serving.connections import LimitedProtocol
from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.server import Server
from tests.served import Echo, connect, exchange, read_to_end, served, tls_files

QUICK = Limits(receive_seconds=0.6, idle_seconds=0.8, unread_seconds=0.6, handshake_seconds=0.6)
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

REFUSED = {
    "a length of 10 GB": (413, "body", POST + b"content-length: 10000000000\r\n\r\n"),
    "chunks without end": (413, "body", CHUNKED + (b"10000\r\n" + bytes(2**16) + b"\r\n") * 150),
    "chunks of one byte": (413, "body", CHUNKED + b"1\r\na\r\n" * 1_500_000),
    "extensions of chunks": (413, "body", CHUNKED + (b"1;" + b"x" * 60_000 + b"\r\na\r\n") * 150),
    "4 MB of headers": (431, "headers", POST + b"".join(b"a%d: %s\r\n" % (i, b"b" * 2**17) for i in range(32))),
    "a header without end": (431, "headers", POST + b"a: " + b"b" * 4_000_000),
    "headers in one packet": (431, "headers", POST + (b"a: " + b"b" * 2000 + b"\r\n") * 9 + b"\r\n"),
    "70 headers": (431, "headers", POST + b"a: b\r\n" * 70 + b"\r\n"),
    "empty lines without end": (431, "headers", b"\r\n" * 2_000_000),
    "a long path": (400, "request_line", b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n"),
    "headers after the body": (400, "trailer", CHUNKED + b"0\r\nauthorization: x\r\n\r\n"),
    "a compressed body": (415, "transfer_encoding", POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, "http", POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc"),
    "a length and chunks": (400, "http", POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a length that is negative": (400, "http", POST + b"content-length: -3\r\n\r\nabc"),
    "a length beyond 64 bits": (400, "http", POST + b"content-length: 99999999999999999999999\r\n\r\nabc"),
    "a length that is no number": (400, "http", POST + b"content-length: 3x\r\n\r\nabc"),
    "an empty length": (400, "http", POST + b"content-length: \r\n\r\nabc"),
    "folded headers": (400, "http", POST + b"a: b\r\n c\r\n\r\n"),
    "bare line feeds": (400, "http", GET.replace(b"\r", b"")),
    "a header with NUL": (400, "http", POST + b"a: \x00\r\n\r\n"),
    "a TLS hello": (400, "http", bytes.fromhex("1603010200010001fc0303")),
    "the preface of HTTP/2": (400, "http", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "an absolute path": (400, "path", b"GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    "a tunnel": (400, "path", b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    "another protocol": (400, "upgrade", POST + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"),
    "a star": (400, "path", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    "a path that is not ASCII": (400, "http", b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def server(echo: Echo) -> Server:
    with served(echo, Limits(idle_seconds=3.0)) as server:
        yield server


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_and_oversized_requests_are_refused_in_json_and_not_logged(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected, code, request = REFUSED[name]
    status, body = exchange(server, request)
    assert status == expected
    assert json.loads(body)["error"]["code"] == code
    assert not caplog.text


def test_requests_at_the_limits_are_answered(server: Server) -> None:
    body = bytes(Limits().body)
    with connect(server.port) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(100)[9:12] == b"200"
    headers = b"".join(b"a%d: %s\r\n" % (i, b"b" * 200) for i in range(63))
    assert exchange(server, POST + headers + b"connection: close\r\n\r\n")[0] == 431
    headers = b"".join(b"a%d: %s\r\n" % (i, b"b" * 200) for i in range(62))
    assert exchange(server, POST + headers + b"connection: close\r\n\r\n")[0] == 200


def test_a_request_before_the_answer_to_the_first_ends_the_connection(server: Server, echo: Echo) -> None:
    with connect(server.port) as connection:
        connection.sendall(GET + GET + GET)
        response = read_to_end(connection)
    assert response.count(b"HTTP/1.1 ") == 1
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "pipelined"


def test_requests_follow_each_other_on_a_connection(server: Server) -> None:
    with connect(server.port) as connection:
        # More than the limit of headers together.
        for number in range(300):
            body = b"%05d" % number
            connection.sendall(POST + b"content-length: 5\r\n\r\n" + body)
            assert connection.recv(1000).endswith(body)


def test_refused_requests_are_counted_and_do_not_reach_the_application() -> None:
    echo, metrics = Echo(), Metrics()
    with served(echo, Limits(idle_seconds=1.0), metrics=metrics) as server:
        for name in ("two lengths", "70 headers", "a tunnel", "a length of 10 GB"):
            exchange(server, REFUSED[name][2])
    assert echo.paths == []
    assert metrics.refusals == {"http": 1, "headers": 1, "path": 1, "body": 1}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", b""),
        (GET[:20], b"408"),
        (POST + b"content-length: 100\r\n\r\nabc", b"408"),
        (GET, b"200"),
        (b"\r\n", b"408"),
    ],
    ids=["silent", "in the headers", "in the body", "idle", "empty lines"],
)
def test_silent_connections_are_closed(sent: bytes, expected: bytes) -> None:
    with served(limits=QUICK) as server, connect(server.port) as connection:
        connection.sendall(sent)
        assert read_to_end(connection)[9:12] == expected


def test_a_request_has_its_whole_time_on_a_connection_that_was_idle() -> None:
    limits = Limits(receive_seconds=20.0, idle_seconds=0.8)
    with served(limits=limits) as server, connect(server.port) as connection:
        connection.sendall(GET)
        assert connection.recv(1000)[9:12] == b"200"
        connection.sendall(POST + b"content-length: 4\r\n\r\nab")
        time.sleep(1.6)
        connection.sendall(b"cd")
        assert connection.recv(1000).endswith(b"abcd")


class EarlyAnswer(Echo):
    """Answers before it has the body."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def test_a_request_in_the_packet_of_the_one_before_it_has_the_time_of_a_request() -> None:
    limits = Limits(receive_seconds=0.6, idle_seconds=60.0)
    with served(EarlyAnswer(), limits) as server, connect(server.port) as connection:
        connection.sendall(POST + b"content-length: 4\r\n\r\nab")
        assert connection.recv(1000)[9:12] == b"401"
        connection.sendall(b"cd" + GET[:20])
        assert read_to_end(connection)[9:12] == b"408"


def test_a_fault_of_our_own_is_an_answer_and_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    with served(metrics=metrics) as server:
        with monkeypatch.context() as patch:
            patch.setattr(LimitedProtocol, "on_url", Mock(side_effect=RuntimeError("planted")))
            status, body = exchange(server, GET)
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal")
        assert b"planted" not in body
        assert exchange(server, GET)[0] == 200
    assert caplog.text.count("RuntimeError: planted") == 1
    assert metrics.refusals["internal"] == 1


def test_nothing_is_believed_of_a_proxy_and_nothing_is_told_of_the_server() -> None:
    scopes = []

    class Recorded(Echo):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scopes.append(scope)
            await super().__call__(scope, receive, send)

    forwarded = b"x-forwarded-for: 10.1.2.3\r\nx-forwarded-proto: https\r\nconnection: close\r\n\r\n"
    with served(Recorded()) as server, connect(server.port) as connection:
        connection.sendall(POST + forwarded)
        head = read_to_end(connection).partition(b"\r\n\r\n")[0]
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"content-length", b"connection"}
    (scope,) = scopes
    assert (scope["client"][0], scope["scheme"]) == ("127.0.0.1", "http")


def test_a_fault_of_one_connection_does_not_end_the_deadlines_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fn, faults = LimitedProtocol.check_deadlines, [RuntimeError("planted")]

    def faulty_once(self: LimitedProtocol, now: float) -> None:
        if faults:
            raise faults.pop()
        check_fn(self, now)

    monkeypatch.setattr(LimitedProtocol, "check_deadlines", faulty_once)
    with served(limits=QUICK) as server, connect(server.port) as first, connect(server.port) as second:
        assert read_to_end(first) == read_to_end(second) == b""
    assert not faults


def test_an_answer_may_take_longer_than_a_request() -> None:
    with served(limits=QUICK) as server:
        assert exchange(server, GET.replace(b"/", b"/late", 1))[0] == 200


def test_the_deadline_does_not_move_with_every_byte() -> None:
    with served(limits=QUICK) as server, connect(server.port) as connection:
        connection.settimeout(0.05)
        for byte in POST + b"a: " + b"b" * 1000:
            try:
                connection.sendall(bytes([byte]))
                assert connection.recv(1000)[9:12] == b"408"
                return
            except TimeoutError:
                continue
    pytest.fail("the server waited for all bytes")


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    metrics = Metrics()
    with served(limits=QUICK, metrics=metrics) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(b"GET /zeros/50000000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until(lambda: metrics.refusals["unread"] == 1 and metrics.connections == 0)
        connection.settimeout(20.0)
        assert len(read_to_end(connection)) < 50_000_000


def test_a_slow_reader_within_the_deadline_gets_its_answer(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /zeros/3000000 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        time.sleep(0.5)
        assert len(read_to_end(connection).partition(b"\r\n\r\n")[2]) == 3_000_000


def test_an_unfinished_tls_handshake_is_closed(tmp_path) -> None:
    with served(limits=QUICK, tls=tls_files(tmp_path)) as server:
        for sent in (b"", bytes.fromhex("1603010200010001fc0303")):
            assert exchange(server, sent) == (None, b"")


def test_connections_beyond_the_limit_are_refused_and_others_are_not() -> None:
    metrics = Metrics()
    with served(limits=Limits(connections=3), metrics=metrics) as server:
        first = [connect(server.port) for _ in range(3)]
        wait_until(lambda: metrics.connections == 3)
        assert exchange(server, b"")[0] == 503
        first[0].sendall(GET)
        assert first[0].recv(1000)[9:12] == b"200"
        first[1].close()
        wait_until(lambda: metrics.connections == 2)
        with connect(server.port) as connection:
            connection.sendall(GET)
            assert connection.recv(1000)[9:12] == b"200"
        for connection in first:
            connection.close()
    assert metrics.refusals == {"connections": 1}


def wait_until(is_true) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + 20.0
    while not is_true():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
