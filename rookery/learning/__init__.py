"""What methods learn with: the parts that several of them share, as free functions."""

from rookery.learning.running_statistics import RunningStatistics

__all__ = ["RunningStatistics"]
