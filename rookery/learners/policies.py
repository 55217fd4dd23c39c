"""Several policies in the same environments: one learner for each that is trained."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.distributed import SAME
from rookery.distributed.collectives import sum_over_devices
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState, Metrics
from rookery.learning.counter import Counter
from rookery.learning.experience import JointExperience, num_env_steps
from rookery.sample_batch import SampleBatch
from rookery.spaces import Dict, Space
from rookery.types import Key, PyTreeData, PyTreeDict, pytree_field, where_tree

FROZEN = 1
"""Derives the key of frozen policies from that of the trained ones."""


@dataclass(frozen=True)
class Snapshots:
    """Copies a trained policy into a pool of frozen policies, every some iterations and in turn."""

    of: str
    into: tuple[str, ...]
    every: int


class PoliciesState(PyTreeData):
    """The learner state of each trained policy; all have the same iterations and env steps."""

    policies: PyTreeDict
    frozen: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    """The agent state of each policy that acts and is not trained."""

    @property
    def agent_state(self) -> PyTreeDict:
        """The agent state of each policy."""
        trained = {policy: state.agent_state for policy, state in self.policies.items()}
        return PyTreeDict({**trained, **self.frozen})

    @property
    def hyperparameters(self) -> PyTreeDict:
        """The hyper-parameters of each trained policy."""
        return PyTreeDict({policy: state.hyperparameters for policy, state in self.policies.items()})

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> "PoliciesState":
        """Return the state with other hyper-parameters for all policies."""
        states = {policy: own.with_hyperparameters(hyperparameters) for policy, own in self.policies.items()}
        return self.replace(policies=PyTreeDict(states))

    def with_agent(self, agent_states: Mapping[str, AgentState]) -> "PoliciesState":
        """Return the first state with other agents for some policies."""
        frozen = {policy: agent for policy, agent in agent_states.items() if policy in self.frozen}
        trained = {
            policy: self.policies[policy].with_agent(agent)
            for policy, agent in agent_states.items()
            if policy not in frozen
        }
        return PoliciesState(
            policies=PyTreeDict({**self.policies, **trained}), frozen=PyTreeDict({**self.frozen, **frozen})
        )

    @property
    def num_updates(self) -> Counter:
        return self._first.num_updates

    @property
    def iterations(self) -> Counter:
        return self._first.iterations

    @property
    def env_steps(self) -> Counter:
        return self._first.env_steps

    @property
    def lacks_replay(self) -> bool:
        return False

    def without_replay(self) -> "PoliciesState":
        return self

    @property
    def _first(self) -> LearnerState:
        return next(iter(self.policies.values()))


class PolicyLearners(Learner[PoliciesState, JointExperience]):
    """Trains several policies by one method.

    Each policy has its own parameters and optimizer, and learns only from the rows of its agents. Frozen policies only
    act. Spaces are `Dict` spaces by policy.
    """

    learners: PyTreeDict
    """The learner of each trained policy; its `num_envs` counts the agents that may have it in all environments."""
    frozen: tuple[str, ...] = pytree_field(static=True, default=())
    snapshots: Snapshots | None = pytree_field(static=True, default=None)

    def init(
        self,
        obs_space: Space,
        action_space: Space,
        hyperparameters: Hyperparameters,
        key: Key,
        trajectory: SampleBatch | None = None,
    ) -> PoliciesState:
        assert isinstance(obs_space, Dict), "spaces are given by policy"
        assert isinstance(action_space, Dict), "spaces are given by policy"
        states = {
            policy: self.learners[policy].init(obs_space[policy], action_space[policy], hyperparameters, policy_key)
            for policy, policy_key in _keys(self.learners, key)
        }
        frozen = {
            policy: self.agent.init(obs_space[policy], action_space[policy], policy_key)
            for policy, policy_key in _keys(self.frozen, jax.random.fold_in(key, FROZEN))
        }
        return self._with_full_pool(PoliciesState(policies=PyTreeDict(states), frozen=PyTreeDict(frozen)))

    def with_agent(self, state: PoliciesState, agent_state: AgentState) -> PoliciesState:
        """Return the first state with other agents for some policies; a pool begins with its policy."""
        return self._with_full_pool(state.with_agent(agent_state)).with_agent(agent_state)  # type: ignore[arg-type]

    def learn(self, state: PoliciesState, experience: JointExperience, key: Key) -> tuple[Metrics, PoliciesState]:
        metrics, states = dict(sum_over_devices(experience.metrics)), PyTreeDict()
        for policy, policy_key in _keys(self.learners, key):
            before, own = state.policies[policy], experience.experiences[policy]
            new_metrics, after = self.learners[policy].learn(before, own, policy_key)
            # Without rows the gradient is 0, but the momentum of the optimizer would still move the parameters.
            has_rows = num_env_steps(own.trajectory) > 0
            states[policy] = where_tree(has_rows, after, before).replace(
                iterations=after.iterations, env_steps=before.env_steps.add(experience.env_steps)
            )
            new_metrics = where_tree(has_rows, new_metrics, jax.tree.map(jnp.zeros_like, new_metrics))
            metrics |= {f"{policy}/{name}": mean for name, mean in new_metrics.items()}
        return metrics, self._with_snapshot(state.replace(policies=states))

    def acting_state(self, state: PoliciesState) -> PyTreeDict:  # type: ignore[override]
        """Return the state that acts for each policy."""
        states = {policy: learner.acting_state(state.policies[policy]) for policy, learner in self.learners.items()}
        return PyTreeDict({**states, **state.frozen})

    def specs(self, state: PoliciesState) -> PoliciesState:
        specs = {policy: learner.specs(state.policies[policy]) for policy, learner in self.learners.items()}
        return PoliciesState(policies=PyTreeDict(specs), frozen=jax.tree.map(lambda _: SAME, state.frozen))

    def check(self, num_devices: int) -> None:
        for learner in self.learners.values():
            learner.check(num_devices)

    def counters(self, state: PoliciesState) -> dict[str, Counter]:
        return {f"{policy}/train/n_updates": own.num_updates for policy, own in state.policies.items()}

    def _with_full_pool(self, state: PoliciesState) -> PoliciesState:
        """Return the first state with a pool of copies of the policy that it takes snapshots of."""
        if self.snapshots is None:
            return state
        source = state.policies[self.snapshots.of].agent_state
        copies = {member: jax.tree.map(jnp.copy, source) for member in self.snapshots.into}
        return state.replace(frozen=PyTreeDict({**state.frozen, **copies}))

    def _with_snapshot(self, state: PoliciesState) -> PoliciesState:
        """Copy the policy into the next member of the pool, if a snapshot is due after this iteration."""
        if self.snapshots is None:
            return state
        pool, num_iterations = self.snapshots.into, state.iterations.low
        num_snapshots, rest = num_iterations // self.snapshots.every, num_iterations % self.snapshots.every
        source, frozen = state.policies[self.snapshots.of].agent_state, PyTreeDict(state.frozen)
        for index, member in enumerate(pool):
            is_next = (rest == 0) & ((num_snapshots - 1) % len(pool) == index)
            frozen[member] = where_tree(is_next, source, frozen[member])
        return state.replace(frozen=frozen)


def _keys(policies: Collection[str], key: Key) -> Iterator[tuple[str, Key]]:
    """Return a key for each policy, independent of the order in which policies are declared."""
    return zip(sorted(policies), jax.random.split(key, len(policies)), strict=True)
