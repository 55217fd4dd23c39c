"""Runs that are asked to stop on the way, and what is left of them to compare."""

import copy
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.recorders import Position, Recorder, RunDescription
from rookery.workflows.workflow import Workflow

AnyWorkflow = TypeVar("AnyWorkflow", bound=Workflow)


class StoppingRecorder(Recorder):
    """Asks the process to stop once a number of env steps is reached."""

    stop_at: ClassVar[int | None] = None

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        pass

    def advance(self, env_steps: int) -> None:
        if self.stop_at is not None and env_steps >= self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        pass

    def close(self) -> None:
        pass


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without what the clock says."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    by_the_clock = ("time/fps", "time/time_elapsed")
    return [{name: value for name, value in row.items() if name not in by_the_clock} for row in rows]


def assert_equal(one: Any, other: Any) -> None:
    def compare(path: Any, left: Any, right: Any) -> None:
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        np.testing.assert_array_equal(left, right, err_msg=jax.tree_util.keystr(path))

    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree_util.tree_map_with_path(compare, one, other)


def with_run(workflow: AnyWorkflow, path: Path, **train: Any) -> AnyWorkflow:
    """Return a workflow with the same compiled programs and a run of its own."""
    own = copy.copy(workflow)
    own.settings = replace(own.settings, train=replace(own.settings.train, run_dir=str(path), **train))
    return own


def assert_resumes(workflow: Workflow, path: Path, num_steps: int) -> None:
    """Train once at a stretch, and once with a stop at half of the steps; both must end alike."""
    state = workflow.init(workflow.make_key())
    whole = with_run(workflow, path / "whole").learn(state)
    with_run(workflow, path / "parts", total_timesteps=num_steps // 2).learn(state)
    resumed = with_run(workflow, path / "parts").resume()
    assert int(resumed.env_steps) == num_steps
    assert_equal(resumed, whole)
