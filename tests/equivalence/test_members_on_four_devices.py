"""A population on four devices is the population on one; so is one with new replay rows, or with another agent."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import functools

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


def run(method, search, devices):
    agent = {"name": "pbt", "method": method, "search": search, "population_size": 8, "num_episodes": 2}
    agent |= {"iterations_per_round": 3, "member": MEMBERS[method] | {"network": {"hidden_sizes": [4]}}}
    env = {"name": "classic/pendulum", "episode_length": 6}
    config = {"agent": agent, "env": env, "devices": devices, "total_timesteps": 8 * 40, "recorders": []}
    workflow = build_workflow(config)
    assert dict(workflow.layout.mesh.shape) == {"pop": devices, "dp": 1}
    state = workflow.init(workflow.make_key())
    for _ in range(3):
        metrics, state = workflow.step(state)
    return workflow, metrics, state


def restored(workflow, state):
    training = workflow.training
    refilled = training.refill(state.replace(learner=state.learner.without_replay()))
    other = training.with_agent(refilled, workflow.layout.place(gather(state.agent_state), jax.P()))
    return refilled, other, workflow.step(other)[1]


def compare(one, four, same=np.testing.assert_array_equal):
    def leaves(path, one, four):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, four = jax.random.key_data(one), jax.random.key_data(four)
        same(one, four, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(leaves, gather(one), gather(four))


for method, search in (("ppo", "truncation"), ("sac", "cso")):
    one, four = (run(method, search, devices) for devices in (1, 4))
    assert int(one[2].learner.num_heirs) >= 3
    compare(one[1:], four[1:])
    print(method)
compare(
    *(restored(workflow, state) for workflow, _, state in (one, four)),
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
)
print("restored")
"""


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """Run one program for all tests, because a process with four devices takes long to start and to compile."""
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=root, timeout=300)


@pytest.mark.parametrize("method", ["ppo", "sac"])
def test_four_devices_train_what_one_device_trains(done: subprocess.CompletedProcess[str], method: str) -> None:
    assert method in done.stdout.split(), done.stderr


def test_refilled_members_and_those_of_another_agent_train_on_four_devices_as_on_one(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert "restored" in done.stdout.split(), done.stderr
