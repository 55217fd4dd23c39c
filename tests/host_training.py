"""Driving and watching workflows that train on host environments."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rookery.learning.counter import Counter
from rookery.metrics import Mean
from rookery.sample_batch import SampleBatch
from rookery.workflows.host.collector import Collector


def advance(workflow: Any, state: Any, num_iterations: int) -> tuple[Any, Any]:
    """Train as `learn` does, which overwrites the state."""
    state, running = workflow.training.advance(
        state, workflow.training.no_metrics(state), num_iterations, Counter.of(10**6)
    )
    means = {name: Mean(total=mean.total.value, weight=mean.weight.value) for name, mean in running.items()}
    return state, means


def is_live(trajectory: SampleBatch) -> np.ndarray:
    """Tell which rows hold something."""
    return np.asarray(trajectory.extras.env_extras.autoreset) == 0


def watch_collecting(monkeypatch: pytest.MonkeyPatch, kind: type[Collector]) -> list[Any]:
    """Return a list to which everything is added that any workflow collects from now on."""
    experiences = []
    take = kind.take

    def watched(self: Any, is_asking: bool = True) -> Any:
        batch = take(self, is_asking)
        if batch is not None:
            experiences.append(batch[0])
        return batch

    monkeypatch.setattr(kind, "take", watched)
    return experiences


@contextmanager
def used_anew(shared: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Make workflows that tests share begin again, and close them at the end.

    What they have compiled stays, which takes longer than all that is done with them.
    """
    used = []

    def begin(*args: Any, **kwargs: Any) -> Any:
        workflow = shared(*args, **kwargs)
        workflow.training.environments.set_state({"runners": [], "counts": {}})
        used.append(workflow)
        return workflow

    try:
        yield begin
    finally:
        for workflow in used:
            workflow.close()
