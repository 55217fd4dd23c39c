"""What acts: the `Agent` interface, its state, and the agent that acts at random."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import ShapeError
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete, MultiDiscrete, Shape, Space
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict, PyTreeNode, as_key, pytree_field

ACTION_MASK = "action_mask"
"""The entry of a dict observation that says which discrete actions are allowed."""

Carry = Any
"""What a recurrent agent remembers between two steps; `()` for one that remembers nothing."""


class AgentState(PyTreeData):
    """All that changes about an agent."""

    params: Params = None
    obs_preprocessor_state: Any = None
    action_postprocessor_state: Any = None
    extra_state: Any = None


class Agent(PyTreeNode, ABC):
    """Static logic that turns observations into actions, given an `AgentState`.

    A recurrent agent finds its memory in `sample_batch.extras.policy_extras.carry`, clears it where
    `policy_extras.episode_start` is 1, and hands back the next one as `policy_extras["carry"]`; `initial_carry` makes
    the first. The recurrent forms of rollouts and evaluators do the carrying.
    """

    @abstractmethod
    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Make the first state for these spaces."""

    @abstractmethod
    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act to explore, for training: return the actions and what the loss will want to know about them."""

    @abstractmethod
    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Act as well as the agent knows, for evaluation."""

    def extras_of_logged(
        self, agent_state: AgentState, sample_batch: SampleBatch, actions: Any, key: Key
    ) -> PyTreeDict:
        """Say what `compute_actions` would have said beside these actions, had it chosen them.

        For actions that an external simulator took itself. Agents whose extras depend on the action define it.
        """
        return self.compute_actions(agent_state, sample_batch, key)[1]

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the memory with which an episode starts."""
        return ()


class RandomAgentState(PyTreeData):
    """The spaces, which the agent learns in `init`; they are part of the compiled program."""

    obs_space: Space = pytree_field(static=True)
    action_space: Space = pytree_field(static=True)


class RandomAgent(Agent):
    """Acts uniformly at random in any action space, for any batch shape; honours an action mask."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(extra_state=RandomAgentState(obs_space=obs_space, action_space=action_space))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        spaces: RandomAgentState = agent_state.extra_state
        mask = action_mask_of(sample_batch.obs)
        if mask is not None:
            return sample_allowed(as_key(key), mask, spaces.action_space), PyTreeDict()
        batch_shape = spaces.obs_space.batch_shape_of(sample_batch.obs)
        return spaces.action_space.sample(key, batch_shape), PyTreeDict()

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


def action_mask_of(obs: Any) -> Array | None:
    """Return the action mask of a dict observation, or None if it has none."""
    return obs[ACTION_MASK] if isinstance(obs, Mapping) and ACTION_MASK in obs else None


def sample_allowed(key: Key, mask: Array, action_space: Space) -> Array:
    """Draw uniformly among the actions whose mask is 1, or among all where it allows none.

    The mask is `[..., n]` for `Discrete`, and holds the values of all components one after the other for
    `MultiDiscrete`.
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
