"""The learner: a method, independent of the source of its experience and of the training loop."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

from rookery.agent import Agent, AgentState
from rookery.distributed import SAME, check_divides
from rookery.hyperparameters import Hyperparameters
from rookery.learning.counter import Counter
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Mean
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, PyTree, PyTreeData, PyTreeNode, pytree_field

Metrics = dict[str, Mean]


class LearnerState(PyTreeData):
    """Agent state, hyper-parameters and counters of a learner; subclasses add optimizer states and buffers."""

    inherited: ClassVar[tuple[str, ...]] = ("agent_state", "hyperparameters")
    """The fields that a member of a population takes over from another: no buffers and no counters."""

    agent_state: AgentState
    hyperparameters: Hyperparameters
    iterations: Counter
    env_steps: Counter
    num_updates: Counter

    @classmethod
    def first(cls, agent_state: AgentState, hyperparameters: Hyperparameters, **own: PyTree) -> Self:
        """Make the state before any learning; `own` are the fields that a subclass adds."""
        return cls(
            agent_state=agent_state,
            hyperparameters=jax.tree.map(jnp.float32, hyperparameters),
            iterations=Counter.zero(),
            env_steps=Counter.zero(),
            num_updates=Counter.zero(),
            **own,
        )

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> Self:
        """Return the state with other hyper-parameters."""
        return self.replace(hyperparameters=hyperparameters)

    def with_agent(self, agent_state: AgentState) -> Self:
        """Return the first state with another agent; optimizers start fresh."""
        return self.replace(agent_state=agent_state)

    @property
    def lacks_replay(self) -> bool:
        """Whether this state comes from a checkpoint without its replay buffer."""
        return False

    def without_replay(self) -> Self:
        """Return the state without its replay buffer, for smaller checkpoints."""
        return self


class LearnerConfig(Protocol):
    """The fields that every learner's config has; `num_envs` counts the environments of all devices."""

    @property
    def num_envs(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...


StateT = TypeVar("StateT", bound=PyTreeData)
ExperienceT = TypeVar("ExperienceT", Experience, JointExperience)


class Learner(PyTreeNode, ABC, Generic[StateT, ExperienceT]):
    """A method: how it starts and how it learns from experience.

    An on-policy method defines `OnPolicyLearner.update`, an off-policy method `ReplayLearner.learn_batch`.

    A learner works on one seed and on one device's share of the environments. It uses no environment, file or clock, so
    it can be vmapped over states, contained in another learner, and used with any source of experience.
    """

    agent_class: ClassVar[type[Agent]]
    max_staleness: ClassVar[int | None] = 1
    """How many versions the parameters that acted may lag behind those that learn; None: any number."""
    needs_log_prob: ClassVar[bool] = False
    """Whether learning needs the log-probability with which an action was chosen."""
    has_replay: ClassVar[bool] = False
    """Whether experience is stored in a replay buffer."""

    agent: Agent
    config: LearnerConfig = pytree_field(static=True)

    @abstractmethod
    def init(
        self,
        obs_space: Space,
        action_space: Space,
        hyperparameters: Hyperparameters,
        key: Key,
        trajectory: SampleBatch | None = None,
    ) -> StateT:
        """Make the first state for an agent with these spaces.

        `trajectory` has the shapes of the trajectories to come, if the spaces do not imply them: other dtypes, or rows
        that do not count.
        """

    def with_agent(self, state: StateT, agent_state: AgentState) -> StateT:
        """Return the first state with another agent, or with other agents by policy."""
        return state.with_agent(agent_state)  # type: ignore[attr-defined]

    @abstractmethod
    def learn(self, state: StateT, experience: ExperienceT, key: Key) -> tuple[Metrics, StateT]:
        """Learn from experience and count it. `key` is the same on all devices."""

    def acting_state(self, state: StateT) -> AgentState:
        """Return the state that acts; it may lag behind the one that learns."""
        return state.agent_state  # type: ignore[attr-defined]

    def specs(self, state: StateT) -> StateT:
        """Return `SAME` or `SPLIT` for each leaf of a state: whether it is split over the devices."""
        return jax.tree.map(lambda _: SAME, state)

    def check(self, num_devices: int) -> None:
        """Raise if the sizes of the config do not divide over the devices."""
        check_divides("agent.num_envs", self.config.num_envs, num_devices)

    @property
    def warmup_steps(self) -> int:
        """The number of env steps to store before the first update."""
        return 0

    def warmup_agent(self, obs_space: Space, action_space: Space) -> Agent:
        """Return the agent that takes the warm-up steps."""
        return self.agent

    def store(self, state: StateT, experience: ExperienceT) -> StateT:
        """Store experience without learning from it. A learner without a replay buffer does nothing."""
        return state

    def restarted(self, state: StateT, is_due: Array) -> StateT:
        """Return the state for environments that restart if `is_due`, without what depends on the old ones."""
        return state

    def counters(self, state: StateT) -> dict[str, Counter]:
        """Return counters by the name of their metric."""
        return {"train/n_updates": state.num_updates}  # type: ignore[attr-defined]
