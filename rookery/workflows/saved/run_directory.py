"""Creates or reopens the run directory of a workflow; only one process writes to it."""

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
    """Create the run directory and lock it; None if this process writes nothing."""
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
    """Lock the existing run directory; None if this process writes nothing."""
    run = existing_run(settings)
    if jax.process_index() > 0:
        yield None
        return
    with run.lock():
        yield run


def existing_run(settings: Settings) -> RunDirectory:
    """Return the existing run directory, without locking it; raise if it does not exist."""
    if settings.train.run_dir is None:
        raise InvalidInputError("this workflow has no run_dir to restore from: set it in the config.")
    return RunDirectory.open(Path(settings.train.run_dir))


def describe_run(settings: Settings, run: RunDirectory | None) -> RunDescription:
    """Return the description of a run for its recorders."""
    train = settings.train
    return RunDescription(
        title=f"{settings.agent_name} on {train.env.name}",
        total_timesteps=train.total_timesteps,
        seeds=train.seeds,
        directory=None if run is None else run.path,
        config=settings.to_mapping(),
    )
