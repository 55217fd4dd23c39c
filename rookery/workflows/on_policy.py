"""On-policy training: collect a trajectory with the present policy, learn from it, throw it away."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.configuration import field_names
from rookery.distributed import DEVICE_AXIS
from rookery.distributed.collectives import key_of_this_device, mean_over_devices, sum_over_devices
from rookery.errors import check_count
from rookery.hyperparameters import Hyperparameters, Scalar, values_at
from rookery.learning import reward_scaling
from rookery.learning.counter import Counter
from rookery.learning.minibatches import pack
from rookery.learning.reward_scaling import RewardScaling
from rookery.learning.updates import Optimizer, OptimizerState, gradients_in_chunks
from rookery.metrics import Mean
from rookery.networks import ActorCriticConfig
from rookery.rollout import Experience
from rookery.types import Array, Key, PyTreeData, PyTreeDict, Tree, where_tree
from rookery.workflows.collecting import CollectingWorkflow, blank_dead_rows, num_steps_of, starts_anew, weights_of
from rookery.workflows.config import Settings
from rookery.workflows.multi_policy import MultiPolicyWorkflow
from rookery.workflows.programs import SAME, SPLIT
from rookery.workflows.workflow import WorkflowState


@dataclass(frozen=True)
class OnPolicyConfig:
    """The shapes that on-policy methods have in common; `num_envs` is over all devices."""

    num_envs: int = 64
    rollout_length: int = 128
    normalize_obs: bool = False
    normalize_rewards: bool = False
    optimizer: str = "adam"
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        check_count("num_envs", self.num_envs)
        check_count("rollout_length", self.rollout_length)
        Optimizer(self.optimizer)


class OnPolicyHyperparameters(Hyperparameters):
    """The numbers that on-policy methods have in common; `max_grad_norm=None` does not clip."""

    RANGES: ClassVar = {
        "learning_rate": (0.0, float("inf")),
        "discount": (0.0, 1.0),
        "entropy_coefficient": (0.0, float("inf")),
        "value_coefficient": (0.0, float("inf")),
        "max_grad_norm": (1e-9, float("inf")),
    }

    learning_rate: Scalar = 3e-4
    discount: Scalar = 0.99
    entropy_coefficient: Scalar = 0.0
    value_coefficient: Scalar = 0.5
    max_grad_norm: Scalar | None = 0.5


LossFn = Callable[[AgentState, Any], tuple[Array, dict[str, Array]]]
"""Given the agent's state and samples, returns the loss and what to report beside it."""


class Learner(PyTreeData):
    """What gradient steps change."""

    agent_state: AgentState
    optimizer_state: OptimizerState
    num_updates: Counter


class OnPolicyState(WorkflowState):
    """What an on-policy workflow carries from one iteration to the next."""

    optimizer_state: OptimizerState
    source_state: Any
    reward_scaling: RewardScaling | None
    actor_state: AgentState | None
    """What acts, where that may be older than what learns."""


class OnPolicyWorkflow(CollectingWorkflow):
    """Collects and calls the method's `update`.

    Statistics of observations are updated after the losses have used them, so the policy that is improved is the one
    that acted.
    """

    @classmethod
    def build_for_several_agents(cls, settings: Settings, num_devices: int, enable_jit: bool) -> MultiPolicyWorkflow:
        return MultiPolicyWorkflow(cls, settings, num_devices, enable_jit)

    @property
    def actor_lag(self) -> int:
        """How many iterations the same parameters act; a method that corrects for it may say more than one."""
        return 1

    @abstractmethod
    def update(
        self, learner: Learner, experience: Experience, hyperparameters: Any, key: Key
    ) -> tuple[dict[str, Mean], Learner]:
        """Learn from experience: the method itself."""

    def acting_state(self, state: OnPolicyState) -> AgentState:
        return state.actor_state or state.agent_state

    def setup(self, key: Key) -> OnPolicyState:
        key, eval_key, agent_key, env_key = jax.random.split(key, 4)
        source = self.source
        agent_state = self.agent.init(source.obs_space, source.action_space, agent_key)
        return OnPolicyState.first(
            key,
            eval_key,
            agent_state,
            self.settings.hyperparameters,
            optimizer_state=self.optimizer.init(agent_state.params),
            source_state=self.start_source(env_key),
            reward_scaling=reward_scaling.init(source.num_envs) if self.config.normalize_rewards else None,
            actor_state=agent_state if self.actor_lag > 1 else None,
        )

    def state_specs(self) -> Any:
        specs: dict[str, Any] = dict.fromkeys(field_names(OnPolicyState), SAME) | {"source_state": SPLIT}
        if self.config.normalize_rewards:
            specs["reward_scaling"] = jax.tree.map_with_path(
                lambda path, _: SPLIT if jax.tree_util.keystr(path) == ".returns" else SAME, reward_scaling.init(1)
            )
        return OnPolicyState(**specs)

    def iterate(self, state: OnPolicyState) -> tuple[PyTreeDict, OnPolicyState]:
        key, collect_key, update_key = jax.random.split(state.key, 3)
        hyperparameters: Any = values_at(state.hyperparameters, state.env_steps.as_float())
        experience, source_state = self.source.collect(
            self.acting_state(state), state.source_state, key_of_this_device(collect_key)
        )
        trajectory, weights = blank_dead_rows(experience.trajectory), weights_of(experience.trajectory)
        experience = experience.replace(trajectory=trajectory)

        scaling = state.reward_scaling
        if scaling is not None:
            anew = starts_anew(trajectory)
            if anew is not None:
                scaling = scaling.replace(returns=jnp.where(anew, 0.0, scaling.returns))
            rewards, scaling = reward_scaling.scale(
                scaling, trajectory.rewards, trajectory.dones, hyperparameters.discount, weights, DEVICE_AXIS
            )
            experience = experience.replace(trajectory=trajectory.replace(rewards=rewards))

        learner = Learner(
            agent_state=state.agent_state, optimizer_state=state.optimizer_state, num_updates=state.num_updates
        )
        metrics, learner = self.update(learner, experience, hyperparameters, key_of_this_device(update_key))
        agent_state = self.agent.update_obs_statistics(learner.agent_state, trajectory.obs, weights, DEVICE_AXIS)
        iterations = state.iterations.add(1)
        actor_state = state.actor_state
        if actor_state is not None:
            actor_state = where_tree(iterations.low % self.actor_lag == 0, agent_state, actor_state)
        state = state.replace(
            key=key,
            agent_state=agent_state,
            optimizer_state=learner.optimizer_state,
            num_updates=learner.num_updates,
            iterations=iterations,
            env_steps=state.env_steps.add(num_steps_of(trajectory)),
            source_state=source_state,
            reward_scaling=scaling,
            actor_state=actor_state,
        )
        return PyTreeDict(metrics | sum_over_devices(experience.metrics)), state

    def gradient_step(
        self, learner: Learner, loss_fn: LossFn, samples: Any, hyperparameters: Any, num_chunks: int = 1
    ) -> tuple[dict[str, Array], Learner]:
        """Take one step down the gradient of `loss_fn(agent_state, samples)`; return what the loss reports beside it.

        A loss that is a mean over samples `[N]` may be computed in chunks.
        """

        def loss_of(params: Any, samples: Any) -> tuple[Array, dict[str, Array]]:
            return loss_fn(learner.agent_state.replace(params=params), samples)

        gradients, report = mean_over_devices(
            gradients_in_chunks(loss_of, learner.agent_state.params, samples, num_chunks)
        )
        params, optimizer_state, norm = self.optimizer.step(
            gradients,
            learner.optimizer_state,
            learner.agent_state.params,
            hyperparameters.learning_rate,
            hyperparameters.max_grad_norm,
        )
        agent_state = learner.agent_state.replace(params=params)
        return report | {"train/grad_norm": norm}, learner.replace(
            agent_state=agent_state, optimizer_state=optimizer_state, num_updates=learner.num_updates.add(1)
        )


def take_envs(samples: Tree, carry: Carry, indexes: Array) -> tuple[Tree, Carry]:
    """Take some environments of a trajectory `[T, B]`, with the memory `[B]` that each starts from."""
    return jax.tree.map(lambda leaf: leaf[:, indexes], samples), jax.tree.map(lambda leaf: leaf[indexes], carry)


def takeable(samples: Tree, carry: Carry) -> tuple[int, Callable[[Array], tuple[Tree, Carry]]]:
    """Return how many things of a trajectory `[T, B]` can be shuffled, and the function that takes some by index.

    For an agent with a memory these are the sequences of the environments, each with the memory it starts from; else
    every step by itself.
    """
    num_steps, num_envs = jax.tree.leaves(samples)[0].shape[:2]
    if jax.tree.leaves(carry):
        return num_envs, lambda indexes: take_envs(samples, carry, indexes)
    packed = pack(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples))  # [T, B] -> [N]
    return num_steps * num_envs, lambda indexes: (packed.take(indexes), ())
