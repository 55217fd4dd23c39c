"""Policies as files: written, read back, and refused if they are damaged or hostile."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from rookery.agent import Agent, AgentState, RandomAgent
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


@pytest.mark.parametrize("policy", ["left.seed-1", "a.individual-best", "a.seed-1.individual-best", "v1.2", "ü/%2E.."])
@pytest.mark.parametrize(("seed", "individual"), [(None, None), (3, None), (3, "best")])
def test_a_name_is_read_back_from_its_files(policy: str, seed: int | None, individual: str | None) -> None:
    name = PolicyName(policy, seed, individual)
    assert PolicyName.of(name.stem) == name


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
        {"env_steps": float("inf")},
        {"env_steps": -1},
        {"format": None},
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
    change_description(folder, format=3)
    with pytest.raises(PolicyError, match="update Rookery"):
        read(folder)


def box(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"type": "Box", "shape": list(shape), "dtype": dtype, "low": 0, "high": 1}


@pytest.mark.parametrize(
    "changes",
    [
        *({"settings": {"config": {"hidden_sizes": sizes}}} for sizes in ([2**31], [2**62], [2**31] * 2, [10] * 500)),
        {"settings": {"config": {"core": "gru", "core_size": 2**62}}},
        {"obs_space": {"type": "Discrete", "n": 2**62, "start": 0, "dtype": "int64"}},
        {"obs_space": {"type": "MultiDiscrete", "shape": [3], "nvec": 2**60, "start": 0, "dtype": "int64"}},
        {"obs_space": {"type": "MultiDiscrete", "shape": [2**20], "nvec": 2, "start": 0, "dtype": "int64"}},
        {"action_space": {"type": "MultiDiscrete", "shape": [2**10, 2], "nvec": 2**30, "start": 0, "dtype": "int64"}},
        {"action_space": box(2**20)},
        {"obs_space": box(0)},
        *({"obs_space": box(4, dtype=dtype)} for dtype in ("bfloat16", "longdouble", ">f4")),
        {"obs_space": {"type": "Tuple", "spaces": [box(2**26, dtype="float64")] * 2}},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_small_file_of_a_huge_policy_is_one_quick_error(folder: Path, changes: dict[str, Any]) -> None:
    change_description(folder, **changes)
    start = time.monotonic()
    with pytest.raises(PolicyError, match=str(folder)):
        read(folder)
    assert time.monotonic() - start < 5.0


def test_each_fault_of_a_header_is_one_error(folder: Path) -> None:
    path = folder / PARAMETERS
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    name = next(iter(header))
    begin, end = header[name]["data_offsets"]
    for wrong in (
        {"dtype": "F8_E4M3", "shape": [end - begin]},
        {"dtype": "BF16", "shape": [(end - begin) // 2]},
        *({"dtype": dtype} for dtype in ("F4", [], None)),
        *({"data_offsets": offsets} for offsets in ([0, 2**40], [-4, 0], [0], [0.0, 4.0], [0, 10**400], None)),
        {"shape": [2**40]},
    ):
        changed = json.dumps(header | {name: header[name] | wrong}).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + tensors)
        with pytest.raises(PolicyError):
            read(folder)
    for faulty in ([], {name: 3}, {name: {}}):
        changed = json.dumps(faulty).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + tensors)
        with pytest.raises(PolicyError):
            read(folder)


def test_a_file_with_bytes_after_its_tensors_is_refused(folder: Path) -> None:
    path = folder / PARAMETERS
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(PolicyError, match="bytes"):
        read(folder)


def test_missing_files_are_named(folder: Path) -> None:
    for path in (PARAMETERS, DESCRIPTION):
        (folder / path).unlink()
        with pytest.raises(PolicyError, match=f"{path} is missing"):
            read(folder)


def test_a_policy_of_format_1_is_read(folder: Path) -> None:
    change_description(folder, format=1)
    assert read(folder)


def test_a_policy_with_own_bounds_for_each_pixel_is_read_back(tmp_path: Path) -> None:
    low, high = np.random.default_rng(0).uniform(size=(2, 500, 500, 4)).astype(np.float32)
    space, agent = Box(low - 1, high), RandomAgent()
    (tmp_path / "policy").mkdir()
    state = agent.init(space, ACTIONS, jax.random.key(0))
    for path, content in policy_files(PolicyName(), agent, state, (space, ACTIONS), 0, {}).items():
        (tmp_path / path).write_bytes(content)
    assert read_description(tmp_path, "policy").obs_space == space
