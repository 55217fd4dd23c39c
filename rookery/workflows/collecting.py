"""What workflows that learn from trajectories have in common: a source of experience, and how its rows count."""

import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rookery.agent import Agent
from rookery.distributed import DEVICE_AXIS, check_divides
from rookery.distributed.collectives import key_of_this_device, sum_over_devices
from rookery.learning.updates import Optimizer
from rookery.metrics import Mean
from rookery.rollout import Experience, RolloutSource, RolloutState
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key
from rookery.workflows.config import Settings
from rookery.workflows.programs import SPLIT
from rookery.workflows.workflow import Workflow

ROWS_TO_TIME = 128
"""Shorter rollouts are timed several at once: the call itself would be most of what is measured."""


class CollectingWorkflow(Workflow):
    """Collects experience and learns from it by gradient.

    Where the experience comes from is the business of `source`; `config` has `num_envs`, over all devices, and
    `rollout_length`.
    """

    agent_class: ClassVar[type]
    agent: Any

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        check_divides("agent.num_envs", settings.method.num_envs, num_devices)
        self.num_devices = num_devices
        self.optimizer = Optimizer(settings.method.optimizer)
        super().__init__(settings, num_devices, enable_jit)

    def make_agent(self) -> Agent:
        return self.agent_class(config=self.config.network, normalize_obs=self.config.normalize_obs)

    def prepare(self) -> None:
        """Build what experience comes from: this device's share of the environments."""
        env = self.make_env(self.config.num_envs // self.num_devices, self.settings.train.env.autoreset_mode)
        self.source = RolloutSource(env=env, agent=self.agent, rollout_length=self.config.rollout_length)

    def start_source(self, key: Key) -> RolloutState:
        """Start this device's environments: the same ones altogether, whatever the number of devices."""
        num_devices, num_envs = self.num_devices, self.source.num_envs
        env_keys = jax.random.split(key, num_devices * num_envs).reshape(num_devices, num_envs)
        return self.source.init(env_keys[jax.lax.axis_index(DEVICE_AXIS)])

    def collect_seconds(self, state: Any) -> float:
        """Measure how long an iteration gathers experience: by itself, for inside an iteration nothing can be timed."""
        num_rounds = max(1, ROWS_TO_TIME // self.config.rollout_length)

        def collect(state: Any) -> Experience:
            def collect_again(index: Array, carry: tuple[Experience, RolloutState]) -> tuple[Experience, RolloutState]:
                key = jax.random.fold_in(key_of_this_device(state.key), index)
                return self.source.collect(state.agent_state, carry[1], key)

            shapes, _ = jax.eval_shape(self.source.collect, state.agent_state, state.source_state, state.key)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.fori_loop(0, num_rounds, collect_again, (nothing, state.source_state))[0]

        specs: dict[str, Any] = {"trajectory": PartitionSpec(None, DEVICE_AXIS), "first_carry": SPLIT}
        program = self.program(self.layout.over_seeds(collect), (self.state_specs(),), Experience(**specs))
        jax.block_until_ready(program(state))
        durations = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(program(state))
            durations.append(time.perf_counter() - start)
        return min(durations) / num_rounds


def weights_of(trajectory: SampleBatch) -> Array | None:
    """Return 0 for the rows in which an env only reset itself and 1 for the others; None if there are no such rows."""
    autoreset = trajectory.extras.env_extras.get("autoreset")
    return None if autoreset is None else 1.0 - autoreset


def num_steps_of(trajectory: SampleBatch) -> Array:
    """Return how many steps were taken on all devices, without the rows in which an env only reset itself."""
    weights = weights_of(trajectory)
    num_steps = trajectory.rewards.size if weights is None else jnp.sum(weights, dtype=jnp.int32)
    return sum_over_devices(jnp.asarray(num_steps, jnp.int32))


def blank_dead_rows(trajectory: SampleBatch) -> SampleBatch:
    """Set what the policy saw and did to 0 where an env only reset itself: a weight of 0 would not help against NaN."""
    weights = weights_of(trajectory)
    if weights is None:
        return trajectory

    def blank(leaf: Array) -> Array:
        is_live = weights.reshape(weights.shape + (1,) * (leaf.ndim - 2)) > 0
        return jnp.where(is_live, leaf, jnp.zeros_like(leaf))

    policy_extras = jax.tree.map(blank, trajectory.extras.policy_extras)
    env_extras = trajectory.extras.env_extras
    if "ori_obs" in env_extras:
        env_extras = env_extras.replace(ori_obs=jax.tree.map(blank, env_extras.ori_obs))
    return trajectory.replace(
        obs=jax.tree.map(blank, trajectory.obs),
        actions=jax.tree.map(blank, trajectory.actions),
        rewards=blank(trajectory.rewards),
        extras=trajectory.extras.replace(policy_extras=policy_extras, env_extras=env_extras),
    )


def episode_metrics(trajectory: SampleBatch) -> dict[str, Mean]:
    """Return and length of the episodes that ended in a trajectory, over all devices."""
    ended, info = trajectory.dones, trajectory.extras.env_extras
    metrics = {
        "rollout/ep_rew_mean": Mean.where(ended, info.episode_return),
        "rollout/ep_len_mean": Mean.where(ended, info.steps),
    }
    return sum_over_devices(metrics)
