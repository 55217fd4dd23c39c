"""The actor: one agent that acts in batches, compiled, and keeps its recurrent state from step to step.

The action in a column does not depend on the other columns of the batch: random numbers follow from the column and its
own number of acts, and the program is batch-invariant. So environments may act whenever they are ready.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.compilation import batch_invariant_options
from rookery.errors import InvalidInputError
from rookery.runners.acting.packing import Packing
from rookery.runners.acting.unrolled_threefry import unrolled
from rookery.runners.recording.fragments import PolicyOutput
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict

MIN_ROWS = 8
"""Batches of some columns have at least this number of rows, so that few programs are compiled."""
BLOCK = 24
"""The program fills batches up to a multiple of 24 rows, unless there is one column only. XLA computes the products of
8 rows at a time, or of 24 on a CPU with AVX2 alone, and the rows of a remainder may differ in the last bit."""
NO_COLUMN = np.iinfo(np.int32).max
"""The column of rows that fill up a batch."""
ANSWERS = 2**32 - 1
"""Derives the keys of `Actor.answer` from that of the actor."""


class Logged(NamedTuple):
    """Actions that simulators chose themselves, and their log-probabilities, NaN where they gave none."""

    actions: Any
    log_prob: Any


class Actor:
    """One agent with its state, compiled to act in some columns at a time.

    The number of rows is rounded up to a power of two, so that few programs are compiled. Of some `others` that explore
    alike, it shares the programs of one with the same agent.
    """

    def __init__(self, agent: Agent, key: Key, explore: bool = True, others: Iterable["Actor"] = ()) -> None:
        self.agent = agent
        self.is_recurrent = bool(jax.tree.leaves(agent.initial_carry((1,))))
        self.carry: Any = ()
        self._num_acts = jnp.zeros(0, jnp.uint32)
        """The number of acts in each column so far."""
        self._key_data = jax.random.key_data(key)
        self._key_impl = jax.random.key_impl(key)
        self._state_leaves: list[Any] | None = None
        self._state_treedef: Any = None
        self._programs: dict[Any, Any] = next((other._programs for other in others if other.agent is agent), {})
        self._program: Any = None
        self._explores = explore
        self._num_answers = 0
        self.version = 0
        """The number of the state that acts."""
        self._packings: dict[bool, tuple[Packing, Packing]] = {}
        """The packing of the actions, and of actions with extras; by whether the actions are logged."""

    def set_state(self, agent_state: AgentState, version: int = 0) -> None:
        """Act with this state from now on; `version` is its number."""
        self.version = version
        self._state_leaves, self._state_treedef = jax.tree.flatten(agent_state)
        if self._state_treedef not in self._programs:
            packings: dict[bool, tuple[Packing, Packing]] = {}
            program = jax.jit(
                partial(self._act, self._state_treedef, packings), compiler_options=batch_invariant_options() or None
            )
            self._programs[self._state_treedef] = program, packings
        self._program, self._packings = self._programs[self._state_treedef]

    @property
    def num_acts(self) -> np.ndarray:
        """The number of acts in each column, on which random numbers depend."""
        return np.asarray(self._num_acts)

    def count_from(self, num_acts: np.ndarray) -> None:
        """Continue the random numbers of each column after this number of acts."""
        num_columns = len(self._num_acts)
        self._num_acts = jnp.asarray(num_acts, jnp.uint32)
        self.reserve(num_columns)

    def begin(self, num_columns: int) -> None:
        """Begin with `num_columns` columns, without acts and recurrent states."""
        self.carry, self._num_acts = (), jnp.zeros(0, jnp.uint32)
        self.reserve(num_columns)

    def reserve(self, num_columns: int) -> None:
        """Make room for `num_columns` columns; existing recurrent states and counts are kept."""
        self.carry = self.with_columns(self.carry, num_columns)
        if (num_missing := num_columns - len(self._num_acts)) > 0:
            self._num_acts = jnp.pad(self._num_acts, (0, num_missing))

    def with_columns(self, carry: Any, num_columns: int) -> Any:
        """Return recurrent states of `num_columns` columns: the given ones, then initial ones; `()` without any."""
        if not self.is_recurrent:
            return ()
        fresh = self.agent.initial_carry((num_columns,))
        if not jax.tree.leaves(carry):
            return fresh
        return jax.tree.map(lambda old, new: jnp.concatenate([old, new[len(old) :]]), carry, fresh)

    def prepare(self, obs: Any, num_rows: int) -> None:
        """Compile what acts on such observations of all columns; counts and recurrent states stay."""
        num_acts, carry = self._num_acts, self.carry
        self.act(obs, num_rows, None, np.ones(num_rows, bool))
        self._num_acts, self.carry = num_acts, carry

    def act(
        self,
        obs: Any,
        num_rows: int,
        columns: np.ndarray | None,
        starts: np.ndarray | None,
        logged: Logged | None = None,
    ) -> PolicyOutput:
        """Act on observations `[N, ...]` of these columns (None: of all); `starts` is True where an episode begins.

        An agent without recurrent state needs no `starts`. `logged` actions were taken already: the agent computes
        their extras.
        """
        if self._state_leaves is None:
            raise InvalidInputError("a policy has no state yet: call set_agent_states before sampling.")
        padding = 0
        if columns is not None and len(self._num_acts) > 1:
            padding = _num_missing(num_rows)
        if padding:
            obs, logged = _padded((obs, logged), padding)
        indexes = None
        if columns is not None:
            indexes = np.full(num_rows + padding, NO_COLUMN, np.int32)
            indexes[:num_rows] = columns
        recurrent = None
        if self.is_recurrent:
            flags = np.zeros(num_rows + padding, np.float32)
            flags[:num_rows] = starts
            recurrent = self.carry, flags
        packed, carry, self._num_acts = self._program(
            self._num_acts, self._key_data, self._state_leaves, indexes, obs, logged, recurrent
        )
        if self.is_recurrent:
            self.carry = carry
        arrays = list(map(np.asarray, packed))
        if padding:
            arrays = [array[:num_rows] for array in arrays]
        action_packing, packing = self._packings[logged is not None]
        return PolicyOutput(action_packing.unpack(arrays), arrays, packing)

    def answer(self, obs: Any, num_rows: int, carry: Any, starts: np.ndarray, explore: bool) -> tuple[Any, Any]:
        """Act on observations `[N, ...]` of episodes without a column; return the actions and the next carry.

        The recurrent states `[N, ...]` are passed in; `()` without any.
        """
        name = self._state_treedef, explore
        if name not in self._programs:
            program = jax.jit(partial(self._answer, *name), compiler_options=batch_invariant_options() or None)
            self._programs[name] = program
        inputs = _padded((obs, carry, starts), _num_missing(num_rows))
        self._num_answers += 1
        outputs = self._programs[name](self._key_data, np.uint32(self._num_answers), self._state_leaves, *inputs)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:num_rows], outputs)

    def _act(
        self,
        state_treedef: Any,
        packings: dict[bool, tuple[Packing, Packing]],
        num_acts: Array,
        key_data: Array,
        state_leaves: list[Any],
        columns: Array | None,
        obs: Any,
        logged: Any,
        recurrent: Any,
    ) -> tuple[list[Array], Any, Array]:
        agent_state = jax.tree.unflatten(state_treedef, state_leaves)
        num_rows = len(jax.tree.leaves(obs)[0])
        index = slice(num_rows) if columns is None else columns
        key = unrolled(jax.random.wrap_key_data(key_data, impl=self._key_impl))
        policy_extras, carry = PyTreeDict(carry=()), ()
        if recurrent is not None:
            carry, starts = recurrent
            mine = jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), carry)
            policy_extras = PyTreeDict(carry=mine, episode_start=starts)

        def act_in_one(column: Array, count: Array, obs: Any, logged: Any, policy_extras: PyTreeDict) -> Any:
            """Act in one column, in a batch of one."""
            act_key = jax.random.fold_in(jax.random.fold_in(key, column), count)
            obs, logged, policy_extras = jax.tree.map(lambda leaf: leaf[None], (obs, logged, policy_extras))
            batch = _batch_of(obs, policy_extras)
            if logged is not None and self._explores:
                extras = self.agent.extras_of_logged(agent_state, batch, logged.actions, act_key, logged.log_prob)
                outputs = logged.actions, extras
            else:
                actions, extras = self._action_fn(self._explores)(agent_state, batch, act_key)
                outputs = actions if logged is None else logged.actions, extras
            return jax.tree.map(lambda leaf: leaf[0], outputs)

        columns = jnp.arange(num_rows) if columns is None else columns
        counts = num_acts.at[index].get(mode="clip")
        actions, extras = _over_rows(act_in_one, num_rows, (columns, counts, obs, logged, policy_extras))
        extras = PyTreeDict(extras)
        next_carry = extras.pop("carry", ())
        if recurrent is not None:
            extras = extras.replace(next_carry=next_carry, episode_start=starts)
            carry = jax.tree.map(lambda leaf, new: leaf.at[index].set(new, mode="drop"), carry, next_carry)
        packing = Packing.of((actions, extras))
        packings[logged is not None] = packing.first(jax.tree.structure(actions)), packing
        return packing.pack((actions, extras)), carry, num_acts.at[index].set(counts + jnp.uint32(1), mode="drop")

    def _answer(
        self,
        state_treedef: Any,
        explore: bool,
        key_data: Array,
        count: Array,
        state_leaves: list[Any],
        obs: Any,
        carry: Any,
        starts: Array,
    ) -> tuple[Any, Any]:
        agent_state = jax.tree.unflatten(state_treedef, state_leaves)
        key = unrolled(jax.random.wrap_key_data(key_data, impl=self._key_impl))
        key = jax.random.fold_in(jax.random.fold_in(key, ANSWERS), count)

        def answer_one(row: Array, *inputs: Any) -> Any:
            obs, carry, start = jax.tree.map(lambda leaf: leaf[None], inputs)
            policy_extras = PyTreeDict(carry=carry)
            if self.is_recurrent:
                policy_extras = policy_extras.replace(episode_start=start)
            act_key = jax.random.fold_in(key, row)
            actions, extras = self._action_fn(explore)(agent_state, _batch_of(obs, policy_extras), act_key)
            return jax.tree.map(lambda leaf: leaf[0], (actions, extras.get("carry", ())))

        num_rows = len(starts)
        actions, next_carry = _over_rows(answer_one, num_rows, (jnp.arange(num_rows), obs, carry, starts))
        return actions, next_carry

    def _action_fn(self, explore: bool) -> Any:
        return self.agent.compute_actions if explore else self.agent.evaluate_actions


def _batch_of(obs: Any, policy_extras: PyTreeDict) -> SampleBatch:
    return SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))


def _num_missing(num_rows: int) -> int:
    """Return how many rows fill up a batch to a size for which there is a program."""
    return max(MIN_ROWS, 1 << (num_rows - 1).bit_length()) - num_rows


def _padded(rows: Any, num_missing: int) -> Any:
    """Repeat the first row, to fill up a batch."""
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], num_missing, axis=0)]), rows)


def _over_rows(act_in_one: Callable[..., Any], num_rows: int, rows: Any) -> Any:
    """Act in all rows at once, each in a batch of one; the result for a row does not depend on the others."""
    num_padded = -num_rows % BLOCK if num_rows > 1 else 0
    rows = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, num_padded)] + [(0, 0)] * (leaf.ndim - 1), mode="edge"), rows)
    return jax.tree.map(lambda leaf: leaf[:num_rows], jax.vmap(act_in_one)(*rows))


def on_one_device(tree: Any) -> Any:
    """Return replicated arrays as those of the first device, on which agents act."""

    def take(leaf: Any) -> Any:
        return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 else leaf

    return jax.tree.map(take, tree)
