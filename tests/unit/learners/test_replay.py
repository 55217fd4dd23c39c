"""Off-policy iterations: warm-up, stored rows, number of updates, priorities and dead rows."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.agents.critics import critic_loss
from rookery.agents.replay import ReplayBatch
from rookery.algorithms.ddpg import DDPGConfig, DDPGWorkflow
from rookery.algorithms.dqn import DQNWorkflow
from rookery.algorithms.sac import SAC, SACConfig, SACHyperparameters, SACWorkflow
from rookery.algorithms.td3 import TD3
from rookery.envs import Env, EnvState
from rookery.errors import InvalidInputError
from rookery.learners.replay import priorities_of, rows_of
from rookery.learning.experience import Experience, trajectory_shapes
from rookery.metrics import Mean
from rookery.replay_buffers import UniformBuffer
from rookery.replay_buffers.borders import with_last_rows_done
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Space
from rookery.testing.probe_envs import PROBES
from rookery.types import Key, PyTreeDict, as_key
from rookery.workflows.off_policy import OffPolicyWorkflow

TIME_LIMIT = 4
TOTAL_TIMESTEPS = 200


class TellTale(Env):
    """Every transition can be checked by itself: the observation is `[start, count]`, the reward 10 count + action.

    By their start, a third of the episodes terminates after 2 steps, a third at the time limit of 4, a third never.
    """

    @property
    def obs_space(self) -> Space:
        return Box(0.0, 9.0, (2,))

    @property
    def action_space(self) -> Space:
        return Box(-2.0, 2.0, (1,))

    def reset(self, key: Key) -> EnvState:
        obs = jnp.stack([jax.random.uniform(as_key(key)), jnp.zeros(())])
        return EnvState(env_state=obs, obs=obs, reward=jnp.zeros(()), done=jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        start, count = env_state.env_state
        obs = jnp.stack([start, count + 1.0])
        done = (count + 1.0 >= self.length_of(start)).astype(jnp.float32)
        return EnvState(env_state=obs, obs=self.shown(obs, done), reward=10.0 * count + action[0], done=done)

    @staticmethod
    def length_of(start: Any) -> Any:
        return jnp.where(start < 1 / 3, 2.0, jnp.where(start < 2 / 3, TIME_LIMIT, jnp.inf))

    def shown(self, obs: Any, done: Any) -> Any:
        return obs


class NaNAtTheEnd(TellTale):
    """An environment whose last observation is NaN."""

    def shown(self, obs: Any, done: Any) -> Any:
        return jnp.where(done > 0, jnp.nan, obs)


@pytest.fixture(scope="module", autouse=True)
def more_probes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROBES, "tell_tale", TellTale)
        patch.setitem(PROBES, "nan_at_the_end", NaNAtTheEnd)
        yield


def make_workflow(
    kind: type[OffPolicyWorkflow] = DDPGWorkflow,
    env: str = "probe/tell_tale",
    mode: str = "normal",
    network: dict | None = None,
    num_seeds: int = 1,
    **agent: Any,
) -> Any:
    network = {
        "hidden_sizes": [8],
        "core_size": 4,
        "gaussian": {"bounds": "squash"},
        "output_init_scale": 1.0,
        **(network or {}),
    }
    sizes = {"num_envs": 3, "batch_size": 8, "warmup_steps": 24}
    return kind.build_from_config(
        {
            "agent": {**sizes, "network": network, **agent},
            "env": {"name": env, "episode_length": TIME_LIMIT, "autoreset_mode": mode},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": TOTAL_TIMESTEPS,
            "num_seeds": num_seeds,
        }
    )


def stored(state: Any) -> SampleBatch:
    """All rows `[N, ...]` in the buffer, on the host and by env."""
    buffer_state = state.learner.buffer_state
    rows = buffer_state.layout.unpack(buffer_state.storage)
    is_written = np.arange(rows.rewards.shape[1]) < np.asarray(buffer_state.num_rows)[:, None]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[is_written], rows)


def stored_by_env(state: Any) -> SampleBatch:
    """All rows `[B, rows, ...]` in the buffer of envs that were always present."""
    return jax.tree.map(lambda leaf: leaf.reshape(3, -1, *leaf.shape[1:]), stored(state))


def assert_close(one: Any, other: Any, **tolerance: float) -> None:
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, **tolerance), one, other)


def differs(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(np.any(left != right) for left, right in pairs)


@pytest.fixture(scope="module")
def workflow() -> Any:
    return make_workflow(
        warmup_steps=25,
        updates_per_step=1.5,
        rollout_length=2,
        normalize_obs=True,
        exploration_noise={"start": 1, "end": 0},
    )


@pytest.fixture(scope="module")
def states(workflow: Any) -> list[Any]:
    """The states before, between and after three iterations."""
    states = [workflow.init(workflow.make_key())]
    for _ in range(3):
        states.append(workflow.step(states[-1])[1])
    return states


ENVPOOL: dict[str, Any] = {
    "mode": "envpool",
    "normalize_obs": True,
    "rollout_length": 8,
    "updates_per_step": 1 / 3,
    "critic_learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def envpool_workflow() -> Any:
    return make_workflow(**ENVPOOL)


@pytest.fixture(scope="module")
def envpool_states(envpool_workflow: Any) -> list[Any]:
    """The states before and after an iteration with dead rows."""
    state = envpool_workflow.init(envpool_workflow.make_key())
    return [state, envpool_workflow.step(state)[1]]


# The warm-up.


def test_the_warm_up_takes_the_stated_steps_rounded_up_to_whole_rounds(states: list[Any]) -> None:
    first = states[0]
    assert int(first.env_steps) == 27  # 9 rounds of 3 envs
    assert first.learner.buffer_state.num_rows.tolist() == [9, 9, 9]
    assert int(first.num_updates) == int(first.iterations) == 0


def test_the_warm_up_takes_the_stated_steps_where_dead_rows_come_between(envpool_states: list[Any]) -> None:
    assert 24 <= int(envpool_states[0].env_steps) < 24 + 3


def test_a_warm_up_at_random_fills_the_space_of_actions() -> None:
    state = make_workflow(num_envs=64, warmup_steps=64, n_step=1).init(jax.random.key(1))
    actions = stored(state).actions.ravel()
    assert stats.kstest(actions, "uniform", (-2.0, 4.0)).pvalue > 1e-3
    discrete = make_workflow(SACWorkflow, "probe/mask", num_envs=64, warmup_steps=64).init(jax.random.key(1))
    rows = stored(discrete)
    assert np.all(rows.rewards == 1.0), "only allowed actions"
    assert stats.chisquare(np.bincount(rows.actions.ravel(), minlength=4)).pvalue > 1e-3


def test_a_warm_up_by_the_policy_acts_by_the_policy() -> None:
    workflow = make_workflow(warmup="policy", exploration_noise=0.0)
    state = workflow.init(workflow.make_key())
    rows = stored(state)
    greedy, _ = workflow.agent.evaluate_actions(state.agent_state, SampleBatch(obs=jnp.asarray(rows.obs)), state.key)
    np.testing.assert_allclose(rows.actions, greedy, atol=1e-5)
    assert rows.actions.std() > 0.05


def test_random_actions_update_the_recurrent_state_of_the_agent() -> None:
    workflow = make_workflow(network={"core": "gru"}, sequence_length=2)
    state = workflow.init(workflow.make_key())
    rows = stored_by_env(state)
    policy = state.agent_state.extra_state.network.policy
    carry = policy.initial_carry((3,))
    for step in range(rows.obs.shape[1]):
        starts = jnp.asarray(rows.extras.policy_extras.episode_start[:, step])
        _, carry = policy(state.agent_state.params.policy, jnp.asarray(rows.obs[:, step]), carry, starts)
    np.testing.assert_allclose(state.source_state.carry, carry, atol=1e-5)


# Stored rows.


@pytest.mark.parametrize("name", ["states", "envpool_states"])
def test_every_row_has_its_own_action_reward_true_successor_and_end(name: str, request: pytest.FixtureRequest) -> None:
    state = request.getfixturevalue(name)[-1]
    rows = stored(state)
    assert len(rows.rewards) == int(state.env_steps)
    start, count = rows.obs.T
    np.testing.assert_array_equal(rows.next_obs, np.stack([start, count + 1], axis=-1))
    np.testing.assert_allclose(rows.rewards, 10 * count + rows.actions[:, 0], rtol=1e-6)
    terminated = count + 1 >= np.asarray(TellTale.length_of(start))
    at_the_limit = count + 1 >= TIME_LIMIT
    np.testing.assert_array_equal(rows.extras.env_extras.termination, terminated)
    np.testing.assert_array_equal(rows.dones, terminated | at_the_limit)
    kinds = set(zip(terminated.tolist(), at_the_limit.tolist(), strict=True))
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def test_rows_follow_each_other_in_the_order_of_time(states: list[Any]) -> None:
    rows = stored_by_env(states[-1])
    assert rows.rewards.shape == (3, 9 + 3 * 2)
    goes_on = rows.dones[:, :-1] == 0
    np.testing.assert_array_equal(rows.obs[:, 1:][goes_on], rows.next_obs[:, :-1][goes_on])
    assert np.all(rows.obs[:, 1:, 1][~goes_on] == 0)


def test_no_window_continues_past_a_row_that_was_marked() -> None:
    buffer = UniformBuffer(capacity=10, num_envs=2, sequence_length=2)

    def row(number: float) -> SampleBatch:
        numbers = jnp.full((1, 2), number)
        extras = PyTreeDict(policy_extras={}, env_extras={"termination": 0 * numbers, "ori_obs": numbers + 1})
        return rows_of(SampleBatch(obs=numbers, actions=numbers, rewards=numbers, dones=0 * numbers, extras=extras))

    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], row(0.0)))
    for number in range(7):  # more than the ring holds
        state = buffer.add(state, row(float(number)))
    before = buffer.windows(state, jnp.array([1, 6]))
    marked = with_last_rows_done(state, jnp.array([False, True]))
    after = buffer.windows(marked, jnp.array([1, 6]))
    np.testing.assert_array_equal(after.dones[0], [0.0, 1.0])
    np.testing.assert_array_equal(after.obs[0], [6.0, 6.0])
    jax.tree.map(np.testing.assert_array_equal, after.replace(dones=before.dones), before)


def test_transitions_bootstrap_from_the_true_successor_after_a_truncation_only(
    workflow: Any, states: list[Any]
) -> None:
    rows = stored(states[-1])
    windows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], rows)
    agent_state = states[-1].agent_state
    transitions = workflow.agent.transitions(
        agent_state, ReplayBatch(windows=windows, importance=None), jnp.float32(0.9)
    )
    terminated = rows.obs[:, 1] + 1 >= np.asarray(TellTale.length_of(rows.obs[:, 0]))
    np.testing.assert_allclose(transitions.discounts[0], np.where(terminated, 0.0, 0.9), rtol=1e-6)
    successors = jnp.asarray(rows.obs + np.array([0.0, 1.0], np.float32))
    np.testing.assert_array_equal(transitions.next_obs[0], workflow.agent.preprocess_obs(agent_state, successors))


def test_no_step_is_forgotten_while_there_is_capacity() -> None:
    workflow = make_workflow(mode="envpool", warmup_steps=TOTAL_TIMESTEPS - 1, num_envs=1)
    state = workflow.init(workflow.make_key())
    while int(state.env_steps) < TOTAL_TIMESTEPS:
        _, state = workflow.step(state)
    assert len(stored(state).rewards) == int(state.env_steps)


def test_a_buffer_stores_rows_like_those_of_the_trajectories_to_come() -> None:
    learner, obs_space, action_space = SAC.of(SACConfig()), Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (1,))
    trajectory = trajectory_shapes(learner.agent, obs_space, action_space, num_envs=1, length=1)
    half = jax.ShapeDtypeStruct(trajectory.obs.shape, jnp.float16)
    env_extras = trajectory.extras.env_extras.replace(autoreset=trajectory.rewards, ori_obs=half)
    trajectory = trajectory.replace(obs=half, extras=trajectory.extras.replace(env_extras=env_extras))
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: learner.init(obs_space, action_space, SACHyperparameters(), key, trajectory))
    widths = {str(array.dtype): array.shape[-1] for array in state.buffer_state.storage.values()}
    assert widths == {"float16": 3 + 3, "float32": 5}, "obs and next_obs; action, reward, done, termination, autoreset"


# Updates.


@pytest.mark.usefixtures("fast_programs")
@pytest.mark.parametrize("num_iterations", [pytest.param(1, id="called"), pytest.param(3, id="in a loop")])
@pytest.mark.parametrize(
    ("kind", "env", "agent"),
    [
        pytest.param(DQNWorkflow, "classic/cartpole", {}, id="dqn"),
        pytest.param(DQNWorkflow, "classic/cartpole", {"prioritized": True, "n_step": 3}, id="prioritized dqn"),
        pytest.param(DDPGWorkflow, "classic/pendulum", {}, id="ddpg"),
    ],
)
def test_one_update_per_iteration_does_not_copy_the_replay_buffer(
    kind: type[OffPolicyWorkflow], env: str, agent: dict, num_iterations: int
) -> None:
    agent = {"num_envs": 1, "updates_per_step": 1, "batch_size": 8, "buffer_capacity": 1_000_000, **agent}
    agent["network"] = {"hidden_sizes": [8]}
    workflow = kind.build_from_config({"agent": agent, "env": {"name": env}, "total_timesteps": 10**7})
    state = workflow.training.state_shape(workflow.make_key())
    buffer_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.learner.buffer_state))

    def train(state: Any) -> Any:
        if num_iterations == 1:
            return workflow.step(state)[1]
        return jax.lax.fori_loop(0, num_iterations, lambda _, state: workflow.step(state)[1], state)

    memory = jax.jit(train, donate_argnums=0).lower(state).compile().memory_analysis()
    assert memory.alias_size_in_bytes > buffer_bytes > 32e6
    assert memory.temp_size_in_bytes < 0.01 * buffer_bytes


def test_steps_iterations_and_updates_are_counted(states: list[Any]) -> None:
    assert [int(state.env_steps) for state in states] == [27, 33, 39, 45]
    assert [int(state.iterations) for state in states] == [0, 1, 2, 3]
    assert [int(state.num_updates) for state in states] == [0, 9, 18, 27]  # 1.5 for each of 2 steps of 3 envs
    for part in ("policy", "critics"):
        assert [int(state.learner.optimizer_states[part].count) for state in states] == [0, 9, 18, 27]


@pytest.mark.parametrize(
    ("shapes", "num_updates"),
    [
        ({"num_envs": 4, "rollout_length": 5, "updates_per_step": 0.05}, 1),
        ({"num_envs": 1, "rollout_length": 1, "updates_per_step": 20.0}, 20),
        ({"num_envs": 3, "rollout_length": 1, "updates_per_step": 1 / 3}, 1),
        ({"num_envs": 7, "rollout_length": 7, "updates_per_step": 3 / 49}, 3),
        ({"num_envs": 8, "rollout_length": 16, "updates_per_step": 1.0}, 128),
    ],
)
def test_updates_per_step_sets_the_number_of_updates(shapes: dict, num_updates: int) -> None:
    assert SACConfig(**shapes).num_updates == num_updates


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param({"updates_per_step": 1}, id="an integer"),
        pytest.param({"num_envs": 100, "updates_per_step": 0.29}, id="29 of 100"),
    ],
)
def test_a_number_of_updates_that_is_whole_but_for_rounding_is_accepted(shapes: dict) -> None:
    assert SACConfig(**shapes).num_updates in (1, 29)


def test_a_step_leaves_the_state_it_was_given_usable_and_draws_new_numbers(workflow: Any, states: list[Any]) -> None:
    _, once = workflow.step(states[0])
    _, again = workflow.step(states[0])
    assert not differs(once.agent_state.params, again.agent_state.params)
    assert jax.random.key_data(once.key).tolist() != jax.random.key_data(states[0].key).tolist()
    assert not differs(jax.random.key_data(once.eval_key), jax.random.key_data(states[0].eval_key))


def test_exploration_follows_its_schedule_by_env_steps(states: list[Any]) -> None:
    # An iteration explores by its first env step; the warm-up explores as at step 0.
    steps = [0, 27, 33, 39]
    noise = [float(state.agent_state.action_postprocessor_state.noise) for state in states]
    np.testing.assert_allclose(noise, [1 - number / TOTAL_TIMESTEPS for number in steps], rtol=1e-5)


def test_statistics_count_every_row_once(states: list[Any]) -> None:
    for state in states:
        rows, statistics = stored(state), state.agent_state.obs_preprocessor_state
        assert statistics.count.value == int(state.env_steps)
        seen = rows.obs.reshape(-1, 2).astype(np.float64)
        (mean,), (std,) = jax.tree.leaves(statistics.mean), jax.tree.leaves(statistics.std)
        np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(std, seen.std(axis=0), rtol=1e-4)


def with_hyperparameters(state: Any, **changes: float) -> Any:
    changes = {name: jnp.float32(value) for name, value in changes.items()}
    hyperparameters = state.hyperparameters.replace(**changes)
    return state.replace_learner(hyperparameters=hyperparameters)


def test_a_population_with_different_hyperparameters_is_a_vmap_over_the_same_step(
    workflow: Any, states: list[Any]
) -> None:
    members = [
        with_hyperparameters(states[1], critic_learning_rate=0.0, actor_learning_rate=0.0),
        with_hyperparameters(states[1], critic_learning_rate=0.01, discount=0.5),
        with_hyperparameters(states[2], target_update_rate=0.5),
    ]
    population = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    all_metrics, after = jax.vmap(workflow.step)(population)
    for index, member in enumerate(members):
        metrics, expected = workflow.step(member)
        own_metrics, own = jax.tree.map(lambda leaf, index=index: leaf[index], (all_metrics, after))
        assert_close(own_metrics, metrics, rtol=1e-4, atol=1e-5)
        assert_close(own.agent_state, expected.agent_state, rtol=1e-4, atol=1e-5)
        assert_close(own.learner.target_params, expected.learner.target_params, rtol=1e-4, atol=1e-5)
        storage, expected_storage = own.learner.buffer_state.storage, expected.learner.buffer_state.storage
        assert_close(storage, expected_storage, rtol=1e-4, atol=1e-5)
    first = jax.tree.map(lambda leaf: leaf[0], after.agent_state.params)
    assert not differs(first, states[1].agent_state.params)


def test_three_seeds_at_once_are_three_runs() -> None:
    settings: dict[str, Any] = {"prioritized": True, "n_step": 2, "normalize_obs": True, "updates_per_step": 1 / 3}
    together, alone = make_workflow(SACWorkflow, num_seeds=3, **settings), make_workflow(SACWorkflow, **settings)
    state = together.init(together.make_key())
    for _ in range(2):
        all_metrics, state = together.step(state)
    for seed in range(3):
        own = alone.init(jax.random.key(seed))
        for _ in range(2):
            metrics, own = alone.step(own)
        of_seed, metrics_of_seed = jax.tree.map(lambda leaf, seed=seed: leaf[seed], (state, all_metrics))
        assert_close(metrics_of_seed, metrics, rtol=1e-4, atol=1e-5)
        for part in ("agent_state", "target_params", "buffer_state"):
            assert_close(getattr(of_seed.learner, part), getattr(own.learner, part), rtol=1e-4, atol=1e-5)
        assert int(of_seed.env_steps) == int(own.env_steps)


# Priorities.


def make_prioritized() -> Any:
    """Make a workflow whose parameters do not change, so that the errors can be computed again."""
    rates = {"critic_learning_rate": 0.0, "actor_learning_rate": 0.0, "target_update_rate": 0.0}
    exponents = {"priority_exponent": 0.7, "importance_exponent": 0.4}
    return make_workflow(prioritized=True, updates_per_step=1 / 3, batch_size=8, **rates, **exponents)


@pytest.fixture(scope="module")
def prioritized_state() -> Any:
    workflow = make_prioritized()
    return workflow.init(workflow.make_key())


def test_the_absolute_errors_of_drawn_windows_become_their_priorities(prioritized_state: Any) -> None:
    workflow = make_prioritized()
    _, state = workflow.step(prioritized_state)
    rows = stored_by_env(state)
    windows = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(1, -1, *leaf.shape[2:]), rows)
    agent, agent_state, hyperparameters = workflow.agent, state.agent_state, state.hyperparameters
    transitions = agent.transitions(
        agent_state, ReplayBatch(windows=windows, importance=None), hyperparameters.discount
    )
    targets = agent.targets(agent_state, state.learner.target_params, transitions, hyperparameters, jax.random.key(0))
    _, report = critic_loss(agent, agent_state, agent_state.params.critics, transitions, targets)
    expected = (np.asarray(report.errors).reshape(rows.rewards.shape) + 1e-6) ** 0.7
    priorities = np.asarray(state.learner.buffer_state.priorities.levels[0])[:, : rows.rewards.shape[1]]
    drawn = priorities != 1.0  # all start with the first largest priority
    assert 3 <= drawn.sum() <= 8
    np.testing.assert_allclose(priorities[drawn], expected[drawn], rtol=1e-4)
    np.testing.assert_allclose(
        state.learner.buffer_state.priorities.max_priority, max(1.0, priorities.max()), rtol=1e-6
    )


def test_windows_are_weighted_by_their_sampling_probability(prioritized_state: Any) -> None:
    class Reporting(TD3):
        def learn_batch(self, state: Any, batch: ReplayBatch, hyperparameters: Any, key: Key) -> Any:
            importance = batch.importance
            assert importance is not None
            metrics = {"smallest": Mean.of(jnp.min(importance)), "largest": Mean.of(jnp.max(importance))}
            return metrics, jnp.full((1, 8), 5.0), state

    workflow = make_prioritized()
    learner = workflow.training.learner
    workflow.training.learner = Reporting(agent=learner.agent, config=learner.config, max_rows=learner.max_rows)
    metrics, state = workflow.step(prioritized_state)
    assert metrics["smallest"] == metrics["largest"] == 1.0
    np.testing.assert_allclose(state.learner.buffer_state.priorities.max_priority, 5**0.7, rtol=1e-5)
    metrics, state = workflow.step(state)
    assert metrics["largest"] == 1.0
    np.testing.assert_allclose(metrics["smallest"], (5**0.7) ** -0.4, rtol=1e-4)


def test_the_priority_of_a_window_is_made_of_its_worst_row_and_the_mean() -> None:
    errors = jnp.array([[1.0, 4.0], [3.0, 4.0]])
    np.testing.assert_allclose(priorities_of(errors), [0.9 * 3 + 0.1 * 2, 4.0], rtol=1e-6)


# Dead rows.


class CorruptingSource:
    """Gives the same trajectories as another source, with NaN in the dead rows."""

    def __init__(self, source: Any, names: tuple[str, ...]) -> None:
        self.source, self.names = source, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def collect(self, *args: Any) -> tuple[Experience, Any]:
        experience, state = self.source.collect(*args)
        trajectory = experience.trajectory
        env_extras = trajectory.extras.env_extras
        dead = env_extras.autoreset > 0

        def spoil(leaf: Any) -> Any:
            return jnp.where(dead.reshape(dead.shape + (1,) * (leaf.ndim - 2)), jnp.nan, leaf)

        spoiled = {name: spoil(getattr(trajectory, name)) for name in self.names}
        extras = trajectory.extras.replace(env_extras=env_extras.replace(ori_obs=spoil(env_extras.ori_obs)))
        return experience.replace(trajectory=trajectory.replace(extras=extras, **spoiled)), state


@pytest.mark.parametrize("core", [None, "gru"])
def test_what_dead_rows_hold_makes_no_difference(core: str | None) -> None:
    settings: dict[str, Any] = ENVPOOL | {"network": {"core": core}, "sequence_length": 1 if core is None else 3}
    workflow, corrupted = make_workflow(**settings), make_workflow(**settings)
    corrupted.training.source = CorruptingSource(workflow.training.source, ("obs", "rewards", "next_obs"))
    state = workflow.init(workflow.make_key())
    metrics, after = workflow.step(state)
    assert int(after.env_steps) - int(state.env_steps) < 3 * 8 - 3, "some rows were dead"
    assert differs(after.agent_state.params, state.agent_state.params)
    other_metrics, other_after = corrupted.step(state)
    assert_close(other_after.agent_state, after.agent_state, atol=1e-6)
    assert_close(other_metrics, metrics, rtol=1e-5, atol=1e-6)


def test_dead_rows_are_no_part_of_counts_and_statistics(envpool_states: list[Any]) -> None:
    for state in envpool_states:
        rows = stored(state)
        assert int(state.env_steps) == len(rows.rewards)
        assert not rows.extras.env_extras.autoreset.any()
        statistics = state.agent_state.obs_preprocessor_state
        assert statistics.count.value == len(rows.rewards)
        (mean,) = jax.tree.leaves(statistics.mean)
        np.testing.assert_allclose(mean, rows.obs.astype(np.float64).mean(axis=0), rtol=1e-5)


def collected(state: Any, workflow: Any, num_rounds: int, rollout_length: int) -> Iterator[Experience]:
    """Yield experience of the environments of a workflow, as of host environments: with `autoreset` and `t`."""
    source = workflow.training.source.replace(rollout_length=rollout_length)
    source_state = state.source_state
    for turn in range(num_rounds):
        experience, source_state = jax.jit(source.collect)(state.agent_state, source_state, jax.random.key(turn))
        trajectory = experience.trajectory
        env_extras = trajectory.extras.env_extras
        times = trajectory.obs[..., 1].astype(jnp.int32)
        env_extras = env_extras.replace(autoreset=jnp.zeros_like(trajectory.rewards), t=times)
        yield experience.replace(trajectory=trajectory.replace(extras=trajectory.extras.replace(env_extras=env_extras)))


@pytest.mark.parametrize(
    "agent", [{"n_step": 3}, {"n_step": 3, "prioritized": True}, {"network": {"core": "gru"}, "sequence_length": 3}]
)
def test_with_half_of_the_columns_absent_in_turn_exactly_the_live_rows_are_stored_and_learned_from(
    agent: dict[str, Any],
) -> None:
    num_envs, length = 4, 5
    workflow = make_workflow(num_envs=num_envs, **agent)
    state, learner = workflow.init(workflow.make_key()), workflow.training.learner
    store, update = jax.jit(learner.store), jax.jit(learner.learn)
    learner_state, expected = None, [[] for _ in range(num_envs)]
    for turn, experience in enumerate(collected(state, workflow, 6, length)):
        trajectory = experience.trajectory
        if learner_state is None:
            learner_state = learner.init(
                *workflow.training.spaces, state.hyperparameters, jax.random.key(0), trajectory
            )
        is_absent = np.arange(num_envs) % 2 == turn % 2
        autoreset = jnp.broadcast_to(jnp.asarray(is_absent, jnp.float32), (length, num_envs))
        env_extras = trajectory.extras.env_extras
        times = env_extras.t.at[0].set(0)  # what was collected during an absence is lost
        env_extras = env_extras.replace(autoreset=autoreset, t=times)
        spoiled = jnp.where(autoreset[..., None] > 0, jnp.nan, trajectory.obs)
        trajectory = trajectory.replace(obs=spoiled, extras=trajectory.extras.replace(env_extras=env_extras))
        experience = experience.replace(trajectory=trajectory)
        if turn < 3:
            learner_state = store(learner_state, experience)
        else:
            metrics, learner_state = update(learner_state, experience, jax.random.key(turn))
            assert np.isfinite(float(metrics["train/critic_loss"].value))
        for env in np.flatnonzero(~is_absent):
            expected[env] += np.asarray(trajectory.obs)[:, env].tolist()
        buffer_state = learner_state.buffer_state
        assert buffer_state.num_rows.tolist() == [len(rows) for rows in expected]
        assert int(learner_state.env_steps) == sum(map(len, expected))
    rows = jax.tree.map(np.asarray, buffer_state.layout.unpack(buffer_state.storage))
    for env, of_env in enumerate(expected):
        np.testing.assert_array_equal(rows.obs[env, : len(of_env)], np.array(of_env, np.float32))
        # The rows before an absence do not continue after it.
        absences = np.arange(length, len(of_env), length) - 1
        assert (rows.dones[env, absences] == 1).all()
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learner_state.agent_state))


def test_a_nan_as_last_observation_of_an_episode_does_not_reach_the_parameters() -> None:
    workflow = make_workflow(env="probe/nan_at_the_end", **ENVPOOL)
    _, state = workflow.step(workflow.init(workflow.make_key()))
    _, state = workflow.step(state)
    assert stored(state).dones.sum() > 3
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.agent_state))


# Errors.


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"warmup_steps": TOTAL_TIMESTEPS}, f"must be less than total_timesteps={TOTAL_TIMESTEPS}"),
        ({"warmup_steps": 8, "n_step": 3}, "agent.warmup_steps=8 fills no window for every env: use at least 9"),
        ({"warmup": "greedy"}, "agent: unknown warmup 'greedy'"),
        ({"updates_per_step": 0.5}, "updates_per_step=0.5 must give a whole number of updates per num_envs"),
        ({"updates_per_step": 0.0}, "agent.updates_per_step=0 must give"),
        ({"updates_per_step": -1.0}, "agent.updates_per_step=-1 must give"),
        ({"batch_size": 0}, "agent.batch_size=0"),
        ({"burn_in": -1}, "agent.burn_in=-1 must be an integer of at least 0"),
        (
            {"buffer_capacity": 8, "n_step": 3},
            "agent.buffer_capacity=8 does not hold a window of 3 steps for each of num_envs=3: use at least 9",
        ),
        ({"warmup_step": 9}, "unknown key 'warmup_step'. Did you mean 'warmup_steps'"),
        ({"discount": 1.5}, "agent.discount=1.5 must lie between 0 and 1"),
    ],
)
def test_bad_input_is_one_clear_error_at_build(agent: dict, message: str) -> None:
    with pytest.raises((InvalidInputError, LookupError), match=re.escape(message)):
        make_workflow(**agent)


@pytest.mark.parametrize(("name", "advice"), [("num_envs", "(4 or 6)"), ("batch_size", "(4 or 6)")])
def test_sizes_that_do_not_divide_over_the_devices_are_an_error_that_names_valid_sizes(name: str, advice: str) -> None:
    config = DDPGConfig(**{"num_envs": 4, "batch_size": 4, "warmup_steps": 25, "updates_per_step": 1.0, name: 5})
    with pytest.raises(InvalidInputError, match=re.escape(f"agent.{name}=5 does not divide over 2 devices")) as error:
        TD3.of(config).check(num_devices=2)
    assert advice in str(error.value)


def test_a_warm_up_that_takes_all_steps_because_it_is_rounded_up_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="warmup_steps"):
        make_workflow(num_envs=150, warmup_steps=TOTAL_TIMESTEPS - 10)
