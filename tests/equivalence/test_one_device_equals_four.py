"""Rollouts and evaluations of envs that are spread over four devices equal those on one."""

import os
import subprocess
import sys
from pathlib import Path

import rookery

PROGRAM = '''
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery import RandomAgent, SampleBatch
from rookery.agent import AgentState
from rookery.envs import AutoresetMode, create_env
from rookery.evaluators import PopulationEvaluator
from rookery.rollout import fast_eval_rollout_episode, rollout
from rookery.types import PyTreeDict

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
NUM_ENVS, LENGTH = 8, 30
FIELDS = ("termination", "truncation", "steps", "ori_obs", "episode_return")
assert len(jax.devices()) == 4


def mesh_of(num_devices):
    return Mesh(np.array(jax.devices()[:num_devices]), ("dp",))


def make(mode, num_envs=NUM_ENVS):
    return create_env(
        "classic/cartpole", episode_length=12, parallel=num_envs, autoreset_mode=mode, record_ori_obs=True
    )


def push(agent_state, sample_batch, key):
    """Push towards the side the pole leans to, which keeps some episodes alive until they are cut."""
    return (sample_batch.obs[..., 2] * agent_state.params > 0).astype(jnp.int32), PyTreeDict()


def assert_same(one, four):
    jax.tree_util.tree_map_with_path(
        lambda path, a, b: np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path)), one, four
    )


def spread(mode, num_devices):
    """The compiler splits one program: every env state lives on the device of its env."""
    env, agent = make(mode), RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    over_envs = NamedSharding(mesh_of(num_devices), PartitionSpec("dp"))
    env_state = jax.jit(env.reset)(jax.device_put(jax.random.split(jax.random.key(1), NUM_ENVS), over_envs))
    if num_devices > 1:
        assert len(env_state.obs.sharding.device_set) == num_devices
    trajectory, end = jax.jit(rollout, static_argnums=(0, 1, 5, 6))(
        env.step, agent.compute_actions, env_state, agent_state, jax.random.key(2), LENGTH, FIELDS
    )
    assert np.asarray(trajectory.dones).sum() > NUM_ENVS
    return trajectory, end.obs


def per_device(mode, num_devices):
    """Every device runs its own program over its share of the envs."""
    env = make(mode, NUM_ENVS // num_devices)
    over_envs, over_time = PartitionSpec("dp"), PartitionSpec(None, "dp")

    # Loops start from constants, whose type says that they are the same on every device: hence no check.
    @partial(
        jax.shard_map,
        mesh=mesh_of(num_devices),
        in_specs=over_envs,
        out_specs=(over_time, over_envs),
        check_vma=False,
    )
    def run(keys):
        agent_state = AgentState(params=jnp.float32(1.0))
        trajectory, end = rollout(
            env.step, push, env.reset(keys), agent_state, jax.random.key(2), LENGTH, FIELDS
        )
        metrics, _ = fast_eval_rollout_episode(
            env.step, push, env.reset(keys), agent_state, jax.random.key(2), LENGTH
        )
        return trajectory, (end.obs, metrics)

    trajectory, rest = jax.jit(run)(jax.random.split(jax.random.key(1), NUM_ENVS))
    assert np.asarray(trajectory.dones).sum() > NUM_ENVS
    return trajectory, rest


def population(num_devices):
    """The agents of a population are spread over the devices."""
    env = create_env("classic/cartpole", episode_length=12)
    evaluator = PopulationEvaluator(env=env, agent_fn=push, max_episode_steps=12, num_lanes=3)
    over_agents = NamedSharding(mesh_of(num_devices), PartitionSpec("dp"))
    params = jax.device_put(jnp.where(jnp.arange(8) % 2 == 0, 1.0, -1.0), over_agents)
    return jax.jit(lambda states, key: evaluator.evaluate(states, key, 2))(AgentState(params=params), jax.random.key(3))


scenarios = {"spread": spread, "per_device": per_device, "population": lambda _, number: population(number)}
for argument in sys.argv[1:]:
    scenario, mode = argument.split()
    run = partial(scenarios[scenario], AutoresetMode[mode])
    assert_same(run(1), run(4))
    print(argument)
'''
SCENARIOS = ["spread NORMAL", "spread ENVPOOL", "per_device NORMAL", "per_device FAST", "population NORMAL"]


def test_four_devices_give_what_one_device_gives() -> None:
    root = Path(rookery.__file__).parent.parent
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    # All in one process, whose start takes as long as a scenario.
    command = [sys.executable, "-c", PROGRAM, *SCENARIOS]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == SCENARIOS
