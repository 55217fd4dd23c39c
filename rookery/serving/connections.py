"""Connections: deadlines, sizes and counts that uvicorn does not have."""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
import struct
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rookery.serving.limits import Limits
from rookery.serving.messages import ApiError, encode
from rookery.serving.metrics import Metrics

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
"""Between two looks at the deadlines of all connections."""
NO_LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
"""Of a socket: closing it drops what was not sent, in place of trying for minutes."""
LINGER_SECONDS = 1.0
"""A refused client that is still sending gets this long to read why."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection within `Limits`. A connection that breaks one is refused, then closed.

    Times are those of the event loop. `check_deadlines` is called for every connection by `sweep`.
    """

    def __init__(self, limits: Limits, metrics: Metrics, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._metrics = metrics
        self._deadline = self.loop.time() + limits.receive_seconds
        self._unread_deadline = math.inf
        self._num_bytes = 0
        """Bytes of the present request; 0 between requests."""
        self._max_bytes = limits.headers
        self._is_received = True
        self._is_idle = False
        """Whether a request was answered, and no byte of the next one has come."""
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._metrics.connections = len(self.connections)
        if len(self.connections) > self._limits.connections:
            self._refuse(ApiError(503, "connections", f"the server has its {self._limits.connections} connections."))
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._metrics.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._end_idleness()
        self._num_bytes += len(data)
        try:
            self._parse(data)
            if self._num_bytes > self._max_bytes:
                raise self._too_long()
        except ApiError as refusal:
            self._refuse(refusal)
        except Exception:
            logger.exception("a connection failed")
            self._refuse(ApiError(500, "internal", "the server has a fault, which is in its log."))

    def _end_idleness(self) -> None:
        """Give the next request its time."""
        if self._is_idle:
            self._is_idle = False
            self._deadline = self.loop.time() + self._limits.receive_seconds

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            if isinstance(cause, httptools.HttpParserError):
                raise ApiError(400, "http", "this is not HTTP/1.1.") from None
            raise cause or error from None

    def _too_long(self) -> ApiError:
        if self._max_bytes == self._limits.headers:
            return ApiError(431, "headers", f"the headers are longer than {self._limits.headers} bytes.")
        return ApiError(413, "body", f"the body is longer than {self._limits.body} bytes.")

    # What the parser calls.
    def on_message_begin(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            raise ApiError(400, "pipelined", "a request came before the answer to the one before it.")
        self._is_received = False
        if self._is_idle:  # it shares a packet with the request before it
            self._end_idleness()
            self._num_bytes = 1
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.request_line:
            raise ApiError(400, "request_line", f"the request line is longer than {self._limits.request_line} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        name = self.headers[-1][0]
        if self._max_bytes > self._limits.headers:
            raise ApiError(400, "trailer", "headers after the body are not taken.")
        if len(self.headers) > self._limits.num_headers:
            raise ApiError(431, "headers", f"there are more than {self._limits.num_headers} headers.")
        if name == b"content-length" and int(value) > self._limits.body:
            raise ApiError(413, "body", f"the body is longer than {self._limits.body} bytes.")
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise ApiError(415, "transfer_encoding", "expected a body that is not compressed.")

    def on_headers_complete(self) -> None:
        limits = self._limits
        if self._num_bytes > limits.headers and sum(map(len, itertools.chain(*self.headers))) > limits.headers:
            raise self._too_long()
        self._max_bytes = limits.headers + limits.body
        if not (self.url.startswith(b"/") and self.url.isascii()):
            raise ApiError(400, "path", "expected a path that starts with / and is ASCII.")
        if self.parser.should_upgrade():
            raise ApiError(400, "upgrade", "the server accepts HTTP/1.1 alone: expected no offer of another protocol.")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_received = True
        self._deadline = math.inf
        if self.cycle.response_complete:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        self.flow.resume_reading()
        if self._is_received:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        self._num_bytes = 0
        self._is_idle = True
        self._max_bytes = self._limits.headers
        self._deadline = self.loop.time() + self._limits.idle_seconds

    # How connections end.
    def _refuse(self, refusal: ApiError) -> None:
        """Answer in place of the application, then read no more of what comes."""
        body = encode(self._metrics.refuse(refusal))
        self._is_refused = True
        self._deadline = self.loop.time() + LINGER_SECONDS
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.abort()
                return
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
        retry = "retry-after: 1\r\n" if refusal.may_be_repeated else ""
        self.transport.write(f"{head}{retry}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)

    def _close(self) -> None:
        """Close, at the next sweep by force."""
        self.transport.close()
        self._unread_deadline = 0.0

    def abort(self) -> None:
        """Drop the connection, with what the system keeps for a client that does not read."""
        with contextlib.suppress(OSError, AttributeError):  # it may be closed
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.transport.abort()

    def check_deadlines(self, now: float) -> None:
        """Close the connection if one has passed."""
        if self._unread_deadline < now:
            self._metrics.refusals["unread"] += not self.transport.is_closing()
            self.abort()
            return
        is_read = self.transport.get_write_buffer_size() == 0
        self._unread_deadline = math.inf if is_read else min(self._unread_deadline, now + self._limits.unread_seconds)
        if self._deadline < now:
            if self._num_bytes and not self._is_refused:
                seconds = self._limits.receive_seconds
                self._refuse(ApiError(408, "receive", f"the request did not arrive within {seconds:g} s."))
            elif not self._is_refused:
                self._metrics.refusals["idle"] += 1
            self._close()

    def shutdown(self) -> None:
        """End with the server: an open request is answered, others are not waited for."""
        if self._is_received and self.cycle and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            # A client that does not read its answer is not waited for either.
            self._unread_deadline = min(self._unread_deadline, self.loop.time() + LINGER_SECONDS)
        else:
            self.abort()


async def sweep(connections: Iterable[LimitedProtocol]) -> None:
    """Check the deadlines of all connections, forever."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = loop.time()
        for connection in tuple(connections):
            try:
                connection.check_deadlines(now)
            except Exception:
                logger.exception("a connection failed")
                connection.abort()
