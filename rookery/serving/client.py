"""A client of Rookery's policy server. Copy this file: it needs Python 3.9 and nothing else.

    client = Client("http://127.0.0.1:8642", token_file="token")
    episode = client.start()
    action = episode.act(obs)
    episode.reward(1.0)
    episode.end(last_obs)

Arrays are nested lists, NumPy arrays or other buffers. A request that fails is repeated for `patience` seconds.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import http.client
import json
import random
import ssl
import threading
import time
import urllib.parse
import uuid
from typing import Any

MAX_NUMBERS = 64
"""Buffers with more elements are sent as bytes."""
DTYPES = {"B": "uint8", "f": "float32"}
"""The types of buffers that are sent as bytes; all others are sent as numbers."""
FIRST_DELAY, MAX_DELAY = 0.05, 2.0
MAY_BE_REPEATED = (408, 429, 503)
LOST = (404, 410)
POLICY_FAULT = "policy_fault"  # the server has taken the step, but has no action


class ServerGoneError(Exception):
    """The server did not answer for `patience` seconds."""


class RefusedError(Exception):
    """The server refused a request; `code` and `where` tell why."""

    def __init__(self, status: int, error: dict) -> None:
        self.status = status
        self.code = error.get("code", "")
        self.where = error.get("where")
        message = error.get("message", "no reason was given")
        super().__init__(f"{self.code}: {message}" + (f" (at {self.where})" if self.where else ""))


class EpisodeLostError(RefusedError):
    """The episode is over on the server: start another."""


class Client:
    """Asks a policy server for actions. Threads may share a client; each has its own connection."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        token_file: str | None = None,
        patience: float = 60.0,
        ca_file: str | None = None,
        timeout: float = 45.0,
    ) -> None:
        """`token_file` may be that of the server; `ca_file` has the certificate of a server with TLS."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url!r} must look like http://127.0.0.1:8642.")
        if token_file is not None:
            with open(token_file, encoding="utf-8") as file:
                token = file.readline().split()[-1]
        self.patience = patience
        self._host, self._port, self._timeout = parts.hostname, parts.port, timeout
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._local = threading.local()
        self._open: set[Episode] = set()
        atexit.register(self.close)

    def start(
        self,
        mode: str | None = None,
        id: str | None = None,
        explore: bool | None = None,
        policies: dict | None = None,
        info: dict | None = None,
        lease: float | None = None,
        several_agents: bool = False,
    ) -> Episode:
        """Begin an episode. With several agents, observations, rewards and actions are dicts by agent."""
        body: dict[str, Any] = {"episode": id or uuid.uuid4().hex}
        options: dict[str, Any] = {"mode": mode, "explore": explore, "policies": policies, "info": info, "lease": lease}
        body.update((name, value) for name, value in options.items() if value is not None)
        episode = Episode(self, self.request("POST", "/v1/episodes", body), several_agents)
        self._open.add(episode)
        return episode

    def act(
        self, obs: object, policy: str = "default", explore: bool = False, carry: object = None
    ) -> tuple[list, object]:
        """Return the actions on a batch of observations `[N, ...]`, and the carry of a recurrent policy, else None."""
        body: dict[str, Any] = {"obs": obs, "explore": explore}
        if carry is not None:
            body["carry"] = carry
        answer = self.request("POST", f"/v1/policies/{urllib.parse.quote(policy, safe='')}/act", body)
        return answer["actions"], answer.get("carry")

    def play(self, env: Any, episodes: int, **options: Any) -> list[float]:
        """Play episodes of a Gymnasium environment; return their returns. An episode that is lost is begun again."""
        returns: list[float] = []
        while len(returns) < episodes:
            with contextlib.suppress(EpisodeLostError):
                returns.append(self._play_one(env, options))
        return returns

    def request(self, method: str, path: str, body: object = None) -> dict:
        """Send a request and return the answer. It is repeated if the server is not there, or asks for that."""
        data = None if body is None else json.dumps(_encoded(body), allow_nan=False).encode()
        delay, failed_at = FIRST_DELAY, None
        while True:
            try:
                status, answer = self._exchange(method, self._prefix + path, data, self._timeout)
            except ssl.SSLCertVerificationError:
                raise
            except (OSError, http.client.HTTPException) as error:
                problem: Exception = ServerGoneError(f"{self._host}:{self._port} does not answer: {error!r}")
            else:
                if 200 <= status < 300:
                    return answer
                is_lost = status in LOST and path.startswith("/v1/episodes/")
                problem = (EpisodeLostError if is_lost else RefusedError)(status, answer.get("error") or {})
                if status not in MAY_BE_REPEATED:
                    raise problem
            now = time.monotonic()
            if failed_at is None or getattr(problem, "code", "") == "pending":  # the server is there, and busy
                failed_at = now
            if now - failed_at >= self.patience:
                raise problem
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, MAX_DELAY)

    def close(self) -> None:
        """Leave the open episodes and close the connection of this thread."""
        atexit.unregister(self.close)
        self._disconnect()  # the next connection waits for a second only
        with contextlib.suppress(OSError, http.client.HTTPException):
            while self._open:
                self._exchange("DELETE", self._prefix + self._open.pop().path, None, 1.0)
        self._disconnect()

    def _play_one(self, env: Any, options: dict) -> float:
        episode, total = self.start(**options), 0.0
        obs, _ = env.reset()
        while True:
            (action,) = env.action_space.from_jsonable([episode.act(obs)])
            obs, reward, terminated, truncated, _ = env.step(action)
            episode.reward(reward)
            total += float(reward)
            if terminated or truncated:
                episode.end(obs, truncated=not terminated)
                return total

    def _exchange(self, method: str, path: str, data: bytes | None, timeout: float) -> tuple[int, dict]:
        """Send a request once; return the status and the body of the answer."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            if self._tls is None:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            else:
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
            self._local.connection = connection
        try:
            connection.request(method, path, data, self._headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException:  # what is left of this exchange must not answer the next
            self._disconnect()
            raise
        return response.status, _decoded(text)

    def _disconnect(self) -> None:
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection is not None:
            connection.close()


class Episode:
    """An episode that this client plays. Only one thread may use it."""

    def __init__(self, client: Client, started: dict, several_agents: bool) -> None:
        self.id = started["episode"]
        self.path = f"/v1/episodes/{self.id}"
        self.started = started
        """The answer of the server: mode, lease, policies."""
        self.version = None
        """The version of the policy that acted last."""
        self.episode_return = None
        """The return of the episode, once it has ended."""
        self._client, self._several_agents = client, several_agents
        self._next_seq = 0
        self._pending: dict = {}
        """What was reported since the last request, by agent; the only agent is None."""

    def act(self, obs: object) -> object:
        """Return the action on an observation."""
        answer = self._step(self._by_agent("obs", obs))
        return answer.get("actions", {}) if self._several_agents else answer["action"]

    def log(self, obs: object, action: object, log_prob: object = None) -> None:
        """Report the action that the simulator chose itself on an observation, and its log-probability."""
        fields = self._by_agent("obs", obs)
        for name, given in (("action", action), ("log_prob", log_prob)):
            if given is not None:
                fields = _joined(fields, self._by_agent(name, given))
        self._step(fields)

    def reward(self, reward: object, info: dict | None = None) -> None:
        """Add a reward for the last action; it is sent with the next step."""
        for agent, fields in self._by_agent("reward", reward).items():
            pending = self._pending.setdefault(agent, {})
            pending["reward"] = pending.get("reward", 0.0) + float(fields["reward"])
        if info:
            self._pending = _joined(self._pending, self._by_agent("info", info))

    def end_agents(self, obs: dict, truncated: bool = False) -> None:
        """End some agents with their last observations, or None, in the next step; the others go on."""
        flag = "truncated" if truncated else "terminated"
        for agent, last in obs.items():
            fields = {flag: True} if last is None else {flag: True, "obs": last}
            self._pending = _joined(self._pending, {agent: fields})

    def end(self, obs: object = None, truncated: bool = False) -> None:
        """End the episode with its last observation; `truncated` if it could have gone on."""
        fields = {} if obs is None else self._by_agent("obs", obs)
        self._step(fields, **{"truncated" if truncated else "terminated": True})

    def leave(self, keep: bool = True) -> None:
        """Leave the episode before its end. With `keep`, its complete steps are kept."""
        self._client._open.discard(self)
        self._client.request("DELETE", self.path + ("" if keep else "?keep=false"))

    def _by_agent(self, name: str, given: Any) -> dict:
        return {agent: {name: value} for agent, value in (given.items() if self._several_agents else [(None, given)])}

    def _step(self, fields: dict, **flags: bool) -> dict:
        fields = _joined(self._pending, fields)
        own = {"agents": fields} if self._several_agents else fields.get(None, {})
        try:
            answer = self._client.request("POST", self.path + "/step", {"seq": self._next_seq, **own, **flags})
        except RefusedError as error:
            if isinstance(error, EpisodeLostError):
                self._client._open.discard(self)
            if error.code == POLICY_FAULT:
                self._next_seq, self._pending = self._next_seq + 1, {}
            raise
        self._next_seq, self._pending = self._next_seq + 1, {}
        self.version = answer.get("version", self.version)
        if answer.get("ended"):
            self.episode_return = answer.get("episode_return")
            self._client._open.discard(self)
        return answer


def _joined(fields: dict, more: dict) -> dict:
    """Return the fields of some agents and more of them."""
    return {agent: {**fields.get(agent, {}), **more.get(agent, {})} for agent in {**fields, **more}}


def _encoded(value: Any) -> Any:
    """Return a value for JSON; buffers become lists of numbers, or bytes in base64."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {name: _encoded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    try:
        view = memoryview(value)
    except TypeError:
        return value.tolist()  # arrays of other libraries
    dtype = DTYPES.get(view.format)
    if dtype is None or view.nbytes <= MAX_NUMBERS * view.itemsize:
        return value.tolist() if hasattr(value, "tolist") else view.tolist()
    return {"dtype": dtype, "shape": list(view.shape or ()), "base64": base64.b64encode(view.tobytes()).decode()}


def _decoded(text: bytes) -> dict:
    """Return the JSON object of an answer; empty if it is none, as from a proxy."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
