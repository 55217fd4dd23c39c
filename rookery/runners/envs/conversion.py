"""Conversion of any host environment to `BaseEnv`."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from rookery.errors import InvalidInputError, check_count
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.kinds import as_single_env, kind_of
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import TransportVectorEnv, VectorEnv
from rookery.runners.faults import Failed
from rookery.runners.transports.making import make_transport
from rookery.runners.transports.transport import EnvCallError, EnvTransport

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
    for `step_timeout` seconds. A vector environment keeps its number.
    """
    check_count("num_envs", num_envs)
    if env is not None and processes:
        raise InvalidInputError("an existing environment cannot move to another process: give make_env alone.")
    if env is None and make_env is None:
        raise InvalidInputError(f"neither an environment nor make_env was given: give {ACCEPTED}.")
    make_single_env = None if make_env is None else _making_single_envs(make_env)
    if processes:
        transport = make_transport(make_single_env, (), num_envs, True, envs_per_process, step_timeout)
        return _in_transport(transport, name)
    first = make_env(0) if env is None and make_env is not None else env
    if isinstance(first, (BaseEnv, VectorEnv, gymnasium.vector.VectorEnv, ExternalEnv)):
        return _as_it_is(first, num_envs, make_env, name)
    first = as_single_env(first)
    if refused := kind_of(first).refused:
        raise InvalidInputError(f"expected {ACCEPTED}; got {refused}.")
    return _in_transport(make_transport(make_single_env, (first,), num_envs), name)


def _making_single_envs(make_env: Callable[[int], Any]) -> Callable[[int], Any]:
    # Pickled by value: other processes need not import this module, which imports JAX.
    return lambda index: as_single_env(make_env(index))


def _in_transport(transport: EnvTransport, name: str | None) -> BaseEnv:
    """Convert the environments of a transport, which are described where they run; close them if that fails."""
    try:
        kind = transport.apply(0, kind_of)
        if isinstance(kind, Failed):
            raise EnvCallError(f"env 0 cannot be made ({kind.kind}): {kind.error}.\n{kind.traceback}".rstrip())
        if kind.refused:
            raise InvalidInputError(f"make_env returns {kind.refused}, which needs processes=False.")
        name = name or kind.name
        if kind.is_multi_agent:
            return MultiAgentBaseEnv(transport, name)
        return VectorBaseEnv(TransportVectorEnv(transport), name)
    except BaseException:
        transport.close()
        raise


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
