"""Members that get new replay rows or another agent stay split over their devices, and equal those of one device."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

from rookery.registry import build_workflow
from rookery.workflows.programs import gather

MEMBER = {"num_envs": 2, "rollout_length": 2, "batch_size": 4, "warmup_steps": 8, "buffer_capacity": 64}


def run(devices):
    agent = {"name": "pbt", "method": "sac", "population_size": 2, "num_episodes": 1, "iterations_per_round": 1}
    agent["member"] = MEMBER | {"network": {"hidden_sizes": [4]}}
    env = {"name": "classic/pendulum", "episode_length": 6}
    config = {"agent": agent, "env": env, "devices": devices, "total_timesteps": 100, "recorders": []}
    workflow = build_workflow(config)
    training, (_, state) = workflow.training, workflow.step(workflow.init(workflow.make_key()))
    refilled = training.refill(state.replace(learner=state.learner.without_replay()))
    other = training.with_agent(refilled, workflow.layout.place(gather(state.agent_state), jax.P()))
    _, after = workflow.step(other)
    return gather((refilled, other, after))


def compare(path, one, two):
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, two = jax.random.key_data(one), jax.random.key_data(two)
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))


jax.tree_util.tree_map_with_path(compare, run(1), run(2))
"""


def test_refilled_members_and_those_of_another_agent_train_on_two_devices_as_on_one() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=Path(__file__).parents[2])
