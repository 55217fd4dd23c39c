"""Off-policy learners: store experience in a replay buffer, and learn from batches sampled from it."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp

from rookery.agent import Agent, AgentState
from rookery.agents.random_actions import RandomActions
from rookery.agents.replay import LossInfo, ReplayAgent, ReplayBatch
from rookery.configuration import check_settings, setting
from rookery.control_flow import scan_any
from rookery.distributed import SAME, SPLIT, check_divides, check_memory
from rookery.distributed.collectives import (
    device_axis,
    key_of_this_device,
    mean_over_devices,
    num_devices,
    sum_over_devices,
)
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number, values_at
from rookery.learners.learner import Learner, LearnerState, Metrics
from rookery.learning.experience import (
    Experience,
    num_env_steps,
    row_weights,
    starts_new_episode,
    trajectory_shapes,
    zero_dead_rows,
)
from rookery.learning.targets import polyak
from rookery.learning.updates import RULES, Optimizer
from rookery.networks.policy import TrunkConfig
from rookery.replay_buffers import PrioritizedBuffer, ReplayBuffer, UniformBuffer, importance_weights
from rookery.replay_buffers.borders import with_last_rows_done
from rookery.replay_buffers.replay_buffer import ReplaySample, ReplayState
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTreeDict, pytree_field

WARMUPS = ("random", "policy")
MAX_SHARE = 0.9
"""Weight of the maximum error of a window in its priority; the mean error has the rest (Kapturowski et al., 2019)."""


@dataclass(frozen=True)
class OffPolicyConfig:
    """The settings that off-policy methods share.

    Reset rows of ENVPOOL environments count as steps for `updates_per_step`. A batch consists of windows. A window has
    the `n_step` rows of one transition; with a recurrent core, `burn_in` rows and the rows of `sequence_length`
    transitions.
    """

    num_envs: int = setting(1, low=1, help="environments in parallel, over all devices")
    rollout_length: int = setting(1, low=1, help="steps of each environment between two groups of updates")
    updates_per_step: float = setting(1.0, help="gradient steps for every step of an environment")
    batch_size: int = setting(256, low=1, help="windows in a batch, over all devices")
    buffer_capacity: int = setting(
        1_000_000, low=1, help="steps in the replay buffer, over all devices; at most those of the run"
    )
    prioritized: bool = setting(False, help="sample steps with large errors more often")
    n_step: int = setting(1, low=1, help="rewards that are summed before a target network estimates the rest")
    sequence_length: int = setting(1, low=1, help="with a core: consecutive steps to learn from")
    burn_in: int = setting(0, low=0, help="with a core: steps before those that only build up the recurrent state")
    warmup_steps: int = setting(1000, help="steps before the first update")
    warmup: str = setting("random", choices=WARMUPS, help="actions before the first update")
    normalize_obs: bool = setting(False, help="by running mean and standard deviation")
    optimizer: str = setting("adam", choices=RULES)
    network: TrunkConfig = setting(TrunkConfig())

    def __post_init__(self) -> None:
        check_settings(self)
        if self.buffer_capacity < self.min_warmup_steps:
            raise InvalidInputError(
                f"buffer_capacity={self.buffer_capacity} does not hold a window of {self.window_length} steps for each "
                f"of num_envs={self.num_envs}: use at least {self.min_warmup_steps}."
            )
        if self.warmup_steps < self.min_warmup_steps:
            raise InvalidInputError(
                f"warmup_steps={self.warmup_steps} fills no window for every env: use at least {self.min_warmup_steps}."
            )
        steps = self.num_envs * self.rollout_length
        if self.num_updates < 1 or not math.isclose(self.num_updates, self.updates_per_step * steps):
            raise InvalidInputError(
                f"updates_per_step={self.updates_per_step:g} must give a whole number of updates per "
                f"num_envs * rollout_length = {steps} steps: use a multiple of 1/{steps}."
            )

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
    """The hyper-parameters that off-policy methods share."""

    discount: Scalar = number(0.99, low=0.0, high=1.0, help="weight of the next step's return")
    max_grad_norm: Scalar | None = number(None, low=1e-9, help="clip gradients to this norm; null: never")
    priority_exponent: Scalar = number(
        0.6, low=0.0, high=1.0, help="with prioritized: 0 samples uniformly, 1 in proportion to the error"
    )
    importance_exponent: Scalar = number(
        0.4, low=0.0, high=1.0, help="with prioritized: how much the loss corrects for it; often {start: 0.4, end: 1.0}"
    )


class OffPolicyState(LearnerState):
    """The state of an off-policy learner; each part of the parameters has its own optimizer state."""

    inherited = (*LearnerState.inherited, "target_params", "optimizer_states")

    target_params: Params
    optimizer_states: PyTreeDict
    buffer_state: ReplayState
    """None in a checkpoint without the replay buffer."""

    def with_agent(self, agent_state: AgentState) -> Self:
        targets = PyTreeDict({part: agent_state.params[part] for part in self.target_params})
        return self.replace(agent_state=agent_state, target_params=targets)

    @property
    def lacks_replay(self) -> bool:
        return self.buffer_state is None

    def without_replay(self) -> Self:
        return self.replace(buffer_state=None)


StateT = TypeVar("StateT")
LossFn = Callable[[Params], tuple[Array, LossInfo]]
"""Given one part of the parameters, returns the loss."""


class ReplayLearner(Learner[OffPolicyState, Experience]):
    """Stores experience, then calls the method's `learn_batch` on batches sampled from the replay buffer.

    Every device stores the experience of its own environments and samples its share of each batch from it. Dead rows
    are not stored. A device that has stored no window yet takes part in an update with weight 0.
    """

    max_staleness = None
    has_replay = True
    target_parts: ClassVar[tuple[str, ...]]
    """The parts of the parameters that have target networks."""

    agent: ReplayAgent
    config: OffPolicyConfig = pytree_field(static=True)
    max_rows: int | None = pytree_field(static=True, default=None)
    """Upper limit of the rows of a run, if known: the buffer need not be larger."""

    @classmethod
    def of(cls, config: OffPolicyConfig) -> "ReplayLearner":
        """Build the learner and its agent."""
        return cls(agent=cls.make_agent(config), config=config)

    @classmethod
    def make_agent(cls, config: OffPolicyConfig) -> ReplayAgent:
        return cls.agent_class(  # type: ignore[call-arg, return-value]
            config=config.network, normalize_obs=config.normalize_obs, n_step=config.n_step, burn_in=config.burn_in
        )

    # For subclasses.

    @abstractmethod
    def learn_batch(
        self, state: OffPolicyState, batch: ReplayBatch, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, Array, OffPolicyState]:
        """Learn from a batch: return metrics, the absolute errors of its rows `[T, N]`, and the state."""

    def gradient_step(
        self,
        state: OffPolicyState,
        part: str,
        loss_fn: LossFn,
        learning_rate: Array,
        max_grad_norm: Array | None = None,
    ) -> tuple[LossInfo, OffPolicyState]:
        """Take one gradient step on the loss of one part of the parameters."""
        params = state.agent_state.params
        gradients, info = jax.grad(loss_fn, has_aux=True)(params[part])
        gradients, metrics = mean_over_devices((gradients, info.metrics))
        changed, optimizer_state, _ = self.optimizer.step(
            gradients, state.optimizer_states[part], params[part], learning_rate, max_grad_norm
        )
        return info.replace(metrics=metrics), state.replace(
            agent_state=state.agent_state.replace(params=params.replace(**{part: changed})),
            optimizer_states=state.optimizer_states.replace(**{part: optimizer_state}),
        )

    def update_targets(self, state: OffPolicyState, rate: Array) -> OffPolicyState:
        """Move the target parameters towards the trained ones (soft update)."""
        trained = PyTreeDict({part: state.agent_state.params[part] for part in self.target_parts})
        return state.replace(target_params=polyak(state.target_params, trained, rate))

    # The interface of a learner.

    @property
    def optimizer(self) -> Optimizer:
        return Optimizer(self.config.optimizer)

    @property
    def buffer(self) -> ReplayBuffer:
        """The replay buffer of this device."""
        config = self.config
        capacity = config.buffer_capacity if self.max_rows is None else min(config.buffer_capacity, self.max_rows)
        shape = {
            "capacity": capacity // num_devices(),
            "num_envs": config.num_envs // num_devices(),
            "sequence_length": config.window_length,
        }
        return PrioritizedBuffer(**shape, axis_name=device_axis()) if config.prioritized else UniformBuffer(**shape)

    def init(
        self,
        obs_space: Space,
        action_space: Space,
        hyperparameters: Hyperparameters,
        key: Key,
        trajectory: SampleBatch | None = None,
    ) -> OffPolicyState:
        agent_state = self.agent.init(obs_space, action_space, key)
        params = agent_state.params
        if trajectory is None:
            trajectory = trajectory_shapes(self.agent, obs_space, action_space, num_envs=1, length=1)
        row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), rows_of(trajectory))
        state = OffPolicyState.first(
            agent_state,
            hyperparameters,
            target_params=PyTreeDict({part: params[part] for part in self.target_parts}),
            optimizer_states=PyTreeDict({part: self.optimizer.init(params[part]) for part in params}),
            buffer_state=self.buffer.init(row),
        )
        return state.replace(agent_state=self.acting_state(state))

    def specs(self, state: OffPolicyState) -> OffPolicyState:
        buffer_specs = jax.tree.map(lambda leaf: SPLIT if leaf.ndim else SAME, state.buffer_state)
        return super().specs(state).replace(buffer_state=buffer_specs)

    def check(self, num_devices: int) -> None:
        super().check(num_devices)
        check_divides("agent.batch_size", self.config.batch_size, num_devices)
        check_memory(f"agent.batch_size={self.config.batch_size}", 8 * self.config.batch_size)
        core, sequence_length, burn_in = self.config.network.core, self.config.sequence_length, self.config.burn_in
        if core is None and (sequence_length > 1 or burn_in > 0):
            raise InvalidInputError(
                f"agent.sequence_length={sequence_length} and agent.burn_in={burn_in} are for recurrent networks: set "
                "agent.network.core=gru, or leave them at 1 and 0."
            )
        if core is not None and sequence_length < 2:
            raise InvalidInputError(
                f"agent.network.core={core} learns from sequences: set agent.sequence_length, to 16 for example, and "
                "agent.burn_in, to 8."
            )

    def acting_state(self, state: OffPolicyState) -> AgentState:
        """Return the agent state with the exploration of the current env step."""
        return self.agent.explore_with(state.agent_state, values_at(state.hyperparameters, state.env_steps.as_float()))

    @property
    def warmup_steps(self) -> int:
        return self.config.warmup_steps

    def warmup_agent(self, obs_space: Space, action_space: Space) -> Agent:
        if self.config.warmup == "policy":
            return self.agent
        return RandomActions(agent=self.agent, obs_space=obs_space, action_space=action_space)

    def learn(self, state: OffPolicyState, experience: Experience, key: Key) -> tuple[Metrics, OffPolicyState]:
        hyperparameters: HyperparameterValues = values_at(state.hyperparameters, state.env_steps.as_float())
        state = self.store(state.replace(agent_state=self.acting_state(state)), experience)
        metrics, state = self.update(state, hyperparameters, key)
        return metrics | sum_over_devices(experience.metrics), state.replace(iterations=state.iterations.add(1))

    def store(self, state: OffPolicyState, experience: Experience) -> OffPolicyState:
        """Store the live rows of experience."""
        trajectory = zero_dead_rows(experience.trajectory)
        weights = row_weights(trajectory)
        agent_state = self.agent.update_obs_statistics(state.agent_state, trajectory.obs, weights, device_axis())
        buffer_state, starts = state.buffer_state, starts_new_episode(trajectory)
        if starts is not None and self.config.window_length > 1:
            buffer_state = with_last_rows_done(buffer_state, starts)
        return state.replace(
            agent_state=agent_state,
            buffer_state=self.buffer.add(
                buffer_state, rows_of(trajectory), is_live=None if weights is None else weights > 0.0
            ),
            env_steps=state.env_steps.add(num_env_steps(trajectory)),
        )

    def restarted(self, state: OffPolicyState, is_due: Array) -> OffPolicyState:
        return state.replace(buffer_state=self.buffer.emptied(state.buffer_state, is_due))

    def update(
        self, state: OffPolicyState, hyperparameters: HyperparameterValues, key: Key
    ) -> tuple[Metrics, OffPolicyState]:
        """Take the gradient steps of one iteration, each on a new batch."""
        step_keys = jax.random.split(key_of_this_device(key), self.config.num_updates)
        step = partial(self._update_once, hyperparameters)
        state, metrics = scan_any(self.is_ready(state), step, state, step_keys)
        return jax.tree.map(jnp.sum, metrics), state

    def update_times(
        self, state: OffPolicyState, hyperparameters: HyperparameterValues, key: Key, num_updates: Array
    ) -> tuple[Metrics, OffPolicyState]:
        """Take a traced number of gradient steps, each on a new batch."""
        step = jax.jit(partial(self._update_once, hyperparameters))  # traced once
        num_updates = jnp.where(self.is_ready(state), num_updates, 0)
        return repeated(step, state, key_of_this_device(key), num_updates)

    def is_ready(self, state: OffPolicyState) -> Array:
        """Return whether a device has windows to sample: gradients are averaged, so all devices take a step then."""
        return sum_over_devices(self.buffer.can_sample(state.buffer_state).astype(jnp.int32)) > 0

    def sample_batch(
        self, buffer_state: ReplayState, hyperparameters: HyperparameterValues, key: Key, batch_size: int
    ) -> tuple[ReplayBatch, ReplaySample]:
        """Sample a batch from the rows of this device."""
        buffer, importance = self.buffer, None
        sample = buffer.sample(buffer_state, key, batch_size)
        if self.config.prioritized:
            importance = importance_weights(
                sample.probabilities,
                buffer.num_windows(buffer_state),
                hyperparameters.importance_exponent,
                device_axis(),
            )
        windows = dead_unless(buffer.can_sample(buffer_state), sample.sequence)
        return ReplayBatch(windows=windows, importance=importance), sample

    def _update_once(
        self, hyperparameters: HyperparameterValues, state: OffPolicyState, key: Key
    ) -> tuple[OffPolicyState, Metrics]:
        sample_key, learn_key = jax.random.split(key)
        own_size = self.config.batch_size // num_devices()
        batch, sample = self.sample_batch(state.buffer_state, hyperparameters, sample_key, own_size)
        metrics, errors, state = self.learn_batch(state, batch, hyperparameters, learn_key)
        buffer_state = self.buffer.update_priorities(
            state.buffer_state, sample.indexes, priorities_of(errors), hyperparameters.priority_exponent
        )
        return state.replace(buffer_state=buffer_state, num_updates=state.num_updates.add(1)), metrics


def repeated(
    step: Callable[[StateT, Key], tuple[StateT, Metrics]], state: StateT, key: Key, num_steps: Array
) -> tuple[Metrics, StateT]:
    """Take a traced number of steps, each with its own key; return the sums of their metrics."""
    _, shapes = jax.eval_shape(step, state, key)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def body(index: Array, carry: tuple[StateT, Metrics]) -> tuple[StateT, Metrics]:
        state, metrics = carry
        state, new = step(state, jax.random.fold_in(key, index))
        return state, jax.tree.map(jnp.add, metrics, new)

    state, metrics = jax.lax.fori_loop(0, num_steps, body, (state, nothing))
    return metrics, state


def rows_of(trajectory: SampleBatch) -> SampleBatch:
    """Return rows as they are stored; `next_obs` is the true successor, also where an episode is done.

    `autoreset` is 0 in all rows that are stored, see `dead_unless`; trajectories without dead rows do not have it.
    """
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


def dead_unless(has_windows: Array, windows: SampleBatch) -> SampleBatch:
    """Mark all rows as dead if the buffer had no windows to sample, so that their weights are 0.

    Trajectories without dead rows fill the buffers of all devices alike, so their windows are returned unchanged.
    """
    env_extras = windows.extras.env_extras
    if "autoreset" not in env_extras:
        return windows
    autoreset = jnp.where(has_windows, env_extras.autoreset, 1.0)
    return windows.replace(extras=windows.extras.replace(env_extras=env_extras.replace(autoreset=autoreset)))


def priorities_of(errors: Array) -> Array:
    """Return the priorities `[N]` of windows from the absolute errors `[T, N]` of their rows."""
    return MAX_SHARE * jnp.max(errors, axis=0) + (1.0 - MAX_SHARE) * jnp.mean(errors, axis=0)
