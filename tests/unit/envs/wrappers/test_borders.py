"""What wrappers must not get wrong between the env inside and the agent outside."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import RandomAgent, SampleBatch
from rookery.envs import (
    ActionRepeat,
    ActionSquashWrapper,
    EnvState,
    EpisodeWrapper,
    FrameStackWrapper,
    ObsFlattenWrapper,
    create_env,
    make_env,
    wrap_env,
)
from rookery.errors import InvalidInputError, ShapeError
from rookery.rollout import rollout
from rookery.spaces import Box, Dict, MultiDiscrete
from rookery.testing.probe_envs import CounterEnv
from rookery.types import PyTreeDict


class BothEnds(CounterEnv):
    """Reports termination and truncation in the same step, as Gymnasium environments do."""

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(info=PyTreeDict(termination=state.done, truncation=state.done))


class OddReward(CounterEnv):
    """Gives its reward an axis too many."""

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(reward=state.reward[None])


class IntegerReward(CounterEnv):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(reward=state.reward.astype(jnp.int32))


def test_both_ends_in_the_same_step_are_a_termination() -> None:
    env = EpisodeWrapper(BothEnds(terminates_after=1), episode_length=5)
    state = env.step(env.reset(jax.random.key(0)), 0)
    assert (float(state.done), float(state.info.termination), float(state.info.truncation)) == (1.0, 1.0, 0.0)


def test_a_reward_that_is_no_scalar_is_refused_when_traced() -> None:
    env = wrap_env(OddReward(), parallel=4)
    with pytest.raises(ShapeError, match=r"reward of OddReward.step has shape \[1\]; expected a scalar"):
        env.step(env.reset(jax.random.key(0)), jnp.zeros(4, jnp.int32))


def test_integer_rewards_arrive_as_float32() -> None:
    env = wrap_env(IntegerReward(), parallel=2)
    assert env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32)).reward.dtype == jnp.float32


def test_action_repeat_divides_the_time_limit_of_the_env() -> None:
    assert ActionRepeat(make_env("classic/pendulum"), 3).max_episode_steps == 67
    assert wrap_env(ActionRepeat(make_env("classic/pendulum"), 4)).max_episode_steps == 50


def test_flattened_observations_keep_their_action_mask() -> None:
    env = wrap_env(ObsFlattenWrapper(make_env("probe/mask")), parallel=8)
    assert isinstance(env.obs_space, Dict)
    assert set(env.obs_space) == {"obs", "action_mask"}
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    trajectory, _ = rollout(
        env.step, agent.compute_actions, env.reset(jax.random.key(1)), agent_state, jax.random.key(2), 32
    )
    np.testing.assert_array_equal(trajectory.rewards, 1.0)


@pytest.mark.parametrize("wrap", [ActionSquashWrapper, ObsFlattenWrapper, lambda env: ActionRepeat(env, 2)])
def test_a_wrapper_for_single_envs_refuses_a_vectorized_one(wrap: Any) -> None:
    with pytest.raises(InvalidInputError, match="wraps a single env, and this one is vectorized"):
        wrap(create_env("classic/pendulum", parallel=2))


def test_a_second_frame_stack_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="already has a FrameStackWrapper"):
        FrameStackWrapper(FrameStackWrapper(CounterEnv(), 2), 2)


def test_a_discrete_action_out_of_range_is_refused_where_its_value_is_known() -> None:
    env = create_env("classic/cartpole", parallel=2)
    with pytest.raises(InvalidInputError, match=r"action is 7 at \[1\], which is outside of Discrete\(2\)"):
        env.step(env.reset(jax.random.key(0)), jnp.array([1, 7]))


@pytest.mark.parametrize("not_an_env", ["classic/cartpole", CounterEnv], ids=["a name", "a class"])
def test_what_is_no_env_is_refused_with_advice(not_an_env: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected an Env of rookery\.envs"):
        wrap_env(not_an_env)


def test_a_name_in_place_of_a_tuple_of_extra_fields_is_refused() -> None:
    env = create_env("probe/counter", parallel=2)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    state = env.reset(jax.random.key(1))
    with pytest.raises(InvalidInputError, match="give a tuple of names"):
        rollout(env.step, agent.compute_actions, state, agent_state, jax.random.key(2), 4, "steps")


def test_a_gymnasium_name_is_refused_with_the_reason() -> None:
    with pytest.raises(LookupError, match="cannot be compiled"):
        create_env("gymnasium/CartPole-v1")
    with pytest.raises(LookupError, match="classic/cartpole"):
        create_env("cartpole")


def test_a_random_agent_honors_the_mask_of_every_component() -> None:
    agent = RandomAgent()
    obs_space, action_space = Dict(action_mask=Box(0, 1, (5,), np.int8)), MultiDiscrete([3, 2], start=[1, 0])
    agent_state = agent.init(obs_space, action_space, jax.random.key(0))
    # The second component allows nothing, which counts as everything.
    mask = jnp.tile(jnp.array([0, 1, 1, 0, 0], jnp.int8), (200, 1))
    actions, _ = agent.compute_actions(agent_state, SampleBatch(obs={"action_mask": mask}), jax.random.key(1))
    assert set(np.asarray(actions[:, 0])) == {2, 3}
    assert set(np.asarray(actions[:, 1])) == {0, 1}
