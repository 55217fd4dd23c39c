"""Host environments without a name: classes, functions and objects of a program."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium

from rookery.envs.env import Env
from rookery.envs.own import AGENTS, DEVICE, EXTERNAL, EXTERNAL_AGENTS, HOST, VECTOR, give_name, maker_of
from rookery.errors import InvalidInputError
from rookery.runners.envs.conversion import ACCEPTED
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.kinds import as_single_env, kind_of
from rookery.runners.envs.pettingzoo import as_dict_env, is_pettingzoo
from rookery.runners.envs.time_limit import TimeLimitedDictEnv
from rookery.runners.envs.vector_env import VectorEnv

RENDER_MODE = "render_mode"


def name_own_env(env: Any) -> str:
    """Return a name for an environment: a class or function that makes it, or an object, which is copied.

    One environment is made to find out its kind. A function may take the index of the environment; one that makes
    vector environments takes their number, `num_envs`. A simulator in control is neither copied nor made again.
    """
    if isinstance(env, ExternalEnv):
        return _name_external_env(env, env)
    make_fn = _copying(env) if _is_object(env) else env
    first = make_fn(num_envs=1) if _takes(make_fn, "num_envs") else _maker(make_fn, {})(0)
    if isinstance(first, ExternalEnv):
        return _name_external_env(env, first)
    try:
        return give_name(_library_of(first), _title_of(env, first), make_fn)
    finally:
        if hasattr(first, "close"):
            first.close()


def own_names() -> list[str]:
    """Return no names: an environment that a program passes is not listed."""
    return []


def own_factory(
    name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> Callable[[int], gymnasium.Env]:
    """Return what makes an environment with one agent; `TransportVectorEnv` limits its episodes."""
    make_fn = maker_of(f"{HOST}/{name}")
    return _maker(make_fn, with_render_mode(make_fn, kwargs) if render else kwargs)


def own_agents_factory(
    name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any], longest_episode: int | None = None
) -> Callable[[int], Any]:
    """Return what makes an environment with several agents, with a time limit in addition to its own."""
    make_fn = maker_of(f"{AGENTS}/{name}")
    make_one = _maker(make_fn, with_render_mode(make_fn, kwargs) if render else kwargs)
    time_limit = episode_length or longest_episode

    def make_env(index: int) -> Any:
        env = make_one(index)
        if is_pettingzoo(env):
            return as_dict_env(env, time_limit)
        return env if time_limit is None else TimeLimitedDictEnv(env, time_limit)

    return make_env


def make_own_vector_env(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> VectorEnv | gymnasium.vector.VectorEnv:
    """Make a vector environment of a program."""
    if episode_length is not None:
        raise InvalidInputError(f"env.episode_length={episode_length}: {VECTOR}/{name} sets its time limit itself.")
    make_fn = maker_of(f"{VECTOR}/{name}")
    vector_env = make_fn(num_envs=num_envs, **kwargs) if _takes(make_fn, "num_envs") else make_fn(**kwargs)
    if vector_env.num_envs != num_envs:
        raise InvalidInputError(
            f"{name} has {vector_env.num_envs} environments, and {num_envs} are needed: pass a function that takes "
            "their number, lambda num_envs: ..., so that evaluations can have another."
        )
    return vector_env


def make_own_external_env(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> ExternalBaseEnv:
    """Return the simulator of a program with one agent; it has as many envs as it may play episodes at once."""
    return _external_env(EXTERNAL, name, episode_length, render, kwargs)


def make_own_external_agents(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> ExternalBaseEnv:
    """Return the simulator of a program with several agents."""
    return _external_env(EXTERNAL_AGENTS, name, episode_length, render, kwargs)


def _external_env(
    library: str, name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> ExternalBaseEnv:
    for setting, value in (("episode_length", episode_length), ("kwargs", kwargs), ("render", render)):
        if value:
            raise InvalidInputError(f"env.{setting}={value}: {library}/{name} is in control, and sets that itself.")
    return ExternalBaseEnv([maker_of(f"{library}/{name}")()], name)


def _name_external_env(given: Any, env: ExternalEnv) -> str:
    library = EXTERNAL_AGENTS if env.is_multi_agent else EXTERNAL
    return give_name(library, _title_of(given, env), _Always(env))


class _Always:
    """Makes an environment by returning the one that there is."""

    def __init__(self, env: ExternalEnv) -> None:
        self._env = env

    def __call__(self) -> ExternalEnv:
        return self._env

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Always) and other._env is self._env

    def __hash__(self) -> int:
        return hash(id(self._env))


def _is_object(env: Any) -> bool:
    kinds = (Env, gymnasium.Env, gymnasium.vector.VectorEnv, VectorEnv)
    return not isinstance(env, type) and (
        isinstance(env, kinds) or hasattr(env, "possible_agents") or not callable(env)
    )


def _copying(env: Any) -> Callable[..., Any]:
    """Return a function that copies an environment. It is pickled by value: other processes import nothing of ours."""

    def make_copy(**kwargs: Any) -> Any:
        if kwargs:
            raise ValueError(f"env.kwargs={kwargs}: {type(env).__name__} is made already; pass its class instead.")
        return copy.deepcopy(env)

    try:
        make_copy()
    except Exception as error:
        raise InvalidInputError(
            f"{type(env).__name__} cannot be copied, which every environment of a run needs ({error!r:.200}): pass its "
            "class, or a function that makes it."
        ) from error
    return make_copy


def _maker(make_fn: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[[int], Any]:
    """Return a function of the index of an environment; it is pickled by value, too."""
    takes_index = not isinstance(make_fn, type) and _takes_an_index(make_fn)

    def make_env(index: int) -> Any:
        return make_fn(index, **kwargs) if takes_index else make_fn(**kwargs)

    return make_env


def _library_of(env: Any) -> str:
    if isinstance(env, Env):
        return DEVICE
    if isinstance(env, (VectorEnv, gymnasium.vector.VectorEnv)):
        return VECTOR
    kind = kind_of(as_single_env(env))
    if kind.refused:
        raise InvalidInputError(f"expected a device Env, {ACCEPTED}, or what makes one; got {kind.refused}.")
    return AGENTS if kind.is_multi_agent else HOST


def _title_of(env: Any, first: Any) -> str:
    title = getattr(env, "__name__", None)
    if title is None or title == "<lambda>":
        title = type(getattr(first, "unwrapped", first)).__name__
    return title.replace("/", "-")


def with_render_mode(make_fn: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function that makes an environment, with the render mode if it takes one."""
    return {RENDER_MODE: "rgb_array", **kwargs} if _takes(make_fn, RENDER_MODE) else kwargs


def _takes(function: Callable[..., Any], name: str) -> bool:
    return name in _parameters(function)


def _takes_an_index(function: Callable[..., Any]) -> bool:
    first = next(iter(_parameters(function).values()), None)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return first is not None and first.kind in positional and first.default is inspect.Parameter.empty


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a class that is written in C
        return {}
