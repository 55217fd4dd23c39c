"""What lanes record, whom they let explore, and which episodes agents share."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.envs import create_env
from rookery.errors import InvalidInputError
from rookery.evaluators import PopulationEvaluator
from rookery.replay_buffers import UniformBuffer
from rookery.replay_buffers.recorder import ReplayRecorder
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict

NUM_AGENTS, NUM_EPISODES, LIMIT = 5, 2, 12
ENV = create_env("classic/cartpole", episode_length=20)
ROW = SampleBatch(
    obs=jnp.zeros(4),
    actions=jnp.zeros((), jnp.int32),
    rewards=jnp.zeros(()),
    next_obs=jnp.zeros(4),
    dones=jnp.zeros(()),
    extras=PyTreeDict(policy_extras=PyTreeDict(), env_extras=PyTreeDict(termination=jnp.zeros(()))),
)


def lean(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Push where the pole leans to; the first agents react late and fall early."""
    return (sample_batch.obs[..., 2] > agent_state.params).astype(jnp.int32), PyTreeDict()


def toss(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    return jax.random.bernoulli(key).astype(jnp.int32), PyTreeDict()


AGENTS = AgentState(params=jnp.linspace(0.4, 0.0, NUM_AGENTS))


def player(num_lanes: int = 3, **kwargs: Any) -> PopulationEvaluator:
    options = {"max_episode_steps": LIMIT, "explore_fn": toss} | kwargs
    return PopulationEvaluator(env=ENV, agent_fn=lean, num_lanes=num_lanes, **options)


def recorder(num_lanes: int = 3, shift: int = 0) -> ReplayRecorder:
    buffer = UniformBuffer(capacity=200 * num_lanes, num_envs=num_lanes)
    return ReplayRecorder(buffer=buffer, buffer_state=buffer.init(ROW), shift=jnp.int32(shift))


def column(recorded: Any, lane: int) -> SampleBatch:
    state = recorded.buffer_state
    rings = {dtype: ring[lane, : int(state.num_rows[lane])] for dtype, ring in state.storage.items()}
    return state.layout.unpack(rings)


def test_a_recorder_changes_nothing_that_is_played() -> None:
    plain = player().play(AGENTS, jax.random.key(0), NUM_EPISODES)
    recorded = player().play(AGENTS, jax.random.key(0), NUM_EPISODES, recorder=recorder())
    jax.tree.map(np.testing.assert_array_equal, recorded.replace(recorded=None), plain)


def test_every_step_of_every_episode_is_recorded_once_and_idle_lanes_store_nothing() -> None:
    played = player().play(AGENTS, jax.random.key(0), NUM_EPISODES, recorder=recorder())
    num_rows = np.asarray(played.recorded.buffer_state.num_rows)
    assert num_rows.sum() == played.episode_lengths.sum()
    assert len(set(num_rows.tolist())) > 1
    assert int(played.recorded.num_idle) == 3 * num_rows.max() - num_rows.sum() > 0


def test_the_actions_of_a_lane_replayed_in_its_env_give_the_recorded_rows() -> None:
    key = jax.random.key(3)
    played = player(1).play(AGENTS, key, recorder=recorder(1))
    rows = column(played.recorded, 0)
    start, env = 0, ENV.env
    for agent, length in enumerate(np.asarray(played.episode_lengths)[:, 0]):
        reset_key, _ = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, agent), 0))
        env_state = env.reset(reset_key)
        for row in range(start, start + length):
            np.testing.assert_allclose(rows.obs[row], env_state.obs, rtol=1e-6)
            env_state = env.step(env_state, rows.actions[row])
            np.testing.assert_allclose(rows.next_obs[row], env_state.obs, rtol=1e-6)
            assert rows.rewards[row] == env_state.reward
        start += length


def test_an_episode_that_is_cut_is_done_and_not_terminated_and_one_that_falls_is_both() -> None:
    played = player(1).play(AGENTS, jax.random.key(0), NUM_EPISODES, recorder=recorder(1))
    rows = column(played.recorded, 0)
    last = np.cumsum(np.asarray(played.episode_lengths).ravel()) - 1
    assert np.flatnonzero(rows.dones).tolist() == last.tolist()
    is_cut = np.asarray(played.episode_lengths).ravel() == LIMIT
    assert 0 < is_cut.sum() < is_cut.size
    np.testing.assert_array_equal(rows.extras.env_extras.termination[last], 1.0 - is_cut)
    assert np.asarray(rows.extras.env_extras.termination).sum() == (~is_cut).sum()


def test_a_shift_moves_the_columns_and_keeps_their_rows() -> None:
    play = partial(player().play, AGENTS, jax.random.key(0), NUM_EPISODES)
    plain, shifted = (play(recorder=recorder(shift=shift)).recorded for shift in (0, 1))
    for lane in range(3):
        jax.tree.map(np.testing.assert_array_equal, column(plain, lane), column(shifted, (lane + 1) % 3))


def test_a_row_that_is_not_finite_is_left_out_and_no_window_continues_past_it() -> None:
    buffer = UniformBuffer(capacity=10, num_envs=1, sequence_length=2)
    own = ReplayRecorder(buffer=buffer, buffer_state=buffer.init(ROW), shift=jnp.int32(0))
    recorded = own.init()
    for reward in (1.0, np.nan, 2.0):
        rows = jax.tree.map(lambda leaf: leaf[None], ROW.replace(rewards=jnp.float32(reward)))
        recorded = own.record(recorded, rows, jnp.array([True]))
    stored = column(recorded, 0)
    np.testing.assert_array_equal(stored.rewards, [1.0, 2.0])
    np.testing.assert_array_equal(stored.dones, [1.0, 0.0])
    np.testing.assert_array_equal(stored.extras.env_extras.termination, [0.0, 0.0])
    assert int(recorded.num_idle) == 0


def test_only_the_agents_that_explore_act_by_the_exploring_function() -> None:
    explores = jnp.arange(NUM_AGENTS) >= NUM_AGENTS - 2
    key = jax.random.key(5)
    mixed = player().play(AGENTS, key, NUM_EPISODES, explores=explores)
    greedy = player().play(AGENTS, key, NUM_EPISODES)
    exploring = player().play(AGENTS, key, NUM_EPISODES, explores=jnp.ones(NUM_AGENTS, bool))
    np.testing.assert_array_equal(mixed.episode_returns[:-2], greedy.episode_returns[:-2])
    np.testing.assert_array_equal(mixed.episode_returns[-2:], exploring.episode_returns[-2:])
    assert np.any(np.asarray(greedy.episode_returns) != np.asarray(exploring.episode_returns))
    with pytest.raises(InvalidInputError, match="explore_fn"):
        player(explore_fn=None).play(AGENTS, key, explores=explores)


def test_paired_agents_play_the_same_starts_and_others_do_not() -> None:
    equals = AgentState(params=jnp.zeros(NUM_AGENTS))
    paired = player().play(equals, jax.random.key(1), NUM_EPISODES, paired=True, recorder=recorder())
    alone = player().play(equals, jax.random.key(1), NUM_EPISODES, recorder=recorder())
    num_starts = []
    for played in (paired, alone):
        rows = [column(played.recorded, lane) for lane in range(3)]
        first = [np.concatenate([[True], np.asarray(lane.dones)[:-1] > 0]) for lane in rows]
        starts = np.concatenate([np.asarray(lane.obs)[is_first] for lane, is_first in zip(rows, first, strict=True)])
        num_starts.append(len(np.unique(starts, axis=0)))
    assert num_starts == [NUM_EPISODES, NUM_AGENTS * NUM_EPISODES]


def test_agents_with_given_numbers_play_the_episodes_of_those_numbers() -> None:
    whole = player().play(AGENTS, jax.random.key(2), NUM_EPISODES)
    chosen = np.array([4, 1])
    some = AgentState(params=AGENTS.params[chosen])
    part = player().play(some, jax.random.key(2), NUM_EPISODES, first_agent=chosen)
    np.testing.assert_array_equal(part.episode_returns, whole.episode_returns[chosen])
