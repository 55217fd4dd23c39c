"""Kinds of single environments. Nothing here imports JAX, because other processes import this module."""

from dataclasses import dataclass
from typing import Any

import gymnasium

from rookery.runners.envs.pettingzoo import PettingZooEnv, as_dict_env, is_pettingzoo
from rookery.runners.transports.transport import describe_env


@dataclass(frozen=True)
class Kind:
    """The kind of an object in a transport: one environment, or something that is refused."""

    refused: str | None = None
    """What was given in place of one environment, for an error message."""
    is_multi_agent: bool = False
    name: str = ""


def kind_of(env: Any) -> Kind:
    """Return the kind of an environment, after `as_single_env`; vector environments and external ones are refused."""
    if isinstance(env, type):
        return Kind(refused=f"the class {env.__name__}, which must be called")
    is_multi_agent = hasattr(env, "possible_agents")
    if not is_multi_agent and not isinstance(env, gymnasium.Env):
        return Kind(refused=repr(env))
    name = str(env) if isinstance(env, PettingZooEnv) else describe_env(env).name
    return Kind(is_multi_agent=is_multi_agent, name=name)


def as_single_env(env: Any) -> Any:
    """Wrap a PettingZoo environment as a dict environment; return others as they are."""
    return as_dict_env(env) if is_pettingzoo(env) else env
