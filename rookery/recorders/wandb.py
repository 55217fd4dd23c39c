"""Records at Weights & Biases."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.errors import InvalidInputError, missing_extra
from rookery.recorders.rows import ENV_STEPS, SEED, plotted_metrics
from rookery.runs.files import is_there, read_bytes, write_atomically
from rookery.runs.recorder import Position, Recorder, RunDescription

ID_FILE_NAME = "wandb_id"


class WandbRecorder(Recorder):
    """Sends records to one W&B run over env steps; metrics of several seeds are `seed_0/...`, `seed_1/...`.

    W&B's environment variables apply (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, ...). A resumed run keeps its id. W&B
    cannot delete records: it keeps those it has, and the recorder does not send them again.
    """

    def __init__(self) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise missing_extra("wandb", "wandb") from error
        self._wandb = wandb
        self._run: Any = None
        self._several_seeds = False
        self._first_step = 0
        self._exit_code = 1

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        self._several_seeds = len(run.seeds) > 1
        self._exit_code = 1
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "rookery"),
                name=run.title,
                id=None if run.directory is None else run_id(run.directory),
                resume="allow",
                dir=run.directory,
                config=dict(run.config),
                settings=self._wandb.Settings(console="off"),  # otherwise it uploads every frame of the progress bar
            )
        except self._wandb.Error as error:
            raise InvalidInputError(
                f"W&B did not start: {error} (Without an account: set WANDB_MODE=offline in the environment.)"
            ) from error
        self._first_step = self._run.step

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        env_steps = int(min(row[ENV_STEPS] for row in rows))
        if env_steps < self._first_step:
            return
        metrics = {}
        for row in rows:
            prefix = f"seed_{int(row[SEED])}/" if self._several_seeds else ""
            metrics.update({prefix + name: value for name, value in plotted_metrics(row).items()})
        self._run.log(metrics, step=env_steps, commit=True)

    def finish(self, message: str) -> None:
        self._exit_code = 0

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
            self._run = None


def run_id(directory: Path) -> str:
    """Return the W&B id of the run in this directory; the first call creates and stores it."""
    if not is_there(directory, ID_FILE_NAME):
        write_atomically(directory / ID_FILE_NAME, secrets.token_hex(8))
    return read_bytes(directory, ID_FILE_NAME, max_bytes=64).decode()
