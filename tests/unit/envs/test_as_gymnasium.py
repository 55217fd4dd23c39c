"""Our environments behind the interface of Gymnasium."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.envs import EpisodeWrapper, MultiAgentEnv, create_env, env_names, make_env
from rookery.envs.as_gymnasium import as_gymnasium
from rookery.errors import InvalidInputError, RookeryError


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [name for name in [*env_names("classic"), *env_names("probe")] if not isinstance(make_env(name), MultiAgentEnv)],
)
def test_gymnasium_accepts_our_envs(name: str) -> None:
    render_mode = "rgb_array" if name.startswith("classic") else None
    check_env(as_gymnasium(name, render_mode=render_mode))


def test_it_steps_like_the_env_of_gymnasium() -> None:
    ours, theirs = as_gymnasium("classic/cartpole"), gymnasium.make("CartPole-v1")
    obs, _ = ours.reset(seed=3)
    theirs.reset(seed=0)
    theirs.unwrapped.state = np.array(obs, np.float64)  # type: ignore[attr-defined]
    for step in range(200):
        action = step // 2 % 2
        obs, *rest, _ = ours.step(action)
        expected_obs, *expected, _ = theirs.step(action)
        np.testing.assert_allclose(obs, expected_obs, rtol=1e-4, atol=1e-5)
        assert rest == expected
        if rest[1]:
            break
    assert rest[1:] == [True, False]


def test_a_time_limit_truncates_and_a_fall_terminates() -> None:
    env = as_gymnasium("classic/cartpole", episode_length=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env = as_gymnasium("classic/cartpole")
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(9)]
    assert (True, False) in ends


def test_a_seed_fixes_also_the_episodes_after_it() -> None:
    first, second = as_gymnasium("classic/pendulum"), as_gymnasium("classic/pendulum")
    starts = [(env.reset(seed=5)[0], env.reset()[0], env.reset()[0]) for env in (first, second)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert len(np.unique(np.stack(starts[0])[:, 0])) == 3


def test_what_comes_out_is_numpy_and_belongs_to_the_caller() -> None:
    env = as_gymnasium("probe/mask")
    obs, info = env.reset(seed=0)
    assert type(obs) is dict
    for array in obs.values():
        assert type(array) is np.ndarray
        array[...] = 0
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert [type(value) for value in (reward, terminated, truncated, info)] == [float, bool, bool, dict]
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((obs, info)))


def test_it_is_drawn_only_if_asked() -> None:
    env = as_gymnasium("classic/cartpole", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame is not None
    assert (frame.dtype, frame.shape[2]) == (np.uint8, 3)
    silent = as_gymnasium("classic/cartpole")
    silent.reset(seed=0)
    assert silent.render() is None
    with pytest.raises(InvalidInputError, match="render_mode='human'"):
        as_gymnasium("classic/cartpole", render_mode="human")


def test_an_env_that_has_episodes_already_keeps_its_limit() -> None:
    bare = make_env("classic/cartpole")
    env = as_gymnasium(EpisodeWrapper(bare, 2))
    env.reset(seed=0)
    env.step(0)
    assert env.step(0)[3]
    with pytest.raises(InvalidInputError, match="already has an EpisodeWrapper"):
        as_gymnasium(EpisodeWrapper(bare, 2), episode_length=5)


def test_what_cannot_be_one_gymnasium_env_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="got 4 vectorized envs"):
        as_gymnasium(create_env("classic/cartpole", parallel=4))
    with pytest.raises(InvalidInputError, match="got an env with several agents"):
        as_gymnasium("probe/multi_agent_counter")
    with pytest.raises(InvalidInputError, match="gravity: library arguments need the name"):
        as_gymnasium(make_env("classic/cartpole"), gravity=1.0)


def test_a_step_without_a_reset_or_with_a_wrong_action_is_refused() -> None:
    env = as_gymnasium("classic/cartpole")
    with pytest.raises(InvalidInputError, match="call reset first"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(RookeryError, match="the action is 2, which is outside of Discrete"):
        env.step(2)
