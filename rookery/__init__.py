"""Rookery trains agents by gradient, by evolution and by both."""

from rookery.agent import Agent, AgentState, RandomAgent
from rookery.sample_batch import MultiAgentBatch, SampleBatch
from rookery.types import PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentState",
    "MultiAgentBatch",
    "PyTreeData",
    "PyTreeDict",
    "PyTreeNode",
    "RandomAgent",
    "SampleBatch",
    "State",
    "pytree_field",
]
