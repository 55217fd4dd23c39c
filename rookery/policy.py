"""A trained policy in hand: NumPy observations in, NumPy actions out."""

import copy
import secrets
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError, ShapeError
from rookery.sample_batch import SampleBatch
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rookery.types import Array, Key, PyTreeDict

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
        self._seed, self._num_samples = np.uint32(secrets.randbits(32)), 0
        self.is_recurrent = bool(jax.tree.leaves(agent.initial_carry((1,))))
        """Whether `predict` needs the state that it returned for the step before."""
        self._obs_dtype = obs_space.sample_dtype if isinstance(obs_space, ArraySpace) else None
        self._is_box = isinstance(obs_space, Box)

    def predict(
        self, obs: Tree, state: Carry | None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Tree, Carry | None]:
        """Return the action for one observation, or the actions for a batch, and the next recurrent state.

        An observation has the form of the environment's space; a batch has one axis more. The action is what `env.step`
        takes. `state` is what the call before returned, None at first; `episode_start` is true where an episode begins.
        Both are only for recurrent policies. Without `deterministic` the action is sampled as in training; `seed` makes
        samples repeatable.
        """
        array, is_batch = self._batch_of(obs)
        recurrent = self._recurrent_inputs(array, is_batch, state, episode_start)
        actions, carry, _ = self._run(array, recurrent, deterministic)
        next_state = None
        if recurrent is not None:
            next_state = jax.tree.map(lambda leaf: np.asarray(leaf) if is_batch else np.asarray(leaf)[0], carry)
        return _as_env_action(self.action_space, actions, is_batch), next_state

    def act(self, obs: Tree, carry: Carry, starts: np.ndarray | None, explore: bool) -> tuple[Tree, Carry, Any]:
        """Act on a batch of observations in the form of the space, unchecked.

        `carry` and `starts`, float32 `[N]`, are only for recurrent policies. Returns the actions, the next carry, and
        the log-probabilities of the actions if the agent computes them.
        """
        actions, carry, log_prob = self._run(obs, None if starts is None else (carry, starts), not explore)
        log_prob = None if log_prob is None else np.asarray(log_prob)
        return _as_env_action(self.action_space, actions, True), jax.tree.map(np.asarray, carry), log_prob

    def with_state(self, agent_state: AgentState, num_steps: int) -> "Policy":
        """Return a policy with another state of the same agent, which shares the compiled programs."""
        other = copy.copy(self)
        other.agent_state, other.num_steps = agent_state, num_steps
        other._leaves = jax.tree.leaves(jax.tree.map(jnp.asarray, agent_state))
        return other

    def __call__(self, obs: Tree) -> Tree:
        """Return `predict(obs)[0]`, the greedy action."""
        if self.is_recurrent:
            raise InvalidInputError(
                "this policy is recurrent and needs its state: action, state = policy.predict(obs, state)."
            )
        return self.predict(obs)[0]

    def seed(self, seed: int) -> None:
        """Restart the samples of `predict(obs, deterministic=False)`: the same seed gives the same samples.

        Without it, every policy draws its own.
        """
        if not 0 <= seed < 2**32:
            raise InvalidInputError(f"seed={seed}: expected an integer from 0 to 2**32 - 1.")
        self._seed, self._num_samples = np.uint32(seed), 0

    def warm_up(self, *batch_sizes: int) -> None:
        """Compile `predict` for single observations (1) and for batches of these sizes."""
        for size in batch_sizes:
            obs = first_obs(self.obs_space, size)
            self.predict(obs if size > 1 else jax.tree.map(lambda leaf: leaf[0], obs))

    def __repr__(self) -> str:
        kind = "recurrent " if self.is_recurrent else ""
        return (
            f"Policy({kind}{type(self.agent).__name__}, {self.obs_space} -> {self.action_space}, "
            f"{self.num_steps:,} env steps)"
        )

    def _run(self, obs: Tree, recurrent: Any, deterministic: bool) -> tuple[Tree, Carry, Any]:
        """Run the program on a batch of arrays."""
        draw: Any = ()
        if not deterministic:
            draw = self._seed, np.uint32(self._num_samples)
            self._num_samples = (self._num_samples + 1) % 2**32
        results: tuple[Tree, Carry, Any] = self._programs[deterministic](self._leaves, obs, recurrent, draw)
        return results

    def _batch_of(self, obs: Tree) -> tuple[Tree, bool]:
        """Return a batch of observations as arrays, and whether a batch was given."""
        space = self.obs_space
        if isinstance(space, ArraySpace):
            array = obs
            if type(obs) is not np.ndarray or obs.dtype != self._obs_dtype or not self._is_box:
                array = _as_array(space, obs, "the observation")
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
        starts = np.zeros(num_rows, np.float32)
        if episode_start is not None:
            starts = _numbers(episode_start, "episode_start", np.float32)
        if starts.shape not in ((), (num_rows,)):
            raise ShapeError(f"episode_start has shape {list(starts.shape)}: expected one flag, or [{num_rows}].")
        if state is None:
            return initial, np.ones(num_rows, np.float32)
        carry = state if is_batch else jax.tree.map(lambda leaf: np.asarray(leaf)[None], state)
        shapes, expected = (jax.tree.map(np.shape, tree) for tree in (carry, initial))
        if shapes != expected:
            raise ShapeError(f"the state has the shapes {shapes}: expected {expected}, or None where episodes begin.")
        return carry, np.broadcast_to(starts, (num_rows,))

    def _greedy(self, leaves: list[Array], obs: Tree, recurrent: Any, draw: Any) -> tuple[Tree, Carry, Any]:
        return self._act(self.agent.evaluate_actions, leaves, obs, recurrent, jax.random.key(0))

    def _sampled(
        self, leaves: list[Array], obs: Tree, recurrent: Any, draw: tuple[Array, Array]
    ) -> tuple[Tree, Carry, Any]:
        seed, num_samples = draw
        key = jax.random.fold_in(jax.random.key(seed), num_samples)
        return self._act(self.agent.compute_actions, leaves, obs, recurrent, key)

    def _act(self, act: Any, leaves: list[Array], obs: Tree, recurrent: Any, key: Key) -> tuple[Tree, Carry, Any]:
        policy_extras = PyTreeDict(carry=())
        if recurrent is not None:
            carry, starts = recurrent
            policy_extras = PyTreeDict(carry=carry, episode_start=starts)
        batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))
        actions, extras = act(jax.tree.unflatten(self._treedef, leaves), batch, key)
        return actions, extras.get("carry", ()), extras.get("log_prob")


def _wrong_shape(space: Space, shape: list[int]) -> ShapeError:
    what = f"one observation of {space}, or a batch with one axis before it"
    return ShapeError(f"the observation has shape {shape}: expected {what}.")


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
    return _as_array(space, obs, what)


def _as_array(space: ArraySpace, obs: Any, what: str) -> np.ndarray:
    """Return an observation as an array of the dtype of its space; integers must be in the space.

    Those of a box in its own dtype need no check: they keep their value, like numbers outside of a box of floats.
    """
    array = _numbers(obs, what)
    space.check(array, what, array.shape[: max(0, array.ndim - len(space.shape))])
    is_own_dtype = array.dtype == space.sample_dtype
    if np.issubdtype(space.dtype, np.integer) and not (is_own_dtype and isinstance(space, Box)):
        space.check_range(array, what)
    return array if is_own_dtype else array.astype(space.sample_dtype)


def _numbers(given: Any, what: str, dtype: DTypeLike | None = None) -> np.ndarray:
    try:
        return np.asarray(given, dtype)
    except (TypeError, ValueError):
        hint = " `env.reset()` returns the observation and an info." if isinstance(given, tuple) else ""
        raise ShapeError(f"{what} is {given!r:.80}: expected an array of numbers.{hint}") from None


def first_obs(space: Space, num_rows: int) -> Tree:
    """Return a batch of the first observations of a space: zeros, except where integers start elsewhere."""
    match space:
        case Dict():
            return {name: first_obs(part, num_rows) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(first_obs(part, num_rows) for part in space.spaces)
    assert isinstance(space, ArraySpace), "spaces are arrays, dicts or tuples"
    first = space.start if isinstance(space, Discrete | MultiDiscrete) else 0
    return np.full((num_rows, *space.shape), first, space.sample_dtype)


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
