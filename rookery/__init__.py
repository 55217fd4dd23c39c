"""Rookery trains agents by gradient, by evolution and by both."""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "rookery.agent": ("Agent", "AgentState", "RandomAgent"),
    "rookery.api": ("Run", "SearchResult", "load", "open_run", "train", "tune"),
    "rookery.policy": ("Policy",),
    "rookery.sample_batch": ("MultiAgentBatch", "SampleBatch"),
    "rookery.runs.interruption": ("Interrupted",),
    "rookery.types": ("PyTreeData", "PyTreeDict", "PyTreeNode", "State", "pytree_field"),
    "rookery.workflows.hooks": ("RecordEvent",),
}


__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that processes which only step environments start without JAX."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'rookery' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
