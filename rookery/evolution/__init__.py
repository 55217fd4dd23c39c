"""Parts of evolutionary strategies: their interface, fitness shaping, variation and selection."""

from rookery.evolution.optimizer import ECState, EvoOptimizer

__all__ = ["ECState", "EvoOptimizer"]
