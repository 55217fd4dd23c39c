"""Off-policy training on four devices is training on one: the same starts, the same update, the same replay."""

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
from jax.sharding import PartitionSpec

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from rookery.distributed import DEVICE_AXIS
from rookery.registry import build_workflow
from rookery.agents.replay import ReplayBatch
from rookery.distributed import SAME, SPLIT
from rookery.workflows.programs import gather


def build(devices, agent, env="classic/pendulum", mode="envpool", **settings):
    squash = {"bounds": "squash", "state_dependent_std": True}
    shapes = {"num_envs": 8, "batch_size": 16, "warmup_steps": 48, "updates_per_step": 0.25}
    network = {"hidden_sizes": [8], "gaussian": squash, "output_init_scale": 1.0}
    return build_workflow(
        {
            "agent": shapes | {"network": network} | agent,
            "env": {"name": env, "episode_length": 5, "autoreset_mode": mode},
            "evaluation": {"num_episodes": 4},
            "devices": devices,
            "recorders": ["jsonl"],
            "total_timesteps": 400,
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
# Without noise in the targets: every device draws its own.
agent, env = {
    "td3": ({"name": "td3", "target_noise": 0.0, "policy_delay": 1}, "classic/pendulum"),
    "sac": ({"name": "sac", "actor_learning_rate": 1e-2, "temperature_learning_rate": 1e-2}, "probe/memory"),
}[sys.argv[1]]
agent |= {"normalize_obs": True, "prioritized": True}
one, four = build(1, dict(agent), env), build(4, dict(agent), env)
key = jax.random.key(7)
state, state_on_four = one.init(key), four.init(key)
for part in ("hyperparameters", "target_params", "optimizer_states", "num_updates"):
    assert_close(getattr(state.learner, part), getattr(state_on_four.learner, part), rtol=0, atol=0)
assert_close(state.key, state_on_four.key, rtol=0, atol=0)
assert_close(state.agent_state.params, state_on_four.agent_state.params, rtol=0, atol=0)
buffers = [s.learner.buffer_state for s in (state, state_on_four)]
assert buffers[0].storage["float32"].shape == buffers[1].storage["float32"].shape
all_rows = [host(buffer.layout.unpack(buffer.storage)) for buffer in buffers]
# The envs start at the same places; then every device acts at random by itself.
np.testing.assert_array_equal(all_rows[0].obs[:, 0], all_rows[1].obs[:, 0])
for s, rows in zip((state, state_on_four), all_rows):
    num_rows = np.asarray(s.learner.buffer_state.num_rows)
    actions = rows.actions[:, : min(num_rows)].reshape(8, -1)
    assert len(np.unique(actions, axis=0)) > 2, "the devices draw different actions"
    is_stored = np.arange(rows.rewards.shape[1]) < num_rows[:, None]
    assert 48 <= int(s.env_steps) == is_stored.sum()
    statistics = s.agent_state.obs_preprocessor_state
    assert float(statistics.count.value) == is_stored.sum()
    seen = rows.obs[is_stored].astype(np.float64)
    np.testing.assert_allclose(jax.tree.leaves(statistics.mean)[0], seen.mean(axis=0), rtol=1e-4, atol=1e-5)


def update_of(workflow):
    """The update of a method on a batch that is split over the devices."""

    def update(learner, replayed, hyperparameters):
        return workflow.training.learner.learn_batch(learner, replayed, hyperparameters, jax.random.key(1))

    split = ReplayBatch(windows=PartitionSpec(None, DEVICE_AXIS), importance=SPLIT)
    return workflow.layout.program(update, (SAME, split, SAME), (SAME, PartitionSpec(None, DEVICE_AXIS), SAME)), split


windows = jax.tree.map(lambda leaf: leaf[:, :6].swapaxes(0, 1).reshape(1, 48, *leaf.shape[2:]), all_rows[0])
is_dead = np.arange(48, dtype=np.float32)[None] % 7 < np.arange(48) // 12
windows.extras.env_extras.autoreset = is_dead.astype(np.float32)
dead_on_each = windows.extras.env_extras.autoreset.reshape(4, 12).sum(axis=1)
assert len(set(dead_on_each)) > 1, "the devices count different numbers of rows"
replayed = ReplayBatch(windows=windows, importance=np.linspace(0.1, 1.0, 48, dtype=np.float32))
results = []
for workflow in (one, four):
    learner = gather(state.learner.without_replay())
    learner = learner.replace(target_params=jax.tree.map(lambda leaf: 0.5 * leaf, learner.target_params))
    program, split = update_of(workflow)
    placed = workflow.layout.place(replayed, split)
    hyperparameters = workflow.layout.place(gather(state.hyperparameters), SAME)
    results.append(program(workflow.layout.place(learner, SAME), placed, hyperparameters))
(metrics, errors, learned), (metrics_of_four, errors_of_four, learned_on_four) = results
assert_close(learned.agent_state.params, learned_on_four.agent_state.params, rtol=1e-4, atol=2e-5)
assert_close(learned.target_params, learned_on_four.target_params, rtol=1e-4, atol=2e-5)
assert_close(errors, errors_of_four, rtol=1e-4, atol=1e-5)
for name in metrics:
    assert_close(metrics[name].value, metrics_of_four[name].value, rtol=1e-4, atol=1e-5)
before, after = host(state.agent_state.params), host(learned.agent_state.params)
change = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, after)
assert all(max(jax.tree.leaves(change[part])) > 1e-4 for part in change), change
'''

LEARNS_AND_LOADS = """
folder = Path(sys.argv[1])
agent = {"name": "ddpg", "prioritized": True, "normalize_obs": True, "buffer_capacity": 90}
settings = {"env": "probe/continuous", "run_dir": str(folder / "run")}
four = build(4, dict(agent), **settings)
state = four.learn(four.init(four.make_key()))
assert int(state.env_steps) >= 400, "steps of all devices are counted together"
assert int(state.num_updates) == 2 * int(state.iterations), "a batch is shared, not made on every device"

# What must be the same on all devices is.
replicated = (state.agent_state.params, state.learner.target_params, state.learner.optimizer_states, state.env_steps)
buffer_state = state.learner.buffer_state
replicated += (buffer_state.priorities.max_priority,)
for leaf in jax.tree.leaves(replicated):
    for shard in leaf.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.asarray(leaf.addressable_shards[0].data))

one = build(1, dict(agent), **settings)
restored = one.restore()
assert_close(state, restored, rtol=0, atol=0)
assert np.asarray(restored.learner.buffer_state.num_rows).tolist() == [90 // 8] * 8
metrics, after = one.step(restored)
assert np.isfinite(metrics["train/critic_loss"])
"""

EMPTY_DEVICE = """
agent = {"name": "td3", "prioritized": sys.argv[1] == "prioritized", "n_step": 3}
four = build(4, agent)
state = four.init(four.make_key())


def without_rows_on_the_first_device(garbage):
    \"\"\"Empty the columns of a device, whose rings contain garbage.\"\"\"
    buffer_state = jax.tree.map(np.array, gather(state.learner.buffer_state))
    buffer_state.storage["float32"][:2] = garbage
    buffer_state.head[:2] = buffer_state.num_rows[:2] = 0
    for level in buffer_state.priorities.levels if buffer_state.priorities else ():
        level[:2] = 0.0
    return four.layout.place(state.replace_learner(buffer_state=buffer_state), four.training.specs())


(metrics, after), (_, other) = (four.step(without_rows_on_the_first_device(garbage)) for garbage in (0.0, 1e6))
assert np.asarray(after.learner.buffer_state.num_rows)[:2].max() < 3, "no window on the first device"
assert int(after.num_updates) == 2
before, learned = (jax.tree.leaves(host(s.agent_state.params)) for s in (state, after))
assert all(np.isfinite(leaf).all() for leaf in learned)
assert any((leaf != start).any() for leaf, start in zip(learned, before))
assert np.isfinite(metrics["train/critic_loss"])
assert_close(after.agent_state.params, other.agent_state.params, rtol=0, atol=0)
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["td3", "sac"])
def test_four_devices_start_and_learn_from_a_batch_what_one_does(method: str) -> None:
    run(SAME_UPDATE, method)


def test_what_four_devices_learned_and_stored_loads_on_one(tmp_path: Path) -> None:
    run(LEARNS_AND_LOADS, str(tmp_path))


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_a_device_without_rows_takes_part_in_updates_with_weight_0(sampling: str) -> None:
    run(EMPTY_DEVICE, sampling)
