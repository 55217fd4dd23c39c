"""Evaluation of one agent or of each agent of a population."""

from rookery.evaluators.evaluator import Evaluator
from rookery.evaluators.population import PopulationEvaluator
from rookery.metrics import EvaluateMetric

__all__ = ["EvaluateMetric", "Evaluator", "PopulationEvaluator"]
