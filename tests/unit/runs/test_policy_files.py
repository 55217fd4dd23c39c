"""Policies as files: written, read back, and refused if they are damaged or hostile."""

import json
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from rookery.agent import Agent, AgentState
from rookery.agents.policy import PolicyAgent
from rookery.algorithms.dqn import DQNAgent
from rookery.algorithms.ppo import PPOAgent
from rookery.algorithms.td3 import TD3Agent
from rookery.errors import RookeryError
from rookery.networks import ActorCriticConfig
from rookery.runs.policy_files import (
    PolicyError,
    PolicyName,
    policy_files,
    read_agent_state,
    read_description,
)
from rookery.spaces import Box, Dict, Discrete, Space

OBS, ACTIONS = Dict(a=Box(-1.0, 1.0, (4,)), b=Discrete(3)), Box(-2.0, 2.0, (2,))
PARAMETERS = "policy/policy.safetensors"
DESCRIPTION = "policy/policy.json"


def write(folder: Path, agent: Agent, action_space: Space = ACTIONS) -> AgentState:
    agent_state = agent.init(OBS, action_space, jax.random.key(1))
    (folder / "policy").mkdir(exist_ok=True)
    for path, content in policy_files(PolicyName(), agent, agent_state, (OBS, action_space), 12, {"env": "x"}).items():
        (folder / path).write_bytes(content)
    return agent.acting_part(agent_state)[1]


@pytest.mark.parametrize(
    ("agent", "agent_class", "action_space"),
    [
        (PPOAgent(normalize_obs=True), PolicyAgent, ACTIONS),
        (PPOAgent(config=ActorCriticConfig(core="lstm", core_size=8)), PolicyAgent, Discrete(3)),
        (TD3Agent(), TD3Agent, ACTIONS),
        (DQNAgent(), DQNAgent, Discrete(3)),
    ],
    ids=["ppo", "lstm", "td3", "dqn"],
)
def test_what_acts_is_read_back_to_the_bit(
    tmp_path: Path, agent: Agent, agent_class: type[Agent], action_space: Space
) -> None:
    written = write(tmp_path, agent, action_space)
    description = read_description(tmp_path, "policy")
    assert description.agent == f"{agent_class.__module__}:{agent_class.__qualname__}"
    assert (description.obs_space, description.action_space, description.env_steps) == (OBS, action_space, 12)
    made = description.make_agent(agent_class)
    read = read_agent_state(tmp_path, "policy", description, made)
    assert jax.tree.structure(read) == jax.tree.structure(written)
    assert all(map(np.array_equal, jax.tree.leaves(read), jax.tree.leaves(written)))


def test_critics_are_not_written(tmp_path: Path) -> None:
    for agent in (PPOAgent(), TD3Agent()):
        write(tmp_path, agent)
        tensors = safetensors.numpy.load((tmp_path / PARAMETERS).read_bytes())
        assert tensors
        assert not [name for name in tensors if "critic" in name or "value" in name]


def test_names_of_policies_are_names_of_files() -> None:
    assert PolicyName().stem == "policy"
    assert PolicyName("../../x", None, None).stem == "..%2F..%2Fx"
    assert PolicyName(None, 3, "best").stem == "policy.seed-3.individual-best"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, PPOAgent())
    return tmp_path


def read(folder: Path) -> AgentState:
    description = read_description(folder, "policy")
    return read_agent_state(folder, "policy", description, description.make_agent(PolicyAgent))


def change_description(folder: Path, **changes: Any) -> None:
    path = folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_extra_and_misshapen_tensors_are_named(folder: Path) -> None:
    path = folder / PARAMETERS
    tensors = safetensors.numpy.load(path.read_bytes())
    name = next(name for name in tensors if tensors[name].ndim == 2)
    without = {other: tensor for other, tensor in tensors.items() if other != name}
    for changed, message in [
        (without, f"{name} is missing"),
        ({**tensors, "more": np.zeros(3)}, "more is not expected"),
        ({**tensors, name: tensors[name][1:].copy()}, f"{name} is float32"),
        ({**tensors, name: tensors[name].astype(np.float64)}, f"{name} is float64"),
    ]:
        path.write_bytes(safetensors.numpy.save(changed))
        with pytest.raises(RookeryError, match=message.replace("[", r"\[")):
            read(folder)


def test_a_header_of_more_than_a_megabyte_is_refused(folder: Path) -> None:
    (folder / PARAMETERS).write_bytes(struct.pack("<Q", 2**21) + b"{" + b" " * 1000)
    with pytest.raises(PolicyError, match="header"):
        read(folder)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, struct.pack("<Q", 2) + b"{}x"])
def test_a_damaged_file_is_one_error(folder: Path, content: bytes) -> None:
    (folder / PARAMETERS).write_bytes(content)
    with pytest.raises(PolicyError):
        read(folder)


def test_a_file_larger_than_its_agent_is_not_read(folder: Path) -> None:
    (folder / PARAMETERS).write_bytes(b"\0" * 2**22)
    with pytest.raises(RookeryError, match="bytes"):
        read(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"agent": None, "settings": [1]},
        {"obs_space": {"type": "Box"}},
        {"env_steps": "many"},
        {"about": 3},
        {"format": "new"},
    ],
    ids=str,
)
def test_a_description_of_no_policy_is_one_error(folder: Path, changes: dict[str, Any]) -> None:
    change_description(folder, **changes)
    with pytest.raises(RookeryError):
        read(folder)


def test_settings_that_no_agent_has_are_one_error(folder: Path) -> None:
    change_description(folder, settings={"config": {"hidden_sizes": ["x"]}})
    with pytest.raises(RookeryError, match="hidden_sizes"):
        read(folder)
    change_description(folder, settings={"more": 1})
    with pytest.raises(RookeryError, match="more"):
        read(folder)


def test_a_newer_format_says_what_to_do(folder: Path) -> None:
    change_description(folder, format=2)
    with pytest.raises(PolicyError, match="update Rookery"):
        read(folder)
