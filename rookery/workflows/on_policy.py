"""On-policy training: collect a trajectory with the present policy, learn from it, throw it away."""

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rookery.agent import Agent, AgentState, Carry
from rookery.configuration import field_names
from rookery.distributed import DEVICE_AXIS, check_divides
from rookery.distributed.collectives import key_of_this_device, mean_over_devices, sum_over_devices
from rookery.errors import check_count
from rookery.learning import reward_scaling
from rookery.learning.counter import Counter
from rookery.learning.minibatches import pack
from rookery.learning.reward_scaling import RewardScaling
from rookery.learning.schedules import values_at
from rookery.learning.updates import Optimizer, OptimizerState, gradients_in_chunks
from rookery.metrics import Mean
from rookery.networks import ActorCriticConfig
from rookery.rollout import Experience, RolloutSource, RolloutState
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeData, PyTreeDict, Tree, where_tree
from rookery.workflows.config import Hyperparameters, Scalar, Settings
from rookery.workflows.programs import SAME, SPLIT
from rookery.workflows.workflow import Workflow, WorkflowState


@dataclass(frozen=True)
class OnPolicyConfig:
    """The shapes that on-policy methods have in common; `num_envs` is over all devices."""

    num_envs: int = 64
    rollout_length: int = 128
    normalize_obs: bool = False
    normalize_rewards: bool = False
    optimizer: str = "adam"
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        check_count("num_envs", self.num_envs)
        check_count("rollout_length", self.rollout_length)
        Optimizer(self.optimizer)


class OnPolicyHyperparameters(Hyperparameters):
    """The numbers that on-policy methods have in common; `max_grad_norm=None` does not clip."""

    RANGES: ClassVar = {
        "learning_rate": (0.0, float("inf")),
        "discount": (0.0, 1.0),
        "entropy_coefficient": (0.0, float("inf")),
        "value_coefficient": (0.0, float("inf")),
        "max_grad_norm": (1e-9, float("inf")),
    }

    learning_rate: Scalar = 3e-4
    discount: Scalar = 0.99
    entropy_coefficient: Scalar = 0.0
    value_coefficient: Scalar = 0.5
    max_grad_norm: Scalar | None = 0.5


LossFn = Callable[[AgentState, Any], tuple[Array, dict[str, Array]]]
"""Given the agent's state and samples, returns the loss and what to report beside it."""


class Learner(PyTreeData):
    """What gradient steps change."""

    agent_state: AgentState
    optimizer_state: OptimizerState
    num_updates: Counter


class OnPolicyState(WorkflowState):
    """What an on-policy workflow carries from one iteration to the next."""

    optimizer_state: OptimizerState
    source_state: RolloutState
    reward_scaling: RewardScaling | None
    actor_state: AgentState | None
    """What acts, where that may be older than what learns."""


class OnPolicyWorkflow(Workflow):
    """Collects and calls the method's `update`.

    Where the experience comes from is the business of `source`. Statistics of observations are updated after the
    losses have used them, so the policy that is improved is the one that acted.
    """

    agent_class: ClassVar[type]
    agent: Any

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        config = settings.method
        check_divides("agent.num_envs", config.num_envs, num_devices)
        self.num_devices = num_devices
        self.optimizer = Optimizer(config.optimizer)
        super().__init__(settings, num_devices, enable_jit)
        self.source = self.make_source()

    def make_agent(self) -> Agent:
        return self.agent_class(config=self.config.network, normalize_obs=self.config.normalize_obs)

    def make_source(self) -> RolloutSource:
        """Build what experience comes from: this device's share of the environments."""
        env = self.make_env(self.config.num_envs // self.num_devices, self.settings.train.env.autoreset_mode)
        return RolloutSource(env=env, agent=self.agent, rollout_length=self.config.rollout_length)

    @property
    def actor_lag(self) -> int:
        """How many iterations the same parameters act; a method that corrects for it may say more than one."""
        return 1

    @abstractmethod
    def update(
        self, learner: Learner, experience: Experience, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Learner]:
        """Learn from experience: the method itself."""

    def setup(self, key: Key) -> OnPolicyState:
        key, eval_key, agent_key, env_key = jax.random.split(key, 4)
        source, num_devices = self.source, self.num_devices
        # The keys are those of all environments, so the same ones start whatever the number of devices.
        env_keys = jax.random.split(env_key, num_devices * source.num_envs).reshape(num_devices, source.num_envs)
        agent_state = self.agent.init(source.obs_space, source.action_space, agent_key)
        return OnPolicyState(
            key=key,
            eval_key=eval_key,
            agent_state=agent_state,
            hyperparameters=jax.tree.map(jnp.float32, self.settings.hyperparameters),
            iterations=Counter.zero(),
            env_steps=Counter.zero(),
            num_updates=Counter.zero(),
            optimizer_state=self.optimizer.init(agent_state.params),
            source_state=source.init(env_keys[jax.lax.axis_index(DEVICE_AXIS)]),
            reward_scaling=reward_scaling.init(source.num_envs) if self.config.normalize_rewards else None,
            actor_state=agent_state if self.actor_lag > 1 else None,
        )

    def state_specs(self) -> Any:
        specs: dict[str, Any] = dict.fromkeys(field_names(OnPolicyState), SAME) | {"source_state": SPLIT}
        if self.config.normalize_rewards:
            specs["reward_scaling"] = jax.tree.map_with_path(
                lambda path, _: SPLIT if jax.tree_util.keystr(path) == ".returns" else SAME, reward_scaling.init(1)
            )
        return OnPolicyState(**specs)

    def iterate(self, state: OnPolicyState) -> tuple[PyTreeDict, OnPolicyState]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        hyperparameters: Any = values_at(state.hyperparameters, state.env_steps.as_float())
        experience, source_state = self.source.collect(
            state.actor_state or state.agent_state, state.source_state, key_of_this_device(collect_key)
        )
        trajectory, weights = blank_dead_rows(experience.trajectory), weights_of(experience.trajectory)
        experience = experience.replace(trajectory=trajectory)

        scaling = state.reward_scaling
        if scaling is not None:
            rewards, scaling = reward_scaling.scale(
                scaling, trajectory.rewards, trajectory.dones, hyperparameters.discount, weights, DEVICE_AXIS
            )
            experience = experience.replace(trajectory=trajectory.replace(rewards=rewards))

        learner = Learner(
            agent_state=state.agent_state, optimizer_state=state.optimizer_state, num_updates=state.num_updates
        )
        metrics, learner = self.update(learner, experience, hyperparameters, key_of_this_device(update_key))
        num_steps = trajectory.rewards.size if weights is None else jnp.sum(weights, dtype=jnp.int32)
        agent_state = self.agent.update_obs_statistics(learner.agent_state, trajectory.obs, weights, DEVICE_AXIS)
        iterations = state.iterations.add(1)
        actor_state = state.actor_state
        if actor_state is not None:
            actor_state = where_tree(iterations.low % self.actor_lag == 0, agent_state, actor_state)
        state = state.replace(
            key=key,
            agent_state=agent_state,
            optimizer_state=learner.optimizer_state,
            num_updates=learner.num_updates,
            iterations=iterations,
            env_steps=state.env_steps.add(sum_over_devices(jnp.asarray(num_steps, jnp.int32))),
            source_state=source_state,
            reward_scaling=scaling,
            actor_state=actor_state,
        )
        return PyTreeDict(metrics | episode_metrics(trajectory)), state

    def collect_seconds(self, state: OnPolicyState) -> float:
        """Measure how long an iteration gathers experience: by itself, for inside an iteration nothing can be timed."""

        def collect(state: OnPolicyState) -> Experience:
            return self.source.collect(state.agent_state, state.source_state, key_of_this_device(state.key))[0]

        specs: dict[str, Any] = {"trajectory": PartitionSpec(None, DEVICE_AXIS), "first_carry": SPLIT}
        program = self.program(self.layout.over_seeds(collect), (self.state_specs(),), Experience(**specs))
        jax.block_until_ready(program(state))
        durations = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(program(state))
            durations.append(time.perf_counter() - start)
        return min(durations)

    def gradient_step(
        self, learner: Learner, loss_fn: LossFn, samples: Any, hyperparameters: Any, num_chunks: int = 1
    ) -> tuple[dict[str, Array], Learner]:
        """Take one step down the gradient of `loss_fn(agent_state, samples)`; return what the loss reports beside it.

        A loss that is a mean over samples `[N]` may be computed in chunks.
        """

        def loss_of(params: Any, samples: Any) -> tuple[Array, dict[str, Array]]:
            return loss_fn(learner.agent_state.replace(params=params), samples)

        gradients, report = mean_over_devices(
            gradients_in_chunks(loss_of, learner.agent_state.params, samples, num_chunks)
        )
        params, optimizer_state, norm = self.optimizer.step(
            gradients,
            learner.optimizer_state,
            learner.agent_state.params,
            hyperparameters.learning_rate,
            hyperparameters.max_grad_norm,
        )
        agent_state = learner.agent_state.replace(params=params)
        return report | {"train/grad_norm": norm}, learner.replace(
            agent_state=agent_state, optimizer_state=optimizer_state, num_updates=learner.num_updates.add(1)
        )


def weights_of(trajectory: SampleBatch) -> Array | None:
    """Return 0 for the rows in which an env only reset itself and 1 for the others; None if there are no such rows."""
    autoreset = trajectory.extras.env_extras.get("autoreset")
    return None if autoreset is None else 1.0 - autoreset


def blank_dead_rows(trajectory: SampleBatch) -> SampleBatch:
    """Set what the policy saw and did to 0 where an env only reset itself: a weight of 0 would not help against NaN."""
    weights = weights_of(trajectory)
    if weights is None:
        return trajectory

    def blank(leaf: Array) -> Array:
        is_live = weights.reshape(weights.shape + (1,) * (leaf.ndim - 2)) > 0
        return jnp.where(is_live, leaf, jnp.zeros_like(leaf))

    policy_extras = jax.tree.map(blank, trajectory.extras.policy_extras)
    return trajectory.replace(
        obs=jax.tree.map(blank, trajectory.obs),
        rewards=blank(trajectory.rewards),
        extras=trajectory.extras.replace(policy_extras=policy_extras),
    )


def episode_metrics(trajectory: SampleBatch) -> dict[str, Mean]:
    """Return and length of the episodes that ended in a trajectory, over all devices."""
    ended, info = trajectory.dones, trajectory.extras.env_extras
    metrics = {
        "rollout/ep_rew_mean": Mean.where(ended, info.episode_return),
        "rollout/ep_len_mean": Mean.where(ended, info.steps),
    }
    return sum_over_devices(metrics)


def take_envs(samples: Tree, carry: Carry, indexes: Array) -> tuple[Tree, Carry]:
    """Take some environments of a trajectory `[T, B]`, with the memory `[B]` that each starts from."""
    return jax.tree.map(lambda leaf: leaf[:, indexes], samples), jax.tree.map(lambda leaf: leaf[indexes], carry)


def takeable(samples: Tree, carry: Carry) -> tuple[int, Callable[[Array], tuple[Tree, Carry]]]:
    """Return how many things of a trajectory `[T, B]` can be shuffled, and the function that takes some by index.

    For an agent with a memory these are the sequences of the environments, each with the memory it starts from; else
    every step by itself.
    """
    num_steps, num_envs = jax.tree.leaves(samples)[0].shape[:2]
    if jax.tree.leaves(carry):
        return num_envs, lambda indexes: take_envs(samples, carry, indexes)
    packed = pack(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples))  # [T, B] -> [N]
    return num_steps * num_envs, lambda indexes: (packed.take(indexes), ())
