"""Experience from environments on the device, collected inside the training program."""

from rookery.agent import Agent, AgentState, Carry
from rookery.envs import EnvState, VectorWrapper
from rookery.learning.experience import Experience
from rookery.metrics import Mean
from rookery.rollout.single_agent import recurrent_rollout
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Action, Key, PyTreeData, PyTreeDict, PyTreeNode, pytree_field

TRAINING_FIELDS = ("termination", "truncation", "autoreset", "ori_obs", "steps", "episode_return")
"""The entries of `info` that training uses."""


class RolloutState(PyTreeData):
    """State of the environments and carry of the agent; all leaves start with axis `[B]`."""

    env_state: EnvState
    carry: Carry


class RolloutSource(PyTreeNode):
    """Collects trajectories of `rollout_length` steps from `env`; each continues the previous one.

    The caller holds the state between two calls of `collect`.
    """

    env: VectorWrapper = pytree_field(static=True)
    agent: Agent
    rollout_length: int = pytree_field(static=True)

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @property
    def obs_space(self) -> Space:
        return self.env.obs_space

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    def init(self, keys: Key) -> RolloutState:
        """Reset all environments, with one key each."""
        return RolloutState(env_state=self.env.reset(keys), carry=self.agent.initial_carry(self.env.batch_shape))

    def collect(self, agent_state: AgentState, state: RolloutState, key: Key) -> tuple[Experience, RolloutState]:
        """Collect the next trajectory.

        For a recurrent agent, `policy_extras.next_carry` is the carry after each step. It is needed for the value of
        a successor that is not a row of the trajectory.
        """
        trajectory, env_state, carry = recurrent_rollout(
            self.env.step,
            self._act,
            state.env_state,
            agent_state,
            state.carry,
            key,
            self.rollout_length,
            env_extra_fields=TRAINING_FIELDS,
        )
        ended, info = trajectory.dones, trajectory.extras.env_extras
        metrics = episode_metrics(Mean.where(ended, info.episode_return), Mean.where(ended, info.steps))
        experience = Experience(trajectory=trajectory, first_carry=state.carry, metrics=metrics)
        return experience, RolloutState(env_state=env_state, carry=carry)

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Action, PyTreeDict]:
        actions, policy_extras = self.agent.compute_actions(agent_state, sample_batch, key)
        if "carry" in policy_extras:
            policy_extras = policy_extras.replace(next_carry=policy_extras.carry)
        return actions, policy_extras


def episode_metrics(returns: Mean, lengths: Mean) -> dict[str, Mean]:
    """Name the metrics of ended episodes."""
    return {"rollout/ep_rew_mean": returns, "rollout/ep_len_mean": lengths}
