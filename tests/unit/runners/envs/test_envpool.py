"""Environments of EnvPool."""

import warnings

import numpy as np
import pytest

from rookery.runners.envs.base_env import End
from rookery.runners.envs.libraries import make_host_env
from tests.unit.runners.played_envs import column, play


def test_envpool_gets_the_seeds_and_the_time_limit() -> None:
    pytest.importorskip("envpool")
    actions = np.zeros((4, 2), np.int32)
    first, same, other = (
        play(make_host_env("envpool/CartPole-v1", 2, episode_length=4), actions, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first[0].obs, same[0].obs)
    assert not np.any(first[0].obs == other[0].obs)
    assert not np.array_equal(first[0].obs[0], first[0].obs[1])
    assert column(first, 0, "ends") == [End.RUNNING] * 4 + [End.TRUNCATED]


def test_images_of_envpool_have_their_channels_last() -> None:
    pytest.importorskip("envpool")
    base_env = make_host_env("envpool/Pong-v5", 1, render=True)
    assert base_env.poll().obs.shape == (1, 84, 84, 4)
    frame = base_env.try_render(0)
    assert frame is not None
    assert frame.shape == (210, 160, 3)
    base_env.close()


def test_envpool_does_not_warn_of_its_own_spaces() -> None:
    pytest.importorskip("envpool")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polls = play(make_host_env("envpool/CartPole-v1", 1), np.zeros((1, 1), np.int32))
    assert len(polls) == 2
