"""Training several policies in the same host environments: one on-policy method, once for each of them.

The policies meet in the environments only. Each has parameters, an optimizer and random numbers of its own, and learns
from the rows of its agents as if there was nobody else.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rookery.agent import Agent
from rookery.distributed.collectives import sum_over_devices
from rookery.learning.counter import Counter
from rookery.runners.acting.policy_map import PolicyID
from rookery.types import Array, Key, PyTreeData, PyTreeDict, where_tree
from rookery.workflows.collecting import CollectingWorkflow, num_steps_of
from rookery.workflows.config import Settings
from rookery.workflows.host import HostSource, experience_specs
from rookery.workflows.multi_policy_envs import JointExperience, MultiPolicyEnvs
from rookery.workflows.multi_policy_evaluator import MultiPolicyEvaluateMetric, MultiPolicyEvaluator
from rookery.workflows.programs import SAME, SPLIT

if TYPE_CHECKING:
    from rookery.workflows.on_policy import OnPolicyState, OnPolicyWorkflow


class MultiPolicyState(PyTreeData):
    """The state of the method for each policy; they count the same iterations and env steps."""

    eval_key: Key
    policies: PyTreeDict
    source_state: Any

    @property
    def agent_state(self) -> PyTreeDict:
        """What each policy acts with."""
        return PyTreeDict({policy: state.agent_state for policy, state in self.policies.items()})

    @property
    def key(self) -> Key:
        return self._first.key

    @property
    def iterations(self) -> Counter:
        return self._first.iterations

    @property
    def env_steps(self) -> Counter:
        return self._first.env_steps

    @property
    def _first(self) -> "OnPolicyState":
        return next(iter(self.policies.values()))


class MultiPolicyWorkflow(CollectingWorkflow):
    """Trains a policy for each kind of agent by one on-policy method; `env.policies` says which agents share one."""

    host: MultiPolicyEnvs
    source: dict[PolicyID, HostSource]

    def __init__(
        self, method: type["OnPolicyWorkflow"], settings: Settings, num_devices: int, enable_jit: bool
    ) -> None:
        self.method = method
        self.agent_name = method.agent_name  # type: ignore[misc]
        super().__init__(settings, num_devices, enable_jit)

    def make_agent(self) -> Agent:
        return self.method.agent_class(config=self.config.network, normalize_obs=self.config.normalize_obs)

    def prepare(self) -> None:
        config = self.config
        self.host = host = MultiPolicyEnvs(self.settings.train, self.agent, config.num_envs, config.rollout_length)
        self.source = {
            policy: host.make_source(policy, host.num_lanes(policy) // self.num_devices) for policy in host.policies
        }
        self.learners = {
            policy: make_learner(self.method, self.settings, source, self.num_devices, self.enable_jit)
            for policy, source in self.source.items()
        }

    def setup(self, key: Key) -> MultiPolicyState:
        eval_key, *keys = jax.random.split(key, 1 + len(self.learners))
        states = {
            policy: learner.setup(key) for (policy, learner), key in zip(self.learners.items(), keys, strict=True)
        }
        return MultiPolicyState(eval_key=eval_key, policies=PyTreeDict(states), source_state=())

    def state_specs(self) -> Any:
        specs = {policy: learner.state_specs() for policy, learner in self.learners.items()}
        return MultiPolicyState(eval_key=SAME, policies=PyTreeDict(specs), source_state=SPLIT)  # type: ignore[arg-type]

    def experience_specs(self) -> Any:
        experiences = PyTreeDict({policy: experience_specs() for policy in self.learners})
        return JointExperience(experiences=experiences, metrics=SAME, env_steps=SAME)  # type: ignore[arg-type]

    def iterate(self, state: MultiPolicyState) -> tuple[PyTreeDict, MultiPolicyState]:
        joint: JointExperience = state.source_state
        metrics, states = PyTreeDict(sum_over_devices(joint.metrics)), PyTreeDict()
        for policy, learner in self.learners.items():
            before = state.policies[policy]
            experience = joint.experiences[policy]
            told, after = learner.iterate(before.replace(source_state=experience))
            # Without a single row the gradient is 0, but by its momentum an optimizer would go on.
            is_there = num_steps_of(experience.trajectory) > 0
            states[policy] = where_tree(is_there, after, before).replace(
                key=after.key, iterations=after.iterations, env_steps=before.env_steps.add(joint.env_steps)
            )
            told = where_tree(is_there, told, jax.tree.map(jnp.zeros_like, told))
            metrics |= {f"{policy}/{name}": mean for name, mean in told.items()}
        return metrics, state.replace(policies=states, source_state=())

    def acting_state(self, state: MultiPolicyState) -> PyTreeDict:
        return PyTreeDict(
            {policy: learner.acting_state(state.policies[policy]) for policy, learner in self.learners.items()}
        )

    def update_counters(self, state: MultiPolicyState) -> dict[str, Counter]:
        return {f"{policy}/train/n_updates": of_policy.num_updates for policy, of_policy in state.policies.items()}

    def make_host_evaluator(self, host: MultiPolicyEnvs) -> MultiPolicyEvaluator:
        return MultiPolicyEvaluator(self.settings.train, self.agent, self.config.num_envs, host.policy_of)

    def describe_episodes(self, episodes: MultiPolicyEvaluateMetric, prefix: str) -> dict[str, Array]:
        returns_by_policy = episodes.policy_returns.items()
        by_policy = {f"{policy}/{prefix}mean_reward": jnp.mean(returns) for policy, returns in returns_by_policy}
        return super().describe_episodes(episodes, prefix) | by_policy


def make_learner(
    method: type["OnPolicyWorkflow"], settings: Settings, source: HostSource, num_devices: int, enable_jit: bool
) -> "OnPolicyWorkflow":
    """Build the workflow of one policy: it learns from what it is given, and neither collects nor evaluates."""

    class Learner(method):  # type: ignore[valid-type, misc]
        def prepare(self) -> None:
            self.source = source

        def start_source(self, key: Key) -> Any:
            return ()

        def make_training_programs(self, iterate: Any, specs: Any) -> tuple[None, None]:
            return None, None

        def _make_evaluator(self) -> None:
            return None

    of_lanes = replace(settings.method, num_envs=source.num_envs * num_devices)
    without_records = replace(settings.train, recorders=(), run_dir=None)
    return Learner(replace(settings, method=of_lanes, train=without_records), num_devices, enable_jit)
