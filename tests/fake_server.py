"""A server that gives prepared answers."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_UP = None
"""In place of an answer: the connection breaks after the request was read."""


class FakeServer(ThreadingHTTPServer):
    """Gives prepared answers and keeps what it was sent."""

    daemon_threads = True

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.requests = answers, []
        self.headers: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, json.loads(body) if body else None))
        self.server.headers.append(self.headers)
        answer = self.server.answers.pop(0) if self.server.answers else (200, {})
        if answer is HANG_UP:
            self.close_connection = True
            return
        status, content = answer
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _reply  # noqa: N815

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(*answers: Any) -> Iterator[FakeServer]:
    """Run a server in a thread."""
    server = FakeServer(list(answers))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
