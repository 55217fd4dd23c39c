"""Policies as files: `NAME.json` says what acts, `NAME.safetensors` has its parameters. No code, nothing pickled.

A policy can be read without its environment, its training and the modules that a run names: the reader gives the class
of the agent, and the shapes follow from the description.
"""

import contextlib
import dataclasses
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.configuration import from_mapping, to_mapping
from rookery.errors import InvalidInputError, RookeryError
from rookery.runs.checkpoint import Checkpoint
from rookery.runs.documents import read_json
from rookery.runs.files import read_bytes
from rookery.spaces import Space, from_json, to_json
from rookery.trust import name_of

FOLDER = "policy"
FORMAT_VERSION = 1
MAX_HEADER_BYTES = 2**20
MAX_JSON_BYTES = 2**26
"""The bounds of a space of images are many numbers."""
BEST_INDIVIDUAL = "best"


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
        parts = [
            quote(self.policy or "policy", safe=""),
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
        return from_mapping(agent, settings, self.agent)


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
    tensors = {name: np.asarray(leaf) for name, leaf in _named_leaves(agent_state).items()}
    return {
        f"{FOLDER}/{name.stem}.json": json.dumps(description, indent=1).encode(),
        f"{FOLDER}/{name.stem}.safetensors": safetensors.numpy.save(tensors),
    }


def read_description(folder: Path, stem: str) -> PolicyDescription:
    """Read `NAME.json` in the folder of a checkpoint."""
    path = f"{FOLDER}/{stem}.json"
    data = read_json(folder, path, MAX_JSON_BYTES)
    try:
        if data["format"] > FORMAT_VERSION:
            raise PolicyError(
                f"{folder / path} was written by a newer Rookery (format {data['format']}, this one reads "
                f"{FORMAT_VERSION}): update Rookery."
            )
        return PolicyDescription(
            agent=str(data["agent"]),
            settings=dict(data["settings"]),
            obs_space=from_json(data["obs_space"]),
            action_space=from_json(data["action_space"]),
            env_steps=int(data["env_steps"]),
            about=dict(data["about"]),
        )
    except (LookupError, TypeError, ValueError, InvalidInputError) as error:
        raise PolicyError(f"{folder / path} does not describe a policy: {error!s:.200}.") from None


def read_agent_state(folder: Path, stem: str, description: PolicyDescription, agent: Agent) -> AgentState:
    """Read `NAME.safetensors` in the folder of a checkpoint, as the state of this agent."""
    import safetensors.numpy
    from safetensors import SafetensorError

    def acting_state(key: Any) -> AgentState:
        return agent.acting_part(agent.init(description.obs_space, description.action_space, key))[1]

    template = jax.eval_shape(acting_state, jax.random.key(0))
    expected = _named_leaves(template)
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in expected.values())
    path = f"{FOLDER}/{stem}.safetensors"
    content = read_bytes(folder, path, num_bytes + MAX_HEADER_BYTES)
    try:
        (header_length,) = struct.unpack("<Q", content[:8])
        if header_length > MAX_HEADER_BYTES:
            raise PolicyError(f"{folder / path} has a header of {header_length:,} bytes, at most {MAX_HEADER_BYTES:,}.")
        tensors = safetensors.numpy.load(content)
    except (SafetensorError, struct.error) as error:
        raise PolicyError(f"{folder / path} is damaged: {error!s:.200}.") from None
    kinds = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in expected.items()}
    found = {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in tensors.items()}
    wrong = [f"{name} is missing" for name in kinds if name not in found]
    wrong += [f"{name} is not expected" for name in found if name not in kinds]
    wrong += [
        f"{name} is {found[name]}, expected {kind}" for name, kind in kinds.items() if found.get(name, kind) != kind
    ]
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise PolicyError(f"{folder / path} does not fit {description.agent}: {'; '.join(wrong[:3])}{more}.")
    return jax.tree.unflatten(jax.tree.structure(template), [tensors[name] for name in expected])


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
