"""A server of an application that answers with what it was sent, and raw connections to it."""

import asyncio
import contextlib
import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.server import Server
from rookery.serving.tls import Tls

CERTIFICATES = Path(__file__).parent / "serving"
PATIENCE = 20.0
"""Seconds after which a socket that should have been closed or answered fails a test."""


class Echo:
    """Answers with the body of the request; `GET /zeros/N` with N zeros, `GET /late` after a second.

    It remembers the requests that it saw.
    """

    num_open_steps = 0

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.is_draining = False

    def drain(self) -> None:
        self.is_draining = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        body, more_body = b"", True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more_body = body + message["body"], message["more_body"]
        if scope["path"].startswith("/zeros/"):
            body = bytes(int(scope["path"].removeprefix("/zeros/")))
        if scope["path"] == "/late":
            await asyncio.sleep(1.0)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def served(
    app: Any = None, limits: Limits | None = None, tls: Tls | None = None, metrics: Metrics | None = None
) -> Iterator[Server]:
    """Serve an application on a free port of this machine."""
    server = Server(app or Echo(), "127.0.0.1", 0, limits or Limits(), tls, metrics)
    server.bind()
    server.start()
    try:
        yield server
    finally:
        server.stop(0.0)


def tls_files(folder: Path) -> Tls:
    """Copy the certificate of the tests with a key that nobody else may read."""
    tls = Tls(folder / "certificate.pem", folder / "key.pem")
    for file in (tls.cert_file, tls.key_file):
        shutil.copy(CERTIFICATES / file.name, file)
    tls.key_file.chmod(0o600)
    return tls


def trusting_context() -> ssl.SSLContext:
    """What a client needs to trust the certificate of the tests."""
    return ssl.create_default_context(cafile=str(CERTIFICATES / "certificate.pem"))


def connect(port: int) -> socket.socket:
    """Open a connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read_to_end(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes; a reset is an end too."""
    received = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while data := connection.recv(2**16):
            received += data
    return received


def exchange(server: Server, request: bytes) -> tuple[int | None, bytes]:
    """Send bytes; return status and body of the response, or None if the connection ends without one."""
    with connect(server.port) as connection:
        # A client that is refused while it sends may see a reset.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        try:
            response.begin()
            return response.status, response.read()
        except (http.client.HTTPException, ConnectionError):
            return None, b""
