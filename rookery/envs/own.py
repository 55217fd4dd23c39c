"""Environments without a name: classes, functions and objects that a program passes to `rookery.train`.

They get a name for the time of the process, such as `own/MyEnv`. Each library here is for one kind of environment.
"""

from collections.abc import Callable
from typing import Any

from rookery.envs.env import Env
from rookery.errors import InvalidInputError

DEVICE, HOST, AGENTS, VECTOR = "own", "own_host", "own_agents", "own_vector"
"""The libraries: of device environments, and of host environments with one agent, with several, and vectorized."""
EXTERNAL, EXTERNAL_AGENTS = "own_external", "own_external_agents"
"""The libraries of simulators in control, with one agent and with several."""

_MAKERS: dict[str, Callable[..., Any]] = {}


def give_name(library: str, title: str, make_fn: Callable[..., Any]) -> str:
    """Return the name under which `make_fn` makes an environment from now on; the same function keeps its name."""
    for number in range(1, 10**9):
        name = f"{library}/{title}" if number == 1 else f"{library}/{title}-{number}"
        if _MAKERS.setdefault(name, make_fn) == make_fn:
            break
    return name


def is_own(name: str) -> bool:
    """Return whether an environment with this name was passed by a program."""
    return name.partition("/")[0] in (DEVICE, HOST, AGENTS, VECTOR, EXTERNAL, EXTERNAL_AGENTS)


def maker_of(name: str) -> Callable[..., Any]:
    """Return the function that makes an environment with such a name."""
    if name not in _MAKERS:
        raise InvalidInputError(
            f"{name} was passed to rookery.train as an object, which this process does not know: pass it again, "
            "rookery.open_run(path, env=MyEnv), or name another environment, env=LIBRARY/NAME."
        )
    return _MAKERS[name]


def set_maker(name: str, make_fn: Callable[..., Any]) -> None:
    """Make known what makes an environment that has a name in another process."""
    _MAKERS[name] = make_fn


def names() -> list[str]:
    """Return the names of the device environments, without the library."""
    return [name.partition("/")[2] for name in _MAKERS if name.startswith(f"{DEVICE}/")]


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Make a device environment."""
    return maker_of(f"{DEVICE}/{name}")(**kwargs)
