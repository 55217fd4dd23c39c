"""Games of Atari 2600."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.runners.envs.atari import AtariGames
from rookery.runners.envs.base_env import EPISODE_INFO, SINGLE_AGENT, End
from rookery.runners.envs.libraries import make_host_env
from rookery.runners.envs.threaded import seeds_of
from tests.unit.runners.played_envs import column, play

# Breakout by random actions: games of five lives that are over within a few hundred steps.
NUM_STEPS = 260


@pytest.fixture(scope="module")
def atari_actions() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, (NUM_STEPS, 2)).astype(np.int32)


@pytest.fixture(scope="module")
def atari_truth(atari_actions: np.ndarray) -> list[tuple]:
    """What ALE's own vector env gives for the same seeds and actions: lives end nothing."""
    vector_env = pytest.importorskip("ale_py.vector_env")
    env = vector_env.AtariVectorEnv(
        "breakout", 2, autoreset_mode="SameStep", reward_clipping=False, repeat_action_probability=0.25
    )
    obs, info = env.reset(seed=seeds_of(5, 2))
    steps = [(obs, np.zeros(2), np.zeros(2, bool), info)]
    for action in atari_actions:
        obs, rewards, terminated, truncated, info = env.step(action)
        steps.append((obs, rewards, terminated | truncated, info))
    return steps


def test_an_atari_game_is_that_of_ale_with_channels_last(atari_actions: np.ndarray, atari_truth: list[tuple]) -> None:
    polls = play(make_host_env("ale/Breakout-v5", 2), atari_actions, seed=5)
    is_game_over = np.array([is_over for _, _, is_over, _ in atari_truth])
    for env in range(2):
        paid = sum(rewards[env] for _, rewards, _, _ in atari_truth)
        assert sum(column(polls, env, "rewards")) == paid
    assert is_game_over.any()
    for env in range(2):
        obs, ends = column(polls, env, "obs"), column(polls, env, "ends")
        assert obs[0].shape == (84, 84, 4)
        row = 0
        for truth, _, is_over, info in atari_truth:
            if is_over[env]:
                assert ends[row] == End.TERMINATED
                np.testing.assert_array_equal(obs[row], np.moveaxis(info["final_obs"][env], 0, -1))
                row += 1
            np.testing.assert_array_equal(obs[row], np.moveaxis(truth[env], 0, -1))
            row += 1


def test_with_lives_as_episodes_the_game_goes_on_and_is_reported_as_a_whole(
    atari_actions: np.ndarray, atari_truth: list[tuple]
) -> None:
    polls = play(make_host_env("ale/Breakout-v5", 2, episodic_life=True), atari_actions, seed=5)
    for env in range(2):
        games, length, score, num_lives_lost, lives = [], 0, 0.0, 0, 5
        for _, rewards, is_over, info in atari_truth[1:]:
            length, score = length + 1, score + rewards[env]
            num_lives_lost += bool(is_over[env] or info["lives"][env] < lives)
            lives = info["lives"][env]
            if is_over[env]:
                games.append({"game_return": score, "game_length": length})
                length, score = 0, 0.0
        reported = [
            dict(polled.infos[env][SINGLE_AGENT][EPISODE_INFO])
            for polled in polls
            if env in polled.over and EPISODE_INFO in polled.infos.get(env, {}).get(SINGLE_AGENT, {})
        ]
        assert reported == games
        ends = column(polls, env, "ends")
        assert sum(end == End.TERMINATED for end in ends) == num_lives_lost >= 5
        # Nothing was played that the game does not know: an observation for each step, and the first of each life.
        assert len(ends) == 1 + NUM_STEPS + num_lives_lost


def test_scores_are_reported_as_they_are_also_if_rewards_are_clipped() -> None:
    pytest.importorskip("ale_py")

    class Scoring:
        """A vector env in which every step scores 4 and a game has three."""

        num_envs, grayscale = 1, True
        single_observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        single_action_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.MultiDiscrete([2])
        images = np.zeros((1, 4, 84, 84), np.uint8)
        num_steps = 0

        def reset(self, **kwargs: Any) -> tuple:
            return self.images, {"lives": np.array([1])}

        def step(self, actions: Any) -> tuple:
            self.num_steps += 1
            is_over = np.array([self.num_steps % 3 == 0])
            infos = {"lives": np.array([1]), "final_obs": self.images}
            return self.images, np.array([4]), is_over, np.array([False]), infos

    games = AtariGames(Scoring(), episodic_life=False, reward_clipping=True)
    games.reset()
    rewards, infos = zip(*[games.step(np.array([0]))[1::3] for _ in range(6)], strict=True)
    assert np.concatenate(rewards).tolist() == [1] * 6
    assert infos[:2] == ({}, {})
    for index in (2, 5):
        game = infos[index]["final_info"][EPISODE_INFO]
        assert (game["game_return"].tolist(), game["game_length"].tolist()) == ([12.0], [3])


def test_an_atari_time_limit_is_counted_in_steps() -> None:
    pytest.importorskip("ale_py")
    polls = play(make_host_env("ale/Pong-v5", 1, episode_length=10), np.zeros((10, 1), np.int32))
    assert column(polls, 0, "ends")[:11] == [End.RUNNING] * 10 + [End.TRUNCATED]


@pytest.mark.parametrize(
    ("options", "size"), [({}, 252), ({"img_height": 100, "img_width": 60}, 300), ({"processes": True}, 252)]
)
def test_pictures_show_the_pixels_of_the_last_frame_as_squares(options: dict, size: int) -> None:
    pytest.importorskip("ale_py")
    base_env = make_host_env("ale/Pong-v5", 1, render=True, **options)
    obs = base_env.poll().obs[0]
    frame = base_env.try_render(0)
    assert frame is not None
    scale = size // obs.shape[0]
    assert frame.shape == (size, scale * obs.shape[1], 3)
    assert len(np.unique(frame)) > 1
    for row, column_ in np.ndindex(scale, scale):
        np.testing.assert_array_equal(frame[row::scale, column_::scale, 0], obs[..., -1])
    np.testing.assert_array_equal(frame, np.broadcast_to(frame[..., :1], frame.shape))
    base_env.close()
