"""The run directory of a workflow, created or reopened: one process holds it and writes there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.sharding import Mesh

from rookery.errors import InvalidInputError
from rookery.runs.directory import RunDirectory
from rookery.runs.recorder import RunDescription
from rookery.workflows.config import Settings


@contextlib.contextmanager
def created_run(settings: Settings, mesh: Mesh) -> Iterator[RunDirectory | None]:
    """Create the run directory and lock it; None where nothing is written by this process."""
    path = settings.train.run_dir
    if path is None or jax.process_index() > 0:
        yield None
        return
    devices = [str(device) for device in mesh.devices.flat]
    run = RunDirectory.create(Path(path), settings.to_mapping(), jax.default_backend(), devices)
    with run.lock():
        yield run


@contextlib.contextmanager
def reopened_run(settings: Settings) -> Iterator[RunDirectory | None]:
    """Lock the run directory that is there; None where nothing is written by this process."""
    run = existing_run(settings)
    if jax.process_index() > 0:
        yield None
        return
    with run.lock():
        yield run


def existing_run(settings: Settings) -> RunDirectory:
    """Return the run directory that is there, to read from; raise if there is none."""
    if settings.train.run_dir is None:
        raise InvalidInputError("this workflow has no run_dir to restore from: set it in the config.")
    return RunDirectory.open(Path(settings.train.run_dir))


def describe_run(settings: Settings, run: RunDirectory | None) -> RunDescription:
    """Describe a run to its recorders."""
    train = settings.train
    return RunDescription(
        title=f"{settings.agent_name} on {train.env.name}",
        total_timesteps=train.total_timesteps,
        seeds=train.seeds,
        directory=None if run is None else run.path,
        config=settings.to_mapping(),
    )
