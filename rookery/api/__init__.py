"""The first names of the package: train, open a run, load a policy."""

from rookery.api.loading import load
from rookery.api.run import Run, open_run
from rookery.api.training import train

__all__ = ["Run", "load", "open_run", "train"]
