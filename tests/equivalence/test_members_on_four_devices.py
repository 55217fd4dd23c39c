"""A population on four devices is the population on one, to the bit."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from rookery.registry import build_workflow
from rookery.workflows.programs import gather

MEMBERS = {
    "ppo": {"num_envs": 2, "rollout_length": 8, "normalize_obs": True, "normalize_rewards": True},
    "sac": {"num_envs": 2, "rollout_length": 2, "batch_size": 4, "warmup_steps": 8, "buffer_capacity": 64},
}
method, search = sys.argv[1:]


def run(devices):
    agent = {"name": "pbt", "method": method, "search": search, "population_size": 8, "num_episodes": 2}
    agent |= {"iterations_per_round": 3, "member": MEMBERS[method] | {"network": {"hidden_sizes": [4]}}}
    env = {"name": "classic/pendulum", "episode_length": 6}
    config = {"agent": agent, "env": env, "devices": devices, "total_timesteps": 8 * 40, "recorders": []}
    workflow = build_workflow(config)
    assert dict(workflow.layout.mesh.shape) == {"pop": devices, "dp": 1}
    state = workflow.init(workflow.make_key())
    for _ in range(3):
        metrics, state = workflow.step(state)
    return gather((metrics, state))


def compare(path, one, four):
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, four = jax.random.key_data(one), jax.random.key_data(four)
    np.testing.assert_array_equal(one, four, err_msg=jax.tree_util.keystr(path))


one, four = run(1), run(4)
assert int(one[1].learner.num_heirs) >= 3
jax.tree_util.tree_map_with_path(compare, one, four)
"""


@pytest.mark.parametrize(("method", "search"), [("ppo", "truncation"), ("sac", "cso")])
def test_four_devices_train_what_one_device_trains(method: str, search: str) -> None:
    program = [sys.executable, "-c", PROGRAM, method, search]
    subprocess.run(program, check=True, cwd=Path(__file__).parents[2])
