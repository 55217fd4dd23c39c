"""Rollouts put every number in its row, continue where they stopped, and count nothing after an episode's end."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState, RandomAgent
from rookery.envs import AutoresetMode, Env, EnvState, VectorWrapper, create_env, wrap_env
from rookery.errors import InvalidInputError, ShapeError
from rookery.rollout import (
    eval_rollout_episode,
    fast_eval_rollout_episode,
    recurrent_eval_rollout_episode,
    recurrent_fast_eval_rollout_episode,
    recurrent_rollout,
    rollout,
)
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete, Space
from rookery.types import Array, Key, PyTreeDict

every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)


class Ledger(Env):
    """Counts on from a random 0 to 3 up to 6; shows `[count, last action]` and pays 10 * count + action."""

    @property
    def obs_space(self) -> Space:
        return Box(0.0, np.inf, (2,))

    @property
    def action_space(self) -> Space:
        return Discrete(5)

    def reset(self, key: Key) -> EnvState:
        return self._state(jax.random.randint(key, (), 0, 4), jnp.zeros(()), jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        paid = 10.0 * env_state.env_state.astype(jnp.float32) + action.astype(jnp.float32)
        return self._state(env_state.env_state + 1, action.astype(jnp.float32), paid)

    def _state(self, count: Array, last_action: Array, reward: Array) -> EnvState:
        obs = jnp.stack([count.astype(jnp.float32), last_action])
        return EnvState(env_state=count, obs=obs, reward=reward, done=(count >= 6).astype(jnp.float32))


def ledger(mode: AutoresetMode = AutoresetMode.NORMAL) -> VectorWrapper:
    return wrap_env(Ledger(), episode_length=5, parallel=3, autoreset_mode=mode, record_ori_obs=True)


def offset_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Act on the count that is shown and on an offset, the agent's parameter; tell what was seen."""
    count = sample_batch.obs[..., 0].astype(jnp.int32)
    return (count + agent_state.params) % 5, PyTreeDict(seen=sample_batch.obs)


def offset(value: int) -> AgentState:
    return AgentState(params=jnp.int32(value))


def assert_same_tree(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.ENVPOOL], ids=lambda mode: mode.name)
def test_a_rollout_is_the_loop_of_acting_and_stepping_row_by_row(mode: AutoresetMode) -> None:
    env, length = ledger(mode), 12
    fields = ("steps", "termination", "truncation", "ori_obs", "autoreset", "no_such_field")
    state = jax.jit(env.reset)(jax.random.key(0))
    trajectory, last = rollout(env.step, offset_action_fn, state, offset(1), jax.random.key(1), length, fields)

    step = jax.jit(env.step)
    for time in range(length):
        actions, _ = offset_action_fn(offset(1), SampleBatch(obs=state.obs), jax.random.key(1))
        after = step(state, actions)
        np.testing.assert_array_equal(trajectory.obs[time], state.obs)
        np.testing.assert_array_equal(trajectory.extras.policy_extras.seen[time], state.obs)
        np.testing.assert_array_equal(trajectory.actions[time], actions)
        np.testing.assert_array_equal(trajectory.rewards[time], after.reward)
        np.testing.assert_array_equal(trajectory.dones[time], after.done)
        np.testing.assert_array_equal(trajectory.next_obs[time], after.obs)
        for name in set(fields) & set(after.info):
            np.testing.assert_array_equal(trajectory.extras.env_extras[name][time], after.info[name])
        state = after
    assert np.asarray(trajectory.dones).sum() >= 3
    expected_fields = {"steps", "termination", "truncation", "ori_obs"}
    assert set(trajectory.extras.env_extras) == expected_fields | (
        {"autoreset"} if "autoreset" in state.info else set()
    )
    np.testing.assert_array_equal(last.obs, state.obs)
    np.testing.assert_array_equal(last.env_state, state.env_state)


def test_row_t_holds_o_t_a_t_r_t_d_t_and_the_successor() -> None:
    env = ledger()
    trajectory, _ = rollout(
        env.step, offset_action_fn, env.reset(jax.random.key(0)), offset(2), jax.random.key(1), 12, ("ori_obs",)
    )
    count, actions = np.asarray(trajectory.obs[..., 0]), np.asarray(trajectory.actions)
    assert trajectory.obs.shape == (12, 3, 2)
    np.testing.assert_array_equal(actions, (count + 2) % 5)
    np.testing.assert_array_equal(trajectory.rewards, 10 * count + actions)
    np.testing.assert_array_equal(trajectory.extras.env_extras.ori_obs[..., 0], count + 1)
    np.testing.assert_array_equal(trajectory.extras.env_extras.ori_obs[..., 1], actions)
    np.testing.assert_array_equal(trajectory.next_obs[:-1], trajectory.obs[1:])
    border = np.asarray(trajectory.dones) == 1
    np.testing.assert_array_equal(trajectory.next_obs[~border], trajectory.extras.env_extras.ori_obs[~border])
    assert np.all(np.asarray(trajectory.next_obs)[border][:, 1] == 0)


def test_without_named_fields_no_env_extras_are_kept() -> None:
    env = ledger()
    trajectory, _ = rollout(env.step, offset_action_fn, env.reset(jax.random.key(0)), offset(0), jax.random.key(1), 2)
    assert dict(trajectory.extras.env_extras) == {}


def test_two_halves_equal_the_whole() -> None:
    env = ledger()
    first = env.reset(jax.random.key(2))
    run = jax.jit(rollout, static_argnums=(0, 1, 5, 6))

    def play(state: EnvState, length: int) -> tuple[SampleBatch, EnvState]:
        return run(env.step, offset_action_fn, state, offset(3), jax.random.key(3), length, ("steps", "episode_return"))

    whole, last = play(first, 12)
    one_half, middle = play(first, 6)
    other_half, end = play(middle, 6)
    halves = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), one_half, other_half)
    assert_same_tree(halves, whole)
    assert_same_tree(jax.tree.map(comparable, end), jax.tree.map(comparable, last))


def comparable(leaf: Array) -> Array:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_eager_compiled_and_mapped_over_agent_states_give_the_same() -> None:
    env = ledger()
    state = env.reset(jax.random.key(4))

    def play(agent_state: AgentState) -> SampleBatch:
        return rollout(env.step, offset_action_fn, state, agent_state, jax.random.key(5), 8, ("ori_obs", "steps"))[0]

    compiled = jax.jit(play)
    mapped = jax.jit(jax.vmap(play))(AgentState(params=jnp.arange(3)))
    assert_same_tree(play(offset(1)), compiled(offset(1)))
    for value in range(3):
        assert_same_tree(jax.tree.map(lambda leaf: leaf[value], mapped), compiled(offset(value)))  # noqa: B023


def test_mapping_over_agent_states_computes_no_reset_while_nobody_is_done(watch: Callable) -> None:
    watched = watch(Ledger())
    env = wrap_env(watched, episode_length=3, parallel=2)
    state = env.reset(jax.random.key(6))
    before = watched.resets.num_calls

    def play(agent_state: AgentState, length: int) -> Array:
        return rollout(env.step, offset_action_fn, state, agent_state, jax.random.key(7), length)[0].dones

    population = AgentState(params=jnp.arange(4))
    assert not np.any(jax.jit(jax.vmap(lambda agent_state: play(agent_state, 2)))(population))
    assert watched.resets.num_calls == before
    assert np.all(jax.jit(jax.vmap(lambda agent_state: play(agent_state, 3)))(population)[:, -1])
    assert watched.resets.num_calls > before


def test_legacy_keys_and_typed_keys_give_the_same_rollout() -> None:
    env = create_env("probe/continuous", parallel=3)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    state = env.reset(jax.random.key(1))
    typed, legacy = (
        rollout(env.step, agent.compute_actions, state, agent_state, key, 4)[0]
        for key in (jax.random.key(2), jax.random.PRNGKey(2))
    )
    assert_same_tree(typed, legacy)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_random_agent_draws_anew_for_every_step_and_env(impl: str) -> None:
    env = create_env("probe/continuous", parallel=8)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    state = env.reset(jax.random.key(1))
    trajectory, _ = rollout(env.step, agent.compute_actions, state, agent_state, jax.random.key(2, impl=impl), 16)
    assert trajectory.actions.shape == (16, 8, 1)
    assert len(np.unique(trajectory.actions)) == 16 * 8


def test_rollouts_use_no_key_twice() -> None:
    env = create_env("probe/counter", episode_length=3, parallel=2, autoreset_mode=AutoresetMode.DISABLED)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))

    def reuse_the_key(agent_state: Any, sample_batch: SampleBatch, key: Any) -> Any:
        agent.compute_actions(agent_state, sample_batch, key)
        return agent.compute_actions(agent_state, sample_batch, key)

    with jax.debug_key_reuse(True):
        state = jax.jit(env.reset)(jax.random.key(1))
        for play in (rollout, eval_rollout_episode, fast_eval_rollout_episode):
            compiled = jax.jit(play, static_argnums=(0, 1, 5))
            compiled(env.step, agent.compute_actions, state, agent_state, jax.random.key(2), 4)
            with pytest.raises(jax.errors.KeyReuseError):
                compiled(env.step, reuse_the_key, state, agent_state, jax.random.key(2), 4)


@every_mode
def test_the_carry_is_cleared_exactly_at_episode_starts_and_handed_on(
    mode: AutoresetMode, staggered_counter: Env, counting_agent: Callable
) -> None:
    env = wrap_env(staggered_counter, episode_length=4, parallel=4, autoreset_mode=mode)

    @jax.jit
    def play(state: EnvState, carry: Array) -> tuple[SampleBatch, EnvState, Array]:
        return recurrent_rollout(env.step, counting_agent, state, AgentState(), carry, jax.random.key(1), 10)

    # The carry before the first step is never a number that the agent could have counted to.
    first_half, state, carry = play(jax.jit(env.reset)(jax.random.key(0)), jnp.full((4,), 99))
    second_half, _, last_carry = play(state, carry)
    trajectory = jax.tree.map(lambda a, b: np.concatenate([a, b]), first_half, second_half)

    extras = trajectory.extras.policy_extras
    starts_episode = trajectory.obs[..., 1] == 0
    expected = np.zeros((20, 4), np.int32)
    for time in range(1, 20):
        expected[time] = np.where(starts_episode[time], 0, expected[time - 1] + 1)
    np.testing.assert_array_equal(extras.memory, expected)
    np.testing.assert_array_equal(extras.episode_start, starts_episode)
    np.testing.assert_array_equal(trajectory.actions, expected % 2)
    np.testing.assert_array_equal(last_carry, expected[-1] + 1)
    assert "carry" not in extras
    assert (starts_episode.sum() == 4) == (mode is AutoresetMode.DISABLED)


def stay_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    return jnp.zeros(sample_batch.obs.shape[:1], jnp.int32), PyTreeDict()


def lengths_of(state: EnvState, limit: int) -> np.ndarray:
    """The lengths of the episodes that staggered counter envs are at the start of."""
    return np.minimum(1 + np.asarray(state.obs[:, 0]).astype(int) % 5, limit)


def staggered_start(env: Env, mode: AutoresetMode) -> tuple[VectorWrapper, EnvState]:
    env = wrap_env(env, parallel=6, autoreset_mode=mode)
    state = jax.jit(env.reset)(jax.random.key(1))
    assert lengths_of(state, 9).max() == 5
    assert lengths_of(state, 9).min() <= 2
    return env, state


@pytest.mark.parametrize("limit", [4, 8])
def test_an_eval_rollout_is_zero_and_done_after_the_end_of_each_episode(
    limit: int, staggered_counter: Env, counting_agent: Callable
) -> None:
    env, state = staggered_start(staggered_counter, AutoresetMode.DISABLED)
    lengths = lengths_of(state, 9)
    time = np.arange(limit)[:, None]
    agent_state = AgentState(params=jnp.int32(0))

    trajectory, last = eval_rollout_episode(env.step, stay_action_fn, state, agent_state, jax.random.key(0), limit)
    recurrent_trajectory, recurrent_last, _ = recurrent_eval_rollout_episode(
        env.step, counting_agent, state, agent_state, jnp.zeros((6,), jnp.int32), jax.random.key(0), limit
    )
    np.testing.assert_array_equal(trajectory.rewards, np.where(time < lengths, time + 1, 0))
    np.testing.assert_array_equal(trajectory.dones, (time + 1 >= lengths).astype(np.float32))
    for name in ("rewards", "dones"):
        np.testing.assert_array_equal(getattr(trajectory, name), getattr(recurrent_trajectory, name))
    assert trajectory.obs is trajectory.next_obs is trajectory.actions is None
    for end in (last, recurrent_last):
        np.testing.assert_array_equal(end.obs[:, 1], np.minimum(lengths, limit))


@every_mode
@pytest.mark.parametrize(("limit", "discount"), [(4, 1.0), (8, 0.9)])
def test_fast_evaluation_counts_nothing_after_the_first_done(
    mode: AutoresetMode, limit: int, discount: float, staggered_counter: Env, counting_agent: Callable
) -> None:
    env, state = staggered_start(staggered_counter, mode)
    lengths = lengths_of(state, limit)
    returns = [sum(discount**time * (time + 1) for time in range(length)) for length in lengths]
    metrics, _ = fast_eval_rollout_episode(
        env.step, stay_action_fn, state, AgentState(), jax.random.key(0), limit, discount
    )
    recurrent_metrics, _, _ = recurrent_fast_eval_rollout_episode(
        env.step, counting_agent, state, AgentState(), jnp.zeros((6,), jnp.int32), jax.random.key(0), limit, discount
    )
    for measured in (metrics, recurrent_metrics):
        np.testing.assert_array_equal(measured.episode_lengths, lengths)
        np.testing.assert_allclose(measured.episode_returns, returns, rtol=1e-6)


@pytest.mark.parametrize("play", [eval_rollout_episode, fast_eval_rollout_episode])
def test_the_env_is_not_stepped_once_every_episode_has_ended(
    play: Callable, staggered_counter: Env, watch: Callable
) -> None:
    watched = watch(staggered_counter)
    env, state = staggered_start(watched, AutoresetMode.DISABLED)
    before = watched.steps.num_calls
    jax.block_until_ready(
        jax.jit(play, static_argnums=(0, 1, 5))(env.step, stay_action_fn, state, AgentState(), jax.random.key(0), 20)
    )
    assert watched.steps.num_calls - before == lengths_of(state, 20).max() == 5


def test_an_env_that_is_already_done_counts_as_ended(staggered_counter: Env) -> None:
    env, state = staggered_start(staggered_counter, AutoresetMode.DISABLED)
    state = state.replace(done=jnp.array([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]))
    arguments = (env.step, stay_action_fn, state, AgentState(), jax.random.key(0), 6)
    lengths = np.where(np.asarray(state.done) == 1, 0, lengths_of(state, 6))
    metrics, _ = fast_eval_rollout_episode(*arguments)
    np.testing.assert_array_equal(metrics.episode_lengths, lengths)
    np.testing.assert_array_equal(metrics.episode_returns, lengths * (lengths + 1) / 2)
    trajectory, _ = eval_rollout_episode(*arguments)
    np.testing.assert_array_equal(np.sum(trajectory.rewards, axis=0), metrics.episode_returns)


def test_fast_evaluation_can_be_mapped_over_agent_states() -> None:
    env = ledger(AutoresetMode.DISABLED)
    state = env.reset(jax.random.key(8))

    def evaluate(agent_state: AgentState) -> Any:
        return fast_eval_rollout_episode(env.step, offset_action_fn, state, agent_state, jax.random.key(0), 9)[0]

    mapped = jax.jit(jax.vmap(evaluate))(AgentState(params=jnp.arange(3)))
    for value in range(3):
        assert_same_tree(jax.tree.map(lambda leaf: leaf[value], mapped), evaluate(offset(value)))  # noqa: B023


@pytest.mark.parametrize("play", [rollout, eval_rollout_episode, fast_eval_rollout_episode])
@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_a_rollout_length_below_one_is_refused(play: Callable, length: Any) -> None:
    env = ledger(AutoresetMode.DISABLED)
    with pytest.raises(InvalidInputError, match=f"rollout_length={length}.*at least 1"):
        play(env.step, offset_action_fn, env.reset(jax.random.key(0)), offset(0), jax.random.key(1), length)


@pytest.mark.parametrize("play", [rollout, eval_rollout_episode, fast_eval_rollout_episode])
def test_what_is_no_key_is_refused(play: Callable) -> None:
    env = ledger(AutoresetMode.DISABLED)
    with pytest.raises(InvalidInputError, match=r"got 7.*jax\.random\.key\(seed\)"):
        play(env.step, offset_action_fn, env.reset(jax.random.key(0)), offset(0), 7, 3)


@pytest.mark.parametrize("play", [rollout, eval_rollout_episode, fast_eval_rollout_episode])
def test_an_agent_whose_actions_do_not_fit_is_refused_while_tracing(play: Callable) -> None:
    env = ledger(AutoresetMode.DISABLED)

    def wrong_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        return jnp.zeros((3, 1), jnp.int32), PyTreeDict()

    with pytest.raises(ShapeError, match=r"action has shape \[3, 1\]; expected \[3\]"):
        play(env.step, wrong_action_fn, env.reset(jax.random.key(0)), offset(0), jax.random.key(1), 3)
