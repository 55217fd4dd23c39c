"""Loading the agent of a run: its leaves and no others, from every format of checkpoints."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.runs.checkpoint import Checkpoint, CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.load_agent import load_agent
from rookery.types import PyTreeData, PyTreeDict
from tests.checkpoint_files import write_by_orbax


class Evolution(PyTreeData):
    best_params: Any
    best_fitness: np.ndarray


class Learner(PyTreeData):
    """The state of a learner; format 1 saved its fields as those of the whole state."""

    agent_state: Any = None
    agent_state_of_last_week: Any = None
    buffer_state: Any = None
    evo_state: Any = None
    policies: Any = None


class Training(PyTreeData):
    learner: Learner
    source_state: Any


def agent_state(seed: int = 0, num_seeds: int | None = None) -> AgentState:
    rng = np.random.default_rng(seed)
    shape = () if num_seeds is None else (num_seeds,)
    return AgentState(
        params=PyTreeDict(kernel=rng.normal(size=(*shape, 3, 2)), bias=rng.normal(size=(*shape, 2)).astype(np.float32)),
        obs_preprocessor_state=rng.normal(size=(*shape, 3)),
    )


def template() -> AgentState:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), agent_state())


def assert_same(loaded: Any, saved: Any) -> None:
    assert jax.tree.structure(loaded) == jax.tree.structure(saved)
    jax.tree.map(np.testing.assert_array_equal, loaded, saved)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"agent": {"name": "ppo"}})


@pytest.fixture(params=[1, 2, 3, 4], ids="format_{}".format)
def save(request: pytest.FixtureRequest, run: RunDirectory) -> Any:
    """Save the state of a learner in one of the formats, with the metrics and environments that a run has."""

    def save(step: int = 64, **fields: Any) -> None:
        learner = Learner(buffer_state=np.zeros((1000, 3)), **fields)
        state = learner if request.param == 1 else Training(learner=learner, source_state=np.ones(7))
        path = Checkpoints(run.checkpoints_path).save((state, {"loss": np.float32(0.5)}), step, {})
        if request.param < 4:
            write_by_orbax(path, request.param)

    return save


def test_the_agent_comes_back_without_the_rest_of_the_state(
    run: RunDirectory, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(agent_state=agent_state(3), agent_state_of_last_week=agent_state(4))
    num_read, read_arrays = [], Checkpoint._arrays

    def read(checkpoint: Checkpoint, leaves: Any) -> dict[str, np.ndarray]:
        arrays = read_arrays(checkpoint, leaves)
        num_read.append(len(arrays))
        return arrays

    monkeypatch.setattr(Checkpoint, "_arrays", read)
    loaded = load_agent(run, template())
    assert_same(loaded.agent_states, [agent_state(3)])
    assert loaded.env_steps == 64
    assert num_read == [len(jax.tree.leaves(template()))]


def test_a_checkpoint_is_chosen_by_its_step(run: RunDirectory, save: Any) -> None:
    for step in (32, 64):
        save(step, agent_state=agent_state(step))
    loaded = load_agent(run, template(), step=32)
    assert_same(loaded.agent_states, [agent_state(32)])
    assert loaded.env_steps == 32


def test_every_seed_has_its_agent(run: RunDirectory, save: Any) -> None:
    of_all = agent_state(num_seeds=3)
    save(agent_state=of_all)
    loaded = load_agent(run, template(), num_seeds=3)
    assert_same(loaded.agent_states, [jax.tree.map(lambda leaf, seed=seed: leaf[seed], of_all) for seed in range(3)])


def test_every_policy_has_its_agent(run: RunDirectory, save: Any) -> None:
    states = PyTreeDict({"adversary": agent_state(1), "it's": agent_state(2)})
    save(policies=PyTreeDict({policy: Learner(agent_state=state) for policy, state in states.items()}))
    loaded = load_agent(run, PyTreeDict(dict.fromkeys(states, template())))
    assert_same(loaded.agent_states, [states])


def test_the_best_individual_has_its_parameters_and_the_statistics_of_the_center(run: RunDirectory, save: Any) -> None:
    center, best_params = agent_state(1), agent_state(2).params
    save(agent_state=center, evo_state=Evolution(best_params=best_params, best_fitness=np.float32(9.0)))
    assert_same(load_agent(run, template(), best_individual=True).agent_states, [center.replace(params=best_params)])
    assert_same(load_agent(run, template()).agent_states, [center])


@pytest.mark.parametrize(
    ("saved", "difference"),
    [
        (agent_state().replace(obs_preprocessor_state=None), r"it has no .*\.agent_state\.obs_preprocessor_state"),
        (agent_state().replace(extra_state=np.ones(2)), r"it has .*\.agent_state\.extra_state, which is not expected"),
        (agent_state(num_seeds=2), r".*\.agent_state\.params\['bias'\] is float32\[2, 2\], expected float32\[2\]"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_an_agent_of_another_structure_is_one_error_that_names_the_leaf(
    saved: AgentState, difference: str, run: RunDirectory, save: Any
) -> None:
    save(agent_state=saved)
    with pytest.raises(CheckpointError, match=rf"^checkpoint 64 belongs to another config or version: {difference}"):
        load_agent(run, template())


def test_a_damaged_checkpoint_is_not_read(run: RunDirectory, save: Any) -> None:
    save(agent_state=agent_state())
    file = next(path for path in run.checkpoints_path.rglob("*") if path.is_file() and path.name != "manifest.json")
    file.write_bytes(file.read_bytes() + b"!")
    with pytest.raises(CheckpointError, match=r"checkpoint 64 is damaged: .* no checkpoint is intact"):
        load_agent(run, template())
