"""Host environments by name."""

import importlib.util
import subprocess
import sys
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

from rookery.envs import make_env, registration
from rookery.errors import InvalidInputError, MissingExtraError, UnknownNameError
from rookery.runners import host_envs
from rookery.runners.base_env import SINGLE_AGENT, Actions, BaseEnv, End, Polled
from rookery.runners.host_envs import HOST_LIBRARIES, host_env_names, is_host_env, make_host_env
from rookery.runners.runner import EPISODE_INFO


def play(base_env: BaseEnv, actions: np.ndarray, seed: int = 0) -> list[Polled]:
    """Step all envs with these actions `[T, B]`, asking for new episodes at once; return all polls with rows."""
    for env in range(base_env.num_envs):
        base_env.try_reset(env, seed + env)
    polls = [base_env.poll()]
    live = set(polls[0].envs.tolist())
    for row in actions:
        envs = np.array(sorted(live))
        if len(envs):
            base_env.send_actions(Actions(envs, row[envs]))
        polled = base_env.poll()
        while len(polled.envs):
            assert not polled.failed
            polls.append(polled)
            live = (live | set(polled.envs.tolist())) - set(polled.over)
            for env in polled.over:
                base_env.try_reset(env, None)
            polled = base_env.poll(timeout=0) if polled.over else Polled(*[np.zeros(0)] * 6)
    base_env.close()
    return polls


def column(polls: list[Polled], env: int, name: str) -> list[Any]:
    """What the polls say of one env."""
    return [getattr(polled, name)[row] for polled in polls for row in np.flatnonzero(polled.envs == env)]


def test_names_of_host_libraries_are_told_from_those_of_the_device() -> None:
    assert is_host_env("gymnasium/CartPole-v1")
    assert is_host_env("pettingzoo/mpe2.simple_spread_v3")
    assert not is_host_env("classic/cartpole")
    assert not is_host_env("gymnasium")
    assert sorted(HOST_LIBRARIES) == sorted(registration.HOST_LIBRARIES)
    with pytest.raises(UnknownNameError, match=r"make_host_env\('ale/Pong-v5', num_envs\)"):
        make_env("ale/Pong-v5")


def test_a_gymnasium_env_is_what_gymnasium_makes() -> None:
    actions = np.tile(np.arange(40)[:, None] % 2, (1, 2)).astype(np.int32)
    polls = play(make_host_env("gymnasium/CartPole-v1", 2), actions, seed=7)
    for index in range(2):
        env = gymnasium.make("CartPole-v1")
        expected = [env.reset(seed=7 + index)[0]]
        rewards, is_over = [0.0], False
        for action in actions[:, index]:
            obs, reward, terminated, truncated, _ = env.step(int(action))
            expected.append(obs)
            rewards.append(float(reward))
            is_over = terminated or truncated
            if is_over:
                break
        length = len(expected)
        np.testing.assert_array_equal(column(polls, index, "obs")[:length], expected)
        assert column(polls, index, "rewards")[:length] == rewards
        assert (column(polls, index, "ends")[length - 1] == End.TERMINATED) == is_over


def test_a_time_limit_replaces_that_of_the_env() -> None:
    for length, limit in ((3, 3), (250, 250)):
        polls = play(
            make_host_env("gymnasium/Pendulum-v1", 1, episode_length=limit), np.zeros((length, 1, 1), np.float32)
        )
        assert End(column(polls[: length + 1], 0, "ends")[-1]) is End.TRUNCATED
        assert set(column(polls[:length], 0, "ends")) == {End.RUNNING}


def test_arguments_reach_the_env_and_it_is_drawn_if_asked() -> None:
    base_env = make_host_env("gymnasium/FrozenLake-v1", 1, render=True, map_name="8x8")
    obs_space, _ = base_env.spaces[SINGLE_AGENT]
    assert obs_space.n == 64  # type: ignore[attr-defined]
    base_env.poll()
    frame = base_env.try_render(0)
    assert frame is not None
    assert frame.dtype == np.uint8
    base_env.close()


def test_what_makes_gymnasium_envs_elsewhere_does_not_import_rookery(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(host_envs, "make_env_group", lambda make_env, **options: made.append(make_env))
    monkeypatch.setattr(host_envs, "GroupVectorEnv", lambda group, time_limit: None)
    monkeypatch.setattr(host_envs, "VectorBaseEnv", lambda vector_env, name: None)
    make_host_env("gymnasium/CartPole-v1", 2)
    program = "import pickle, sys; pickle.load(sys.stdin.buffer)(0).reset(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], input=cloudpickle.dumps(made[0]), capture_output=True, check=True
    )
    modules = done.stdout.decode().split()
    assert "gymnasium" in modules
    assert not {"jax", "rookery"} & set(modules)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gymnasium/CartPol-v1", "Did you mean 'gymnasium/CartPole-v1'"),
        ("gymnasium/CartPole", "Did you mean 'gymnasium/CartPole-v1'"),
        ("gymnasium/HalfCheetah-v2", "Did you mean 'gymnasium/HalfCheetah-v5'"),
        ("gymnasum/CartPole-v1", "Did you mean 'gymnasium'"),
        ("ale/Pog-v5", "Did you mean 'ale/Pong-v5'"),
        ("envpool/CartPol-v1", "Did you mean 'envpool/CartPole-v1'"),
        ("pettingzoo/mpe2.simple_spred_v3", r"Did you mean 'pettingzoo/mpe2\.simple_spread_v3'"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_one(name: str, advice: str) -> None:
    library = name.partition("/")[0]
    if library in HOST_LIBRARIES and not HOST_LIBRARIES[library].installed:
        pytest.skip(f"{library} is not installed")
    with pytest.raises(UnknownNameError, match=advice):
        make_host_env(name, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gymnasium", {}, "is the name of a library"),
        ("gymnasium/CartPole-v1", {"step_timeout": 2.0}, "step_timeout=2.0 can be kept in other processes only"),
        ("gymnasium/CartPole-v1", {"episode_length": 0}, "episode_length=0"),
        ("gymnasium/nowhere:CartPole-v1", {}, "the module 'nowhere' cannot be imported"),
        ("ale/Pong-v5", {"processes": True}, "stepped in threads of its own"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, arguments: dict, said: str) -> None:
    if name.startswith("ale/"):
        pytest.importorskip("ale_py")
    with pytest.raises(InvalidInputError, match=said):
        make_host_env(name, 1, **arguments)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("gymnasium/LunarLander-v3", "Box2D", "box2d"),
        ("gymnasium/HalfCheetah-v5", "mujoco", "mujoco"),
        ("ale/Pong-v5", "ale_py", "atari"),
        ("pettingzoo/mpe2.simple_spread_v3", "pettingzoo", "pettingzoo"),
        ("envpool/CartPole-v1", "envpool", "envpool"),
    ],
)
def test_a_missing_library_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None if wanted == package else find_spec(wanted))
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed: pip install 'rookery\[{extra}\]'"):
        make_host_env(name, 1)


def test_listed_names_are_the_newest_and_can_be_made() -> None:
    names = host_env_names("gymnasium")
    assert "gymnasium/CartPole-v1" in names
    assert "gymnasium/CartPole-v0" not in names
    assert "gymnasium/HalfCheetah-v5" in names
    assert not any("NoFrameskip" in name or "ALE/" in name for name in names)


def test_pettingzoo_envs_are_made_by_the_name_of_their_module() -> None:
    pytest.importorskip("mpe2")
    base_env = make_host_env("pettingzoo/mpe2.simple_spread_v3", 2, N=2)
    assert base_env.name == "pettingzoo/mpe2.simple_spread_v3"
    assert set(base_env.spaces) == {"agent_0", "agent_1"}
    assert len(base_env.poll().envs) == 4


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
    obs, info = env.reset(seed=host_envs.seeds_of(5, 2))
    steps = [(obs, np.zeros(2), np.zeros(2, bool), info)]
    for action in atari_actions:
        obs, rewards, terminated, truncated, info = env.step(action)
        steps.append((obs, rewards, terminated | truncated, info))
    return steps


def test_an_atari_game_is_that_of_ale_with_channels_last(atari_actions: np.ndarray, atari_truth: list[tuple]) -> None:
    polls = play(make_host_env("ale/Breakout-v5", 2), atari_actions, seed=5)
    is_game_over = np.array([is_over for _, _, is_over, _ in atari_truth])
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
            told = {"lives": np.array([1]), "final_obs": self.images}
            return self.images, np.array([4]), is_over, np.array([False]), told

    games = host_envs.AtariGames(Scoring(), episodic_life=False, reward_clipping=True)
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
