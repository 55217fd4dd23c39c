"""Functions that several learning methods share."""

from rookery.learning.running_statistics import RunningStatistics

__all__ = ["RunningStatistics"]
