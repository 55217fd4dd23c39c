"""Names that `rookery.runners` imports on first use."""

from rookery.runners.acting.connectors import ActionConnector as ActionConnector
from rookery.runners.acting.connectors import ClipActions as ClipActions
from rookery.runners.acting.connectors import FlattenObs as FlattenObs
from rookery.runners.acting.connectors import FrameStack as FrameStack
from rookery.runners.acting.connectors import NormalizeObs as NormalizeObs
from rookery.runners.acting.connectors import ObsConnector as ObsConnector
from rookery.runners.acting.connectors import PreviousActionAndReward as PreviousActionAndReward
from rookery.runners.acting.connectors import Unsquash as Unsquash
from rookery.runners.callbacks import Callbacks as Callbacks
from rookery.runners.envs.base_env import BaseEnv as BaseEnv
from rookery.runners.envs.base_env import End as End
from rookery.runners.envs.conversion import to_base_env as to_base_env
from rookery.runners.envs.external import ExternalEnv as ExternalEnv
from rookery.runners.envs.libraries import make_host_env as make_host_env
from rookery.runners.envs.multi_agent import MultiAgentDictEnv as MultiAgentDictEnv
from rookery.runners.envs.vector_env import VectorEnv as VectorEnv
from rookery.runners.envs.vector_env import VectorStep as VectorStep
from rookery.runners.faults import EnvFaultError as EnvFaultError
from rookery.runners.faults import Fault as Fault
from rookery.runners.health import RestartPolicy as RestartPolicy
from rookery.runners.recording.episode import Episode as Episode
from rookery.runners.recording.episode import episodes_of as episodes_of
from rookery.runners.runner import EnvRunner as EnvRunner
from rookery.runners.sampling import RunnerConfig as RunnerConfig
from rookery.runners.sampling import Sample as Sample
