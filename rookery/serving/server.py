"""The HTTP server: uvicorn in a thread, on a socket of our own."""

import asyncio
import concurrent.futures
import functools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from rookery.addresses import is_loopback
from rookery.errors import InvalidInputError, missing_extra
from rookery.runs.interruption import StopSignals
from rookery.serving.limits import Limits
from rookery.serving.tls import Renewal, Tls

try:
    import uvicorn

    from rookery.serving.connections import LimitedProtocol, sweep
    from rookery.serving.metrics import Metrics
except ImportError:
    raise missing_extra("uvicorn", "serve") from None

try:
    from uvloop import Loop as BaseLoop
except ImportError:  # on Windows
    from asyncio import SelectorEventLoop as BaseLoop

GRACE_SECONDS = 2
"""For the answers that are being written when the server ends."""
POLL_SECONDS = 0.02
SEND_BUFFER = 64 * 2**10
"""Bytes that the system keeps of an answer that nobody reads."""
RENEWAL_SECONDS = 5.0
MAX_PORT = 65535
logger = logging.getLogger(__name__)


class ServedApplication(Protocol):
    """The ASGI application of a server, and how it ends."""

    @property
    def num_open_steps(self) -> int:
        """Requests that wait for an action."""
        ...

    def drain(self) -> None:
        """Start no more episodes."""
        ...

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None: ...


def check_address(host: str, has_tokens: bool, has_tls: bool, is_insecure: bool) -> None:
    """Raise unless strangers need a token, and cannot listen."""
    if not is_loopback(host) and not (has_tokens and has_tls) and not is_insecure:
        missing = " and ".join(["a token"] * (not has_tokens) + ["TLS (--tls-cert, --tls-key)"] * (not has_tls))
        raise InvalidInputError(
            f"host={host} can be reached by other machines and needs {missing}: give it, or --insecure if another "
            "layer protects the server."
        )


class Server:
    """Serves an application in a thread: `bind`, `start`, `stop`."""

    def __init__(
        self,
        app: ServedApplication,
        host: str,
        port: int,
        limits: Limits,
        tls: Tls | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._app = app
        self._host, self.port = host, port
        self._tls = tls
        self._context = context = tls.new_context() if tls else None
        self._limits = limits
        self._socket: socket.socket | None = None
        config = uvicorn.Config(
            app,
            http=functools.partial(LimitedProtocol, limits, metrics or Metrics()),  # type: ignore[arg-type]
            ssl_context_factory=(lambda config, default: context) if context else None,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="rookery-server", daemon=True)
        self._is_started = concurrent.futures.Future[None]()

    @property
    def url(self) -> str:
        """Where clients find the server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http{'s' if self._tls else ''}://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive()

    def bind(self) -> None:
        """Take the port: an error if another process has it. Port 0 takes a free one."""
        if not 0 <= self.port <= MAX_PORT:
            raise InvalidInputError(f"port={self.port}: expected 1 to {MAX_PORT}, or 0 for a free one.")
        try:
            family, _, _, _, address = socket.getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=2048)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise InvalidInputError(
                f"cannot listen on {self._host} port {self.port}: {reason}: take another port (--port, "
                "env.kwargs.port), or 0 for a free one."
            ) from None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.port = self._socket.getsockname()[1]

    def start(self) -> None:
        """Answer requests in a thread. Returns once it does."""
        self._thread.start()
        self._is_started.result()

    def stop(self, drain: float) -> int:
        """Answer open steps for up to `drain` seconds, then end; return how many requests still wait.

        New episodes are refused meanwhile.
        """
        if not self.is_serving:
            if self._socket is not None:
                self._socket.close()
            return 0
        self._app.drain()
        deadline = time.monotonic() + drain
        while self._app.num_open_steps and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        num_open = self._app.num_open_steps
        self._uvicorn.should_exit = True
        self._thread.join(2 * GRACE_SECONDS)
        return num_open

    def serve_until(self, signals: StopSignals, drain: float) -> int:
        """Wait for a signal, then `stop`. A second SIGTERM ends the process at once, as `StopSignals` has it."""
        while signals.requested is None and self.is_serving:
            time.sleep(POLL_SECONDS)
        return self.stop(drain)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=functools.partial(DeadlineLoop, self._limits)) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._is_started.done():
                raise
            self._is_started.set_exception(error)

    async def _serve(self) -> None:
        assert self._socket is not None, "bind() comes before start()"
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        connections = cast("set[LimitedProtocol]", self._uvicorn.server_state.connections)
        helpers = [asyncio.create_task(sweep(connections))]
        if self._tls and self._context:
            helpers.append(asyncio.create_task(renew(Renewal(self._tls, self._context))))
        while not (self._uvicorn.started or serving.done()):
            await asyncio.sleep(POLL_SECONDS)
        if self._uvicorn.started:
            self._is_started.set_result(None)
        await serving


async def renew(renewal: Renewal) -> None:
    """Look for renewed TLS files, forever."""
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            renewal.check()
        except Exception:
            logger.exception("the TLS files were not checked")


class DeadlineLoop(BaseLoop):
    """An event loop whose TLS connections have deadlines for their handshakes. uvicorn has no option for them."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    async def create_server(self, *args: Any, ssl: ssl.SSLContext | None = None, **options: Any) -> asyncio.Server:
        """Listen."""
        if ssl:
            seconds = self._limits.handshake_seconds
            options |= {"ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        return await super().create_server(*args, ssl=ssl, **options)
