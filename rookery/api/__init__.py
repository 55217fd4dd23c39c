"""The first names of the package: train, search settings, open a run, load a policy."""

from rookery.api.loading import load
from rookery.api.run import Run, open_run
from rookery.api.training import train
from rookery.api.tuning import SearchResult, tune

__all__ = ["Run", "SearchResult", "load", "open_run", "train", "tune"]
