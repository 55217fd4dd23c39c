"""Environments that are Python objects, may raise, hang, be killed or lie; and the runner that samples from them.

`to_base_env` converts an environment of any kind, `make_host_env` makes one by its name, `EnvRunner` lets agents act in
it. Names are imported on first use: the processes in which environments live import this package, and not JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.runners.base_env import BaseEnv, End
    from rookery.runners.callbacks import Callbacks
    from rookery.runners.connectors import (
        ActionConnector,
        ClipActions,
        FlattenObs,
        FrameStack,
        NormalizeObs,
        ObsConnector,
        PreviousActionAndReward,
        Unsquash,
    )
    from rookery.runners.conversion import to_base_env
    from rookery.runners.episode import Episode, episodes_of
    from rookery.runners.external_env import ExternalEnv
    from rookery.runners.faults import EnvFaultError, Fault, RestartPolicy
    from rookery.runners.host_envs import make_host_env
    from rookery.runners.multi_agent_env import MultiAgentDictEnv
    from rookery.runners.runner import EnvRunner
    from rookery.runners.sampling import RunnerConfig, Sample
    from rookery.runners.vector_env import VectorEnv, VectorStep

__all__ = [
    "ActionConnector",
    "BaseEnv",
    "Callbacks",
    "ClipActions",
    "End",
    "EnvFaultError",
    "EnvRunner",
    "Episode",
    "ExternalEnv",
    "Fault",
    "FlattenObs",
    "FrameStack",
    "MultiAgentDictEnv",
    "NormalizeObs",
    "ObsConnector",
    "PreviousActionAndReward",
    "RestartPolicy",
    "RunnerConfig",
    "Sample",
    "Unsquash",
    "VectorEnv",
    "VectorStep",
    "episodes_of",
    "make_host_env",
    "to_base_env",
]

_HOMES = {
    "base_env": ("BaseEnv", "End"),
    "callbacks": ("Callbacks",),
    "connectors": (
        "ActionConnector",
        "ClipActions",
        "FlattenObs",
        "FrameStack",
        "NormalizeObs",
        "ObsConnector",
        "PreviousActionAndReward",
        "Unsquash",
    ),
    "conversion": ("to_base_env",),
    "episode": ("Episode", "episodes_of"),
    "external_env": ("ExternalEnv",),
    "faults": ("EnvFaultError", "Fault", "RestartPolicy"),
    "host_envs": ("make_host_env",),
    "multi_agent_env": ("MultiAgentDictEnv",),
    "runner": ("EnvRunner",),
    "sampling": ("RunnerConfig", "Sample"),
    "vector_env": ("VectorEnv", "VectorStep"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"rookery.runners.{home}"), name)
    raise AttributeError(f"module 'rookery.runners' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
