"""Recorders write the metrics of a run to the terminal, a file, TensorBoard or Weights & Biases."""

import importlib

from rookery.errors import unknown_name
from rookery.runs.recorder import Position, Recorder, RunDescription

RECORDERS = {
    "console": "rookery.recorders.console:ConsoleRecorder",
    "jsonl": "rookery.recorders.jsonl:JsonlRecorder",
    "tensorboard": "rookery.recorders.tensorboard:TensorBoardRecorder",
    "wandb": "rookery.recorders.wandb:WandbRecorder",
}


def make_recorder(name: str) -> Recorder:
    """Make a recorder by name and import its library now: a missing library fails before the run starts."""
    if name not in RECORDERS:
        raise unknown_name("recorder", name, RECORDERS)
    module, class_name = RECORDERS[name].split(":")
    recorder: Recorder = getattr(importlib.import_module(module), class_name)()
    return recorder


__all__ = ["RECORDERS", "Position", "Recorder", "RunDescription", "make_recorder"]
