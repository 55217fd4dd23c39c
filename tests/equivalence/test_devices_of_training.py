"""Training on four devices is training on one: the same starts, the same update, and checkpoints that do not care."""

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from rookery.distributed import DEVICE_AXIS
from rookery.registry import build_workflow
from rookery.workflows.programs import experience_specs
from rookery.distributed import SAME
from rookery.workflows.programs import gather


def build(devices, agent, env="classic/cartpole", **settings):
    shapes = {"num_envs": 8, "rollout_length": 12, "network": {"hidden_sizes": [16], "core_size": 8}}
    shapes["network"] |= agent.pop("network", {})
    return build_workflow(
        {
            "agent": shapes | agent,
            "env": {"name": env, "episode_length": 9},
            "evaluation": {"num_episodes": 4},
            "devices": devices,
            "recorders": ["jsonl"],
            **settings,
        }
    )


def host(tree):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), gather(tree))


def assert_close(left, right, **tolerance):
    jax.tree_util.tree_map_with_path(
        lambda path, a, b: np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerance),
        host(left),
        host(right),
    )
"""

SAME_UPDATE = '''
agent = {
    "ppo": {"name": "ppo", "num_epochs": 2, "num_minibatches": 1, "normalize_obs": True, "normalize_rewards": True},
    "ppo gru": {"name": "ppo", "num_epochs": 2, "num_minibatches": 1, "network": {"core": "gru"}},
    "a2c": {"name": "a2c", "normalize_obs": True},
    "impala": {"name": "impala", "num_minibatches": 1},
}[sys.argv[1]]
one, four = build(1, dict(agent)), build(4, dict(agent))
key = jax.random.key(7)
state, state_on_four = one.init(key), four.init(key)
assert_close(state, state_on_four, rtol=0, atol=0)


def update_of(workflow):
    """The update of a method and of the statistics, without the rollout: there the devices draw different actions."""

    def update(state, experience):
        learner = workflow.training.learner
        metrics, after = learner.update(state.learner, experience, state.hyperparameters, jax.random.key(1))
        obs = experience.trajectory.obs
        return metrics, workflow.agent.update_obs_statistics(after.agent_state, obs, None, DEVICE_AXIS)

    return workflow.layout.program(update, (workflow.training.specs(), experience_specs()), (SAME, SAME))


experience = jax.jit(one.training.source.collect)(state.agent_state, state.source_state, jax.random.key(3))[0]
assert np.asarray(experience.trajectory.extras.env_extras.truncation).sum() > 0
metrics, learned = update_of(one)(state, experience)
experience = four.layout.place(experience, experience_specs())
metrics_of_four, learned_on_four = update_of(four)(state_on_four, experience)
assert_close(learned.params, learned_on_four.params, rtol=1e-4, atol=2e-5)
assert_close(learned.obs_preprocessor_state, learned_on_four.obs_preprocessor_state, rtol=1e-5, atol=1e-6)
distance = lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max()
change = jax.tree.map(distance, learned.params, state.agent_state.params)
assert max(jax.tree.leaves(change)) > 1e-4
for name in metrics:
    if name != "train/explained_variance":  # of each device's own samples
        assert_close(metrics[name].value, metrics_of_four[name].value, rtol=1e-3, atol=1e-5)
'''

SAME_GENERATIONS = """
def generations(devices):
    network = {"hidden_sizes": [8]}
    agent = {"name": "openes", "population_size": 16, "normalize_obs": True, "noise_std": 0.3, "network": network}
    workflow = build_workflow(
        {
            "agent": agent,
            "env": {"name": "classic/cartpole", "episode_length": 30},
            "evaluation": {"num_episodes": 4},
            "devices": devices,
        }
    )
    states = [workflow.init(jax.random.key(7))]
    for _ in range(3):
        metrics, state = workflow.step(states[-1])
        states.append(state)
    return metrics, states


metrics, states = generations(1)
metrics_of_four, states_of_four = generations(4)
assert_close(states[0], states_of_four[0], rtol=0, atol=0)
assert int(states[-1].env_steps) == int(states_of_four[-1].env_steps)
assert_close(states[-1], states_of_four[-1], rtol=1e-4, atol=1e-5)
assert_close(metrics, metrics_of_four, rtol=1e-4, atol=1e-5)
"""

LEARNS_AND_LOADS = """
folder = Path(sys.argv[1])
agent = {"name": "ppo", "learning_rate": 1e-2, "normalize_obs": True, "normalize_rewards": True, "num_minibatches": 2}
settings = {"total_timesteps": 8000, "run_dir": str(folder / "run"), "env": "probe/cue_reward"}
four = build(4, dict(agent), **settings)
state = four.learn(four.init(four.make_key()))
assert int(state.env_steps) >= 8000, "steps of all devices are counted together"
metrics, _ = four.evaluate(state)
assert metrics["eval/mean_reward"] == 1.0, metrics

one = build(1, dict(agent), **settings)
restored = one.restore()
assert_close(state, restored, rtol=0, atol=0)
metrics, restored = one.step(restored)
assert np.isfinite(metrics["train/loss"])
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["ppo", "ppo gru", "a2c", "impala"])
def test_four_devices_start_and_learn_from_a_trajectory_what_one_does(method: str) -> None:
    run(SAME_UPDATE, method)


def test_four_devices_evolve_what_one_does() -> None:
    run(SAME_GENERATIONS)


def test_four_devices_solve_a_probe_and_their_checkpoint_loads_on_one(tmp_path: Path) -> None:
    run(LEARNS_AND_LOADS, str(tmp_path))
