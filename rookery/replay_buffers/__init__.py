"""Replay on the device: a ring of rows for each env, from which windows of consecutive rows are sampled.

One-step, n-step and sequence replay differ only in the `sequence_length` of their windows.
"""

from rookery.replay_buffers.prioritized import PrioritizedBuffer, importance_weights
from rookery.replay_buffers.replay_buffer import ReplayBuffer, ReplaySample, ReplayState
from rookery.replay_buffers.uniform import UniformBuffer

__all__ = [
    "PrioritizedBuffer",
    "ReplayBuffer",
    "ReplaySample",
    "ReplayState",
    "UniformBuffer",
    "importance_weights",
]
