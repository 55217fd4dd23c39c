"""Policies as files: `NAME.json` says what acts, `NAME.safetensors` has its parameters. No code, nothing pickled.

A policy can be read without its environment, its training and the modules that a run names: the reader gives the class
of the agent, and the shapes follow from the description.
"""

import contextlib
import dataclasses
import json
import operator
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.configuration import from_mapping, to_mapping
from rookery.errors import InvalidInputError, RookeryError
from rookery.runs.arrays import SAFETENSORS_DTYPES
from rookery.runs.checkpoint import Checkpoint
from rookery.runs.documents import check_bounds, parse_json, read_json
from rookery.runs.files import open_inside
from rookery.spaces import Space, from_json, to_json
from rookery.trust import UntrustedError, name_of

FOLDER = "policy"
FORMAT_VERSION = 2
"""Format 1 has all bounds of spaces as numbers, format 2 has many of them as bytes."""
MAX_HEADER_BYTES = 2**20
MAX_JSON_BYTES = 2**26
"""The bounds of a space of images are many numbers."""
BEST_INDIVIDUAL = "best"
DTYPES = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}


class PolicyError(RookeryError):
    """A policy file cannot be read."""


@dataclass(frozen=True)
class PolicyName:
    """Which policy of a checkpoint: of several policies, of several seeds, the center or the fittest individual."""

    policy: str | None = None
    seed: int | None = None
    individual: str | None = None

    @property
    def stem(self) -> str:
        """The name of the files, without the suffix."""
        policy = quote(self.policy or "policy", safe="")
        parts = [
            re.sub(r"\.(?=(seed|individual)-)", "%2E", policy),  # a name must not look like a seed
            None if self.seed is None else f"seed-{self.seed}",
            None if self.individual is None else f"individual-{self.individual}",
        ]
        return ".".join(filter(None, parts))

    @classmethod
    def of(cls, stem: str) -> "PolicyName":
        """Return the name of the files with this stem; a policy without a name is called `policy`."""
        match = re.fullmatch(r"(.+?)(?:\.seed-(\d+))?(?:\.individual-(\w+))?", stem)
        assert match is not None, "a file has a name"
        policy, seed, individual = match.groups()
        return cls(unquote(policy), None if seed is None else int(seed), individual)


@dataclass(frozen=True)
class PolicyDescription:
    """What `NAME.json` says: the class and settings of the agent, its spaces, and where it comes from."""

    path: Path
    """The file."""
    agent: str
    settings: dict[str, Any]
    """The static fields of the agent that are plain data."""
    obs_space: Space
    action_space: Space
    env_steps: int
    about: dict[str, Any]
    """The method, the environment, versions and the last evaluation."""

    def make_agent(self, agent: type[Agent] | Agent, network: type | str | None = None) -> Agent:
        """Make the agent, given its class and the own class of its network; an agent itself is used as it is."""
        if isinstance(agent, Agent):
            return agent
        settings = dict(self.settings)
        if network is not None:
            config = settings.get("config")
            if not isinstance(config, dict) or config.get("encoder") is None:
                raise InvalidInputError(f"network={network}: the policy has no network of an own class.")
            settings["config"] = config | {"encoder": network}
        with _as_policy_error(self.path):
            return from_mapping(agent, settings, self.agent)

    def state_shape(self, agent: Agent) -> AgentState:
        """Return the shapes of the agent state that acts."""

        def acting_state(key: Any) -> AgentState:
            return agent.acting_part(agent.init(self.obs_space, self.action_space, key))[1]

        with _as_policy_error(self.path):
            return jax.eval_shape(acting_state, jax.random.key(0))


def policy_names(checkpoint: Checkpoint) -> list[PolicyName]:
    """Return the names of the policies in a checkpoint; none if it was written by an older Rookery."""
    pattern = re.compile(rf"{FOLDER}/(.+)\.json")
    return [PolicyName.of(match[1]) for file in checkpoint.files if (match := pattern.fullmatch(file))]


def class_name(agent: Agent) -> str:
    """Return the module and the name of the class of an agent."""
    return name_of(type(agent))


def policy_files(
    name: PolicyName,
    agent: Agent,
    agent_state: AgentState,
    spaces: tuple[Space, Space],
    env_steps: int,
    about: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return the files of a policy by path: what acting needs of an agent."""
    import safetensors.numpy

    agent, agent_state = agent.acting_part(agent_state)
    obs_space, action_space = spaces
    carry = jax.eval_shape(lambda: agent.initial_carry(()))
    description = {
        "format": FORMAT_VERSION,
        "agent": class_name(agent),
        "settings": _settings(agent),
        "obs_space": to_json(obs_space),
        "action_space": to_json(action_space),
        "carry": {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in _named_leaves(carry).items()},
        "env_steps": env_steps,
        "about": dict(about),
    }
    content = json.dumps(description, indent=1).encode()
    if len(content) > MAX_JSON_BYTES:
        raise InvalidInputError(
            f"the bounds of {obs_space} and {action_space} take {len(content):,} bytes in a policy file, at most "
            f"{MAX_JSON_BYTES:,}: use the same bounds for all entries."
        )
    tensors = {name: np.asarray(leaf) for name, leaf in _named_leaves(agent_state).items()}
    return {
        f"{FOLDER}/{name.stem}.json": content,
        f"{FOLDER}/{name.stem}.safetensors": safetensors.numpy.save(tensors),
    }


def read_description(folder: Path, stem: str) -> PolicyDescription:
    """Read `NAME.json` in the folder of a checkpoint."""
    path = folder / FOLDER / f"{stem}.json"
    with _missing_as_policy_error(path):
        data = read_json(folder, f"{FOLDER}/{stem}.json", MAX_JSON_BYTES)
    try:
        version, env_steps = data["format"], data["env_steps"]
        if version > FORMAT_VERSION:
            raise PolicyError(
                f"{path} was written by a newer Rookery (format {version}, this one reads {FORMAT_VERSION}): update "
                "Rookery."
            )
        if type(env_steps) is not int or env_steps < 0:
            raise InvalidInputError(f"env_steps={env_steps!r:.80}: expected an integer of at least 0.")
        return PolicyDescription(
            path=path,
            agent=str(data["agent"]),
            settings=dict(data["settings"]),
            obs_space=from_json(data["obs_space"]),
            action_space=from_json(data["action_space"]),
            env_steps=env_steps,
            about=dict(data["about"]),
        )
    except (LookupError, TypeError, ValueError, InvalidInputError) as error:
        raise PolicyError(f"{path} does not describe a policy: {_sentence(error)}") from None


def read_agent_state(folder: Path, stem: str, description: PolicyDescription, agent: Agent) -> AgentState:
    """Read `NAME.safetensors` in the folder of a checkpoint, as the state of this agent.

    The header is compared with the agent first: only a file that fits is read.
    """
    template = description.state_shape(agent)
    expected = _named_leaves(template)
    path = folder / FOLDER / f"{stem}.safetensors"
    with _missing_as_policy_error(path):
        descriptor = open_inside(folder, f"{FOLDER}/{stem}.safetensors")
    with open(descriptor, "rb") as file:
        starts = _checked_header(file, path, description.agent, expected)
        content = file.read()
    leaves = [np.ndarray(leaf.shape, leaf.dtype, content, starts[name]) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _checked_header(file: IO[bytes], path: Path, agent: str, expected: Mapping[str, Any]) -> dict[str, int]:
    """Return where each tensor begins after the header; raise unless the file has the expected tensors, and no more."""
    file_bytes = os.fstat(file.fileno()).st_size
    try:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if header_bytes > MAX_HEADER_BYTES:
            raise PolicyError(f"{path} has a header of {header_bytes:,} bytes, at most {MAX_HEADER_BYTES:,}.")
        header = parse_json(file.read(header_bytes))
        check_bounds(header)
        header.pop("__metadata__", None)
        found, ranges = {}, {}
        for name, entry in header.items():
            found[name] = f"{DTYPES.get(entry['dtype'], entry['dtype'])}{entry['shape']}"
            ranges[name] = tuple(map(operator.index, entry["data_offsets"]))
    except (struct.error, LookupError, TypeError, ValueError, AttributeError) as error:
        raise PolicyError(f"{path} is damaged: the header of its {file_bytes:,} bytes: {_sentence(error)}") from None
    kinds = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in expected.items()}
    wrong = [f"{name} is missing" for name in kinds if name not in found]
    wrong += [f"{name} is not expected" for name in found if name not in kinds]
    wrong += [
        f"{name} is {found[name]:.80}, expected {kind}" for name, kind in kinds.items() if found.get(name, kind) != kind
    ]
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise PolicyError(f"{path} does not fit {agent}: {'; '.join(wrong[:3])}{more}.")
    sizes = {name: leaf.size * leaf.dtype.itemsize for name, leaf in expected.items()}
    begin = 0
    for name in sorted(ranges, key=lambda name: ranges[name]):
        if ranges[name] != (begin, begin + sizes[name]):
            raise PolicyError(f"{path} is damaged: {name} is at the bytes {ranges[name]!s:.80}, expected {begin}.")
        begin += sizes[name]
    if file_bytes != 8 + header_bytes + begin:
        raise PolicyError(f"{path} is damaged: it has {file_bytes:,} bytes, expected {8 + header_bytes + begin:,}.")
    return {name: start for name, (start, _) in ranges.items()}


@contextlib.contextmanager
def _missing_as_policy_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise PolicyError(f"{path} is missing.") from None


@contextlib.contextmanager
def _as_policy_error(path: Path) -> Iterator[None]:
    """Raise any error of a network that cannot be built as one error that names the file."""
    try:
        yield
    except UntrustedError:
        raise
    except Exception as error:
        raise PolicyError(f"{path} describes an agent that cannot be built: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """Return the first line of the message of an error, with its class if it is not ours."""
    message = (str(error).splitlines() or [""])[0].removesuffix(".")
    return f"{message:.200}." if isinstance(error, RookeryError) else f"{type(error).__name__}: {message:.200}."


def _settings(agent: Agent) -> dict[str, Any]:
    """Return the static fields of an agent that are plain data; an own agent may have others."""
    fields = [field.name for field in dataclasses.fields(agent) if field.init and field.metadata.get("static")]
    settings: dict[str, Any] = {}
    for name, value in to_mapping(agent).items():
        with contextlib.suppress(TypeError):
            if name in fields:
                settings[name] = json.loads(json.dumps(value))
    return settings


def _named_leaves(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
