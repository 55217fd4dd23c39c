"""Policies by name: agents that act in batches, compiled, and keep their memory from step to step."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError, unknown_name
from rookery.runners.acting.packing import Packing
from rookery.runners.acting.unrolled_threefry import unrolled
from rookery.runners.recording.fragments import PolicyOutput
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict

PolicyID = str
DEFAULT_POLICY: PolicyID = "default"


class Actor:
    """One agent with its present state, compiled to act in some lanes at a time.

    Numbers of rows are rounded up to powers of two, so that few programs serve all of them.
    """

    def __init__(self, agent: Agent, key: Key, explore: bool = True) -> None:
        self.agent = agent
        self.is_recurrent = bool(jax.tree.leaves(agent.initial_carry((1,))))
        self.carry: Any = ()
        self.num_calls = 0
        """How often it has acted: the random numbers of a call depend on it."""
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
        """Of the actions alone, and of the actions with the extras; by whether the actions are logged."""

    def set_state(self, agent_state: AgentState) -> None:
        """Act with these parameters from now on."""
        self._state_leaves, self._state_treedef = jax.tree.flatten(agent_state)
        if self._state_treedef not in self._programs:
            packings: dict[bool, tuple[Packing, Packing]] = {}
            self._programs[self._state_treedef] = jax.jit(partial(self._act, self._state_treedef, packings)), packings
        self._program, self._packings = self._programs[self._state_treedef]

    def count_from(self, num_calls: int) -> None:
        """Go on as if it had acted so often."""
        self.num_calls = num_calls
        self._counter = jnp.asarray(num_calls & 0xFFFFFFFF, jnp.uint32)

    def reserve(self, num_lanes: int) -> None:
        """Make room for the memories of so many lanes; those that are there keep theirs."""
        self.carry = self.with_lanes(self.carry, num_lanes)

    def with_lanes(self, carry: Any, num_lanes: int) -> Any:
        """Return memories for so many lanes: those that are given, then new ones; `()` if there is none."""
        if not self.is_recurrent:
            return ()
        fresh = self.agent.initial_carry((num_lanes,))
        if not jax.tree.leaves(carry):
            return fresh
        return jax.tree.map(lambda old, new: jnp.concatenate([old, new[len(old) :]]), carry, fresh)

    def act(
        self, obs: Any, num_rows: int, lanes: np.ndarray | None, starts: np.ndarray | None, logged: Any = None
    ) -> PolicyOutput:
        """Act on observations `[N, ...]` of these lanes (None: of all); `starts` is 1 where an episode begins.

        An agent without memory needs no `starts`. With `logged` these actions were taken already, and the agent says
        what it thinks of them.
        """
        if self._state_leaves is None:
            raise InvalidInputError("a policy has no parameters yet: call set_agent_states before sampling.")
        padding = 0 if lanes is None else (1 << (num_rows - 1).bit_length()) - num_rows
        if padding:
            obs, logged = jax.tree.map(
                lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], padding, axis=0)]), (obs, logged)
            )
        memory = self._memory(num_rows, padding, lanes, starts) if self.is_recurrent else None
        self.num_calls += 1
        packed, carry, self._counter = self._program(
            self._counter, self._key_data, self._state_leaves, obs, logged, memory
        )
        if self.is_recurrent:
            self.carry = carry
        arrays = list(map(np.asarray, packed))
        if padding:
            arrays = [array[:num_rows] for array in arrays]
        action_packing, packing = self._packings[logged is not None]
        return PolicyOutput(action_packing.unpack(arrays), arrays, packing)

    def _memory(self, num_rows: int, padding: int, lanes: np.ndarray | None, starts: np.ndarray | None) -> Any:
        """What the agent remembers, which rows are whose, and where memory is to be cleared."""
        num_lanes = len(jax.tree.leaves(self.carry)[0])
        indexes = np.full(num_rows + padding, num_lanes, np.int32)  # rows that only fill up belong to no lane
        indexes[:num_rows] = np.arange(num_rows) if lanes is None else lanes
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
        memory: Any,
    ) -> tuple[list[Array], Any, Array]:
        policy_extras = PyTreeDict(carry=())
        if memory is not None:
            carry, lanes, starts = memory
            mine = jax.tree.map(lambda leaf: leaf.at[lanes].get(mode="clip"), carry)
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
        if memory is not None:
            extras = extras.replace(next_carry=next_carry, episode_start=starts)
            carry = jax.tree.map(lambda leaf, new: leaf.at[lanes].set(new, mode="drop"), memory[0], next_carry)
        packing = Packing.of((actions, extras))
        packings[logged is not None] = packing.first(jax.tree.structure(actions)), packing
        return packing.pack((actions, extras)), carry, counter + jnp.uint32(1)


class PolicyMap:
    """The policies of a runner. One that was removed acts on for the episodes that use it; new ones do not get it."""

    def __init__(self, agents: Mapping[PolicyID, Agent], key: Key, explore: bool) -> None:
        if not agents:
            raise InvalidInputError("a runner needs at least one policy: {'default': agent}.")
        self._key = key
        self._explore = explore
        self._num_made = 0
        self._actors: dict[PolicyID, Actor] = {}
        self._removed: dict[PolicyID, Actor] = {}
        for policy, agent in agents.items():
            self.add(policy, agent)

    def add(self, policy: PolicyID, agent: Agent, agent_state: AgentState | None = None) -> None:
        """Add a policy for new episodes."""
        if policy in self._actors or policy in self._removed:
            raise InvalidInputError(f"there is a policy {policy!r} already, or still in use: choose another name.")
        actor = Actor(agent, jax.random.fold_in(self._key, self._num_made), self._explore)
        self._num_made += 1
        if agent_state is not None:
            actor.set_state(agent_state)
        self._actors[policy] = actor

    def remove(self, policy: PolicyID) -> None:
        """Give no new episode to a policy."""
        self._removed[policy] = self._actors.pop(self._known(policy))
        if not self._actors:
            self._actors[policy] = self._removed.pop(policy)
            raise InvalidInputError(f"{policy!r} is the only policy: add another before removing it.")

    def forget_unused(self, used: set[PolicyID]) -> list[PolicyID]:
        """Let go of the removed policies that no episode uses; return their names."""
        gone = [policy for policy in self._removed if policy not in used]
        for policy in gone:
            del self._removed[policy]
        return gone

    def set_states(self, agent_states: Mapping[PolicyID, AgentState]) -> None:
        """Give some policies the parameters to act with."""
        for policy, agent_state in agent_states.items():
            self[policy].set_state(agent_state)

    def check_may_begin(self, policy: PolicyID, used: Collection[PolicyID]) -> None:
        """Raise unless an agent may begin with this policy, in an episode in which others are used already."""
        if policy not in self._removed or policy not in used:
            self._known(policy)

    def __getitem__(self, policy: PolicyID) -> Actor:
        return self._removed[policy] if policy in self._removed else self._actors[self._known(policy)]

    def __iter__(self) -> Iterator[PolicyID]:
        """The policies that new episodes may get."""
        return iter(self._actors)

    def __len__(self) -> int:
        return len(self._actors)

    def _known(self, policy: PolicyID) -> PolicyID:
        if policy not in self._actors:
            raise unknown_name("policy", str(policy), self._actors)
        return policy


def on_one_device(tree: Any) -> Any:
    """Return replicated arrays as those of the first device, on which agents act."""

    def take(leaf: Any) -> Any:
        return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 else leaf

    return jax.tree.map(take, tree)
