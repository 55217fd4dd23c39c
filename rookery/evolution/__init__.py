"""What evolution is made of: the interface of strategies, fitness shaping, variation and selection."""

from rookery.evolution.optimizer import ECState, EvoOptimizer

__all__ = ["ECState", "EvoOptimizer"]
