"""Off-policy training: keep what was experienced, and learn from batches drawn from all of it."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import Agent, AgentState, Carry, RandomAgent
from rookery.agents.replay import LossInfo, Replayed
from rookery.compilation import run_once_options
from rookery.configuration import field_names
from rookery.control_flow import any_true
from rookery.distributed import DEVICE_AXIS, check_divides
from rookery.distributed.collectives import key_of_this_device, mean_over_devices, sum_over_devices
from rookery.envs import AutoresetMode
from rookery.errors import InvalidInputError, check_count
from rookery.hyperparameters import Hyperparameters, Scalar, values_at
from rookery.learning.counter import Counter
from rookery.learning.targets import polyak
from rookery.learning.updates import Optimizer
from rookery.metrics import Mean
from rookery.replay_buffers import PrioritizedBuffer, ReplayBuffer, ReplaySample, UniformBuffer, importance_weights
from rookery.replay_buffers.replay_buffer import ReplayState
from rookery.rollout import Experience
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict, pytree_field
from rookery.workflows.collecting import CollectingWorkflow, blank_dead_rows, num_steps_of, starts_anew, weights_of
from rookery.workflows.config import Settings, TrainConfig
from rookery.workflows.host import HostCollector, experience_specs
from rookery.workflows.programs import SAME, SPLIT
from rookery.workflows.workflow import WorkflowState

WARMUPS = ("random", "policy")


@dataclass(frozen=True)
class OffPolicyConfig:
    """The shapes that off-policy methods have in common; `num_envs`, `batch_size` and capacity are over all devices.

    `updates_per_step` gradient steps are taken for every step of an environment, in groups after `rollout_length` steps
    of each; here the rows in which ENVPOOL environments only reset themselves count as steps. A batch has windows of
    rows: of `n_step` rows, whose rewards are summed up; with a recurrent core `sequence_length` of such sums, after
    `burn_in` rows that only build up the memory.
    """

    num_envs: int = 1
    rollout_length: int = 1
    updates_per_step: float = 1.0
    batch_size: int = 256
    buffer_capacity: int = 1_000_000
    prioritized: bool = False
    n_step: int = 1
    sequence_length: int = 1
    burn_in: int = 0
    warmup_steps: int = 1000
    warmup: str = "random"
    normalize_obs: bool = False
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        for name in ("num_envs", "rollout_length", "batch_size", "buffer_capacity", "n_step", "sequence_length"):
            check_count(name, getattr(self, name))
        if self.burn_in < 0:
            raise InvalidInputError(f"burn_in={self.burn_in} must be at least 0.")
        if self.warmup not in WARMUPS:
            raise InvalidInputError(f"warmup={self.warmup!r}: choose 'random' or 'policy'.")
        if self.buffer_capacity < self.min_warmup_steps:
            raise InvalidInputError(
                f"buffer_capacity={self.buffer_capacity} does not hold a window of {self.window_length} steps for each "
                f"of num_envs={self.num_envs}: use at least {self.min_warmup_steps}."
            )
        if self.warmup_steps < self.min_warmup_steps:
            raise InvalidInputError(
                f"warmup_steps={self.warmup_steps} leaves nothing to learn from: use at least {self.min_warmup_steps}."
            )
        steps = self.num_envs * self.rollout_length
        if self.num_updates < 1 or not math.isclose(self.num_updates, self.updates_per_step * steps):
            raise InvalidInputError(
                f"updates_per_step={self.updates_per_step:g} must make a whole number of updates after "
                f"num_envs * rollout_length = {steps} steps: use a multiple of 1/{steps}."
            )
        Optimizer(self.optimizer)

    @property
    def num_updates(self) -> int:
        """The number of gradient steps in one iteration."""
        return round(self.updates_per_step * self.num_envs * self.rollout_length)

    @property
    def window_length(self) -> int:
        """The number of consecutive rows in one sample."""
        return self.burn_in + self.sequence_length + self.n_step - 1

    @property
    def min_warmup_steps(self) -> int:
        """The number of steps after which every environment has filled a window."""
        return self.num_envs * self.window_length


class OffPolicyHyperparameters(Hyperparameters):
    """The numbers that off-policy methods have in common; the two exponents matter with `prioritized` only."""

    RANGES: ClassVar = {
        "discount": (0.0, 1.0),
        "max_grad_norm": (1e-9, float("inf")),
        "priority_exponent": (0.0, 1.0),
        "importance_exponent": (0.0, 1.0),
    }

    discount: Scalar = 0.99
    max_grad_norm: Scalar | None = None
    priority_exponent: Scalar = 0.6
    importance_exponent: Scalar = 0.4


class OffPolicyLearner(PyTreeData):
    """What gradient steps change: each part of the parameters has a state of the optimizer, some have a slow copy."""

    agent_state: AgentState
    target_params: Params
    optimizer_states: PyTreeDict
    num_updates: Counter


class OffPolicyState(WorkflowState):
    """What an off-policy workflow carries from one iteration to the next."""

    target_params: Params
    optimizer_states: PyTreeDict
    source_state: Any
    buffer_state: Any


LossFn = Callable[[Params], tuple[Array, LossInfo]]
"""Given one part of the parameters, returns its loss."""

MAX_SHARE = 0.9
"""How much the worst row of a window counts for its priority; the mean has the rest (Kapturowski et al., 2019)."""


class OffPolicyWorkflow(CollectingWorkflow):
    """Collects, stores and calls the method's `update` on batches drawn from all that is stored.

    The first `warmup_steps` are taken by `init`, which fills the buffer: an iteration can always learn. Every device
    stores what its own environments experience and draws its share of each batch from it.
    """

    target_parts: ClassVar[tuple[str, ...]]
    """The parts of the parameters that have a slow copy."""
    agent: Any
    config: Any

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        config, train = settings.method, settings.train
        check_divides("agent.batch_size", config.batch_size, num_devices)
        self._check_memory(config)
        warmup_steps = -(-config.warmup_steps // config.num_envs) * config.num_envs
        if warmup_steps >= train.total_timesteps:
            raise InvalidInputError(
                f"agent.warmup_steps={config.warmup_steps} leaves nothing of total_timesteps={train.total_timesteps}: "
                f"with num_envs={config.num_envs} it takes {warmup_steps}."
            )
        self.buffer = self._make_buffer(config, train, num_devices)
        super().__init__(settings, num_devices, enable_jit)

    @staticmethod
    def _check_memory(config: Any) -> None:
        """Raise unless windows are long where there is a memory to train, and only there."""
        if config.network.core is None and (config.sequence_length > 1 or config.burn_in > 0):
            raise InvalidInputError(
                f"agent.sequence_length={config.sequence_length} and agent.burn_in={config.burn_in} are for networks "
                "with a memory: set agent.network.core=gru, or leave them at 1 and 0."
            )
        if config.network.core is not None and config.sequence_length < 2:
            raise InvalidInputError(
                f"agent.network.core={config.network.core} learns from sequences: set agent.sequence_length, to 16 for "
                "example, and agent.burn_in, to 8."
            )

    def prepare(self) -> None:
        super().prepare()
        source = self.source.replace(rollout_length=1)
        if self.config.warmup == "random":
            source = source.replace(
                agent=RandomActions(agent=self.agent, obs_space=source.obs_space, action_space=source.action_space)
            )
        self.warmup_source = source
        rows = jax.eval_shape(self._first_rows, jax.random.key(0))
        self.row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), rows)

    def _first_rows(self, key: Key) -> SampleBatch:
        source = self.warmup_source
        agent_state = self.agent.init(source.obs_space, source.action_space, key)
        experience, _ = source.collect(agent_state, source.init(jax.random.split(key, source.num_envs)), key)
        return rows_of(experience.trajectory)

    def make_agent(self) -> Agent:
        config = self.config
        return self.agent_class(
            config=config.network, normalize_obs=config.normalize_obs, n_step=config.n_step, burn_in=config.burn_in
        )

    @staticmethod
    def _make_buffer(config: OffPolicyConfig, train: TrainConfig, num_devices: int) -> ReplayBuffer:
        # What is never filled need not be there; one rollout more than the run, since its last one may pass the end.
        most = train.total_timesteps + config.num_envs * (config.rollout_length + config.window_length)
        if train.env.autoreset_mode is AutoresetMode.ENVPOOL:
            most *= 2  # at worst every other row is one in which an env only reset itself
        shape = {
            "capacity": min(config.buffer_capacity, most) // num_devices,
            "num_envs": config.num_envs // num_devices,
            "sequence_length": config.window_length,
        }
        return PrioritizedBuffer(**shape, axis_name=DEVICE_AXIS) if config.prioritized else UniformBuffer(**shape)

    # What a method defines.

    @abstractmethod
    def update(
        self, learner: OffPolicyLearner, replayed: Replayed, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Array, OffPolicyLearner]:
        """Learn from a batch: return metrics, the absolute errors of its rows `[T, N]`, and what was learned."""

    def gradient_step(
        self,
        learner: OffPolicyLearner,
        part: str,
        loss_fn: LossFn,
        learning_rate: Array,
        max_grad_norm: Array | None = None,
    ) -> tuple[LossInfo, OffPolicyLearner]:
        """Take one step down the gradient of the loss of one part of the parameters."""
        params = learner.agent_state.params
        gradients, report = jax.grad(loss_fn, has_aux=True)(params[part])
        gradients, metrics = mean_over_devices((gradients, report.metrics))
        changed, optimizer_state, _ = self.optimizer.step(
            gradients, learner.optimizer_states[part], params[part], learning_rate, max_grad_norm
        )
        return report.replace(metrics=metrics), learner.replace(
            agent_state=learner.agent_state.replace(params=params.replace(**{part: changed})),
            optimizer_states=learner.optimizer_states.replace(**{part: optimizer_state}),
        )

    def follow(self, learner: OffPolicyLearner, rate: Array) -> OffPolicyLearner:
        """Move the slow copies of the parameters towards them."""
        fast = PyTreeDict({part: learner.agent_state.params[part] for part in self.target_parts})
        return learner.replace(target_params=polyak(learner.target_params, fast, rate))

    # What the base class asks for.

    def setup(self, key: Key) -> OffPolicyState:
        key, eval_key, agent_key, env_key, warmup_key = jax.random.split(key, 5)
        agent_state = self.agent.init(self.source.obs_space, self.source.action_space, agent_key)
        params = agent_state.params
        state = OffPolicyState.first(
            key,
            eval_key,
            agent_state,
            self.settings.hyperparameters,
            target_params=PyTreeDict({part: params[part] for part in self.target_parts}),
            optimizer_states=PyTreeDict({part: self.optimizer.init(params[part]) for part in params}),
            source_state=self.start_source(env_key),
            buffer_state=self.buffer.init(self.row),
        )
        first_values = values_at(state.hyperparameters, jnp.zeros(()))
        state = state.replace(agent_state=self.agent.explore_with(agent_state, first_values))
        return self._warm_up(state, warmup_key) if self.host is None else state

    def _warm_up(self, state: OffPolicyState, warmup_key: Key) -> OffPolicyState:
        """Take the first steps, as a part of a compiled program."""
        warmup_steps = Counter.of(self.config.warmup_steps)

        def is_cold(carry: tuple[Array, OffPolicyState]) -> Array:
            return any_true(carry[1].env_steps.is_below(warmup_steps))

        def warm_up(carry: tuple[Array, OffPolicyState]) -> tuple[Array, OffPolicyState]:
            num_rounds, state = carry
            round_key = jax.random.fold_in(warmup_key, num_rounds)
            return num_rounds + 1, self._collect(self.warmup_source, state, round_key)[1]

        return jax.lax.while_loop(is_cold, warm_up, (jnp.zeros((), jnp.int32), state))[1]

    def init(self, key: Key) -> OffPolicyState:
        state = super().init(key)
        return state if self.host is None else self._warm_up_on_host(self.host, state)

    def _warm_up_on_host(self, host: HostCollector, state: OffPolicyState) -> OffPolicyState:
        """Take the first steps, each stored by a compiled program."""

        def store(state: OffPolicyState, experience: Experience) -> OffPolicyState:
            return self._collect(self.warmup_source, state.replace(source_state=experience), state.key)[1]

        specs = self.state_specs()
        program = self.program(store, (specs, experience_specs()), specs, donate=(0,), options=run_once_options())
        num_steps = 0
        while num_steps < self.config.warmup_steps:
            experience, num_new = host.collect(self.warmup_source, state.agent_state)
            state = program(state, self.training.place(experience))
            num_steps += num_new
        return state

    def prepare_to_act(self, state: OffPolicyState) -> OffPolicyState:
        hyperparameters = values_at(state.hyperparameters, state.env_steps.as_float())
        return state.replace(agent_state=self.agent.explore_with(state.agent_state, hyperparameters))

    def state_specs(self) -> Any:
        specs: dict[str, Any] = dict.fromkeys(field_names(OffPolicyState), SAME) | {"source_state": SPLIT}
        buffer_shapes = jax.eval_shape(self.buffer.init, self.row)
        specs["buffer_state"] = jax.tree.map(lambda leaf: SPLIT if leaf.ndim else SAME, buffer_shapes)
        return OffPolicyState(**specs)

    def without_unsaved(self, state: OffPolicyState) -> OffPolicyState:
        return state if self.settings.train.checkpoint.replay else state.replace(buffer_state=None)

    def with_unsaved(self, state: OffPolicyState) -> OffPolicyState:
        if state.buffer_state is not None:
            return state
        # With the environments that filled it: the rows of a buffer continue one another.
        fresh = self.init(self.make_key())
        return state.replace(buffer_state=fresh.buffer_state, source_state=fresh.source_state)

    def _collect(self, source: Any, state: OffPolicyState, key: Key) -> tuple[dict[str, Mean], OffPolicyState]:
        """Take steps, store them and count them; return what the source reports."""
        experience, source_state = source.collect(state.agent_state, state.source_state, key_of_this_device(key))
        trajectory = blank_dead_rows(experience.trajectory)
        agent_state = self.agent.update_obs_statistics(
            state.agent_state, trajectory.obs, weights_of(trajectory), DEVICE_AXIS
        )
        buffer_state, anew = state.buffer_state, starts_anew(trajectory)
        if anew is not None and self.config.window_length > 1:
            buffer_state = with_last_rows_done(buffer_state, anew)
        return sum_over_devices(experience.metrics), state.replace(
            agent_state=agent_state,
            source_state=source_state,
            buffer_state=self.buffer.add(buffer_state, rows_of(trajectory)),
            env_steps=state.env_steps.add(num_steps_of(trajectory)),
        )

    def iterate(self, state: OffPolicyState) -> tuple[PyTreeDict, OffPolicyState]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        hyperparameters: Any = values_at(state.hyperparameters, state.env_steps.as_float())
        agent_state = self.agent.explore_with(state.agent_state, hyperparameters)
        metrics_of_source, state = self._collect(self.source, state.replace(agent_state=agent_state), collect_key)

        def update(
            carry: tuple[OffPolicyLearner, Any], update_key: Key
        ) -> tuple[tuple[OffPolicyLearner, Any], dict[str, Mean]]:
            learner, buffer_state = carry
            sample_key, learn_key = jax.random.split(update_key)
            sample = self.buffer.sample(buffer_state, sample_key, self.config.batch_size // self.num_devices)
            replayed = self._replayed(buffer_state, sample, hyperparameters)
            metrics, errors, learner = self.update(learner, replayed, hyperparameters, learn_key)
            buffer_state = self.buffer.update_priorities(
                buffer_state, sample.indexes, priorities_of(errors), hyperparameters.priority_exponent
            )
            learner = learner.replace(num_updates=learner.num_updates.add(1))
            return (learner, buffer_state), metrics

        learner = OffPolicyLearner(
            agent_state=state.agent_state,
            target_params=state.target_params,
            optimizer_states=state.optimizer_states,
            num_updates=state.num_updates,
        )
        update_keys = jax.random.split(key_of_this_device(update_key), self.config.num_updates)
        (learner, buffer_state), metrics = jax.lax.scan(update, (learner, state.buffer_state), update_keys)
        state = state.replace(
            key=key,
            agent_state=learner.agent_state,
            target_params=learner.target_params,
            optimizer_states=learner.optimizer_states,
            num_updates=learner.num_updates,
            iterations=state.iterations.add(1),
            buffer_state=buffer_state,
        )
        return PyTreeDict(jax.tree.map(jnp.sum, metrics) | metrics_of_source), state

    def _replayed(self, buffer_state: Any, sample: ReplaySample, hyperparameters: Any) -> Replayed:
        if not self.config.prioritized:
            return Replayed(windows=sample.sequence, importance=None)
        importance = importance_weights(
            sample.probabilities,
            self.buffer.num_windows(buffer_state),
            hyperparameters.importance_exponent,
            DEVICE_AXIS,
        )
        return Replayed(windows=sample.sequence, importance=importance)


def rows_of(trajectory: SampleBatch) -> SampleBatch:
    """Return what is stored of a trajectory: `next_obs` is the true successor, also where an episode ended."""
    env_extras, policy_extras = trajectory.extras.env_extras, trajectory.extras.policy_extras
    kept = {name: env_extras[name] for name in ("termination", "autoreset") if name in env_extras}
    starts = {"episode_start": policy_extras.episode_start} if "episode_start" in policy_extras else {}
    return SampleBatch(
        obs=trajectory.obs,
        actions=trajectory.actions,
        rewards=trajectory.rewards,
        next_obs=env_extras.ori_obs,
        dones=trajectory.dones,
        extras=PyTreeDict(policy_extras=starts, env_extras=kept),
    )


def with_last_rows_done(buffer_state: ReplayState, envs: Array) -> ReplayState:
    """Mark the newest row of these envs `[B]` as the last of its episode: a window must not go on behind it.

    It is no termination: what follows a row is still worth what its `next_obs` is.
    """
    layout, num_rows = buffer_state.layout, next(iter(buffer_state.storage.values())).shape[1]
    newest = (buffer_state.head - 1) % num_rows

    def read(ring: Array) -> Array:
        return jnp.swapaxes(jax.lax.dynamic_slice_in_dim(ring, newest, 1, axis=1), 0, 1)  # [1, B, columns]

    def write(ring: Array, row: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(ring, jnp.swapaxes(row, 0, 1), newest, axis=1)

    row: SampleBatch = layout.unpack(jax.tree.map(read, buffer_state.storage))
    row = row.replace(dones=jnp.maximum(row.dones, envs[None].astype(row.dones.dtype)))
    return buffer_state.replace(storage=jax.tree.map(write, buffer_state.storage, layout.pack(jax.tree.leaves(row))))


def priorities_of(errors: Array) -> Array:
    """Return the priorities `[N]` of windows from the absolute errors `[T, N]` of their rows."""
    return MAX_SHARE * jnp.max(errors, axis=0) + (1.0 - MAX_SHARE) * jnp.mean(errors, axis=0)


class RandomActions(Agent):
    """Acts at random in the place of an agent, whose memory is kept up all the same."""

    agent: Agent
    obs_space: Space = pytree_field(static=True)
    action_space: Space = pytree_field(static=True)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return self.agent.init(obs_space, action_space, key)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        agent_key, random_key = jax.random.split(key)
        _, extras = self.agent.compute_actions(agent_state, sample_batch, agent_key)
        random_agent = RandomAgent()
        spaces = random_agent.init(self.obs_space, self.action_space, random_key)
        return random_agent.compute_actions(spaces, sample_batch, random_key)[0], extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return self.agent.initial_carry(batch_shape)
