"""Divergence: training whose parameters or losses are NaN or infinite."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from rookery.errors import RookeryError
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory

DIVERGED = "train/diverged"
"""The metric that marks the rows of a seed from its divergence on; other rows do not have it."""
STOP, WARN = "stop", "warn"


class DivergedError(RookeryError):
    """Training diverged; the message names the last good checkpoint."""


class NotFiniteError(RookeryError):
    """Training cannot go on, because the parameters are NaN or infinite."""


@dataclass(frozen=True)
class Divergence:
    """The record at which the training of a seed was found to have diverged, and why."""

    seed: int
    env_steps: int
    reason: str

    def __str__(self) -> str:
        return f"seed {self.seed} diverged at {self.env_steps:,} env steps: {self.reason}"


def find_divergence(values: Mapping[str, float], has_finite_params: bool) -> str:
    """Return why training has diverged, given the means of a record; empty if it has not.

    Only `train/` metrics count: a return is what the environment says.
    """
    of_training = {name: value for name, value in values.items() if "/train/" in f"/{name}"}  # also `policy/train/`
    reasons = [f"{name} is {value}" for name, value in of_training.items() if not math.isfinite(value)][:1]
    return " and ".join(reasons if has_finite_params else [*reasons, "its parameters are not finite"])


def describe_diverged(num_diverged: int, num_seeds: int) -> str:
    """Count the seeds that diverged: "2 of 16 seeds diverged"; empty without any."""
    return f"{num_diverged} of {num_seeds} seeds diverged" if num_diverged else ""


def diverged_error(last: Divergence, num_seeds: int, run: RunDirectory | None) -> DivergedError:
    """Build the error that ends a run, with what to do next."""
    cause = str(last) if num_seeds == 1 else f"all {num_seeds} seeds diverged, the last: {last}"
    if run is None:
        return DivergedError(f"{cause}. Nothing was saved, because there is no run_dir.")
    step = Checkpoints(run.checkpoints_path).last_good_step() or 0
    command = f"rookery resume {shlex.quote(str(run.path))} agent.NAME=VALUE"
    return DivergedError(
        f"{cause}. The last good checkpoint is at {step:,} env steps; continue from it with other hyper-parameters: "
        f"`{command}` (--step N --yes takes an earlier one). on_nan=warn does not stop."
    )
