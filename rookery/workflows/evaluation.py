"""Evaluation of trained policies, and the device evaluator that trainings use as well."""

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from rookery.agent import Agent
from rookery.configuration import from_mapping, plain
from rookery.envs import AutoresetMode, MultiAgentEnv, VectorWrapper, create_env
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, check_count
from rookery.evaluators import EvaluateMetric, Evaluator
from rookery.evaluators.evaluation_player import MAX_EPISODE_STEPS
from rookery.evaluators.host import HostEvaluator
from rookery.policy import Policy
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv
from rookery.runners.host_envs import check_one_host, make_envs, num_evaluation_envs
from rookery.types import Key, PyTreeDict
from rookery.workflows.config import DEVICE_EPISODES, EvaluationConfig, SnapshotConfig
from rookery.workflows.policies import Spaces, assign_policies, differing_spaces
from rookery.workflows.training import AgentEvaluator

Team = Mapping[PolicyID, Policy]
"""Trained policies by name."""


class TeamEvaluator:
    """Plays greedy episodes with trained policies, in any environment whose spaces are theirs.

    One policy acts for all agents of an environment. Of several, `env.policies` assigns one to each agent, or draws one
    for each episode; `pool_sizes` has the number of snapshots of each policy that consists of some.

    On the device, `num_envs` episodes are played at a time. On the host, at most `num_envs` environments are made, and
    no more than `num_episodes` need. Close it in the end.
    """

    def __init__(
        self,
        env: EnvConfig,
        team: Team,
        num_envs: int,
        num_episodes: int,
        pool_sizes: Mapping[PolicyID, int] = MappingProxyType({}),
    ) -> None:
        self._evaluator: AgentEvaluator
        self._has_several_agents = False
        agents = {name: policy.agent for name, policy in team.items()}
        first_agent = next(iter(agents.values()))
        if not env.is_on_host:
            self._evaluator = evaluator = make_device_evaluator(env, first_agent, num_envs)
            spaces = evaluator.env.obs_space, evaluator.env.action_space
            self._assignment = _assigned(env, team, {SINGLE_AGENT: spaces}, {})
            return
        with close_on_error() as opened:
            envs = make_evaluation_envs(env, num_envs, num_episodes)
            opened.callback(envs.close)
            self._assignment = _assigned(env, team, envs.spaces, pool_sizes)
            self._has_several_agents = envs.is_multi_agent
            if envs.is_multi_agent:
                self._evaluator = HostEvaluator(env, agents, num_envs, self._assignment, opened=envs)
            else:
                self._evaluator = HostEvaluator(env, first_agent, num_envs, opened=envs)

    def evaluate(self, team: Team, key: Key, num_episodes: int) -> EvaluateMetric:
        """Play `num_episodes` episodes with the given team or one of the same structure, such as another seed."""
        return self._evaluator.evaluate(self._states(team), key, num_episodes)

    def frames(self, team: Team, key: Key, max_steps: int | None = None) -> Iterator[np.ndarray]:
        """Play and render one episode, or its first `max_steps` steps; raise `RenderError` if that fails."""
        return self._evaluator.frames(self._states(team), key, max_steps or self._evaluator.max_episode_steps)

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._evaluator.close()

    def _states(self, team: Team) -> Any:
        states = PyTreeDict({policy: team[policy].agent_state for policy in self._assignment.name_of})
        return states if self._has_several_agents else next(iter(states.values()))


def num_envs_of(config: Mapping[str, Any], env: EnvConfig) -> int:
    """Return how many environments evaluate a run with this config: on the host, as many as its training had."""
    if not env.is_on_host:
        return (
            from_mapping(EvaluationConfig, config.get("evaluation", {}), "evaluation").num_episodes or DEVICE_EPISODES
        )
    agent = plain(config.get("agent", {}), "agent")
    if "num_envs" in agent:
        check_count("agent.num_envs", agent["num_envs"])
        return agent["num_envs"]
    for key in ("num_lanes", "population_size", "num_episodes"):
        check_count(f"agent.{key}", agent.get(key))
    return min(agent["num_lanes"], agent["population_size"] * agent["num_episodes"])


def pool_sizes_of(config: Mapping[str, Any]) -> dict[PolicyID, int]:
    """Return the number of snapshots of each policy of a run with this config that consists of some."""
    return from_mapping(SnapshotConfig, config.get("snapshot", {}), "snapshot").pool_sizes


def make_device_evaluator(env: EnvConfig, agent: Agent, num_envs: int) -> Evaluator:
    """Make the evaluator of an agent for a device environment."""
    device_env = make_env(env, num_envs, AutoresetMode.DISABLED)
    if device_env.max_episode_steps is None:
        raise InvalidInputError(f"{env.name} has no time limit of its own: set env.episode_length.")
    if isinstance(device_env.unwrapped, MultiAgentEnv):
        raise InvalidInputError(f"{env.name} has several agents, which is possible on the host only.")
    return Evaluator(
        env=device_env,
        agent_fn=agent.evaluate_actions,
        initial_carry_fn=agent.initial_carry,
        max_episode_steps=device_env.max_episode_steps,
    )


def make_env(env: EnvConfig, num_envs: int, autoreset_mode: AutoresetMode) -> VectorWrapper:
    """Make the configured device environment, vectorized."""
    return create_env(
        env.name,
        episode_length=env.episode_length,
        parallel=num_envs,
        autoreset_mode=autoreset_mode,
        record_ori_obs=True,
        **env.kwargs,
    )


def make_evaluation_envs(env: EnvConfig, num_envs: int, num_episodes: int) -> BaseEnv:
    """Make the host environments of an evaluation of `num_episodes` episodes, at most `num_envs`."""
    check_one_host(env)
    if env.is_external:
        raise InvalidInputError(
            f"{env.name} begins its episodes itself, so none can be played to evaluate a policy: evaluate on another "
            "environment with the same spaces, open_run(path, env=...), or let the simulator ask run.policy."
        )
    num_envs = num_evaluation_envs(env, num_envs, num_episodes)
    return make_envs(env, num_envs, is_evaluation=True, longest_episode=MAX_EPISODE_STEPS)


@contextlib.contextmanager
def close_on_error() -> Iterator[contextlib.ExitStack]:
    """Yield a stack whose callbacks are called if the block raises."""
    with contextlib.ExitStack() as stack:
        yield stack
        stack.pop_all()


def _assigned(
    env: EnvConfig, team: Team, spaces: Mapping[AgentID, Spaces], pool_sizes: Mapping[PolicyID, int]
) -> Assignment:
    """Return the policies of each agent; raise if they cannot act for it."""
    if len(team) == 1:
        assignment = Assignment.fixed(dict.fromkeys(spaces, next(iter(team))))
    elif set(spaces) == {SINGLE_AGENT}:
        raise InvalidInputError(f"{env.name} has one agent: choose one of the policies {', '.join(team)}.")
    else:
        assignment = assign_policies(env, spaces, pool_sizes)
    for policy, name in assignment.name_of.items():
        if policy not in team:
            raise InvalidInputError(
                f"{env.name} needs the policy {policy!r}, and there are {', '.join(team)}: assign them by env.policies."
            )
        for agent in assignment.agents_of(name):
            check_spaces(env, team[policy], spaces[agent])
    return assignment


def check_spaces(env: EnvConfig, policy: Policy, spaces: Spaces) -> None:
    """Raise if a policy cannot act in an environment with these spaces."""
    if differing := differing_spaces((policy.obs_space, policy.action_space), spaces):
        what, of_policy, of_env = differing
        raise InvalidInputError(
            f"the policy has {what} in {of_policy}, and {env.name} in {of_env}: take an environment with the same "
            "spaces."
        )
