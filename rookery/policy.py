"""A trained policy in hand: NumPy observations in, NumPy actions out."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError, ShapeError
from rookery.sample_batch import SampleBatch
from rookery.spaces import ArraySpace, Box, Dict, Space, Tuple
from rookery.types import Array, PyTreeDict

Tree = Any


class Policy:
    """Acts with trained parameters, in the way of Stable-Baselines3: `action, state = policy.predict(obs)`.

    It needs no environment. `agent` and `agent_state` are for those who want JAX.
    """

    def __init__(
        self, agent: Agent, agent_state: AgentState, obs_space: Space, action_space: Space, num_steps: int = 0
    ) -> None:
        self.agent = agent
        self.agent_state = agent_state
        self.obs_space = obs_space
        self.action_space = action_space
        self.num_steps = num_steps
        """The number of env steps that it was trained for."""
        self._leaves, self._treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, agent_state))
        self._programs = {True: jax.jit(self._greedy), False: jax.jit(self._sampled)}
        self._num_samples = 0
        self.is_recurrent = bool(jax.tree.leaves(agent.initial_carry((1,))))
        """Whether `predict` needs the state that it returned for the step before."""
        self._obs_dtype = obs_space.sample_dtype if isinstance(obs_space, ArraySpace) else None

    def predict(
        self, obs: Tree, state: Carry | None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Tree, Carry | None]:
        """Return the action for one observation, or the actions for a batch, and the next recurrent state.

        An observation has the form of the environment's space; a batch has one axis more. The action is what `env.step`
        takes. `state` is what the call before returned, None at first; `episode_start` is true where an episode begins.
        Both are only for recurrent policies. Without `deterministic` the action is sampled as in training.
        """
        array, is_batch = self._batch_of(obs)
        recurrent = self._recurrent_inputs(array, is_batch, state, episode_start)
        counter: Any = ()
        if not deterministic:
            counter = np.uint32(self._num_samples)
            self._num_samples = (self._num_samples + 1) % 2**32
        actions, carry = self._programs[deterministic](self._leaves, array, recurrent, counter)
        next_state = None
        if recurrent is not None:
            next_state = jax.tree.map(lambda leaf: np.asarray(leaf) if is_batch else np.asarray(leaf)[0], carry)
        return _as_env_action(self.action_space, actions, is_batch), next_state

    def __call__(self, obs: Tree) -> Tree:
        """Return `predict(obs)[0]`, the greedy action."""
        if self.is_recurrent:
            raise InvalidInputError(
                "this policy is recurrent and needs its state: action, state = policy.predict(obs, state)."
            )
        return self.predict(obs)[0]

    def warm_up(self, *batch_sizes: int) -> None:
        """Compile `predict` for single observations (1) and for batches of these sizes."""
        for size in batch_sizes:
            obs = _zeros(self.obs_space, size)
            self.predict(obs if size > 1 else jax.tree.map(lambda leaf: leaf[0], obs))

    def __repr__(self) -> str:
        kind = "recurrent " if self.is_recurrent else ""
        return (
            f"Policy({kind}{type(self.agent).__name__}, {self.obs_space} -> {self.action_space}, "
            f"{self.num_steps:,} env steps)"
        )

    def _batch_of(self, obs: Tree) -> tuple[Tree, bool]:
        """Return a batch of observations as arrays, and whether a batch was given."""
        space = self.obs_space
        if isinstance(space, ArraySpace):
            array = obs if type(obs) is np.ndarray else _as_array(obs, "the observation")
            if array.dtype != self._obs_dtype:
                space.check(array, "the observation", array.shape[: max(0, array.ndim - len(space.shape))])
                array = array.astype(self._obs_dtype)
            if array.shape == space.shape:
                return array[None], False
            if array.shape[1:] == space.shape and array.ndim:
                return array, True
            raise _wrong_shape(space, list(array.shape))
        arrays = _as_arrays(space, obs, "the observation")
        batch_shape = space.batch_shape_of(arrays)
        if len(batch_shape) > 1:
            raise _wrong_shape(space, list(batch_shape))
        return (arrays, True) if batch_shape else (jax.tree.map(lambda leaf: leaf[None], arrays), False)

    def _recurrent_inputs(self, obs: Tree, is_batch: bool, state: Carry | None, episode_start: Any) -> Any:
        """Return the carry `[N, ...]` and the flags `[N]` of a recurrent policy, else None."""
        if not self.is_recurrent:
            return None
        num_rows = len(jax.tree.leaves(obs)[0])
        initial = self.agent.initial_carry((num_rows,))
        if state is None:
            return initial, np.ones(num_rows, np.float32)
        carry = state if is_batch else jax.tree.map(lambda leaf: np.asarray(leaf)[None], state)
        shapes, expected = (jax.tree.map(np.shape, tree) for tree in (carry, initial))
        if shapes != expected:
            raise ShapeError(f"the state has the shapes {shapes}: expected {expected}, or None where episodes begin.")
        starts = np.zeros(num_rows, np.float32) if episode_start is None else np.asarray(episode_start, np.float32)
        return carry, np.broadcast_to(starts, (num_rows,))

    def _greedy(self, leaves: list[Array], obs: Tree, recurrent: Any, counter: Any) -> tuple[Tree, Carry]:
        return self._act(self.agent.evaluate_actions, leaves, obs, recurrent, jnp.zeros((), jnp.uint32))

    def _sampled(self, leaves: list[Array], obs: Tree, recurrent: Any, counter: Array) -> tuple[Tree, Carry]:
        return self._act(self.agent.compute_actions, leaves, obs, recurrent, counter)

    def _act(self, act: Any, leaves: list[Array], obs: Tree, recurrent: Any, counter: Array) -> tuple[Tree, Carry]:
        policy_extras = PyTreeDict(carry=())
        if recurrent is not None:
            carry, starts = recurrent
            policy_extras = PyTreeDict(carry=carry, episode_start=starts)
        batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))
        key = jax.random.fold_in(jax.random.key(0), counter)
        actions, extras = act(jax.tree.unflatten(self._treedef, leaves), batch, key)
        return actions, extras.get("carry", ())


def _wrong_shape(space: Space, shape: list[int]) -> ShapeError:
    what = f"one observation of {space}, or a batch with one axis before it"
    return ShapeError(f"the observation has shape {shape}: expected {what}.")


def _as_array(obs: Tree, what: str) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError as error:
        raise ShapeError(
            f"{what} is a {type(obs).__name__} that is not an array; `env.reset()` returns the observation and an info."
        ) from error


def _as_arrays(space: Space, obs: Tree, what: str) -> Tree:
    """Return an observation as arrays of the dtypes of its space."""
    match space:
        case Dict():
            if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
                space.check(obs, what)
            return PyTreeDict(
                {name: _as_arrays(part, obs[name], f"{what}[{name!r}]") for name, part in space.spaces.items()}
            )
        case Tuple():
            if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
                space.check(obs, what)
            parts = zip(space.spaces, obs, strict=True)
            return tuple(_as_arrays(part, item, f"{what}[{index}]") for index, (part, item) in enumerate(parts))
    assert isinstance(space, ArraySpace), "spaces are arrays, dicts or tuples"
    array = _as_array(obs, what)
    space.check(array, what, array.shape[: max(0, array.ndim - len(space.shape))])
    return array.astype(space.sample_dtype, copy=False)


def _zeros(space: Space, num_rows: int) -> Tree:
    match space:
        case Dict():
            return {name: _zeros(part, num_rows) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(_zeros(part, num_rows) for part in space.spaces)
    assert isinstance(space, ArraySpace), "spaces are arrays, dicts or tuples"
    return np.zeros((num_rows, *space.shape), space.sample_dtype)


def _as_env_action(space: Space, actions: Tree, is_batch: bool) -> Tree:
    """Return actions in the form of the environment: its dtypes, plain dicts and tuples, within the bounds."""
    match space:
        case Dict():
            return {name: _as_env_action(part, actions[name], is_batch) for name, part in space.spaces.items()}
        case Tuple():
            parts = zip(space.spaces, actions, strict=True)
            return tuple(_as_env_action(part, item, is_batch) for part, item in parts)
    assert isinstance(space, ArraySpace), "spaces are arrays, dicts or tuples"
    array = np.asarray(actions)
    if array.dtype != space.dtype:
        array = array.astype(space.dtype)
        if isinstance(space, Box):  # a bound may lie between two numbers of float32
            array = np.clip(array, space.low, space.high)
    return array if is_batch else array[0]
