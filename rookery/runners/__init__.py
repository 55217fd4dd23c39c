"""Python environments, which may raise, hang, crash or return invalid data, and the runner that samples from them.

`to_base_env` converts an environment of any kind, `make_host_env` makes one by its name, `EnvRunner` lets agents act in
it. Names are imported on first use: worker processes of environments import this package, but not JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.runners.acting.connectors import (
        ActionConnector,
        ClipActions,
        FlattenObs,
        FrameStack,
        NormalizeObs,
        ObsConnector,
        PreviousActionAndReward,
        Unsquash,
    )
    from rookery.runners.callbacks import Callbacks
    from rookery.runners.envs.base_env import BaseEnv, End
    from rookery.runners.envs.conversion import to_base_env
    from rookery.runners.envs.external import ExternalEnv
    from rookery.runners.envs.libraries import make_host_env
    from rookery.runners.envs.multi_agent import MultiAgentDictEnv
    from rookery.runners.envs.vector_env import VectorEnv, VectorStep
    from rookery.runners.faults import EnvFaultError, Fault
    from rookery.runners.health import RestartPolicy
    from rookery.runners.recording.episode import Episode, episodes_of
    from rookery.runners.runner import EnvRunner
    from rookery.runners.sampling import RunnerConfig, Sample

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
    "envs.base_env": ("BaseEnv", "End"),
    "callbacks": ("Callbacks",),
    "acting.connectors": (
        "ActionConnector",
        "ClipActions",
        "FlattenObs",
        "FrameStack",
        "NormalizeObs",
        "ObsConnector",
        "PreviousActionAndReward",
        "Unsquash",
    ),
    "envs.conversion": ("to_base_env",),
    "recording.episode": ("Episode", "episodes_of"),
    "envs.external": ("ExternalEnv",),
    "faults": ("EnvFaultError", "Fault"),
    "health": ("RestartPolicy",),
    "envs.libraries": ("make_host_env",),
    "envs.multi_agent": ("MultiAgentDictEnv",),
    "runner": ("EnvRunner",),
    "sampling": ("RunnerConfig", "Sample"),
    "envs.vector_env": ("VectorEnv", "VectorStep"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"rookery.runners.{home}"), name)
    raise AttributeError(f"module 'rookery.runners' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
