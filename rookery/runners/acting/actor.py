"""The actor: one agent that acts in batches, compiled, and keeps its recurrent state from step to step."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError
from rookery.runners.acting.packing import Packing
from rookery.runners.acting.unrolled_threefry import unrolled
from rookery.runners.recording.fragments import PolicyOutput
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict


class Actor:
    """One agent with its state, compiled to act in some columns at a time.

    The number of rows is rounded up to a power of two, so that few programs are compiled.
    """

    def __init__(self, agent: Agent, key: Key, explore: bool = True) -> None:
        self.agent = agent
        self.is_recurrent = bool(jax.tree.leaves(agent.initial_carry((1,))))
        self.carry: Any = ()
        self.num_calls = 0
        """The number of calls so far, on which random numbers depend."""
        self._key_data = jax.random.key_data(key)
        self._key_impl = jax.random.key_impl(key)
        self._counter = jnp.uint32(0)
        self._action_fn = agent.compute_actions if explore else agent.evaluate_actions
        self._state_leaves: list[Any] | None = None
        self._state_treedef: Any = None
        self._programs: dict[Any, Any] = {}
        self._program: Any = None
        self._explores = explore
        self._packings: dict[bool, tuple[Packing, Packing]] = {}
        """The packing of the actions, and of actions with extras; by whether the actions are logged."""

    def set_state(self, agent_state: AgentState) -> None:
        """Act with this state from now on."""
        self._state_leaves, self._state_treedef = jax.tree.flatten(agent_state)
        if self._state_treedef not in self._programs:
            packings: dict[bool, tuple[Packing, Packing]] = {}
            self._programs[self._state_treedef] = jax.jit(partial(self._act, self._state_treedef, packings)), packings
        self._program, self._packings = self._programs[self._state_treedef]

    def count_from(self, num_calls: int) -> None:
        """Continue the random numbers after `num_calls` calls."""
        self.num_calls = num_calls
        self._counter = jnp.asarray(num_calls & 0xFFFFFFFF, jnp.uint32)

    def reserve(self, num_columns: int) -> None:
        """Make room for the recurrent states of `num_columns` columns; existing ones are kept."""
        self.carry = self.with_columns(self.carry, num_columns)

    def with_columns(self, carry: Any, num_columns: int) -> Any:
        """Return recurrent states of `num_columns` columns: the given ones, then initial ones; `()` without any."""
        if not self.is_recurrent:
            return ()
        fresh = self.agent.initial_carry((num_columns,))
        if not jax.tree.leaves(carry):
            return fresh
        return jax.tree.map(lambda old, new: jnp.concatenate([old, new[len(old) :]]), carry, fresh)

    def act(
        self, obs: Any, num_rows: int, columns: np.ndarray | None, starts: np.ndarray | None, logged: Any = None
    ) -> PolicyOutput:
        """Act on observations `[N, ...]` of these columns (None: of all); `starts` is True where an episode begins.

        An agent without recurrent state needs no `starts`. `logged` actions were taken already: the agent computes
        their extras.
        """
        if self._state_leaves is None:
            raise InvalidInputError("a policy has no state yet: call set_agent_states before sampling.")
        padding = 0 if columns is None else (1 << (num_rows - 1).bit_length()) - num_rows
        if padding:
            obs, logged = jax.tree.map(
                lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], padding, axis=0)]), (obs, logged)
            )
        recurrent = self._recurrent_inputs(num_rows, padding, columns, starts) if self.is_recurrent else None
        self.num_calls += 1
        packed, carry, self._counter = self._program(
            self._counter, self._key_data, self._state_leaves, obs, logged, recurrent
        )
        if self.is_recurrent:
            self.carry = carry
        arrays = list(map(np.asarray, packed))
        if padding:
            arrays = [array[:num_rows] for array in arrays]
        action_packing, packing = self._packings[logged is not None]
        return PolicyOutput(action_packing.unpack(arrays), arrays, packing)

    def _recurrent_inputs(
        self, num_rows: int, padding: int, columns: np.ndarray | None, starts: np.ndarray | None
    ) -> Any:
        """Return the recurrent states, the column of each row, and where an episode starts."""
        num_columns = len(jax.tree.leaves(self.carry)[0])
        indexes = np.full(num_rows + padding, num_columns, np.int32)  # padding belongs to no column
        indexes[:num_rows] = np.arange(num_rows) if columns is None else columns
        flags = np.zeros(num_rows + padding, np.float32)
        flags[:num_rows] = starts
        return self.carry, indexes, flags

    def _act(
        self,
        state_treedef: Any,
        packings: dict[bool, tuple[Packing, Packing]],
        counter: Array,
        key_data: Array,
        state_leaves: list[Any],
        obs: Any,
        logged: Any,
        recurrent: Any,
    ) -> tuple[list[Array], Any, Array]:
        policy_extras = PyTreeDict(carry=())
        if recurrent is not None:
            carry, columns, starts = recurrent
            mine = jax.tree.map(lambda leaf: leaf.at[columns].get(mode="clip"), carry)
            policy_extras = PyTreeDict(carry=mine, episode_start=starts)
        batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))
        agent_state = jax.tree.unflatten(state_treedef, state_leaves)
        key = jax.random.fold_in(unrolled(jax.random.wrap_key_data(key_data, impl=self._key_impl)), counter)
        if logged is not None and self._explores:
            actions, extras = logged, self.agent.extras_of_logged(agent_state, batch, logged, key)
        else:
            actions, extras = self._action_fn(agent_state, batch, key)
            actions = actions if logged is None else logged
        extras = PyTreeDict(extras)
        next_carry = extras.pop("carry", ())
        carry = ()
        if recurrent is not None:
            extras = extras.replace(next_carry=next_carry, episode_start=starts)
            carry = jax.tree.map(lambda leaf, new: leaf.at[columns].set(new, mode="drop"), recurrent[0], next_carry)
        packing = Packing.of((actions, extras))
        packings[logged is not None] = packing.first(jax.tree.structure(actions)), packing
        return packing.pack((actions, extras)), carry, counter + jnp.uint32(1)


def on_one_device(tree: Any) -> Any:
    """Return replicated arrays as those of the first device, on which agents act."""

    def take(leaf: Any) -> Any:
        return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 else leaf

    return jax.tree.map(take, tree)
