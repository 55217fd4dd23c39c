"""A method that declares it computes the same numbers on several cores as on one, to the bit."""

import subprocess
import sys

import pytest

from rookery.evolution.optimizer import block_size, max_same_devices
from rookery.registry import AGENTS, workflow_class
from rookery.workflows.evolution.workflow import ECWorkflow

METHODS = {name: workflow for name in AGENTS if issubclass(workflow := workflow_class(name), ECWorkflow)}
DECLARED = [name for name, workflow in METHODS.items() if workflow.is_same_on_devices]

PROGRAM = """
import sys
import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

from rookery.registry import build_workflow
from rookery.workflows.programs import gather


def two_generations(name, devices):
    network = {"hidden_sizes": [8]}
    num_seeds = 2 if name == "openes" else 1  # seeds are mapped in the same way for all
    agent = {"name": name, "population_size": 48, "num_episodes": 2, "normalize_obs": True, "network": network}
    env = {"name": "classic/pendulum", "episode_length": 10}
    workflow = build_workflow({"agent": agent, "env": env, "num_seeds": num_seeds, "devices": devices, "recorders": []})
    state = workflow.init(workflow.make_key())
    for _ in range(2):
        metrics, state = workflow.step(state)
    search = state.learner.evo_state
    return gather((metrics, state.agent_state, search.best_params, search.num_invalid))


for name in sys.argv[1:]:
    jax.tree_util.tree_map_with_path(
        lambda path, a, b: np.testing.assert_array_equal(a, b, err_msg=f"{name}: {jax.tree_util.keystr(path)}"),
        two_generations(name, 1),
        two_generations(name, 4),
    )
"""


# Several in one process: its start and the first programs take as long as a method.
@pytest.mark.parametrize("names", [DECLARED[start::4] for start in range(4)], ids=" ".join)
def test_four_cores_compute_the_numbers_of_one_to_the_bit(names: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_methods_but_the_bridge_to_any_strategy_of_evosax_declare_it() -> None:
    assert METHODS.keys() - set(DECLARED) == {"evosax"}


@pytest.mark.parametrize(
    ("population_size", "limit", "num_devices"),
    [(128, 2, 2), (128, 3, 2), (128, 64, 16), (48, 64, 4), (16, 8, 2), (18, 2, 1), (15, 4, 1), (1, 4, 1), (1024, 1, 1)],
)
def test_devices_get_whole_blocks_and_pairs(population_size: int, limit: int, num_devices: int) -> None:
    assert max_same_devices(population_size, limit) == num_devices
    assert num_devices == 1 or population_size // num_devices % block_size(population_size) == 0
