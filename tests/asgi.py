"""An ASGI application with policies, and requests to it without a socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import jax

from rookery.agent import Agent
from rookery.agents.policy import PolicyAgent
from rookery.policy import Policy
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.serving.app import Application
from rookery.serving.episodes import Episodes
from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import PolicyServer, StepLog
from rookery.serving.tokens import Tokens
from rookery.spaces import Box, Discrete, Space

OBS, ACTIONS = Box(-1.0, 1.0, (4,)), Discrete(3)
HOST = [(b"host", b"127.0.0.1:8642")]
JSON = [*HOST, (b"content-type", b"application/json")]


def policy_of(
    agent: Agent | None = None, obs_space: Space = OBS, action_space: Space = ACTIONS, seed: int = 1
) -> Policy:
    agent = agent or PolicyAgent()
    return Policy(agent, agent.init(obs_space, action_space, jax.random.key(seed)), obs_space, action_space, 12)


class Reply(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str | None]:
        """Status, code and place of a refusal."""
        error = self.json["error"]
        return self.status, error["code"], error.get("where")


class Serving:
    """An application that serves policies, and its parts."""

    def __init__(
        self,
        policies: Mapping[str, Policy] | None = None,
        mapping: Mapping[AgentID, str] | None = None,
        tokens: Tokens | None = None,
        limits: Limits | None = None,
        max_episodes: int = 8,
        log: StepLog | None = None,
        lease: float = 60.0,
        **settings: Any,
    ) -> None:
        policies = policies or {"default": policy_of()}
        mapping = mapping or {SINGLE_AGENT: "default"}
        spaces = {agent: (policies[name].obs_space, policies[name].action_space) for agent, name in mapping.items()}
        self.limits, self.metrics = limits or Limits(), Metrics()
        self.book = EpisodeBook(0, spaces, max_episodes)
        self.policies = PolicyServer(policies, mapping, 12, self.book, self.metrics, 8, log)
        self.episodes = Episodes(self.book, spaces, notify=self.policies.wake, lease=lease)
        self.app = Application(
            self.episodes, tokens or Tokens.none(), self.limits, self.metrics, self.policies, **settings
        )
        self.app.is_ready = True

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        chunks: int = 1,
        num_sent: int | None = None,
    ) -> Reply:
        """Send a request; a body that is not bytes is written as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await ask(self.app, method, path, content, JSON if headers is None else headers, chunks, num_sent)

    async def post(self, path: str, body: Any = None) -> Reply:
        return await self.ask("POST", path, body)

    async def start(self, **fields: Any) -> str:
        """Begin an episode; return its path."""
        reply = await self.post("/v1/episodes", fields)
        assert reply.status == 201, reply.body
        return f"/v1/episodes/{reply.json['episode']}"


async def ask(
    app: Callable[..., Awaitable[None]],
    method: str,
    path: str,
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] = JSON,
    chunks: int = 1,
    num_sent: int | None = None,
) -> Reply:
    """Send a request to an application, its body in some parts, of which the last may never come."""
    raw_path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "server": ("127.0.0.1", 8642),
    }
    size = -(-len(body) // chunks)
    parts = [body[index * size : (index + 1) * size] for index in range(chunks)]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts or chunks - len(parts) == num_sent:
            await asyncio.sleep(3600)
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    return Reply(start["status"], dict(start["headers"]), b"".join(part["body"] for part in rest))
