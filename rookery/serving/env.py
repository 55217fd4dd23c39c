"""The environments `served` and `served_agents`: simulators are clients over HTTP."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.configuration import check_settings, from_mapping, setting
from rookery.errors import InvalidInputError, RookeryError
from rookery.runners.envs.agent_spaces import AgentSpaces, agent_spaces_from_json
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.episode_messages import Mode
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.serving.app import Application
from rookery.serving.episodes import Episodes
from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.server import Server, check_address
from rookery.serving.tls import Tls
from rookery.serving.tokens import Tokens

ONE_AGENT, SEVERAL_AGENTS = "served", "served_agents"
CHECK_SECONDS = 1.0
DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class ServedSettings:
    """Who may play, and where: `env.kwargs` of the environment `served`."""

    spaces: str = setting("", help="JSON file with the spaces: {observation: ..., action: ...}, or {agents: {...}}")
    max_episodes: int = setting(64, low=1, help="episodes that learn and may be open at once")
    lease: float = setting(60.0, low=0.1, help="seconds of silence after which an episode is abandoned")
    max_age: int | None = setting(
        None, low=0, help="updates by which fragments may lag; null: 1 for PPO and A2C, any number for others"
    )
    max_abs: float = setting(1e9, low=0.0, help="the largest absolute value of numbers in observations")
    host: str = setting("127.0.0.1", help="the address to listen on")
    port: int = setting(8642, low=0, high=65535, help="the port to listen on; 0: a free one")
    token_file: str | None = setting(
        "token", help="file with lines 'name scope token', made if it is absent; null: everybody may play"
    )
    tls_cert: str | None = setting(None, help="certificate; with tls_key, clients use https")
    tls_key: str | None = setting(None, help="key of the certificate")
    insecure: bool = setting(False, help="listen on other addresses than loopback without a token and TLS")
    limits: Limits = setting(Limits(), help="limits of requests by name: env.kwargs.limits.body=1000000")

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.spaces:
            raise InvalidInputError("spaces is missing: name a JSON file that describes the spaces of the clients.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError("tls_cert and tls_key belong together: give both, or none.")
        check_address(self.host, self.token_file is not None, self.tls_cert is not None, self.insecure)


class ServedEnv(ExternalEnv):
    """Clients begin the episodes and report their steps; `run` serves them."""

    def __init__(self, settings: ServedSettings, spaces: AgentSpaces) -> None:
        obs_spaces, action_spaces = ({agent: pair[index] for agent, pair in spaces.items()} for index in (0, 1))
        one = set(spaces) == {SINGLE_AGENT}
        super().__init__(
            obs_spaces[SINGLE_AGENT] if one else obs_spaces,
            action_spaces[SINGLE_AGENT] if one else action_spaces,
            settings.max_episodes,
            settings.lease,
            settings.max_age,
        )
        self.settings = settings
        self.metrics = Metrics()
        self._server: Server | None = None
        self._server_lock = threading.Lock()
        self._is_closed = threading.Event()

    @property
    def url(self) -> str:
        """Where clients find the server, once it is prepared."""
        assert self._server is not None, "it takes its port when it is prepared"
        return self._server.url

    def _open(self, mutex: threading.Lock, notify: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super()._open(mutex, notify, on_stop)
        self._is_closed = threading.Event()  # a thread of an earlier training keeps its own

    def _prepare(self) -> None:
        """Take the port, before training compiles."""
        settings = self.settings
        tokens = Tokens.none() if settings.token_file is None else Tokens.open(Path(settings.token_file))
        tls = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = Tls(Path(settings.tls_cert), Path(settings.tls_key))
        limits, metrics = settings.limits, self.metrics
        episodes = Episodes(
            self._book,
            self.spaces,
            self._mutex,
            self._notify,
            settings.lease,
            settings.max_abs,
            lambda: self.needs_log_prob,
            limits.pending_seconds,
        )
        app = Application(episodes, tokens, limits, metrics, default_mode=Mode.LEARN)
        app.is_ready = True
        server = Server(app, settings.host, settings.port, limits, tls, metrics)
        server.bind()
        self._server = server
        where = "no token is needed" if settings.token_file is None else f"the token is in {settings.token_file}"
        print(f"clients play at {self.url}; {where}")

    def run(self) -> None:
        """Serve clients until training is over."""
        is_closed = self._is_closed
        with self._server_lock:
            if is_closed.is_set():
                return
            if self._server is None:
                self._prepare()
            server = self._server
            assert server is not None, "it was prepared"
            server.start()
        while not is_closed.wait(CHECK_SECONDS):
            if not server.is_serving:
                with self._server_lock:
                    if self._server is server:
                        self._server = None
                raise RookeryError("the server for clients has ended.")

    def _close(self) -> None:
        """Stop listening, once the open steps were answered that there is no action for."""
        self._is_closed.set()
        with self._server_lock:
            server, self._server = self._server, None
            if server is not None:
                server.stop(DRAIN_SECONDS)

    def _report(self) -> Mapping[str, float]:
        return {f"serving/{name}": number for name, number in self.metrics.record().items()}


def make_served_env(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> ExternalBaseEnv:
    """Make the environment that clients with one agent play."""
    return _make(ONE_AGENT, episode_length, kwargs)


def make_served_agents(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> ExternalBaseEnv:
    """Make the environment that clients with several agents play."""
    return _make(SEVERAL_AGENTS, episode_length, kwargs)


def _make(name: str, episode_length: int | None, kwargs: Mapping[str, Any]) -> ExternalBaseEnv:
    if episode_length is not None:
        raise InvalidInputError(f"env.episode_length={episode_length}: clients end their episodes themselves.")
    settings = from_mapping(ServedSettings, kwargs, "env.kwargs")
    spaces = _read_spaces(Path(settings.spaces))
    fitting = ONE_AGENT if set(spaces) == {SINGLE_AGENT} else SEVERAL_AGENTS
    if name != fitting:
        raise InvalidInputError(f"env.kwargs.spaces={settings.spaces} has the spaces of env={fitting}, not of {name}.")
    return ExternalBaseEnv([ServedEnv(settings, spaces)], name)


def _read_spaces(path: Path) -> AgentSpaces:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"env.kwargs.spaces={path} cannot be read: {error}.") from None
    return agent_spaces_from_json(data, f"env.kwargs.spaces={path}")
