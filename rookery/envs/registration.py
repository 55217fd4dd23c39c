"""Makes environments by name, `library/name`. A library is imported when one of its environments is made.

A library is a module (or any object) with `names()`, which returns its environments, and
`make(name, episode_length, **kwargs)`, which builds one bare env. Rookery's libraries are in the table of
`rookery.envs.libraries`. Other packages register theirs under the entry-point group `rookery.envs`; the name of the
entry point is the name of the library. Those of the group `rookery.host_envs` make Gymnasium environments instead:
`make(name, **kwargs)`, which gets `render_mode` to render.
"""

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, cast

from rookery.envs.env import Env, check_is_env
from rookery.envs.libraries import LIBRARIES, OWN_LIBRARIES, find_host_library, installed_host_libraries, is_on_host
from rookery.envs.wrappers import AutoresetMode, EpisodeWrapper, FastAutoresetWrapper, VectorWrapper
from rookery.envs.wrappers.autoreset import VECTOR_WRAPPERS
from rookery.errors import InvalidInputError, UnknownNameError, check_count, nearest_names, unknown_name
from rookery.trust import check_kwargs

ENTRY_POINT_GROUP = "rookery.envs"
HINT = "Names look like 'classic/cartpole'; `rookery list envs` shows all."
CONFIG_FOLDER = Path(__file__).parents[1] / "configs" / "env"
"""Has a file for every environment of the builtin libraries, which lists their names without importing them."""


class EnvLibrary(Protocol):
    """The interface of a library of device environments."""

    def names(self) -> Iterable[str]:
        """Return the names of its environments, without the prefix of the library."""

    def make(self, name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
        """Build one bare env; `episode_length` replaces a time limit of the env itself."""


def library_names() -> list[str]:
    """Return the names of the device libraries, installed or not."""
    builtin = [name for name in LIBRARIES if not is_on_host(name)]
    return [*builtin, *(name for name in _entry_points() if name not in LIBRARIES)]


def all_library_names() -> list[str]:
    """Return the names of the device libraries and the host libraries, installed or not."""
    return list(dict.fromkeys([*library_names(), *filter(is_on_host, LIBRARIES), *installed_host_libraries()]))


def is_installed(library: str) -> bool:
    """Return whether the package of a library is installed, without importing it."""
    return library not in LIBRARIES or LIBRARIES[library].installed


def load_library(library: str) -> EnvLibrary:
    """Import a library of device environments."""
    builtin = LIBRARIES | OWN_LIBRARIES
    if library in builtin and not is_on_host(library):
        return cast(EnvLibrary, builtin[library].load())
    entry_points = _entry_points()
    if library in entry_points:
        return cast(EnvLibrary, entry_points[library].load())
    raise unknown_name("environment library", library, all_library_names(), HINT)


def env_names(library: str) -> list[str]:
    """Return the full names of a library's environments, sorted."""
    host_library = find_host_library(library)
    if host_library is None:
        names_fn = load_library(library).names
    elif host_library.names_fn is None:
        return [library]
    else:
        names_fn = getattr(host_library.load(), host_library.names_fn)
    return sorted(f"{library}/{name}" for name in names_fn())


def make_env(name: str, episode_length: int | None = None, **library_kwargs: Any) -> Env:
    """Build one bare env by its name. `wrap_env` vectorizes it and adds time limit and autoreset."""
    if not isinstance(name, str):
        raise InvalidInputError(f"expected the name of an environment, like 'classic/cartpole', got {name!r}.")
    library, _, env_name = name.partition("/")
    check_env_name(name)
    if is_on_host(library):
        raise unknown_name(
            "device environment",
            name,
            [],
            "It is a host environment, which cannot be compiled: make it with "
            f"rookery.runners.envs.libraries.make_host_env({name!r}, num_envs).",
        )
    check_kwargs(name, library_kwargs)
    return load_library(library).make(env_name, episode_length, **library_kwargs)


def check_env_name(name: str) -> None:
    """Raise if no environment has this name; a host library, which may have more than it lists, decides later."""
    library, _, name_in_library = name.partition("/")
    host_library = find_host_library(library)
    if host_library is not None and host_library.is_one_env != bool(name_in_library):
        return
    if name_in_library and library in OWN_LIBRARIES:
        return
    libraries = all_library_names()
    if library not in libraries:
        if not name_in_library and ":" in name:
            raise unknown_name("environment", name, [], f"Did you mean 'gymnasium/{name}'? {HINT}")
        if not name_in_library:
            raise _unknown_name(name)
        raise unknown_name("environment library", library, libraries, HINT)
    if not name_in_library:
        raise InvalidInputError(
            f"{name!r} is the name of a library: add that of an environment, as `rookery list envs {name}` shows them."
        )
    known = env_names(library)
    if name not in known:
        raise unknown_name("environment", name, known, HINT)


def _unknown_name(name: str) -> UnknownNameError:
    """Build the error for a name without a library, with the nearest names; no optional library is imported.

    Names of Gymnasium and of installed device libraries are compared without the library.
    """
    spellings = [(full.removeprefix("gymnasium/"), full) for full in env_names("gymnasium")]
    for library in filter(is_installed, LIBRARIES):
        stems = sorted(path.stem for path in (CONFIG_FOLDER / library).glob("*.yaml"))
        spellings.extend((stem, f"{library}/{stem}") for stem in stems)
    near = [match.casefold() for match in nearest_names(name, (short for short, _ in spellings))]
    found = [full for match in near for short, full in spellings if short.casefold() == match]
    advice = f"Did you mean {' or '.join(map(repr, found[:2]))}? " if found else ""
    return unknown_name("environment", name, [], advice + HINT)


def wrap_env(
    env: Env,
    episode_length: int | None = None,
    parallel: int = 1,
    autoreset_mode: AutoresetMode = AutoresetMode.NORMAL,
    discount: float | None = 1.0,
    record_ori_obs: bool = False,
    pool_size: int = 1,
) -> VectorWrapper:
    """Add a time limit and autoreset to a bare env, and vectorize it over `parallel` envs.

    `episode_length=None` is the env's own limit. `pool_size` is the number of cached initial states per env in `FAST`
    mode.
    """
    check_is_env(env)
    check_wrapping(episode_length, parallel, autoreset_mode, pool_size)
    if episode_length is None:
        episode_length = env.max_episode_steps
    env = EpisodeWrapper(env, episode_length, record_ori_obs, discount)
    if autoreset_mode is AutoresetMode.FAST:
        return FastAutoresetWrapper(env, parallel, pool_size)
    return VECTOR_WRAPPERS[autoreset_mode](env, parallel)


def create_env(
    name: str,
    episode_length: int | None = None,
    parallel: int = 1,
    autoreset_mode: AutoresetMode = AutoresetMode.NORMAL,
    discount: float | None = 1.0,
    record_ori_obs: bool = False,
    pool_size: int = 1,
    **library_kwargs: Any,
) -> VectorWrapper:
    """Make a vectorized device environment by its name: `create_env("brax/hopper", parallel=16)`.

    The arguments are those of `wrap_env`; `library_kwargs` go to the library.
    """
    check_wrapping(episode_length, parallel, autoreset_mode, pool_size)
    env = make_env(name, episode_length, **library_kwargs)
    return wrap_env(env, episode_length, parallel, autoreset_mode, discount, record_ori_obs, pool_size)


def create_wrapped_classic_env(name: str, *args: Any, **kwargs: Any) -> VectorWrapper:
    """`create_env` for classic control: `create_wrapped_classic_env("cartpole", parallel=16)`."""
    return create_env(f"classic/{name}", *args, **kwargs)


def create_wrapped_brax_env(name: str, *args: Any, **kwargs: Any) -> VectorWrapper:
    """`create_env` for brax: `create_wrapped_brax_env("hopper", parallel=16)`."""
    return create_env(f"brax/{name}", *args, **kwargs)


def create_wrapped_gymnax_env(name: str, *args: Any, **kwargs: Any) -> VectorWrapper:
    """`create_env` for gymnax: `create_wrapped_gymnax_env("Breakout-MinAtar", parallel=16)`."""
    return create_env(f"gymnax/{name}", *args, **kwargs)


def create_wrapped_jumanji_env(name: str, *args: Any, **kwargs: Any) -> VectorWrapper:
    """`create_env` for jumanji: `create_wrapped_jumanji_env("Snake-v1", parallel=16)`."""
    return create_env(f"jumanji/{name}", *args, **kwargs)


def check_wrapping(episode_length: int | None, parallel: int, autoreset_mode: AutoresetMode, pool_size: int) -> None:
    """Raise if the arguments of `wrap_env` are invalid."""
    if episode_length is not None:
        check_count("episode_length", episode_length)
    check_count("parallel", parallel)
    check_count("pool_size", pool_size)
    if not isinstance(autoreset_mode, AutoresetMode):
        choices = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise InvalidInputError(f"autoreset_mode={autoreset_mode!r}: choose one of {choices}.")
    if pool_size != 1 and autoreset_mode is not AutoresetMode.FAST:
        raise InvalidInputError(f"pool_size={pool_size} is a setting of AutoresetMode.FAST, not of {autoreset_mode}.")


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
