"""Hybrids play the same episodes on any number of devices, and learn on all of them together."""

import os
import subprocess
import sys
from pathlib import Path

import rookery

PROGRAM = """
import jax

jax.config.update("jax_num_cpu_devices", 2)
import numpy as np

from rookery.registry import build_workflow


def workflow_of(name, devices, **agent):
    learner = {"batch_size": 8, "network": {"hidden_sizes": [8]}}
    agent = {"name": name, "population_size": 4, "warmup_steps": 10, "normalize_obs": True, "learner": learner, **agent}
    config = {"agent": agent, "env": {"name": "classic/pendulum", "episode_length": 8}, "devices": devices}
    return build_workflow({**config, "total_timesteps": 200, "recorders": []})


def trained(workflow, update_ratio):
    numbers = jax.tree.map(np.float32, workflow.settings.hyperparameters.replace(update_ratio=update_ratio))
    state = workflow.init(workflow.make_key(), numbers)
    for _ in range(3):
        metrics, state = workflow.step(state)
    return metrics, state


erl = {devices: workflow_of("erl", devices, learner_episodes=2) for devices in (1, 2)}
(of_one, one), (of_two, two) = (trained(erl[devices], 0.0) for devices in (1, 2))
for left, right in zip(jax.tree.leaves(one.agent_state), jax.tree.leaves(two.agent_state), strict=True):
    np.testing.assert_array_equal(left, right)
assert float(of_one["evolution/fitness_mean"]) == float(of_two["evolution/fitness_mean"])
assert float(of_one["hybrid/rl_fitness"]) == float(of_two["hybrid/rl_fitness"])
assert float(of_one["buffer/size"]) == float(of_two["buffer/size"]) == int(two.env_steps)


def rows_of(state):  # of all lanes and devices, in an order that depends on the rows alone
    buffer = state.learner.gradient.buffer_state
    lanes = zip(np.asarray(buffer.storage["float32"]), np.asarray(buffer.num_rows), strict=True)
    rows = np.concatenate([ring[:count] for ring, count in lanes])
    return rows[np.lexsort(rows.T)]


np.testing.assert_array_equal(rows_of(one), rows_of(two))

for workflow, num_updates in ((erl[2], 3 * 8 * 6), (workflow_of("cem_rl", 2, gradient="sac"), 2 * 8 * 4)):
    metrics, state = trained(workflow, 1.0)
    assert int(state.num_updates) == num_updates
    for leaf in jax.tree.leaves(state.learner.gradient.agent_state.params):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        np.testing.assert_array_equal(copies[0], copies[1])
print("done")
"""


def test_play_is_equal_to_the_bit_and_the_learner_stays_the_same_on_all_devices() -> None:
    root = Path(rookery.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=root,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]
