"""The messages of the protocol `/v1`: JSON to requests of the episode book, its answers to JSON."""

import re
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.errors import missing_extra, nearest_names, shortened
from rookery.json_values import JsonReader, JsonValueError, json_reader
from rookery.runners.envs.base_env import EPISODE_INFO, SINGLE_AGENT, SUCCESS_INFO, AgentID, End
from rookery.runners.envs.episode_messages import (
    Acted,
    Answer,
    Code,
    Ended,
    Mode,
    Refused,
    Report,
    StartRequest,
    StepRequest,
)
from rookery.runners.envs.validation import row_of
from rookery.serving.limits import Limits
from rookery.serving.routes import AGENT_FIELDS, EPISODE_ID, START_FIELDS, STEP_FIELDS, names_of
from rookery.spaces import Box, Space

try:
    import orjson
except ImportError:
    raise missing_extra("orjson", "serve") from None

MAX_LEASE = 3600.0
MAX_AGENTS = 64
"""The number of agents whose policies an episode chooses."""
MAX_INFO_BYTES = 16 * 2**10
RECORDED_INFO = (EPISODE_INFO, SUCCESS_INFO)
"""What the record takes of the info of a step."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
STATUSES = {
    Code.FULL: 429,
    Code.TAKEN: 409,
    Code.UNKNOWN: 404,
    Code.OVER: 410,
    Code.PENDING: 503,
    Code.SEQUENCE: 409,
    Code.AGENT: 422,
    Code.REWARD: 422,
    Code.CLOSED: 503,
    Code.POLICY_FAULT: 500,
}
"""The HTTP status of what the episode book refuses."""
RETRIED = {408, 429, 503}
"""The statuses after which a request may be repeated."""
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE

Object = dict[str, Any]

MODES = frozenset(Mode)
ID = re.compile(EPISODE_ID)
ARRAY_NAME = re.compile(b'"%b"' % b"".join(rb"(?:%c|\\u%04x)" % (letter, letter) for letter in b"base64"))
"""The name "base64" in JSON, in which each letter may be escaped."""
START_NAMES, STEP_NAMES, AGENT_NAMES = map(names_of, (START_FIELDS, STEP_FIELDS, AGENT_FIELDS))
TEAM_NAMES = STEP_NAMES - {"obs", "reward", "action", "log_prob", "info"}
STEPS_NAMES = frozenset({"steps", "obs"})


class ApiError(Exception):
    """A request that is refused: an HTTP status, a code for programs, a message for people."""

    def __init__(
        self, status: int, code: str, message: str, where: str | None = None, expected: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.expected = status, code, message, where, expected

    @classmethod
    def of(cls, refused: Refused) -> "ApiError":
        """Make the error for what the episode book has refused."""
        return cls(STATUSES[refused.code], refused.code, refused.message, expected=refused.expected)

    @property
    def may_be_repeated(self) -> bool:
        return self.status in RETRIED

    def to_json(self, error_id: str) -> Object:
        """Return the answer to the client; the log has the id too."""
        error: Object = {"code": self.code, "message": self.message, "id": error_id}
        if self.where is not None:
            error["where"] = self.where
        if self.expected is not None:
            error["expected"] = self.expected
        return {"error": error}


def encode(value: Any) -> bytes:
    """Return JSON; arrays become lists."""
    return orjson.dumps(value, default=_as_list, option=JSON_OPTIONS)


def decode(body: bytes, limits: Limits) -> Object:
    """Return the object in a body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "json", f"the body is not JSON: {shortened(str(error))}") from None
    if type(value) is not dict:
        raise ApiError(422, "type", "the body must be an object.")
    if len(ARRAY_NAME.findall(body)) > limits.num_arrays:
        raise ApiError(422, "num_arrays", f"the body has more than {limits.num_arrays} binary arrays.")
    return value


class JsonReaders(NamedTuple):
    """Read the observations and the actions of an agent."""

    obs: JsonReader
    action: JsonReader


def json_readers(spaces: tuple[Space, Space], max_abs: float | None = None) -> JsonReaders:
    """Return the readers of an observation space and an action space."""
    return JsonReaders(json_reader(*spaces, max_abs), json_reader(spaces[1], None, max_abs))


class MessageReader:
    """Reads the steps of episodes with these agents."""

    def __init__(
        self,
        readers: Mapping[AgentID, JsonReaders],
        limits: Limits,
        max_abs: float | None = None,
        needs_log_prob: Callable[[], bool] = lambda: False,
    ) -> None:
        self._limits = limits
        self._max_abs = FLOAT32_MAX if max_abs is None else max_abs
        self._needs_log_prob = needs_log_prob
        self._agents = {str(agent): agent for agent in readers}
        self.readers = readers
        self.is_multi_agent = set(readers) != {SINGLE_AGENT}

    def step(self, fields: Object, where: str = "") -> StepRequest:
        """Read a step."""
        request = self.step_of_json(fields, where)
        for agent, report in request.reports.items():
            if report.obs is not None:
                report.obs = self.readers[agent].obs.read(report.obs, self.place(agent, where))
        return request

    def step_of_json(self, fields: Object, where: str) -> StepRequest:
        """Read a step, but for its observations, which remain JSON."""
        check_names(fields, STEP_NAMES, where)
        seq = fields.get("seq")
        if seq is not None and not (type(seq) is int and seq >= 0):
            raise ApiError(422, "type", f"seq is {seq!r:.80}; expected an integer from 0.", f"{where}seq")
        end = _end(fields, where)
        if self.is_multi_agent:
            reports = self._reports(fields, where)
            asks = any(report.obs is not None or report.end is not End.RUNNING for report in reports.values())
        elif "agents" in fields:
            raise ApiError(422, "agent", "there is one agent: give its fields without `agents`.", f"{where}agents")
        else:
            reports = {SINGLE_AGENT: self._report(SINGLE_AGENT, fields, end, where)}
            asks = fields.get("obs") is not None
        return StepRequest(reports, end, asks, seq, 0 if seq is None else zlib.crc32(_dumps(fields)))

    def place(self, agent: AgentID, where: str) -> str:
        """Return the place of the observation of an agent in a request."""
        return f"{where}agents.{agent}.obs" if self.is_multi_agent else f"{where}obs"

    def _reports(self, fields: Object, where: str) -> dict[AgentID, Report]:
        """Read the reports of several agents."""
        check_names(fields, TEAM_NAMES, where, f"with several agents ({', '.join(self._agents)}) it is in `agents`")
        given = _object(fields.get("agents", {}), f"{where}agents")
        reports = {}
        for name, report in given.items():
            if name not in self._agents:
                message = f"there is no agent {shortened(name)!r}: the agents are {', '.join(self._agents)}."
                raise ApiError(422, "agent", message, f"{where}agents")
            agent, place = self._agents[name], f"{where}agents.{name}."
            check_names(_object(report, place[:-1]), AGENT_NAMES, place)
            end = _end(report, place)
            reports[agent] = self._report(agent, report, end, place)
            reports[agent].end = end
        return reports

    def _report(self, agent: AgentID, fields: Object, end: End, where: str) -> Report:
        obs, action, info = fields.get("obs"), fields.get("action"), fields.get("info")
        report = Report(obs)
        if "reward" in fields:
            report.reward = _number(fields["reward"], f"{where}reward", self._max_abs)
        if action is not None or "log_prob" in fields:
            if action is None or obs is None or end is not End.RUNNING:
                message = "an action needs the observation on which it was chosen, and log_prob an action."
                raise ApiError(422, "action", message, f"{where}action")
            report.action = self.readers[agent].action.read(action, f"{where}action")
            report.log_prob = self._log_prob(fields, where)
        if info is not None:
            info = _info(info, self._limits, f"{where}info")
            report.info = {name: info[name] for name in RECORDED_INFO if name in info}
        return report

    def _log_prob(self, fields: Object, where: str) -> float | None:
        if fields.get("log_prob") is not None:
            return _number(fields["log_prob"], f"{where}log_prob")
        if self._needs_log_prob():
            message = (
                "the method that trains compares probabilities: give log_prob, the log-probability with which the "
                "simulator chose the action."
            )
            raise ApiError(422, "log_prob_needed", message, f"{where}log_prob")
        return None


def read_steps(
    fields: Object, reader_of: Callable[[str], MessageReader], limits: Limits
) -> dict[str, StepRequest | ApiError]:
    """Read the steps of many episodes, by episode, in their order; an error costs its own step."""
    check_names(fields, STEPS_NAMES, "")
    entries = fields.get("steps")
    if type(entries) is not list or len(entries) > limits.num_steps:
        given = f"{len(entries)} steps" if type(entries) is list else _shown(entries)
        raise ApiError(422, "num_steps", f"steps is {given}; expected a list of at most {limits.num_steps}.", "steps")
    batch = _StepBatch(fields.get("obs"), len(entries))
    for index, entry in enumerate(entries):
        batch.add(index, entry, reader_of)
    return batch.checked()


class _Unread(NamedTuple):
    """An observation that remains JSON."""

    episode_id: str
    report: Report
    reader: MessageReader
    agent: AgentID
    where: str


class _StepBatch:
    """Steps of many episodes, whose observations are read together."""

    def __init__(self, obs: Any, num_steps: int) -> None:
        if type(obs) is list and len(obs) != num_steps:
            raise ApiError(422, "shape", f"obs has {len(obs)} rows for {num_steps} steps.", "obs")
        self._obs, self._num_steps = obs, num_steps
        self._arrays: dict[JsonReader, Any] = {}
        """The observations outside of the steps, or why they are refused, by the space that they were read for."""
        self._steps: dict[str, StepRequest | ApiError] = {}
        self._unread: dict[JsonReader, list[_Unread]] = {}

    def add(self, index: int, entry: Any, reader_of: Callable[[str], MessageReader]) -> None:
        """Read a step, but for its observations."""
        where, episode_id = f"steps[{index}].", f"#{index}"
        try:
            fields = dict(_object(entry, where[:-1]))
            episode_id = self._new_episode(fields.pop("episode", None), where)
            reader = reader_of(episode_id)
            row = None if self._obs is None else self._insert_row(fields, index, reader, where)
            request = reader.step_of_json(fields, where)
            for agent, report in request.reports.items():
                if row is not None:
                    report.obs = row
                elif report.obs is not None:
                    unread = self._unread.setdefault(reader.readers[agent].obs, [])
                    unread.append(_Unread(episode_id, report, reader, agent, where))
            self._steps[episode_id] = request
        except (ApiError, JsonValueError) as error:
            self._steps[episode_id] = as_api_error(error)

    def checked(self) -> dict[str, StepRequest | ApiError]:
        """Read the observations; return the steps."""
        for reader, unread in self._unread.items():
            try:
                rows = reader.read_rows([part.report.obs for part in unread], str)
            except JsonValueError:
                self._check_one_by_one(reader, unread)
            else:
                for index, part in enumerate(unread):
                    part.report.obs = row_of(rows, index)
        return self._steps

    def _check_one_by_one(self, reader: JsonReader, unread: "Sequence[_Unread]") -> None:
        for episode_id, report, messages, agent, where in unread:
            try:
                report.obs = reader.read(report.obs, messages.place(agent, where))
            except JsonValueError as error:
                self._steps[episode_id] = as_api_error(error)

    def _new_episode(self, episode_id: Any, where: str) -> str:
        checked = _episode_id(episode_id, f"{where}episode")
        if checked in self._steps:
            raise ApiError(
                422, "episode", f"episode {checked!r} has a step in this request already.", f"{where}episode"
            )
        return checked

    def _insert_row(self, fields: Object, index: int, reader: MessageReader, where: str) -> Any:
        """Give a step its observation of those that are outside, as JSON or as a row of an array that is returned."""
        if reader.is_multi_agent or "obs" in fields:
            raise ApiError(
                422, "obs", "observations are outside of the steps, of one agent, or in them.", f"{where}obs"
            )
        if type(self._obs) is list:
            fields["obs"] = self._obs[index]
            return None
        row = row_of(self._array(reader.readers[SINGLE_AGENT].obs), index)
        fields["obs"] = [zlib.crc32(leaf.tobytes()) for leaf in jax.tree.leaves(row)]  # for the checksum
        return row

    def _array(self, reader: JsonReader) -> Any:
        """Return the observations outside of the steps, which are read once."""
        if reader not in self._arrays:
            try:
                array, num_rows = reader.read_array(self._obs, "obs")
                if num_rows != self._num_steps:
                    raise ApiError(422, "shape", f"obs has {num_rows} rows for {self._num_steps} steps.", "obs")
                self._arrays[reader] = array
            except (ApiError, JsonValueError) as error:
                self._arrays[reader] = as_api_error(error)
        if isinstance(found := self._arrays[reader], ApiError):
            raise found.with_traceback(None)
        return found


def read_start(fields: Object, default_mode: Mode, explores: bool, lease: float, limits: Limits) -> StartRequest:
    """Read the start of an episode."""
    check_names(fields, START_NAMES, "")
    mode = fields.get("mode", default_mode)
    if not isinstance(mode, str) or mode not in MODES:
        raise ApiError(422, "mode", f"mode is {_shown(mode)}; expected learn, watch or evaluate.", "mode")
    if "lease" in fields:
        lease = _number(fields["lease"], "lease")
        if not 0 < lease <= MAX_LEASE:
            raise ApiError(422, "range", f"lease is {lease:g} s; expected at most {MAX_LEASE:g}.", "lease")
    info = fields.get("info")
    return StartRequest(
        id=_episode_id(fields["episode"], "episode") if "episode" in fields else secrets.token_hex(8),
        mode=Mode(mode),
        lease=lease,
        explore=_explores(fields, Mode(mode), explores),
        policies=_policies(fields.get("policies")),
        info=None if info is None else _info(info, limits, "info"),
    )


def _policies(value: Any) -> dict[AgentID, str] | None:
    """Return the policies of agents that an episode chooses."""
    if value is None:
        return None
    policies: dict[Any, str] = _object(value, "policies")
    are_names = all(ID.fullmatch(agent) and type(name) is str for agent, name in policies.items())
    if not are_names or not 0 < len(policies) <= MAX_AGENTS:
        message = f"policies must be an object {{agent: policy}} of 1 to {MAX_AGENTS} agents."
        raise ApiError(422, "type", message, "policies")
    return policies


def _explores(fields: Object, mode: Mode, default: bool) -> bool:
    """Return whether the actions of an episode are sampled."""
    needed = {Mode.LEARN: True, Mode.EVALUATE: False}.get(mode)
    given = read_flag(fields, "explore", "", default if needed is None else needed)
    if needed is not None and given is not needed:
        raise ApiError(422, "explore", f"mode={mode} explores always or never: leave out explore.", "explore")
    return given


def read_carry(value: Any, template: Any, num_rows: int) -> list[Any]:
    """Read the recurrent states that a client keeps, a list of arrays `[N, ...]`; return that of each row."""
    leaves, treedef = jax.tree.flatten(template)
    if not leaves or type(value) is not list or len(value) != len(leaves):
        expected = f"a list of {len(leaves)} arrays, as an answer has it" if leaves else "none: the policy has no state"
        raise ApiError(422, "carry", f"carry is {_shown(value)}; expected {expected}.", "carry")
    arrays = []
    for index, (part, leaf) in enumerate(zip(value, leaves, strict=True)):
        reader = json_reader(Box(-np.inf, np.inf, leaf.shape[1:], leaf.dtype))
        array, length = reader.read_array(part, f"carry[{index}]")
        if length != num_rows:
            raise ApiError(422, "shape", f"carry has {length} rows; expected {num_rows}, as obs.", "carry")
        arrays.append(array)
    tree = jax.tree.unflatten(treedef, arrays)
    return [row_of(tree, row) for row in range(num_rows)]


def answer_to_json(answer: Answer, seq: int | None, is_multi_agent: bool) -> Object:
    """Return the answer to a step; raise `ApiError` for one that was refused."""
    fields: Object = {} if seq is None else {"seq": seq}
    match answer:
        case Refused():
            raise ApiError.of(answer)
        case Acted():
            if is_multi_agent:
                fields["actions"] = answer.actions
            else:
                fields["action"] = answer.actions.get(SINGLE_AGENT)
            fields["version"] = answer.version
        case Ended():
            fields["ended"] = True
            fields["episode_return"] = answer.episode_return
            fields["episode_length"] = answer.episode_length
    return fields


def as_api_error(error: ApiError | JsonValueError) -> ApiError:
    """Return the refusal of a value that is not in its space."""
    return error if isinstance(error, ApiError) else ApiError(422, error.code, error.message, error.where)


def _as_list(value: Any) -> Any:
    """Return what orjson does not write itself: arrays without axes, or of other layouts."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def check_names(fields: Object, names: frozenset[str], where: str, hint: str = "") -> None:
    """Raise for the first unknown field, and for null, which is no value."""
    if None in fields.values():
        name = next(name for name, value in fields.items() if value is None)[:80]
        raise ApiError(422, "type", f"{name} is null; leave it out, or give its value.", f"{where}{name}")
    if names.issuperset(fields):
        return
    name = next(name for name in fields if name not in names)
    near = nearest_names(name, names)
    advice = hint or (f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(sorted(names))}.")
    raise ApiError(422, "unknown_field", f"there is no field {shortened(name)!r} here: {advice}", f"{where}{name[:80]}")


def _object(value: Any, where: str) -> Object:
    if type(value) is not dict:
        raise ApiError(422, "type", f"{where} is {_shown(value)}; expected an object.", where)
    return value


def read_flag(fields: Object, name: str, where: str, default: bool = False) -> bool:
    """Return true or false."""
    flag = fields.get(name, default)
    if type(flag) is not bool:
        raise ApiError(422, "type", f"{name} is {_shown(flag)}; expected true or false.", f"{where}{name}")
    return flag


def _end(fields: Object, where: str) -> End:
    """Return whether and how an episode or an agent ends; both flags: terminated."""
    if "terminated" not in fields and "truncated" not in fields:
        return End.RUNNING
    is_truncated = read_flag(fields, "truncated", where)
    if read_flag(fields, "terminated", where):
        return End.TERMINATED
    return End.TRUNCATED if is_truncated else End.RUNNING


def _number(value: Any, where: str, max_abs: float = FLOAT32_MAX) -> float:
    """Return a number of limited size, by default of what float32 can hold."""
    if type(value) not in (int, float):
        raise ApiError(422, "type", f"{where} is {_shown(value)}; expected a number.", where)
    if not abs(value) <= max_abs:
        raise ApiError(422, "range", f"{where} is {value:g}; expected at most {max_abs:.3g}.", where)
    return float(value)


def _episode_id(value: Any, where: str) -> str:
    if type(value) is not str or not ID.fullmatch(value):
        raise ApiError(422, "episode", f"{where} is {_shown(value)}; expected an id like {EPISODE_ID}.", where)
    return value


def _info(value: Any, limits: Limits, where: str) -> Object:
    """Return an info, which is of limited depth and size."""
    info = _object(value, where)
    layer: list[Any] = [info]
    for _ in range(limits.json_depth):
        layer = [item for part in layer if isinstance(part, dict | list) for item in _items(part)]
    if layer:
        raise ApiError(422, "depth", f"{where} is nested deeper than {limits.json_depth}.", where)
    if (size := len(_dumps(info))) > MAX_INFO_BYTES:
        raise ApiError(422, "info", f"{where} has {size} bytes; expected at most {MAX_INFO_BYTES}.", where)
    return info


def _items(part: Any) -> Any:
    return part.values() if isinstance(part, dict) else part


def _shown(value: Any) -> str:
    return shortened(_dumps(value).decode())


def _dumps(value: Any) -> bytes:
    """Return JSON that was read before."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise ApiError(422, "depth", "the body is nested too deep.") from None
