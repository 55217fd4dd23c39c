"""With several agents, every policy gets the steps of its own agents, each in its own column."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.envs import AutoresetMode, EnvState, VectorWrapper, create_env
from rookery.errors import RookeryError
from rookery.rollout import (
    fast_eval_rollout_episode,
    joint_action_fn,
    multi_agent_rollout,
    recurrent_multi_agent_rollout,
    rollout,
)
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict

NUM_ENVS, LENGTH = 2, 7
POLICY_MAPPING = {"a0": "even", "a1": "odd", "a2": "even"}


def constant_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Act as the parameter says; tell what was seen."""
    batch_shape = sample_batch.obs.shape[:-1]
    return jnp.broadcast_to(agent_state.params, batch_shape), PyTreeDict(seen=sample_batch.obs)


def parity_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Act on the parity of the count that is shown."""
    return sample_batch.obs[..., 1].astype(jnp.int32) % 2, PyTreeDict()


ACTION_FNS = {"even": constant_action_fn, "odd": parity_action_fn}
AGENT_STATES = {"even": AgentState(params=jnp.int32(1)), "odd": AgentState()}


def start(terminates_after: int | None = None) -> tuple[VectorWrapper, EnvState]:
    """Two envs, of which the second is 100 steps ahead."""
    env = create_env("probe/multi_agent_counter", parallel=NUM_ENVS, terminates_after=terminates_after)
    state = env.reset(jax.random.key(0))
    if terminates_after is None:
        ahead = jnp.array([0, 100])
        obs = {agent: seen.at[:, 1].set(ahead.astype(jnp.float32)) for agent, seen in state.obs.items()}
        state = state.replace(env_state=ahead, obs=PyTreeDict(obs))
    return env, state


def test_every_policy_gets_its_agents_side_by_side_agent_major() -> None:
    env, state = start()
    batch, _ = multi_agent_rollout(
        env.step, ACTION_FNS, POLICY_MAPPING, state, AGENT_STATES, jax.random.key(1), LENGTH, ("steps", "no_such_field")
    )
    assert set(batch.batches) == {"even", "odd"}
    assert int(batch.env_steps) == LENGTH * NUM_ENVS

    time = np.arange(LENGTH)[:, None]
    for policy, agents in (("even", [0, 2]), ("odd", [1])):
        index = np.repeat(agents, NUM_ENVS)[None, :]
        count = time + np.tile([0, 100], len(agents))[None, :]
        shown = np.stack([np.broadcast_to(index, count.shape), count], axis=-1)
        actions = np.ones_like(count) if policy == "even" else count % 2
        own = batch.batches[policy]
        np.testing.assert_array_equal(own.obs, shown)
        np.testing.assert_array_equal(own.next_obs, shown + np.array([0, 1]))
        np.testing.assert_array_equal(own.actions, actions)
        np.testing.assert_array_equal(own.rewards, index + actions)
        np.testing.assert_array_equal(own.dones, np.zeros_like(count))
        np.testing.assert_array_equal(own.extras.env_extras.steps, np.broadcast_to(time + 1, count.shape))
        assert set(own.extras.env_extras) == {"steps"}
    np.testing.assert_array_equal(batch.batches["even"].extras.policy_extras.seen, batch.batches["even"].obs)
    assert "seen" not in batch.batches["odd"].extras.policy_extras


def test_the_end_of_an_episode_is_done_for_all_agents_and_restarts_them() -> None:
    env, state = start(terminates_after=3)
    batch, _ = multi_agent_rollout(
        env.step, ACTION_FNS, POLICY_MAPPING, state, AGENT_STATES, jax.random.key(1), LENGTH, ("termination",)
    )
    ends = np.array([0, 0, 1, 0, 0, 1, 0])[:, None]
    for policy, num_columns in (("even", 4), ("odd", 2)):
        own = batch.batches[policy]
        np.testing.assert_array_equal(own.dones, np.broadcast_to(ends, (LENGTH, num_columns)))
        np.testing.assert_array_equal(own.extras.env_extras.termination, own.dones)
        np.testing.assert_array_equal(
            own.obs[..., 1], np.broadcast_to(np.array([0, 1, 2, 0, 1, 2, 0])[:, None], (LENGTH, num_columns))
        )


def test_the_dead_step_of_envpool_mode_is_not_counted_as_an_env_step() -> None:
    env = create_env(
        "probe/multi_agent_counter",
        parallel=NUM_ENVS,
        autoreset_mode=AutoresetMode.ENVPOOL,
        terminates_after=3,
    )
    state = env.reset(jax.random.key(0))
    batch, _ = multi_agent_rollout(
        env.step, ACTION_FNS, POLICY_MAPPING, state, AGENT_STATES, jax.random.key(1), LENGTH, ("autoreset",)
    )
    own = batch.batches["odd"]
    np.testing.assert_array_equal(own.extras.env_extras.autoreset[:, 0], [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(own.rewards[:, 0], [1, 2, 1, 0, 1, 2, 1])
    assert int(batch.env_steps) == (LENGTH - 1) * NUM_ENVS


def test_compiled_equals_eager() -> None:
    env, state = start(terminates_after=3)

    def play(agent_states: Any, key: Key) -> Any:
        return multi_agent_rollout(env.step, ACTION_FNS, POLICY_MAPPING, state, agent_states, key, LENGTH)[0]

    jax.tree.map(
        np.testing.assert_array_equal,
        play(AGENT_STATES, jax.random.key(1)),
        jax.jit(play)(AGENT_STATES, jax.random.key(1)),
    )


def test_agents_that_share_a_policy_draw_their_own_actions() -> None:
    def random_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        batch_shape = sample_batch.obs.shape[:-1]
        return jax.random.bernoulli(key, 0.5, batch_shape).astype(jnp.int32), PyTreeDict()

    env, state = start()
    batch, _ = multi_agent_rollout(
        env.step,
        {"even": random_action_fn, "odd": random_action_fn},
        POLICY_MAPPING,
        state,
        {"even": AgentState(), "odd": AgentState()},
        jax.random.key(1),
        64,
    )
    columns = np.concatenate([batch.batches["even"].actions, batch.batches["odd"].actions], axis=1).T
    assert len(np.unique(columns, axis=0)) == 6


def test_every_agent_of_a_recurrent_policy_has_its_own_memory_cleared_at_its_episode_start(counting_agent: Any) -> None:
    env, state = start(terminates_after=3)
    batch, _, carries = recurrent_multi_agent_rollout(
        env.step,
        {"even": counting_agent, "odd": constant_action_fn},
        POLICY_MAPPING,
        state,
        {"even": AgentState(), "odd": AgentState(params=jnp.int32(1))},
        {"even": jnp.full((4,), 99)},
        jax.random.key(1),
        LENGTH,
    )
    memory = np.array([0, 1, 2, 0, 1, 2, 0])[:, None]
    own = batch.batches["even"]
    np.testing.assert_array_equal(own.extras.policy_extras.memory, np.broadcast_to(memory, (LENGTH, 4)))
    np.testing.assert_array_equal(own.extras.policy_extras.episode_start, own.extras.policy_extras.memory == 0)
    np.testing.assert_array_equal(own.actions, own.extras.policy_extras.memory % 2)
    np.testing.assert_array_equal(carries["even"], np.ones(4))
    np.testing.assert_array_equal(batch.batches["odd"].actions, np.ones((LENGTH, 2)))


def test_a_memory_that_differs_between_columns_stays_in_its_column(counting_agent: Any) -> None:
    env, state = start()
    state = state.replace(info=state.info.replace(episode_start=jnp.zeros((NUM_ENVS,))))
    batch, _, carries = recurrent_multi_agent_rollout(
        env.step,
        {"even": counting_agent, "odd": counting_agent},
        POLICY_MAPPING,
        state,
        {"even": AgentState(), "odd": AgentState()},
        {"even": jnp.array([10, 20, 30, 40]), "odd": jnp.array([50, 60])},
        jax.random.key(1),
        3,
    )
    time = np.arange(3)[:, None]
    np.testing.assert_array_equal(batch.batches["even"].extras.policy_extras.memory, time + np.array([10, 20, 30, 40]))
    np.testing.assert_array_equal(batch.batches["odd"].extras.policy_extras.memory, time + np.array([50, 60]))
    np.testing.assert_array_equal(carries["even"], [13, 23, 33, 43])


def test_the_joint_action_function_serves_the_single_agent_forms() -> None:
    env, state = start(terminates_after=3)
    action_fn, agent_states = joint_action_fn(ACTION_FNS, POLICY_MAPPING), PyTreeDict(AGENT_STATES)
    trajectory, _ = rollout(env.step, action_fn, state, agent_states, jax.random.key(1), LENGTH)
    batch, _ = multi_agent_rollout(env.step, ACTION_FNS, POLICY_MAPPING, state, AGENT_STATES, jax.random.key(1), LENGTH)
    np.testing.assert_array_equal(trajectory.obs["a2"], batch.batches["even"].obs[:, NUM_ENVS:])
    np.testing.assert_array_equal(trajectory.rewards["a1"], batch.batches["odd"].rewards)

    metrics, _ = fast_eval_rollout_episode(env.step, action_fn, state, agent_states, jax.random.key(1), 10)
    np.testing.assert_array_equal(metrics.episode_lengths, [3, 3])
    # Agents 0 and 2 act 1 three times; agent 1 acts 0, 1, 0.
    for agent, expected in (("a0", 3.0), ("a1", 4.0), ("a2", 9.0)):
        np.testing.assert_array_equal(metrics.episode_returns[agent], [expected, expected])


@pytest.mark.parametrize(
    ("action_fns", "policy_mapping", "agent_states", "message"),
    [
        ({"even": constant_action_fn}, POLICY_MAPPING, AGENT_STATES, "odd"),
        (ACTION_FNS, {"a0": "even", "a1": "odd"}, AGENT_STATES, "a2"),
        (ACTION_FNS, POLICY_MAPPING, {"even": AgentState(params=jnp.int32(1))}, "odd"),
    ],
    ids=["policy without action function", "agent without policy", "policy without state"],
)
def test_a_mapping_with_a_hole_is_an_error_that_names_it(
    action_fns: Any, policy_mapping: Any, agent_states: Any, message: str
) -> None:
    env, state = start()
    with pytest.raises(RookeryError, match=message):
        multi_agent_rollout(env.step, action_fns, policy_mapping, state, agent_states, jax.random.key(1), LENGTH)


def test_a_rollout_length_of_zero_is_refused() -> None:
    env, state = start()
    with pytest.raises(RookeryError, match=r"rollout_length=0.*at least 1"):
        multi_agent_rollout(env.step, ACTION_FNS, POLICY_MAPPING, state, AGENT_STATES, jax.random.key(1), 0)
