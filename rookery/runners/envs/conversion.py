"""Conversion of any host environment to `BaseEnv`."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from rookery.errors import InvalidInputError, check_count
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.envs.external import ExternalBaseEnv, ExternalEnv
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.pettingzoo import as_dict_env, is_pettingzoo
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import TransportVectorEnv, VectorEnv
from rookery.runners.transports.making import make_transport
from rookery.runners.transports.transport import describe_env

ACCEPTED = (
    "a gymnasium.Env, a gymnasium.vector.VectorEnv (also EnvPool's and ALE's), a PettingZoo ParallelEnv or AECEnv, "
    "a MultiAgentDictEnv, an ExternalEnv, or a VectorEnv or BaseEnv of rookery.runners"
)


def to_base_env(
    env: Any = None,
    *,
    num_envs: int = 1,
    make_env: Callable[[int], Any] | None = None,
    name: str | None = None,
    processes: bool = False,
    envs_per_process: int = 1,
    step_timeout: float | None = None,
) -> BaseEnv:
    """Convert an environment of any kind into a `BaseEnv` of `num_envs` environments.

    `make_env(index)` makes the other environments, replaces one that failed, and makes the first too if `env` is not
    given. With `processes` all run in other processes, `envs_per_process` in each, where they may also crash, or hang
    for `step_timeout` seconds; one more is made here, to find out its kind. A vector environment keeps its number.
    """
    check_count("num_envs", num_envs)
    if env is not None and processes:
        raise InvalidInputError("an existing environment cannot move to another process: give make_env alone.")
    first = env
    if env is None:
        if make_env is None:
            raise InvalidInputError(f"neither an environment nor make_env was given: give {ACCEPTED}.")
        first = make_env(0)
    if isinstance(first, (BaseEnv, VectorEnv, gymnasium.vector.VectorEnv, ExternalEnv)):
        if processes:
            raise InvalidInputError(f"{type(first).__name__} cannot run in another process: set processes=False.")
        return _as_it_is(first, num_envs, make_env, name)
    if is_pettingzoo(first):
        name = name or str(first)
        first = as_dict_env(first)
        make_env = None if make_env is None else _making_dict_envs(make_env)
    is_multi_agent = hasattr(first, "possible_agents")
    if isinstance(first, type) or not (is_multi_agent or isinstance(first, gymnasium.Env)):
        given = f"the class {first.__name__}, which must be called" if isinstance(first, type) else repr(first)
        raise InvalidInputError(f"expected {ACCEPTED}; got {given}.")
    name = name or describe_env(first).name
    if processes:
        with contextlib.suppress(Exception):
            first.close()
    existing_envs = () if processes else (first,)
    transport = make_transport(make_env, existing_envs, num_envs, processes, envs_per_process, step_timeout)
    return MultiAgentBaseEnv(transport, name) if is_multi_agent else VectorBaseEnv(TransportVectorEnv(transport), name)


def _as_it_is(env: Any, num_envs: int, make_env: Callable[[int], Any] | None, name: str | None) -> BaseEnv:
    """Convert what needs no transport."""
    match env:
        case BaseEnv():
            return env
        case VectorEnv():
            return VectorBaseEnv(env, name or type(env).__name__)
        case ExternalEnv():
            if make_env is None and num_envs > 1:
                raise InvalidInputError(f"num_envs={num_envs} needs make_env: only one ExternalEnv was given.")
            others = [] if make_env is None else [make_env(index) for index in range(1, num_envs)]
            return ExternalBaseEnv([env, *others], name)
        case _:
            remake_fn = None if make_env is None else functools.partial(make_env, 0)
            return AutoresetBaseEnv(env, name or type(env).__name__, remake_fn)


def _making_dict_envs(make_env: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return a function that makes and wraps PettingZoo envs."""
    return lambda index: as_dict_env(make_env(index))
