"""Host environments by name, `library/name`: each library is imported when one of its environments is asked for."""

import copy
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from rookery.errors import InvalidInputError, check_count, missing_extra, unknown_name
from rookery.runners.envs.atari import atari_names, make_atari_games
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.envs.envpool import EnvPoolEnvs, envpool_names
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.pettingzoo import pettingzoo_factory, pettingzoo_names
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import TransportVectorEnv
from rookery.runners.transports.making import make_transport


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
    sample_bounds: bool
    kwargs: dict[str, Any]

    @property
    def env_name(self) -> str:
        """The name without that of the library."""
        return self.name.partition("/")[2]

    @property
    def transport_options(self) -> dict[str, Any]:
        """The options of `make_transport`."""
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
    clipping_option: str | None = None
    """The option that clips rewards to their sign. Workflows leave it out and clip only what is learned from."""
    clips_by_default: bool = False
    """Whether workflows clip if the option is not given."""
    training_options: tuple[str, ...] = ()
    """Options that help learning and change what an episode is: evaluation leaves them out."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.requires) is not None

    def clips_rewards(self, kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a workflow whose envs are made with these options learns from the signs of their rewards."""
        return bool(self.clipping_option and kwargs.get(self.clipping_option, self.clips_by_default))

    def kwargs_of_envs(self, kwargs: Mapping[str, Any], is_evaluation: bool) -> dict[str, Any]:
        """Leave out the options that are none of the envs in a workflow."""
        left_out = {self.clipping_option, *(self.training_options if is_evaluation else ())}
        return {name: value for name, value in kwargs.items() if name not in left_out}


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
    sample_bounds: bool = True,
    **kwargs: Any,
) -> BaseEnv:
    """Make `num_envs` host environments by their name: `make_host_env("gymnasium/CartPole-v1", 8)`.

    `episode_length` replaces the time limit of the env. `processes` and what follows are explained at `to_base_env`.
    Only with `render` can they be drawn. Without `sample_bounds` observations may leave the bounds of their space.
    `kwargs` go to the library.
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
    if render:
        _draw_without_a_screen()
    return library.make_fn(
        HostEnvRequest(
            name, num_envs, episode_length, render, processes, envs_per_process, step_timeout, sample_bounds, kwargs
        )
    )


def _draw_without_a_screen() -> None:
    """Keep pygame from looking for a loudspeaker, and pygame and MuJoCo for a screen where there is none."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


RGB_ARRAY = "rgb_array"
"""The render mode of Gymnasium in which an env returns pictures."""
GYMNASIUM_EXTRAS = {"gymnasium.envs.box2d": ("Box2D", "box2d"), "gymnasium.envs.mujoco": ("mujoco", "mujoco")}
"""The package that the envs of a module of Gymnasium need, and the extra that installs it."""


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
    spec = gymnasium_spec(request.name)
    for module, (package, extra) in GYMNASIUM_EXTRAS.items():
        if str(spec.entry_point).startswith(module) and importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra)
    options = {"disable_env_checker": True, **request.kwargs}
    if request.render and "render_mode" not in options:
        _check_drawable(spec)
        options["render_mode"] = RGB_ARRAY
    time_limit = request.episode_length or spec.max_episode_steps
    spec = copy.deepcopy(spec)
    # Wrappers that cost a call for each env and step: the order is kept by the runner, the time by the vector env.
    spec.order_enforce, spec.max_episode_steps = False, None

    # It is sent to other processes by value and mentions nothing of Rookery, which is then not imported there.
    def make_env(index: int) -> gymnasium.Env:
        return gymnasium.make(spec, **options)

    transport = make_transport(make_env, **request.transport_options)
    return VectorBaseEnv(TransportVectorEnv(transport, request.sample_bounds, time_limit), request.name)


def _check_drawable(spec: gymnasium.envs.registration.EnvSpec) -> None:
    """Raise if the class that is registered with Gymnasium says that it returns no pictures."""
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = gymnasium.envs.registration.load_env_creator(creator)
        except Exception:
            return  # what is wrong with it is told when the env is made
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, dict) and RGB_ARRAY not in (modes := metadata.get("render_modes") or ()):
        raise InvalidInputError(
            f"{spec.id} has no render mode {RGB_ARRAY!r}: metadata['render_modes'] of its class is {list(modes)}."
        )


def gymnasium_spec(name: str) -> gymnasium.envs.registration.EnvSpec:
    """Return what is registered with Gymnasium under a name like `gymnasium/CartPole-v1`; raise if nothing is."""
    module, _, gymnasium_id = name.removeprefix("gymnasium/").rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(gymnasium_id)
    except ImportError as error:
        raise InvalidInputError(f"{name}: the module {module!r} cannot be imported: {error}.") from error
    except gymnasium.error.Error:
        spec = None
    if spec is None or _is_withdrawn(spec):
        raise unknown_name("environment", name, host_env_names("gymnasium"))
    return spec


def make_pettingzoo_envs(request: HostEnvRequest) -> BaseEnv:
    """Make the envs of a module like `mpe2.simple_spread_v3` or `classic.tictactoe_v3`."""
    make_env = pettingzoo_factory(request.env_name, request.episode_length, request.render, request.kwargs)
    return MultiAgentBaseEnv(make_transport(make_env, **request.transport_options), request.name, request.sample_bounds)


def make_threaded_envs(make_fn: Callable[..., gymnasium.vector.VectorEnv], request: HostEnvRequest) -> BaseEnv:
    """Make a vector env of a library that steps all envs itself, in threads."""
    make_vector_env = partial(
        make_fn, request.env_name, request.num_envs, request.episode_length, request.render, request.kwargs
    )
    return AutoresetBaseEnv(make_vector_env(), request.name, make_vector_env, request.sample_bounds)


make_ale_envs = partial(make_threaded_envs, make_atari_games)
make_envpool_envs = partial(make_threaded_envs, EnvPoolEnvs)

HOST_LIBRARIES = {
    "gymnasium": HostLibrary(gymnasium_names, make_gymnasium_envs),
    "ale": HostLibrary(
        atari_names,
        make_ale_envs,
        requires="ale_py",
        extra="atari",
        has_threads=True,
        clipping_option="reward_clipping",
        clips_by_default=True,
        training_options=("episodic_life",),
    ),
    "pettingzoo": HostLibrary(pettingzoo_names, make_pettingzoo_envs, requires="pettingzoo", extra="pettingzoo"),
    "envpool": HostLibrary(
        envpool_names,
        make_envpool_envs,
        requires="envpool",
        extra="envpool",
        has_threads=True,
        clipping_option="reward_clip",
        training_options=("episodic_life",),
    ),
}


def _is_withdrawn(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Tell whether Gymnasium keeps an id only to say where the env has gone."""
    return getattr(spec.entry_point, "__module__", None) == "gymnasium.envs"
