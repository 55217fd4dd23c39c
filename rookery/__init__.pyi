"""Names that `rookery` imports on first use."""

from rookery.agent import Agent as Agent
from rookery.agent import AgentState as AgentState
from rookery.agent import RandomAgent as RandomAgent
from rookery.api import Run as Run
from rookery.api import load as load
from rookery.api import open_run as open_run
from rookery.api import train as train
from rookery.policy import Policy as Policy
from rookery.runs.interruption import Interrupted as Interrupted
from rookery.sample_batch import MultiAgentBatch as MultiAgentBatch
from rookery.sample_batch import SampleBatch as SampleBatch
from rookery.types import PyTreeData as PyTreeData
from rookery.types import PyTreeDict as PyTreeDict
from rookery.types import PyTreeNode as PyTreeNode
from rookery.types import State as State
from rookery.types import pytree_field as pytree_field
from rookery.workflows.hooks import RecordEvent as RecordEvent

__version__: str
