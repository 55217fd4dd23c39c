"""The `Agent` interface, its state, and an agent that acts at random."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import ShapeError
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete, MultiDiscrete, Shape, Space
from rookery.types import Action, Array, Key, Obs, Params, PyTreeData, PyTreeDict, PyTreeNode, as_key, pytree_field

ACTION_MASK = "action_mask"
"""The entry of a dict observation that marks the allowed discrete actions with 1."""

Carry = Any
"""The recurrent state of an agent between two steps; `()` for agents without one."""


class AgentState(PyTreeData):
    """Parameters of an agent and all other values that change during training."""

    params: Params = None
    obs_preprocessor_state: Any = None
    action_postprocessor_state: Any = None
    extra_state: Any = None


class Agent(PyTreeNode, ABC):
    """Static logic that maps observations to actions, given an `AgentState`.

    A recurrent agent reads its carry from `sample_batch.extras.policy_extras.carry`, resets it where
    `policy_extras.episode_start` is 1, and returns the next one as `policy_extras["carry"]`. `initial_carry` makes the
    first. Recurrent rollouts and evaluators pass the carry from step to step.
    """

    @abstractmethod
    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Make the initial state for these spaces."""

    @abstractmethod
    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PyTreeDict]:
        """Sample actions for training; return them with the extras that the loss needs."""

    @abstractmethod
    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PyTreeDict]:
        """Choose greedy actions for evaluation."""

    def extras_of_logged(
        self,
        agent_state: AgentState,
        sample_batch: SampleBatch,
        actions: Action,
        key: Key,
        log_prob: Array | None = None,
    ) -> PyTreeDict:
        """Return the extras that `compute_actions` would have returned with these actions.

        It is called for actions that an external simulator chose. `log_prob` are the log-probabilities with which it
        did, NaN where it gave none. Agents whose extras depend on the action override it.
        """
        return self.compute_actions(agent_state, sample_batch, key)[1]

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode."""
        return ()

    def acting_part(self, agent_state: AgentState) -> tuple["Agent", AgentState]:
        """Return an agent that acts like this one, and its state, without what only training needs."""
        return self, agent_state


def given_or(log_prob: Array | None, own: Array) -> Array:
    """Return the log-probabilities that a simulator gave for its actions; where it gave none, those of the policy."""
    return own if log_prob is None else jnp.where(jnp.isnan(log_prob), own, log_prob)


class RandomAgentState(PyTreeData):
    """The spaces passed to `init`; they are part of the compiled program."""

    obs_space: Space = pytree_field(static=True)
    action_space: Space = pytree_field(static=True)


class RandomAgent(Agent):
    """Acts uniformly at random in any action space and for any batch shape; respects action masks."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(extra_state=RandomAgentState(obs_space=obs_space, action_space=action_space))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PyTreeDict]:
        spaces: RandomAgentState = agent_state.extra_state
        mask = action_mask_of(sample_batch.obs)
        if mask is not None:
            return sample_allowed(as_key(key), mask, spaces.action_space), PyTreeDict()
        batch_shape = spaces.obs_space.batch_shape_of(sample_batch.obs)
        return spaces.action_space.sample(key, batch_shape), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


def action_mask_of(obs: Obs) -> Array | None:
    """Return the action mask of a dict observation; None without one."""
    return obs[ACTION_MASK] if isinstance(obs, Mapping) and ACTION_MASK in obs else None


def sample_allowed(key: Key, mask: Array, action_space: Space) -> Array:
    """Sample uniformly from the actions whose mask is 1, or from all actions where the mask is all 0.

    The mask is `[..., n]` for `Discrete`; for `MultiDiscrete` it concatenates the masks of all components.
    """
    match action_space:
        case Discrete():
            return _sample_allowed(key, mask, action_space.n, action_space) + action_space.start
        case MultiDiscrete():
            nvec = action_space.nvec.ravel()
            masks = jnp.split(mask, np.cumsum(nvec)[:-1], axis=-1)
            keys = jax.random.split(key, len(nvec))
            choices = jnp.stack(
                [
                    _sample_allowed(part_key, part, int(num_values), action_space)
                    for part_key, part, num_values in zip(keys, masks, nvec, strict=True)
                ],
                axis=-1,
            ).reshape(*mask.shape[:-1], *action_space.shape)
            return choices + jnp.broadcast_to(action_space.start.astype(choices.dtype), choices.shape)
    raise ShapeError(f"the observation has an action mask, but actions of {action_space} cannot be masked.")


def _sample_allowed(key: Key, mask: Array, num_values: int, action_space: Discrete | MultiDiscrete) -> Array:
    if mask.shape[-1:] != (num_values,):
        raise ShapeError(f"action mask has shape {list(mask.shape)}, which does not fit {action_space}.")
    allowed = mask.astype(bool)
    allowed = allowed | ~jnp.any(allowed, axis=-1, keepdims=True)
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf)).astype(action_space.sample_dtype)
