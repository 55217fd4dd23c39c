"""Host environments by name."""

import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

from rookery.configs import compose
from rookery.envs import env_names, is_installed, make_env
from rookery.envs.libraries import HOST_ENTRY_POINT_GROUP, LIBRARIES, HostLibrary, is_on_host
from rookery.envs.registration import all_library_names
from rookery.errors import InvalidInputError, MissingExtraError, UnknownNameError
from rookery.runners.envs import libraries
from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.runners.envs.libraries import load_host_library, make_host_env
from rookery.trust import strangers_config
from tests.unit.runners.played_envs import column, play


def test_names_of_host_libraries_are_told_from_those_of_the_device() -> None:
    assert sorted(filter(is_on_host, LIBRARIES)) == [
        "ale",
        "envpool",
        "gymnasium",
        "pettingzoo",
        "served",
        "served_agents",
    ]
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


class Blind(gymnasium.Env):
    """An env that takes no render mode, as its metadata say."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("entry_point", [Blind, f"{__name__}:Blind"])
def test_an_env_without_pictures_says_so_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, entry_point: Any
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Blind-v0", entry_point)
    monkeypatch.setitem(gymnasium.registry, "Blind-v0", spec)
    with pytest.raises(InvalidInputError, match=r"Blind-v0 has no render mode 'rgb_array': .* is \[\]\."):
        make_host_env("gymnasium/Blind-v0", 1, render=True)
    assert not recwarn.list
    make_host_env("gymnasium/Blind-v0", 1).close()


def test_what_makes_an_env_without_telling_its_render_modes_is_asked_for_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_cartpole(render_mode: str | None = None) -> gymnasium.Env:
        return gymnasium.make("CartPole-v1", render_mode=render_mode)

    spec = gymnasium.envs.registration.EnvSpec("Made-v0", make_cartpole)
    monkeypatch.setitem(gymnasium.registry, "Made-v0", spec)
    base_env = make_host_env("gymnasium/Made-v0", 1, render=True)
    base_env.poll()
    assert base_env.try_render(0) is not None
    base_env.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is a screen")
def test_drawing_looks_for_no_screen_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER", "MUJOCO_GL")

    def variables(render: bool, **given: str) -> list[str | None]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "environ", dict(given))
            make_host_env("gymnasium/CartPole-v1", 1, render=render).close()
            return [os.environ.get(name) for name in drawing]

    assert variables(render=True) == ["dummy", "dummy", "egl"]
    assert variables(render=True, DISPLAY=":0") == ["dummy", None, None]
    assert variables(render=True, MUJOCO_GL="osmesa") == ["dummy", "dummy", "osmesa"]
    assert variables(render=False) == [None, None, None]


def test_workflows_clip_the_rewards_of_atari_themselves_and_evaluate_whole_games() -> None:
    ale, envpool = LIBRARIES["ale"], LIBRARIES["envpool"]
    assert isinstance(ale, HostLibrary)
    assert isinstance(envpool, HostLibrary)
    assert ale.clips_rewards({})
    assert not ale.clips_rewards({"reward_clipping": False})
    assert not envpool.clips_rewards({})
    assert envpool.clips_rewards({"reward_clip": True})
    assert not load_host_library("gymnasium").clips_rewards({"reward_clipping": True})
    kwargs = {"reward_clipping": True, "episodic_life": True, "frameskip": 2}
    assert ale.kwargs_of_envs(kwargs, is_evaluation=False) == {"episodic_life": True, "frameskip": 2}
    assert ale.kwargs_of_envs(kwargs, is_evaluation=True) == {"frameskip": 2}


def test_what_makes_gymnasium_envs_elsewhere_does_not_import_rookery(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(libraries, "make_transport", lambda make_env, **options: made.append(make_env))
    monkeypatch.setattr(libraries, "TransportVectorEnv", lambda *args: None)
    monkeypatch.setattr(libraries, "VectorBaseEnv", lambda *args: None)
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
    if not is_installed(library):
        pytest.skip(f"{library} is not installed")
    with pytest.raises(UnknownNameError, match=advice):
        make_host_env(name, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gymnasium", {}, "is the name of a library"),
        ("gymnasium/CartPole-v1", {"step_timeout": 2.0}, "step_timeout=2.0 needs other processes"),
        ("gymnasium/CartPole-v1", {"max_memory": 500}, "max_memory=500 needs other processes"),
        ("gymnasium/CartPole-v1", {"nonsense": 3}, "env.kwargs.nonsense=3 is not an argument of gymnasium/CartPole-v1"),
        ("gymnasium/CartPole-v1", {"nonsense": 3, "processes": True}, "env.kwargs.nonsense=3 is not an argument of"),
        ("gymnasium/CartPole-v1", {"episode_length": 0}, "episode_length=0"),
        ("gymnasium/nowhere:CartPole-v1", {}, "the module 'nowhere' cannot be imported"),
        ("ale/Pong-v5", {"processes": True}, "stepped in its own threads"),
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
    names = env_names("gymnasium")
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


def make_theirs(name: str, gravity: float = 9.8, render_mode: str | None = None) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", render_mode=render_mode)
    env.unwrapped.gravity = gravity
    return env


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with host environments."""
    point = EntryPoint("theirs", f"{__name__}:THEIRS", HOST_ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: EntryPoints([point]).select(group=group))


THEIRS = SimpleNamespace(names=lambda: ["Poles-v0"], make=make_theirs)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("processes", [False, True])
def test_an_installed_package_adds_host_environments_by_an_entry_point(processes: bool) -> None:
    with strangers_config():  # it is installed: a run may name it
        base_env = make_host_env("theirs/Poles-v0", 2, processes=processes, gravity=5.0, render=True)
    with contextlib.closing(base_env):
        gravities = [base_env.vector_env.transport.apply(index, gravity_of) for index in range(2)]
        assert gravities == [5.0, 5.0]
        base_env.try_reset(0, 0)
        base_env.poll()
        assert base_env.try_render(0).shape == (400, 600, 3)


def gravity_of(env: Any) -> float:
    return env.unwrapped.gravity


@pytest.mark.usefixtures("theirs")
def test_installed_host_libraries_are_listed_and_named_like_ours() -> None:
    assert env_names("theirs") == ["theirs/Poles-v0"]
    assert "theirs" in all_library_names()
    assert compose(["env=theirs/Poles-v0"])["env"]["name"] == "theirs/Poles-v0"
    with pytest.raises(UnknownNameError, match=r"unknown environment 'Pols-v0'\. Did you mean 'Poles-v0'"):
        make_host_env("theirs/Pols-v0", 1)
    with pytest.raises(UnknownNameError, match=r"unknown host library 'thers'\. Did you mean 'theirs'"):
        make_host_env("thers/Poles-v0", 1)
