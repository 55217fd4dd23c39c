"""Several policies in the same environments: one learner for each."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.distributed.collectives import sum_over_devices
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState, Metrics
from rookery.learning.counter import Counter
from rookery.learning.experience import JointExperience, num_env_steps
from rookery.sample_batch import SampleBatch
from rookery.spaces import Dict, Space
from rookery.types import Key, PyTreeData, PyTreeDict, where_tree


class PoliciesState(PyTreeData):
    """The learner state of each policy; all have the same iterations and env steps."""

    policies: PyTreeDict

    @property
    def agent_state(self) -> PyTreeDict:
        """The agent state of each policy."""
        return PyTreeDict({policy: state.agent_state for policy, state in self.policies.items()})

    @property
    def hyperparameters(self) -> PyTreeDict:
        """The hyper-parameters of each policy."""
        return PyTreeDict({policy: state.hyperparameters for policy, state in self.policies.items()})

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> "PoliciesState":
        """Return the state with other hyper-parameters for all policies."""
        states = {policy: own.with_hyperparameters(hyperparameters) for policy, own in self.policies.items()}
        return PoliciesState(policies=PyTreeDict(states))

    def with_agent(self, agent_states: Mapping[str, AgentState]) -> "PoliciesState":
        """Return the first state with other agents for some policies."""
        changed = {policy: self.policies[policy].with_agent(agent) for policy, agent in agent_states.items()}
        return PoliciesState(policies=PyTreeDict({**self.policies, **changed}))

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

    Each policy has its own parameters and optimizer, and learns only from the rows of its agents. Spaces are `Dict`
    spaces by policy.
    """

    learners: PyTreeDict
    """The learner of each policy; its `num_envs` counts the agents with that policy in all environments."""

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
            for policy, policy_key in self._keys(key)
        }
        return PoliciesState(policies=PyTreeDict(states))

    def learn(self, state: PoliciesState, experience: JointExperience, key: Key) -> tuple[Metrics, PoliciesState]:
        metrics, states = dict(sum_over_devices(experience.metrics)), PyTreeDict()
        for policy, policy_key in self._keys(key):
            before, own = state.policies[policy], experience.experiences[policy]
            new_metrics, after = self.learners[policy].learn(before, own, policy_key)
            # Without rows the gradient is 0, but the momentum of the optimizer would still move the parameters.
            has_rows = num_env_steps(own.trajectory) > 0
            states[policy] = where_tree(has_rows, after, before).replace(
                iterations=after.iterations, env_steps=before.env_steps.add(experience.env_steps)
            )
            new_metrics = where_tree(has_rows, new_metrics, jax.tree.map(jnp.zeros_like, new_metrics))
            metrics |= {f"{policy}/{name}": mean for name, mean in new_metrics.items()}
        return metrics, PoliciesState(policies=states)

    def acting_state(self, state: PoliciesState) -> PyTreeDict:  # type: ignore[override]
        """Return the state that acts for each policy."""
        states = {policy: learner.acting_state(state.policies[policy]) for policy, learner in self.learners.items()}
        return PyTreeDict(states)

    def specs(self, state: PoliciesState) -> PoliciesState:
        specs = {policy: learner.specs(state.policies[policy]) for policy, learner in self.learners.items()}
        return PoliciesState(policies=PyTreeDict(specs))

    def check(self, num_devices: int) -> None:
        for learner in self.learners.values():
            learner.check(num_devices)

    def counters(self, state: PoliciesState) -> dict[str, Counter]:
        return {f"{policy}/train/n_updates": own.num_updates for policy, own in state.policies.items()}

    def _keys(self, key: Key) -> Iterator[tuple[str, Key]]:
        """Return a key for each policy, independent of the order in which policies are declared."""
        return zip(sorted(self.learners), jax.random.split(key, len(self.learners)), strict=True)
