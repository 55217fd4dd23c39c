"""Names that `rookery` imports on first use."""

from rookery.agent import Agent as Agent
from rookery.agent import AgentState as AgentState
from rookery.agent import RandomAgent as RandomAgent
from rookery.sample_batch import MultiAgentBatch as MultiAgentBatch
from rookery.sample_batch import SampleBatch as SampleBatch
from rookery.types import PyTreeData as PyTreeData
from rookery.types import PyTreeDict as PyTreeDict
from rookery.types import PyTreeNode as PyTreeNode
from rookery.types import State as State
from rookery.types import pytree_field as pytree_field

__version__: str
