"""Host environments by name, `library/name`, and those of Gymnasium. A library is imported on first use."""

import copy
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from rookery.envs.libraries import HostLibrary, find_host_library, is_on_host
from rookery.envs.registration import all_library_names, env_names
from rookery.errors import InvalidInputError, check_count, missing_extra, unknown_name
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.threaded import make_only_env
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import TransportVectorEnv, VectorEnv
from rookery.runners.transports.making import make_transport
from rookery.runners.transports.transport import EnvCallError
from rookery.trust import check_kwargs, import_named, import_object


def load_host_library(library: str) -> HostLibrary:
    """Return a host library; raise unless its package is installed."""
    found = find_host_library(library)
    if found is None:
        known = filter(is_on_host, all_library_names())
        raise unknown_name("host library", library, known, "Names look like 'gymnasium/CartPole-v1'.")
    found.check_installed()
    return found


def make_host_env(
    name: str,
    num_envs: int,
    *,
    episode_length: int | None = None,
    longest_episode: int | None = None,
    processes: bool = False,
    envs_per_process: int = 1,
    step_timeout: float | None = None,
    start_timeout: float | None = 60.0,
    max_memory: float | None = None,
    render: bool = False,
    sample_bounds: bool = True,
    wrappers: Sequence[str] = (),
    **kwargs: Any,
) -> BaseEnv:
    """Make `num_envs` host environments by their name: `make_host_env("gymnasium/CartPole-v1", 8)`.

    `episode_length` replaces the time limit of the env; `longest_episode` is that of an env without one. `processes`,
    `envs_per_process` and `step_timeout` are explained at `to_base_env`. A process is also replaced if it is not built
    within `start_timeout` seconds, or if it and its children use more than `max_memory` megabytes. Environments render
    only with `render`. Without `sample_bounds` observations may leave the bounds of their space. `wrappers` name
    functions of single environments, innermost first. `kwargs` go to the library. A library that steps its envs in
    threads has them in other processes only to render one.
    """
    check_count("num_envs", num_envs)
    if episode_length is not None:
        check_count("episode_length", episode_length)
    library_name, _, env_name = name.partition("/")
    library = load_host_library(library_name)
    if not env_name and not library.is_one_env:
        raise InvalidInputError(
            f"{name!r} is the name of a library: add that of an env, as in 'gymnasium/CartPole-v1'."
        )
    check_kwargs(name, kwargs)
    if processes and library.has_threads and not (render and num_envs == 1):
        raise InvalidInputError(f"{name} is stepped in its own threads: set processes=False.")
    for limit_name, limit in (("step_timeout", step_timeout), ("max_memory", max_memory)):
        if limit is not None and not processes:
            raise InvalidInputError(f"{limit_name}={limit} needs other processes: set processes=True.")
    if render:
        _render_without_a_screen()
    make_fn = getattr(library.load(), library.make_fn)
    make_env: Callable[[int], Any]
    if library.has_threads:
        make_vector_env = partial(make_fn, env_name, num_envs, episode_length, render, kwargs)
        if not processes:
            vector_env = make_vector_env()
            if isinstance(vector_env, BaseEnv):
                return vector_env
            if isinstance(vector_env, VectorEnv):
                return VectorBaseEnv(vector_env, name)
            return AutoresetBaseEnv(vector_env, name, make_vector_env, sample_bounds)
        make_env = partial(make_only_env, make_vector_env)
    else:
        limits = {"longest_episode": longest_episode} if library.has_several_agents else {}
        make_env = _wrapped(make_fn(env_name, episode_length, render, kwargs, **limits), wrappers)
    transport = make_transport(
        make_env,
        num_envs=num_envs,
        processes=processes,
        envs_per_process=envs_per_process,
        step_timeout=step_timeout,
        start_timeout=start_timeout,
        max_memory=max_memory,
    )
    try:
        if library.has_several_agents:
            return MultiAgentBaseEnv(transport, name, sample_bounds)
        time_limit = None
        if not library.has_threads:
            own_limit = gymnasium_spec(name).max_episode_steps if library_name == "gymnasium" else None
            time_limit = episode_length or own_limit or longest_episode
        return VectorBaseEnv(TransportVectorEnv(transport, sample_bounds, time_limit), name)
    except BaseException as error:
        transport.close()
        if isinstance(error, EnvCallError):
            _check_arguments(name, kwargs, error)
        raise


def _wrapped(make_env: Callable[[int], Any], names: Sequence[str]) -> Callable[[int], Any]:
    """Return what makes an environment in its wrappers. It is pickled by value, like what makes the environment."""
    setting = f"env.wrappers=[{','.join(names)}]"
    wrappers = [import_object(name, setting) for name in names]
    for wrapper in wrappers:
        if not callable(wrapper):
            raise InvalidInputError(f"{setting}: {wrapper!r:.80} is no function of an environment.")

    def make_wrapped(index: int) -> Any:
        env = make_env(index)
        for wrap in wrappers:
            env = wrap(env)
            if not hasattr(env, "step"):
                raise TypeError(f"{setting}: {wrap.__name__} returned {env!r:.80}; expected an environment.")
        return env

    return make_wrapped if wrappers else make_env


def _check_arguments(name: str, kwargs: dict[str, Any], error: EnvCallError) -> None:
    """Raise an error that names the argument, if an env could not be made because it does not take one."""
    found = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    if found is not None and (argument := found[1]) in kwargs:
        raise InvalidInputError(
            f"env.kwargs.{argument}={kwargs[argument]!r} is not an argument of {name}: remove it, or correct its name."
        ) from None


def _render_without_a_screen() -> None:
    """Keep pygame from using audio, and pygame and MuJoCo from opening a screen where there is none."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


RGB_ARRAY = "rgb_array"
"""The render mode of Gymnasium that returns images."""
GYMNASIUM_EXTRAS = {"gymnasium.envs.box2d": ("Box2D", "box2d"), "gymnasium.envs.mujoco": ("mujoco", "mujoco")}
"""The package that a module of Gymnasium needs, and the extra that installs it."""


def gymnasium_names() -> list[str]:
    """Return the ids registered with Gymnasium: the newest version of each env that still exists, without ALE."""
    newest: dict[tuple[str | None, str], gymnasium.envs.registration.EnvSpec] = {}
    for spec in gymnasium.registry.values():
        key = (spec.namespace, spec.name)
        is_newer = key not in newest or (spec.version or 0) > (newest[key].version or 0)
        if is_newer and not str(spec.entry_point).startswith("ale_py") and not _is_withdrawn(spec):
            newest[key] = spec
    return [spec.id for spec in newest.values()]


def gymnasium_factory(
    name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> Callable[[int], gymnasium.Env]:
    """Return what makes an env that is registered with Gymnasium, without its time limit.

    `module:MyEnv-v0` imports the module that registers the env first.
    """
    spec = gymnasium_spec(f"gymnasium/{name}")
    for module, (package, extra) in GYMNASIUM_EXTRAS.items():
        if str(spec.entry_point).startswith(module) and importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra)
    options = {"disable_env_checker": True, **kwargs}
    if render and "render_mode" not in options:
        _check_renders(spec)
        options["render_mode"] = RGB_ARRAY
    spec = copy.deepcopy(spec)
    # Without wrappers that cost a call per env and step: the runner keeps the order, the vector env the time.
    spec.order_enforce, spec.max_episode_steps = False, None

    # It is pickled by value and refers to nothing in Rookery, which other processes then need not import.
    def make_env(index: int) -> gymnasium.Env:
        return gymnasium.make(spec, **options)

    return make_env


def _check_renders(spec: gymnasium.envs.registration.EnvSpec) -> None:
    """Raise if the class that is registered with Gymnasium declares no image render mode."""
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = gymnasium.envs.registration.load_env_creator(creator)
        except Exception:
            return  # making the env will raise the error
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, dict) and RGB_ARRAY not in (modes := metadata.get("render_modes") or ()):
        raise InvalidInputError(
            f"{spec.id} has no render mode {RGB_ARRAY!r}: metadata['render_modes'] of its class is {list(modes)}."
        )


def gymnasium_spec(name: str) -> gymnasium.envs.registration.EnvSpec:
    """Return the spec of a name like `gymnasium/CartPole-v1`; raise if it is not registered."""
    module, _, gymnasium_id = name.removeprefix("gymnasium/").rpartition(":")
    try:
        if module:
            import_named(module, name)
        spec = gymnasium.spec(gymnasium_id)
    except ImportError as error:
        raise InvalidInputError(f"{name}: the module {module!r} cannot be imported: {error}.") from error
    except gymnasium.error.Error:
        spec = None
    if spec is None or _is_withdrawn(spec):
        raise unknown_name("environment", name, env_names("gymnasium"))
    return spec


def _is_withdrawn(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Return whether Gymnasium keeps an id only to name the successor of the env."""
    return getattr(spec.entry_point, "__module__", None) == "gymnasium.envs"
