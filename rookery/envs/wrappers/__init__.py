"""Environment wrappers. From the inside out: observations, actions and rewards, then episodes, then vectorization."""

from rookery.envs.wrappers.action import ActionRepeat, ActionSquashWrapper
from rookery.envs.wrappers.autoreset import (
    AutoresetMode,
    EnvPoolAutoresetWrapper,
    FastAutoresetWrapper,
    NormalAutoresetWrapper,
)
from rookery.envs.wrappers.episode import EpisodeWrapper
from rookery.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper
from rookery.envs.wrappers.reward import RewardScaleWrapper
from rookery.envs.wrappers.vectorize import VectorWrapper, VmapWrapper

__all__ = [
    "ActionRepeat",
    "ActionSquashWrapper",
    "AutoresetMode",
    "EnvPoolAutoresetWrapper",
    "EpisodeWrapper",
    "FastAutoresetWrapper",
    "FrameStackWrapper",
    "NormalAutoresetWrapper",
    "ObsFlattenWrapper",
    "RewardScaleWrapper",
    "VectorWrapper",
    "VmapWrapper",
]
