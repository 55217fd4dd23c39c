"""Rollouts on the device: agents act in vectorized environments inside compiled programs.

All functions can be jitted and vmapped over agent states.
"""

from rookery.learning.experience import Experience
from rookery.rollout.multi_agent import (
    joint_action_fn,
    multi_agent_rollout,
    recurrent_multi_agent_rollout,
    split_by_policy,
)
from rookery.rollout.single_agent import (
    ActionFn,
    EnvFn,
    act,
    eval_rollout_episode,
    fast_eval_rollout_episode,
    recurrent_eval_rollout_episode,
    recurrent_fast_eval_rollout_episode,
    recurrent_rollout,
    rollout,
)
from rookery.rollout.source import RolloutSource, RolloutState

__all__ = [
    "ActionFn",
    "EnvFn",
    "Experience",
    "RolloutSource",
    "RolloutState",
    "act",
    "eval_rollout_episode",
    "fast_eval_rollout_episode",
    "joint_action_fn",
    "multi_agent_rollout",
    "recurrent_eval_rollout_episode",
    "recurrent_fast_eval_rollout_episode",
    "recurrent_multi_agent_rollout",
    "recurrent_rollout",
    "rollout",
    "split_by_policy",
]
