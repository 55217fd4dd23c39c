"""Python environments, which may raise, hang, crash or return invalid data, and the runner that samples from them.

`to_base_env` converts an environment of any kind, `make_host_env` makes one by its name, `EnvRunner` lets agents act in
it. Names are imported on first use: worker processes of environments import this package, but not JAX.
"""

import importlib
from typing import Any

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


__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"rookery.runners.{home}"), name)
    raise AttributeError(f"module 'rookery.runners' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
