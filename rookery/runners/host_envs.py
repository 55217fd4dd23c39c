"""Host environments by name, `library/name`: each library is imported when one of its environments is asked for."""

import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from rookery.errors import InvalidInputError, check_count, missing_extra, unknown_name
from rookery.runners.autoreset_env import AutoresetBaseEnv
from rookery.runners.base_env import BaseEnv
from rookery.runners.conversion import make_env_group
from rookery.runners.multi_agent_env import MultiAgentBaseEnv
from rookery.runners.pettingzoo import pettingzoo_factory, pettingzoo_names
from rookery.runners.runner import EPISODE_INFO
from rookery.runners.vector_base_env import VectorBaseEnv
from rookery.runners.vector_env import GroupVectorEnv


@dataclass(frozen=True)
class HostEnvRequest:
    """What `make_host_env` was asked for."""

    name: str
    num_envs: int
    episode_length: int | None
    render: bool
    processes: bool
    envs_per_process: int
    step_timeout: float | None
    kwargs: dict[str, Any]

    @property
    def env_name(self) -> str:
        """The name without that of the library."""
        return self.name.partition("/")[2]

    @property
    def group_options(self) -> dict[str, Any]:
        """The options of `make_env_group`."""
        return {
            "num_envs": self.num_envs,
            "processes": self.processes,
            "envs_per_process": self.envs_per_process,
            "step_timeout": self.step_timeout,
        }


@dataclass(frozen=True)
class HostLibrary:
    """A library of host environments; `requires` is the package it needs, `extra` installs it."""

    names_fn: Callable[[], Iterable[str]]
    make_fn: Callable[[HostEnvRequest], BaseEnv]
    requires: str = "gymnasium"
    extra: str | None = None
    has_threads: bool = False
    """Whether it steps its envs in threads of its own, and cannot use processes."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.requires) is not None


def is_host_env(name: str) -> bool:
    """Tell whether `name` begins with the name of a host library."""
    library, _, env_name = name.partition("/")
    return library in HOST_LIBRARIES and bool(env_name)


def host_env_names(library: str) -> list[str]:
    """The full names of a host library's environments, sorted."""
    return sorted(f"{library}/{name}" for name in load_host_library(library).names_fn())


def load_host_library(library: str) -> HostLibrary:
    """Return a host library; raise unless its package is installed."""
    if library not in HOST_LIBRARIES:
        raise unknown_name("host library", library, HOST_LIBRARIES, "Names look like 'gymnasium/CartPole-v1'.")
    found = HOST_LIBRARIES[library]
    if not found.installed:
        raise missing_extra(found.requires, str(found.extra))
    return found


def make_host_env(
    name: str,
    num_envs: int,
    *,
    episode_length: int | None = None,
    processes: bool = False,
    envs_per_process: int = 1,
    step_timeout: float | None = None,
    render: bool = False,
    **kwargs: Any,
) -> BaseEnv:
    """Make `num_envs` host environments by their name: `make_host_env("gymnasium/CartPole-v1", 8)`.

    `episode_length` replaces the time limit of the env. `processes` and what follows are explained at `to_base_env`.
    Only with `render` can they be drawn. `kwargs` go to the library.
    """
    check_count("num_envs", num_envs)
    if episode_length is not None:
        check_count("episode_length", episode_length)
    library_name, _, env_name = name.partition("/")
    library = load_host_library(library_name)
    if not env_name:
        raise InvalidInputError(
            f"{name!r} is the name of a library: add that of an env, as in 'gymnasium/CartPole-v1'."
        )
    if processes and library.has_threads:
        raise InvalidInputError(f"{name} is stepped in threads of its own: set processes=False.")
    if step_timeout is not None and not processes:
        raise InvalidInputError(f"step_timeout={step_timeout} can be kept in other processes only: set processes=True.")
    return library.make_fn(
        HostEnvRequest(name, num_envs, episode_length, render, processes, envs_per_process, step_timeout, kwargs)
    )


GYMNASIUM_EXTRAS = {"gymnasium.envs.box2d": ("Box2D", "box2d"), "gymnasium.envs.mujoco": ("mujoco", "mujoco")}
"""The package that the envs of a module of Gymnasium need, and the extra that installs it."""
MAX_SEED = 2**31 - 1


def gymnasium_names() -> list[str]:
    """The ids registered with Gymnasium: of each env the newest version that is not withdrawn, and no game of ALE."""
    newest: dict[tuple[str | None, str], gymnasium.envs.registration.EnvSpec] = {}
    for spec in gymnasium.registry.values():
        key = (spec.namespace, spec.name)
        is_newer = key not in newest or (spec.version or 0) > (newest[key].version or 0)
        if is_newer and not str(spec.entry_point).startswith("ale_py") and not _is_withdrawn(spec):
            newest[key] = spec
    return [spec.id for spec in newest.values()]


def make_gymnasium_envs(request: HostEnvRequest) -> BaseEnv:
    """Make envs that are registered with Gymnasium; `module:MyEnv-v0` imports the module that registers them first."""
    spec = _gymnasium_spec(request)
    for module, (package, extra) in GYMNASIUM_EXTRAS.items():
        if str(spec.entry_point).startswith(module) and importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra)
    options = {
        "disable_env_checker": True,
        **({"render_mode": "rgb_array"} if request.render else {}),
        **request.kwargs,
    }
    time_limit = request.episode_length or spec.max_episode_steps
    spec = copy.deepcopy(spec)
    # Wrappers that cost a call for each env and step: the order is kept by the runner, the time by the vector env.
    spec.order_enforce, spec.max_episode_steps = False, None

    # It is sent to other processes by value and mentions nothing of Rookery, which is then not imported there.
    def make_env(index: int) -> gymnasium.Env:
        return gymnasium.make(spec, **options)

    group = make_env_group(make_env, **request.group_options)
    return VectorBaseEnv(GroupVectorEnv(group, time_limit=time_limit), request.name)


def make_pettingzoo_envs(request: HostEnvRequest) -> BaseEnv:
    """Make the envs of a module like `mpe2.simple_spread_v3` or `classic.tictactoe_v3`."""
    make_env = pettingzoo_factory(request.env_name, request.episode_length, request.render, request.kwargs)
    return MultiAgentBaseEnv(make_env_group(make_env, **request.group_options), request.name)


def ale_names() -> list[str]:
    """The games of the Arcade Learning Environment, in the settings of Machado et al., 2018."""
    importlib.import_module("ale_py")
    return [f"{spec.name}-v{spec.version}" for spec in gymnasium.registry.values() if spec.namespace == "ALE"]


def make_ale_envs(request: HostEnvRequest) -> BaseEnv:
    """Make games of Atari 2600, stepped and preprocessed by ALE itself: four grey frames of 84 by 84, channels last."""
    return AutoresetBaseEnv(_make_atari_games(request), request.name, lambda: _make_atari_games(request))


def envpool_names() -> list[str]:
    """The environments of EnvPool."""
    return importlib.import_module("envpool").list_all_envs()


def make_envpool_envs(request: HostEnvRequest) -> BaseEnv:
    """Make envs of EnvPool."""
    if request.env_name not in envpool_names():
        raise unknown_name("environment", request.name, host_env_names("envpool"))
    return AutoresetBaseEnv(EnvPoolEnvs(request), request.name, lambda: EnvPoolEnvs(request))


HOST_LIBRARIES = {
    "gymnasium": HostLibrary(gymnasium_names, make_gymnasium_envs),
    "ale": HostLibrary(ale_names, make_ale_envs, requires="ale_py", extra="atari", has_threads=True),
    "pettingzoo": HostLibrary(pettingzoo_names, make_pettingzoo_envs, requires="pettingzoo", extra="pettingzoo"),
    "envpool": HostLibrary(envpool_names, make_envpool_envs, requires="envpool", extra="envpool", has_threads=True),
}


class AtariGames(gymnasium.vector.VectorEnv):
    """ALE's games with channels last, lives as episodes if wanted, and the figures of whole games in the infos.

    ALE's own `episodic_life` begins a new game with every life, so that nobody ever plays a second one. Here the game
    goes on: the observation after a lost life is the last of one episode and the first of the next. The score and the
    number of steps of a whole game come with its end, by the game's own rewards, whether or not they are clipped.
    """

    def __init__(self, env: Any, episodic_life: bool, reward_clipping: bool, render: bool = False) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.render_mode = "rgb_array" if render else None
        self.single_observation_space = images_channels_last(env.single_observation_space)
        self.single_action_space = env.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = env.action_space
        self._episodic_life = episodic_life
        self._reward_clipping = reward_clipping
        self._obs = np.zeros((self.num_envs, *self.single_observation_space.shape), np.uint8)
        self._lives = np.zeros(self.num_envs, np.int32)
        self._scores = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed if seed is None else seeds_of(seed, self.num_envs), options=options)
        self._lives = infos["lives"]
        self._scores[:] = self._lengths[:] = 0
        self._obs = channels_last(obs)
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, rewards, terminated, truncated, told = self.env.step(actions)
        self._obs = obs = channels_last(obs)
        is_game_over = terminated | truncated
        self._scores += rewards
        self._lengths += 1
        if self._episodic_life:
            terminated = terminated | ((told["lives"] < self._lives) & ~is_game_over)
        self._lives = told["lives"]
        infos = self._infos(obs, terminated | truncated, is_game_over, told)
        return obs, np.sign(rewards) if self._reward_clipping else rewards, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Draw what the agents see last: the newest of the frames in an observation."""
        num_channels = 1 if self.env.grayscale else 3
        frames = self._obs[..., -num_channels:]
        return tuple(np.broadcast_to(frames, (*frames.shape[:3], 3)))

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()

    def _infos(
        self, obs: np.ndarray, is_over: np.ndarray, is_game_over: np.ndarray, told: dict[str, Any]
    ) -> dict[str, Any]:
        """What Gymnasium's vector envs tell of the episodes that are over, for `AutoresetMode.SAME_STEP`."""
        if not is_over.any():
            return {}
        if not is_game_over.any():
            return {"final_obs": obs, "_final_obs": is_over}
        final_obs = np.where(is_game_over[:, None, None, None], channels_last(told["final_obs"]), obs)
        games = {
            "game_return": self._scores.copy(),
            "_game_return": is_game_over,
            "game_length": self._lengths.copy(),
            "_game_length": is_game_over,
        }
        self._scores[is_game_over] = self._lengths[is_game_over] = 0
        return {
            "final_obs": final_obs,
            "_final_obs": is_over,
            "final_info": {EPISODE_INFO: games, f"_{EPISODE_INFO}": is_game_over},
            "_final_info": is_game_over,
        }


class EnvPoolEnvs(gymnasium.vector.VectorEnv):
    """Envs of EnvPool, which take seeds only when they are made: a reset with seeds makes them anew.

    Images have their channels last. Infos are left out.
    """

    def __init__(self, request: HostEnvRequest) -> None:
        self.num_envs = request.num_envs
        self._name = request.env_name
        self.render_mode = "rgb_array" if request.render else None
        self._options = {"render_mode": self.render_mode, **request.kwargs}
        if request.episode_length is not None:
            self._options["max_episode_steps"] = request.episode_length
        self._pool = self._make_pool()
        self.metadata = self._pool.metadata
        space = self._pool.single_observation_space
        self._has_images = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8
        self.single_observation_space = images_channels_last(space) if self._has_images else space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._pool.close()
            self._pool = self._make_pool(seed=(seeds_of(seed, self.num_envs) % MAX_SEED).tolist())
        return self._observed(self._pool.reset(options=options)[0]), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, rewards, terminated, truncated, _ = self._pool.step(actions)
        return self._observed(obs), rewards, terminated, truncated, {}

    def render(self) -> Any:
        return self._pool.render(np.arange(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make_pool(self, **options: Any) -> Any:
        envpool = importlib.import_module("envpool")
        return envpool.make(self._name, env_type="gymnasium", num_envs=self.num_envs, **{**self._options, **options})

    def _observed(self, obs: Any) -> Any:
        return channels_last(obs) if self._has_images else obs


def channels_last(images: np.ndarray) -> np.ndarray:
    """Turn `[N, C, H, W]`, or `[N, C, H, W, 3]` for frames in color, into `[N, H, W, channels]`."""
    images = np.moveaxis(images, 1, 3)
    return images if images.ndim == 4 else images.reshape(*images.shape[:3], -1)


def images_channels_last(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    """Return the space of one such image."""
    shape = channels_last(space.low[None]).shape[1:]
    return gymnasium.spaces.Box(0, 255, shape, np.uint8)


def seeds_of(seed: Any, num_envs: int) -> np.ndarray:
    """Return one seed for each env, of one for all or of several."""
    if np.ndim(seed) == 1:
        return np.asarray(seed)
    return np.random.SeedSequence(seed).generate_state(num_envs).astype(np.int64) % MAX_SEED


def _make_atari_games(request: HostEnvRequest) -> AtariGames:
    vector_env = importlib.import_module("ale_py.vector_env")
    spec = gymnasium.registry.get(f"ALE/{request.env_name}")
    if spec is None:
        raise unknown_name("environment", request.name, host_env_names("ale"))
    options = {**spec.kwargs, **request.kwargs}
    options.pop("obs_type", None)
    if request.episode_length is not None:
        options["max_num_frames_per_episode"] = request.episode_length * options["frameskip"]
    episodic_life = options.pop("episodic_life", False)
    reward_clipping = options.pop("reward_clipping", True)
    env = vector_env.AtariVectorEnv(
        num_envs=request.num_envs, autoreset_mode=AutoresetMode.SAME_STEP, reward_clipping=False, **options
    )
    return AtariGames(env, episodic_life, reward_clipping, request.render)


def _gymnasium_spec(request: HostEnvRequest) -> gymnasium.envs.registration.EnvSpec:
    module, _, gymnasium_id = request.env_name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(gymnasium_id)
    except ImportError as error:
        raise InvalidInputError(f"{request.name}: the module {module!r} cannot be imported: {error}.") from error
    except gymnasium.error.Error:
        spec = None
    if spec is None or _is_withdrawn(spec):
        raise unknown_name("environment", request.name, host_env_names("gymnasium"))
    return spec


def _is_withdrawn(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Tell whether Gymnasium keeps an id only to say where the env has gone."""
    return getattr(spec.entry_point, "__module__", None) == "gymnasium.envs"
