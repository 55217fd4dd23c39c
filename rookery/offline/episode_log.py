"""Logs of episodes, `rookery-log/1`: a folder of JSON lines to which any language can append.

`header.json` has the spaces. A line of `NAME-00001.jsonl` is a step of an agent: its observation, its action, and the
reward that this action led to. The last line of an episode has an observation and no action.
"""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.json_values import JsonReader, JsonValueError, as_json, json_reader
from rookery.runners.envs.agent_spaces import AgentSpaces, agent_spaces_from_json, agent_spaces_to_json
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, End
from rookery.runners.envs.vector_env import rows_of
from rookery.runners.recording.episode import Episode
from rookery.runs.files import write_atomically

FORMAT = "rookery-log/1"
HEADER = "header.json"
MAX_BYTES = 256 * 2**20
"""The size of a file after which another is begun."""
SYNC_SECONDS = 5.0
"""The first line after this time forces the log to the disk."""
MAX_T = 2**53
"""Above every step: not all languages have larger exact integers."""
FILE_NAME = re.compile(r".+-(\d{5,})\.jsonl")


class EpisodeLog:
    """Writes steps of episodes to a folder. It appends to no file that is there already."""

    def __init__(
        self,
        folder: Path,
        spaces: AgentSpaces,
        name: str = "served",
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._name, self._max_bytes, self._clock = folder, name, max_bytes, clock
        folder.mkdir(parents=True, exist_ok=True)
        header = {"format": FORMAT} | agent_spaces_to_json(spaces)
        path = folder / HEADER
        if not path.exists():
            write_atomically(path, json.dumps(header))
        elif _read_json(path) != header:
            raise InvalidInputError(f"{path} describes other spaces: choose another folder for this log.")
        self._open_next()

    def write(
        self,
        episode: str,
        t: int,
        agent: AgentID | None,
        obs: Any,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        log_prob: float | None,
        policy: str | None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a step with the reward of its action; the last one of an episode has no action (None).

        `info` is what is kept with the episode: give it with its first step.
        """
        line: dict[str, Any] = {"episode": episode, "t": t, "obs": as_json(obs)}
        if agent is not None:
            line["agent"] = agent
        if action is not None:
            line |= {"action": as_json(action), "reward": float(reward)}
        line |= {"terminated": bool(terminated), "truncated": bool(truncated)}
        more = {"log_prob": log_prob, "policy": policy, "info": info}
        line |= {name: value for name, value in more.items() if value is not None}
        rest = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        start = self._file.tell()
        try:
            while rest:  # a full disk takes a part
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.seek(start)
            self._file.truncate()
            raise
        if self._clock() - self._synced_at >= SYNC_SECONDS:
            self.sync()
        if self._file.tell() >= self._max_bytes:
            self.close()
            self._open_next()

    def sync(self) -> None:
        """Let all that was written survive a crash of the machine."""
        os.fsync(self._file.fileno())
        self._synced_at = self._clock()

    def close(self) -> None:
        """Let all that was written survive a crash of the machine, and close the file. May be called twice."""
        if not self._file.closed:
            with self._file:
                self.sync()

    def _open_next(self) -> None:
        found = (FILE_NAME.fullmatch(path.name) for path in self._folder.glob(f"{self._name}-*.jsonl"))
        number = max([int(match[1]) for match in found if match], default=0) + 1
        self._file = open(self._folder / f"{self._name}-{number:05d}.jsonl", "xb", buffering=0)  # noqa: SIM115
        self._synced_at = self._clock()


@dataclass(frozen=True)
class ReadLog:
    """The episodes of a log, and what was left out of it."""

    spaces: AgentSpaces
    episodes: Mapping[AgentID, Sequence[Episode]]
    """The episodes of each agent. Their `extras` have `log_prob` if all of their steps have it."""
    counts: Counter[str]
    """`torn` lines, `doubled` steps, `gaps` at which an episode was split, and `open` steps without a successor."""


def read_log(folder: Path | str) -> ReadLog:
    """Read all episodes of a log; a wrong line is an error that names its file, episode and step.

    Episodes may interleave and files come in any order. The last line of a file may be torn. A gap splits an episode,
    whose first part is then truncated. An episode that ends with neither flag is truncated, too.
    """
    folder = Path(folder)
    header = _read_json(folder / HEADER)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidInputError(f"{folder / HEADER} is no header of {FORMAT}.")
    described = {name: part for name, part in header.items() if name != "format"}
    spaces, counts = agent_spaces_from_json(described, str(folder / HEADER)), Counter[str]()
    readers = {agent: (json_reader(obs, action), json_reader(action)) for agent, (obs, action) in spaces.items()}
    steps: dict[tuple[AgentID, str], dict[int, _Step]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for where, line in _lines_of(path, counts):
            step = _step_of(line, where, readers)
            kept = steps.setdefault((step.agent, step.episode), {}).setdefault(step.t, step)
            if kept is not step:
                counts["doubled"] += 1
                if kept.line != step.line:
                    raise InvalidInputError(
                        f"{where}: step {step.t} of episode {step.episode!r} is there twice, with other content: "
                        f"the first is in {kept.where}."
                    )
    episodes: dict[AgentID, list[Episode]] = {agent: [] for agent in spaces}
    for number, ((agent, _), found) in enumerate(steps.items()):
        for part in _parts_of([found[t] for t in sorted(found)], counts):
            episode = _episode_of(part, number, counts)
            if episode is not None:
                episodes[agent].append(episode)
    return ReadLog(spaces, episodes, counts)


@dataclass(frozen=True)
class _Step:
    agent: AgentID
    episode: str
    t: int
    obs: Any
    action: Any
    reward: float
    end: End
    log_prob: float | None
    line: Mapping[str, Any]
    where: str


def _lines_of(path: Path, counts: Counter[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the lines of a file and where they are; the last may be torn."""
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines, start=1):
        where, is_last = f"{path} line {number}", number == len(lines)
        if is_last:
            counts["torn"] += bool(text)
            continue
        try:
            line = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{where} is no JSON: {error}.") from None
        if not isinstance(line, dict):
            raise InvalidInputError(f"{where}: {line!r:.80} is no step: expected an object.")
        yield where, line


def _step_of(line: Mapping[str, Any], where: str, readers: Mapping[AgentID, tuple[JsonReader, JsonReader]]) -> _Step:
    agent, episode, t = line.get("agent", SINGLE_AGENT), line.get("episode"), line.get("t")
    if not isinstance(episode, str) or type(t) is not int or not 0 <= t < MAX_T:
        raise InvalidInputError(f"{where}: expected a string `episode` and an integer `t` from 0, got {line!r:.120}.")
    where = f"{where}, episode {episode!r}, t={t}"
    if not isinstance(agent, str) or agent not in readers:
        raise InvalidInputError(f"{where}: there is no agent {agent!r}: the agents are {list(readers)}.")
    obs_reader, action_reader = readers[agent]
    reward, log_prob = (_number(line.get(name), name, where) for name in ("reward", "log_prob"))
    has_action = line.get("action") is not None
    if has_action and reward is None:
        raise InvalidInputError(f"{where}: an action without its reward.")
    end = End.RUNNING
    for flag, meaning in (("truncated", End.TRUNCATED), ("terminated", End.TERMINATED)):
        if type(line.get(flag, False)) is not bool:
            raise InvalidInputError(f"{where}: {flag}={line[flag]!r:.80} must be true or false.")
        end = meaning if line.get(flag) else end
    try:
        obs = obs_reader.read(line.get("obs"), "obs")
        action = action_reader.read(line["action"], "action") if has_action else None
    except JsonValueError as error:
        raise InvalidInputError(f"{where}: {error}") from None
    return _Step(agent, episode, t, obs, action, reward or 0.0, end, log_prob, line, where)


def _parts_of(steps: Sequence[_Step], counts: Counter[str]) -> Iterator[Sequence[_Step]]:
    """Yield the steps between gaps; a step without an action is one, if it is not the last."""
    start = 0
    for index, step in enumerate(steps):
        if index and (step.t != steps[index - 1].t + 1 or steps[index - 1].action is None):
            counts["gaps"] += 1
            yield steps[start:index]
            start = index
    yield steps[start:]


def _episode_of(steps: Sequence[_Step], number: int, counts: Counter[str]) -> Episode | None:
    """Return consecutive steps as an episode; None without a complete one."""
    for step in steps[:-2]:
        if step.end is not End.RUNNING:
            raise InvalidInputError(f"{step.where}: the episode goes on after its end.")
    end = End.TERMINATED if End.TERMINATED in [step.end for step in steps[-2:]] else End.TRUNCATED
    last, acting = steps[-1], [step for step in steps if step.action is not None]
    if last.action is not None and last.end is End.TERMINATED:  # its successor is not needed
        steps = [*steps, last]
    elif last.action is not None:
        counts["open"] += 1
        acting = acting[:-1]
    if not acting:
        return None
    log_probs = [step.log_prob for step in acting]
    return Episode(
        id=number,
        observations=rows_of([step.obs for step in steps]),
        actions=rows_of([step.action for step in acting]),
        rewards=np.array([step.reward for step in acting]),
        times=np.arange(steps[0].t, steps[0].t + len(steps)),
        end=end,
        extras={} if None in log_probs else {"log_prob": np.array(log_probs, np.float32)},
    )


def _number(value: Any, name: str, where: str) -> float | None:
    """Return a number of a line, None without it; raise if it is not finite."""
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # false for NaN, too
        raise InvalidInputError(f"{where}: {name}={value!r:.80} must be a finite number.")
    return float(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from None
