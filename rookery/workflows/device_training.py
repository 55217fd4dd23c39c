"""Device training: environments, agent and learner in one compiled program."""

import jax
import jax.numpy as jnp

from rookery.compilation import run_once_options
from rookery.control_flow import any_true, cond_any
from rookery.distributed import DEVICE_AXIS
from rookery.distributed.collectives import key_of_this_device
from rookery.evaluators import Evaluator
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState
from rookery.learning.counter import Counter
from rookery.learning.experience import Experience
from rookery.metrics import Metrics
from rookery.rollout import RolloutSource, RolloutState
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, where_tree
from rookery.workflows.programs import Layout, experience_specs
from rookery.workflows.training import REFILL, RESTART, LearnerTraining, OnDevice, TrainingState, timed

ROWS_TO_TIME = 128
"""Minimum number of rows per timed call; with fewer rows the overhead of the call would dominate."""


class DeviceTraining(OnDevice, LearnerTraining):
    """Collects and learns on the device."""

    def __init__(
        self,
        source: RolloutSource,
        learner: Learner,
        hyperparameters: Hyperparameters,
        layout: Layout,
        evaluator: Evaluator,
        num_episodes: int,
    ) -> None:
        self.source = source
        self.learner = learner
        self.agent = learner.agent
        self.layout = layout
        self.evaluator = evaluator
        self.evaluation = self._make_evaluation(num_episodes, is_compiled=True)
        self._hyperparameters = hyperparameters
        self._trajectory = self._trajectory_shapes() if learner.warmup_steps else None
        self._warmup_source = source.replace(
            agent=learner.warmup_agent(source.obs_space, source.action_space), rollout_length=1
        )
        self._make_programs(self._start, self._iterate)

    def refill(self, state: TrainingState) -> TrainingState:
        specs, layout = self.specs(), self.layout
        given = specs.replace(learner=specs.learner.without_replay())
        return layout.program(layout.over_seeds(self._refill), (given,), specs, options=run_once_options())(state)

    # For one seed, on this device's share of the environments.

    def restarted(self, state: TrainingState, is_due: Array) -> TrainingState:
        env_key = jax.random.fold_in(state.key, RESTART)

        def start(before: RolloutState) -> RolloutState:
            return where_tree(is_due, self._start_envs(env_key), before)

        source_state = cond_any(is_due, start, state.source_state)
        return state.replace(learner=self.learner.restarted(state.learner, is_due), source_state=source_state)

    def _start(self, key: Key, hyperparameters: Hyperparameters) -> TrainingState:
        key, eval_key, learner_key, env_key, warmup_key = jax.random.split(key, 5)
        state = TrainingState(
            key=key,
            eval_key=eval_key,
            learner=self.start_learner(learner_key, hyperparameters),
            source_state=self._start_envs(env_key),
        )
        return self._warm_up(self._warmup_source, state, warmup_key) if self.learner.warmup_steps else state

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.source.obs_space, self.source.action_space

    def start_learner(self, key: Key, hyperparameters: Hyperparameters) -> LearnerState:
        return self.learner.init(*self.spaces, hyperparameters, key, self._trajectory)

    def _trajectory_shapes(self) -> SampleBatch:
        """Return the shapes of what is collected: a replay buffer stores rows like these."""

        def collect(key: Key) -> SampleBatch:
            source = self.source
            agent_state = source.agent.init(source.obs_space, source.action_space, key)
            source_state = source.init(jax.random.split(key, source.num_envs))
            return source.collect(agent_state, source_state, key)[0].trajectory

        return jax.eval_shape(collect, jax.random.key(0))

    def _start_envs(self, key: Key) -> RolloutState:
        """Start this device's environments; the keys do not depend on the number of devices."""
        num_devices, num_envs = self.layout.num_shares, self.source.num_envs
        env_keys = jax.random.split(key, num_devices * num_envs).reshape(num_devices, num_envs)
        return self.source.init(env_keys[jax.lax.axis_index(DEVICE_AXIS)])

    def _refill(self, state: TrainingState) -> TrainingState:
        env_key, learner_key, warmup_key = jax.random.split(jax.random.fold_in(state.key, REFILL), 3)
        buffer_state = self.start_learner(learner_key, state.hyperparameters).buffer_state  # type: ignore[attr-defined]
        empty = state.replace_learner(
            agent_state=self.learner.acting_state(state.learner), buffer_state=buffer_state, env_steps=Counter.zero()
        ).replace(source_state=self._start_envs(env_key))
        filled = self._warm_up(self.source.replace(rollout_length=1), empty, warmup_key)
        learner = state.learner.replace(buffer_state=filled.learner.buffer_state)  # type: ignore[attr-defined]
        return state.replace(learner=learner, source_state=filled.source_state)

    def _warm_up(self, source: RolloutSource, state: TrainingState, key: Key) -> TrainingState:
        warmup_steps = Counter.of(self.learner.warmup_steps)

        def is_cold(carry: tuple[Array, TrainingState]) -> Array:
            return any_true(carry[1].env_steps.is_below(warmup_steps))

        def warm_up(carry: tuple[Array, TrainingState]) -> tuple[Array, TrainingState]:
            num_rounds, state = carry
            round_key = key_of_this_device(jax.random.fold_in(key, num_rounds))
            experience, source_state = source.collect(state.agent_state, state.source_state, round_key)
            learner = self.learner.store(state.learner, experience)
            return num_rounds + 1, state.replace(learner=learner, source_state=source_state)

        return jax.lax.while_loop(is_cold, warm_up, (jnp.zeros((), jnp.int32), state))[1]

    def _iterate(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        key, collect_key, learn_key = jax.random.split(state.key, 3)
        experience, source_state = self.source.collect(
            self.learner.acting_state(state.learner), state.source_state, key_of_this_device(collect_key)
        )
        metrics, learner = self.learner.learn(state.learner, experience, learn_key)
        return metrics, state.replace(key=key, learner=learner, source_state=source_state)

    def collect_seconds(self, state: TrainingState) -> float:
        """Time collecting in a separate program, because a part of a program cannot be timed."""
        source = self.source
        num_rounds = max(1, ROWS_TO_TIME // source.rollout_length)

        def collect(state: TrainingState) -> Experience:
            def collect_again(index: Array, carry: tuple[Experience, RolloutState]) -> tuple[Experience, RolloutState]:
                key = jax.random.fold_in(key_of_this_device(state.key), index)
                return source.collect(state.agent_state, carry[1], key)

            shapes, _ = jax.eval_shape(source.collect, state.agent_state, state.source_state, state.key)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.fori_loop(0, num_rounds, collect_again, (nothing, state.source_state))[0]

        program = self.layout.program(self.layout.over_seeds(collect), (self.specs(),), experience_specs())
        return timed(program, state, num_calls=3) / num_rounds
