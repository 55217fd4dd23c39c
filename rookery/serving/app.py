"""The ASGI application: who may ask, what is asked, and the answer."""

import asyncio
import functools
import logging
import re
import secrets
import time
from collections.abc import Collection, Mapping
from typing import Any

from rookery.addresses import is_loopback
from rookery.json_values import JsonValueError
from rookery.runners.envs.episode_messages import Mode
from rookery.serving.episodes import SWEEP_SECONDS, Episodes
from rookery.serving.handlers import Call, Headers, Reply, RouteHandlers
from rookery.serving.limits import Limits
from rookery.serving.messages import ApiError, as_api_error, encode
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import PolicyServer
from rookery.serving.routes import Route, find_routes
from rookery.serving.tokens import Scope, Tokens

SINGLE_HEADERS = (b"host", b"origin", b"authorization", b"content-type", b"content-encoding", b"sec-fetch-site")
"""Headers that a request has at most once."""
CORS_HEADERS = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
]

LOOPBACK = re.compile(rb"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
logger = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client has closed the connection before its request was complete."""


class Application:
    """Serves the protocol `/v1` under any ASGI server.

    Browsers may ask from `allowed_origins` alone. `policies` acts in episodes that do not learn, and without an
    episode; without it a runner answers all of them.
    """

    def __init__(
        self,
        episodes: Episodes,
        tokens: Tokens,
        limits: Limits,
        metrics: Metrics,
        policies: PolicyServer | None = None,
        allowed_origins: Collection[str] = (),
        default_mode: Mode = Mode.WATCH,
        explores: bool = False,
    ) -> None:
        self._episodes, self._tokens, self._limits, self._metrics = episodes, tokens, limits, metrics
        self._allowed_origins = {origin.encode() for origin in allowed_origins}
        self._routes = RouteHandlers(episodes, limits, metrics, policies, default_mode, explores)
        self._receiving: dict[asyncio.Task[Any], float] = {}
        """The requests whose bodies are to come, and their deadlines."""
        self._is_sweeping = False
        self.is_ready = False
        """Whether requests are answered; set it when all is compiled."""

    @property
    def num_open_steps(self) -> int:
        """The number of requests that wait for actions."""
        return self._episodes.num_waiting

    def drain(self) -> None:
        """Begin no more episodes; open steps are answered."""
        self._routes.is_draining = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        routes, name = find_routes(scope.get("raw_path") or scope["path"].encode())
        route = routes.get(scope["method"])
        try:
            reply = await self._reply(scope, receive, routes, route, name)
        except ClientGoneError:
            return
        except (Exception, asyncio.CancelledError) as error:
            reply = self._refusal(error, routes)
        if self._allowed_origins:
            self._allow_origin(scope["headers"], reply)
        length = (b"content-length", b"%d" % len(reply.body))
        headers = [reply.content_type, length, *reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        self._metrics.requests["unknown" if route is None else route.name, reply.status] += 1
        self._metrics.seconds.add(time.perf_counter() - start)

    async def _reply(
        self, scope: Any, receive: Any, routes: Mapping[str, Route], route: Route | None, name: bytes
    ) -> Reply:
        """Answer a request if it may be asked."""
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            _check_doubled(scope["headers"])
        self._check_browser(scope, headers)
        if scope["method"] == "OPTIONS" and headers.get(b"origin") in self._allowed_origins:
            return Reply(204, b"", [*CORS_HEADERS])
        if route is not None and route.scope is None:
            return self._health()
        grant = self._tokens.check(headers.get(b"authorization"))
        if grant is None:
            given = b"authorization" in headers
            missing = "this is no token of the server" if given else "a token is needed"
            raise ApiError(401, "token", f"{missing}: send the header `Authorization: Bearer TOKEN`.")
        if not self._tokens.take(grant, time.monotonic(), self._limits):
            raise ApiError(
                429, "rate", f"{grant.name} sends more than {self._limits.requests_per_second:g} requests/s."
            )
        if not routes:
            raise ApiError(404, "path", "there is no such path: see /v1.")
        if route is None:
            raise ApiError(405, "method", f"the methods of this path are {', '.join(routes)}.")
        if route.scope is Scope.ACT and grant.scope is not Scope.ACT:
            raise ApiError(403, "scope", f"the token {grant.name} may only read.")
        if route.scope is Scope.ACT and not self.is_ready:
            raise ApiError(503, "loading", "the server is loading.")
        query = scope.get("query_string", b"")
        if query and route.name != "leave":
            raise ApiError(422, "query", "this route has no parameters in the address.")
        body = await self._body(headers, receive) if route.method == "POST" else b""
        return await self._routes.handlers[route.name](Call(grant.name, name, query, body))

    def _check_browser(self, scope: Any, headers: Mapping[bytes, bytes]) -> None:
        """Refuse pages of other sites, and DNS names that were rebound to this machine."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
        is_foreign = origin is not None or site not in (b"none", b"same-origin")
        if is_foreign and origin not in self._allowed_origins:
            raise ApiError(403, "origin", "pages of other sites may not ask: see --allow-origin.")
        server = scope.get("server")
        if server and is_loopback(server[0]) and not _names_loopback(headers.get(b"host", b"")):
            raise ApiError(403, "host", "the header Host must name this machine: 127.0.0.1, localhost or [::1].")

    async def _body(self, headers: Mapping[bytes, bytes], receive: Any) -> bytes:
        """Receive the body of a request."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise ApiError(415, "encoding", "compressed bodies are not accepted.")
        body = await self._receive(receive)
        if body and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise ApiError(415, "content_type", "the body must be JSON, with `Content-Type: application/json`.")
        return body

    async def _receive(self, receive: Any) -> bytes:
        """Receive all parts of a body in time."""
        task, parts, num_bytes, has_more = asyncio.current_task(), [], 0, True
        assert task is not None, "servers call applications in tasks"
        self._receiving[task] = time.monotonic() + self._limits.receive_seconds
        if not self._is_sweeping:
            self._sweep()
        try:
            while has_more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                num_bytes += len(parts[-1])
                if num_bytes > self._limits.body:
                    raise ApiError(413, "body", f"a body has at most {self._limits.body} bytes.")
                has_more = message.get("more_body", False)
        except asyncio.CancelledError:
            if task in self._receiving:
                raise
            task.uncancel()
            raise ApiError(408, "receive", f"the body took {self._limits.receive_seconds:g} s.") from None
        finally:
            self._receiving.pop(task, None)
        return b"".join(parts)

    def _sweep(self) -> None:
        """End the requests whose bodies have not come in time: one timer for all."""
        now = time.monotonic()
        for task, deadline in list(self._receiving.items()):  # the oldest first
            if deadline > now:
                break
            del self._receiving[task]
            task.cancel()
        self._is_sweeping = bool(self._receiving)
        if self._is_sweeping:
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    # Refusals.

    def _refusal(self, error: BaseException, routes: Collection[str]) -> Reply:
        """Return the answer to a request that failed."""
        match error:
            case ApiError() | JsonValueError():
                refused = as_api_error(error)
            case asyncio.CancelledError():
                refused = ApiError(503, "closed", "the server ends: ask again later.")
            case _:
                return self._failure(error)
        headers: Headers = []
        if refused.status == 405:
            headers.append((b"allow", ", ".join(routes).encode()))
        if refused.may_be_repeated:
            headers.append((b"retry-after", b"1"))
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.status in (408, 413):
            headers.append((b"connection", b"close"))
        return Reply(refused.status, encode(self._metrics.refuse(refused)), headers)

    def _failure(self, error: BaseException) -> Reply:
        """Return the answer after a fault of our own, which the log has."""
        error_id = secrets.token_hex(4)
        self._metrics.refusals["internal"] += 1
        logger.error("request %s failed", error_id, exc_info=error)
        hidden = ApiError(500, "internal", f"the server has failed; its log has the reason under the id {error_id}.")
        return Reply(500, encode(hidden.to_json(error_id)), [])

    def _allow_origin(self, headers: Headers, reply: Reply) -> None:
        """Let a page of an allowed site read the answer."""
        origin = dict(headers).get(b"origin")
        if origin in self._allowed_origins:
            reply.headers.extend([(b"access-control-allow-origin", origin), (b"vary", b"origin")])

    def _health(self) -> Reply:
        is_ready = self.is_ready and not self._routes.is_draining
        return Reply(200 if is_ready else 503, encode({"live": True, "ready": is_ready}), [])


async def _lifespan(receive: Any, send: Any) -> None:
    """Answer that the application starts and stops, for which it needs nothing."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _check_doubled(headers: Headers) -> None:
    """Raise if a header that decides something is given twice."""
    names = [name for name, _ in headers]
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            raise ApiError(400, "headers", f"the header {name.decode()} is given twice.")


@functools.lru_cache(maxsize=256)
def _names_loopback(host: bytes) -> bool:
    """Return whether a header Host names this machine."""
    return LOOPBACK.fullmatch(host) is not None
