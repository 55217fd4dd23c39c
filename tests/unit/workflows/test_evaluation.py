"""Trained policies play episodes without the training that made them."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.agents.policy import PolicyAgent
from rookery.api.teams import read_teams
from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.errors import InvalidInputError
from rookery.evaluators.host import MultiPolicyEvaluateMetric
from rookery.networks.policy import PolicyConfig
from rookery.policy import Policy
from rookery.registry import build_workflow
from rookery.runs.directory import RunDirectory
from rookery.spaces import Box, Discrete
from rookery.workflows.evaluation import Team, TeamEvaluator, num_envs_of

SPEAKERS = "pettingzoo/mpe2.simple_speaker_listener_v4"
SPREAD = "pettingzoo/mpe2.simple_spread_v3"


def trained(path: Path, env: dict[str, Any], **agent: Any) -> tuple[Team, Any]:
    """Train a little; return the team in the policy files, and an evaluation by the training itself."""
    settings = {"name": "a2c", "num_envs": 2, "rollout_length": 8, "network": {"hidden_sizes": [8]}} | agent
    config = {"agent": settings, "env": env, "total_timesteps": 32, "evaluation": {"num_episodes": 3}, "recorders": []}
    workflow = build_workflow(config | {"run_dir": str(path)})
    try:
        state = workflow.learn(workflow.init(workflow.make_key()))
        result = workflow.evaluator.evaluate(state.agent_state, jax.random.key(7), 5)
    finally:
        workflow.close()
    return read_teams(RunDirectory.open(path))[1][0], result


def evaluated(env: dict[str, Any], team: Team, num_envs: int) -> Any:
    evaluator = TeamEvaluator(EnvConfig(**env), team, num_envs, num_episodes=5)
    try:
        return evaluator.evaluate(team, jax.random.key(7), 5)
    finally:
        evaluator.close()


@pytest.mark.parametrize(
    ("env", "agent"),
    [
        ({"name": "classic/pendulum", "episode_length": 12}, {}),
        ({"name": "classic/cartpole"}, {"network": {"hidden_sizes": [8], "core": "gru"}}),
        ({"name": "gymnasium/CartPole-v1"}, {"network": {"hidden_sizes": [8], "core": "lstm"}}),
        ({"name": "gymnasium/CartPole-v1", "runner": {"processes": True}}, {}),
        ({"name": SPEAKERS, "episode_length": 6}, {}),
    ],
    ids=["device", "device-gru", "host-lstm", "processes", "policies"],
)
@pytest.mark.third_party
def test_policies_from_files_play_the_episodes_that_the_training_would_play(
    env: dict[str, Any], agent: dict[str, Any], tmp_path: Path
) -> None:
    team, expected = trained(tmp_path / "run", env, **agent)
    given = env | ({"runner": RunnerSettings(**env["runner"])} if "runner" in env else {})
    result = evaluated(given, team, num_envs=2 if "/mpe2" in env["name"] or "gymnasium" in env["name"] else 3)
    jax.tree.map(np.testing.assert_allclose, result, expected)


def untrained(seed: int, num_obs: int, num_actions: int, core: str | None = None) -> Policy:
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(8,), core=core))
    spaces = Box(-np.inf, np.inf, (num_obs,)), Discrete(num_actions)
    return Policy(agent, agent.init(*spaces, jax.random.key(seed)), *spaces)


@pytest.mark.third_party
def test_one_policy_acts_for_all_agents_of_an_environment() -> None:
    env = {"name": SPREAD, "episode_length": 6, "policies": "per_agent"}
    policy = untrained(0, num_obs=18, num_actions=5)
    result = evaluated(env, {"main": policy}, num_envs=2)
    assert list(result.policy_returns) == ["main"]
    expected = evaluated(env, {f"agent_{number}": policy for number in range(3)}, num_envs=2)
    np.testing.assert_allclose(result.episode_returns, expected.episode_returns, rtol=1e-5)


@pytest.mark.third_party
def test_policies_of_a_team_may_have_different_networks() -> None:
    env = {"name": SPEAKERS, "episode_length": 6}
    team = {"listener": untrained(0, 11, 5, core="gru"), "speaker": untrained(1, 3, 3)}
    result = evaluated(env, team, num_envs=2)
    assert isinstance(result, MultiPolicyEvaluateMetric)
    assert np.isfinite(result.episode_returns).all()
    assert (result.episode_lengths == 6).all()


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"name": "classic/cartpole"}, "classic/cartpole has one agent: choose one of the policies listener, speaker"),
        ({"name": SPREAD}, r"spread_v3 needs the policy 'shared', and there are listener, speaker: .*env\.policies"),
        (
            {"name": SPREAD, "policies": {"agent_0": "speaker", "*": "listener"}},
            r"the policy has observations in Box\(-inf, inf, \(3,\), float32\), and .*spread_v3 in Box\(.*\(18,\)",
        ),
    ],
    ids=["one agent", "names", "spaces"],
)
def test_a_team_that_does_not_fit_an_environment_is_refused(env: dict[str, Any], message: str) -> None:
    team = {"listener": untrained(0, 11, 5), "speaker": untrained(1, 3, 3)}
    with pytest.raises(InvalidInputError, match=message):
        TeamEvaluator(EnvConfig(**env), team, num_envs=2, num_episodes=5)


@pytest.mark.parametrize(
    ("agent", "env_name", "expected"),
    [
        ({"num_envs": 5}, "gymnasium/CartPole-v1", 5),
        ({"num_lanes": 16, "population_size": 4, "num_episodes": 2}, "gymnasium/CartPole-v1", 8),
        ({"num_envs": 5}, "classic/cartpole", 24),
    ],
)
def test_an_evaluation_has_as_many_environments_as_that_of_the_training(
    agent: dict[str, int], env_name: str, expected: int
) -> None:
    config = {"agent": agent, "evaluation": {"num_episodes": 24}}
    assert num_envs_of(config, EnvConfig(name=env_name)) == expected
