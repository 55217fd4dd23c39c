"""What each route of the protocol `/v1` does."""

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import jax

from rookery.agent import ACTION_MASK
from rookery.json_values import as_json
from rookery.policy import Policy
from rookery.runners.envs.agent_spaces import spaces_by_agent
from rookery.runners.envs.base_env import AgentID
from rookery.runners.envs.episode_messages import Answer, Mode, Refused, StartRequest, StepRequest
from rookery.runners.envs.validation import row_of
from rookery.runners.envs.vector_env import rows_of
from rookery.serving.episodes import Episodes
from rookery.serving.limits import Limits
from rookery.serving.messages import (
    ApiError,
    JsonReaders,
    MessageReader,
    Object,
    answer_to_json,
    check_names,
    decode,
    encode,
    json_readers,
    read_carry,
    read_flag,
    read_start,
    read_steps,
)
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import Ask, PolicyServer
from rookery.serving.routes import ACT_FIELDS, names_of
from rookery.spaces import Dict, to_json

JSON_TYPE = (b"content-type", b"application/json")
TEXT_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
REPLAYED = (b"rookery-replayed", b"1")
ACT_NAMES = names_of(ACT_FIELDS)

Headers = list[tuple[bytes, bytes]]
logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    headers: Headers
    """The headers besides its type and length."""
    content_type: tuple[bytes, bytes] = JSON_TYPE


class Call(NamedTuple):
    """A request that may be answered."""

    owner: str
    """The name of the token."""
    name: bytes
    """The episode or the policy in the path."""
    query: bytes
    body: bytes


class RouteHandlers:
    """The functions of all routes that need a token."""

    def __init__(
        self,
        episodes: Episodes,
        limits: Limits,
        metrics: Metrics,
        policies: PolicyServer | None,
        default_mode: Mode,
        explores: bool,
    ) -> None:
        self._episodes, self._limits, self._metrics, self._policies = episodes, limits, metrics, policies
        self._default_mode, self._explores = default_mode, explores
        self.is_draining = False
        """Whether no more episodes begin."""
        self._policy_readers: dict[str, JsonReaders] = {}
        if policies is None:
            readers = {agent: json_readers(pair, episodes.max_abs) for agent, pair in episodes.spaces.items()}
        else:
            for name, policy in policies.team.policies.items():
                self._policy_readers[name] = json_readers((policy.obs_space, policy.action_space))
            readers = {agent: self._policy_readers[name] for agent, name in policies.mapping.items()}
            metrics.versions = lambda: dict.fromkeys(policies.team.policies, policies.team[1:])
        self._reader = self._make_reader(readers)
        obs_readers = {pair.obs for pair in (*readers.values(), *self._policy_readers.values())}
        metrics.num_outside = lambda: sum(reader.num_outside for reader in obs_readers)
        metrics.episode_counts = lambda: episodes.book.counts
        metrics.gauges |= {"open_episodes": lambda: episodes.book.num_open, "pending": lambda: episodes.num_waiting}
        self.handlers: dict[str, Callable[[Call], Awaitable[Reply]]] = {
            "metrics": self._metrics_text,
            "protocol": self._protocol,
            "policy": self._policy,
            "act": self._act,
            "start": self._start,
            "status": self._status,
            "leave": self._leave,
            "step": self._step,
            "steps": self._steps,
        }

    # About the server.

    async def _metrics_text(self, call: Call) -> Reply:
        return Reply(200, self._metrics.text(), [], TEXT_TYPE)

    async def _protocol(self, call: Call) -> Reply:
        fields = {
            "protocol": "v1",
            "mode": self._default_mode,
            "agents": spaces_by_agent(self._episodes.spaces),
            "policies": self._policies.mapping if self._policies else {},
            "limits": dataclasses.asdict(self._limits),
        }
        return Reply(200, encode(fields), [])

    async def _policy(self, call: Call) -> Reply:
        policies, name, policy = self._policy_of(call)
        obs_space = policy.obs_space
        fields = {
            "policy": name,
            "version": policies.team.version,
            "env_step": policy.num_steps,
            "observation": to_json(obs_space),
            "action": to_json(policy.action_space),
            "recurrent": policy.is_recurrent,
            "masks": isinstance(obs_space, Dict) and ACTION_MASK in obs_space,
        }
        return Reply(200, encode(fields), [])

    # Actions without an episode.

    async def _act(self, call: Call) -> Reply:
        policies, name, policy = self._policy_of(call)
        fields = decode(call.body, self._limits)
        check_names(fields, ACT_NAMES, "")
        explore = read_flag(fields, "explore", "", self._explores)
        if "obs" not in fields:
            raise ApiError(422, "shape", "obs is missing: give a list of observations.", "obs")
        obs, num_rows = self._policy_readers[name].obs.read_array(fields["obs"], "obs")
        if not 0 < num_rows <= self._limits.num_steps:
            raise ApiError(422, "num_steps", f"obs has {num_rows} rows; expected 1 to {self._limits.num_steps}.", "obs")
        carries = [None] * num_rows
        if "carry" in fields:
            carries = read_carry(fields["carry"], policy.agent.initial_carry((1,)), num_rows)
        asks = [Ask(row_of(obs, index), carry) for index, carry in enumerate(carries)]
        version = await policies.act(name, asks, explore)
        if any(ask.is_faulty for ask in asks):
            raise ApiError(500, "policy_fault", "the policy gave no finite action.")
        answer: Object = {"actions": [ask.action for ask in asks], "version": version}
        if policy.is_recurrent:
            answer["carry"] = list(map(as_json, jax.tree.leaves(rows_of([ask.carry for ask in asks]))))
        return Reply(200, encode(answer), [])

    def _policy_of(self, call: Call) -> tuple[PolicyServer, str, Policy]:
        """Return the policy that a path names."""
        if self._policies is None:
            raise ApiError(404, "policy", "a server that trains acts in episodes alone: start one.")
        policies = self._policies.team.policies
        name = unquote_to_bytes(call.name).decode(errors="replace")
        if name not in policies:
            raise ApiError(404, "policy", f"there is no such policy: there are {', '.join(policies)}.")
        return self._policies, name, policies[name]

    # Episodes.

    async def _start(self, call: Call) -> Reply:
        if self.is_draining:
            raise ApiError(503, "draining", "the server ends: start the episode at the next one.")
        fields = decode(call.body, self._limits) if call.body else {}
        request = read_start(fields, self._default_mode, self._explores, self._episodes.lease, self._limits)
        self._check_start(request)
        started = self._episodes.start(call.owner, request)
        if isinstance(started, Refused):
            raise ApiError.of(started)
        answer: Object = {
            "episode": request.id,
            "mode": request.mode,
            "explore": request.explore,
            "lease": request.lease,
            "policies": {},
        }
        if self._policies is not None:
            mapping, version = request.policies or self._policies.mapping, self._policies.team.version
            answer["policies"] = {agent: {"policy": name, "version": version} for agent, name in mapping.items()}
        return Reply(200 if started.is_repeated else 201, encode(answer), [])

    def _check_start(self, request: StartRequest) -> None:
        """Raise if an episode asks for what this server does not do."""
        if self._policies is None:
            if request.policies is not None:
                raise ApiError(422, "policies", "in training the policies of agents are those of the run.", "policies")
            return
        if request.mode is Mode.LEARN:
            raise ApiError(422, "mode", "this server does not learn: mode must be watch or evaluate.", "mode")
        policies, spaces = self._policies.team.policies, self._episodes.spaces
        for agent, name in (request.policies or {}).items():
            if name not in policies:
                known = ", ".join(policies)
                raise ApiError(
                    422, "policies", f"there is no policy {name!r:.80}: there are {known}.", f"policies.{agent}"
                )
            own = policies[name].obs_space, policies[name].action_space
            if self._policies.is_logging and spaces.get(agent) != own:
                known = ", ".join(map(str, spaces))
                message = f"steps are logged with the spaces of {known}; those of {agent!r:.80} are others."
                raise ApiError(422, "policies", message, f"policies.{agent}")

    async def _status(self, call: Call) -> Reply:
        status = self._episodes.look(call.owner, call.name.decode())
        if isinstance(status, Refused):
            raise ApiError.of(status)
        is_multi_agent = self._reader_of(call.owner, call.name.decode()).is_multi_agent
        answer = None if status.answer is None else self._answer_or_error(status.answer, status.seq, is_multi_agent)
        fields = {"seq": status.seq, "answer": answer, "seconds_left": status.seconds_left}
        return Reply(200, encode(fields), [])

    async def _leave(self, call: Call) -> Reply:
        query = parse_qsl(call.query.decode(errors="replace"), keep_blank_values=True)
        if query not in ([], [("keep", "true")], [("keep", "false")]):
            raise ApiError(422, "query", "the only parameter in the address is keep=true or keep=false.")
        refused = self._episodes.leave(call.owner, call.name.decode(), keep=query != [("keep", "false")])
        if refused is not None:
            raise ApiError.of(refused)
        return Reply(200, encode({"episode": call.name.decode(), "left": True}), [])

    async def _step(self, call: Call) -> Reply:
        episode_id = call.name.decode()
        reader = self._reader_of(call.owner, episode_id)
        request = reader.step(decode(call.body, self._limits))
        (answer,), is_repeated = await self._episodes.steps(call.owner, [(episode_id, request)])
        fields = answer_to_json(answer, request.seq, reader.is_multi_agent)
        return Reply(200, encode(fields), [REPLAYED] if is_repeated else [])

    async def _steps(self, call: Call) -> Reply:
        fields = decode(call.body, self._limits)
        readers: dict[str, MessageReader] = {}

        def reader_of(episode_id: str) -> MessageReader:
            readers[episode_id] = reader = self._reader_of(call.owner, episode_id)
            return reader

        steps = read_steps(fields, reader_of, self._limits)
        requests = [(name, step) for name, step in steps.items() if isinstance(step, StepRequest)]
        answers, is_repeated = await self._episodes.steps(call.owner, requests)
        answer_of = iter(answers)
        results = [
            self._metrics.refuse(step)
            if isinstance(step, ApiError)
            else self._answer_or_error(next(answer_of), step.seq, readers[name].is_multi_agent)
            for name, step in steps.items()
        ]
        return Reply(200, encode({"answers": results}), [REPLAYED] if is_repeated else [])

    def _answer_or_error(self, answer: Answer, seq: int | None, is_multi_agent: bool) -> Object:
        try:
            return answer_to_json(answer, seq, is_multi_agent)
        except ApiError as error:
            return self._metrics.refuse(error)

    # Readers.

    def _make_reader(self, readers: Mapping[AgentID, JsonReaders]) -> MessageReader:
        return MessageReader(readers, self._limits, self._episodes.max_abs, self._episodes.needs_log_prob)

    def _reader_of(self, owner: str, episode_id: str) -> MessageReader:
        """Return what reads the requests about an episode, by the spaces of its policies."""
        request = self._episodes.book.request_of(owner, episode_id)
        if request is None or request.policies is None:
            return self._reader
        return self._make_reader({agent: self._policy_readers[name] for agent, name in request.policies.items()})
