"""Training on Ray: the numbers of as many runners in this process, and runs that survive the death of runners."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.evaluators.evaluation_player import EvaluationPlayer
from rookery.runners.envs.own import name_own_env
from tests.ray.kills import commanded_env, put_runners_here, train, train_with_kills
from tests.ray_envs import MaskedEnv, give_command

PPO = ["agent=ppo", "agent.num_envs=8", "agent.rollout_length=16", "agent.network.hidden_sizes=[16]"]
SAC = ["agent=sac", "env=gymnasium/Pendulum-v1", "agent.num_envs=4", "agent.rollout_length=8", "agent.warmup_steps=64"]
EVOLUTION = [
    "env=gymnasium/CartPole-v1",
    "env.episode_length=20",
    "agent.population_size=8",
    "agent.num_lanes=2",
    "agent.network.hidden_sizes=[8]",
    "total_timesteps=400",
]
EQUAL = {
    "normalized observations and rewards": [
        *PPO,
        "env=gymnasium/CartPole-v1",
        "agent.normalize_obs=true",
        "agent.normalize_rewards=true",
        "total_timesteps=1024",
    ],
    "recurrent, with dicts and masks": [
        *PPO,
        f"env={name_own_env(MaskedEnv)}",
        "agent.network.core=gru",
        "total_timesteps=512",
    ],
    "replay with warm-up": [*SAC, "agent.network.hidden_sizes=[16]", "total_timesteps=160"],
    "two policies": [
        *PPO,
        "env=pettingzoo/mpe2.simple_speaker_listener_v4",
        "env.policies=per_agent",
        "total_timesteps=512",
    ],
    "individuals by recipe": ["agent=openes", *EVOLUTION, "agent.normalize_obs=true"],
    "individuals that are sent": ["agent=nsga2", *EVOLUTION],
    "individuals of an archive": [
        "agent=map_elites",
        *EVOLUTION,
        "agent.cells=[4]",
        "agent.descriptors=[last:obs.0]",
        "agent.low=[-1]",
        "agent.high=[1]",
    ],
    "steps of individuals": [
        "agent=erl",
        "agent.gradient=dqn",
        "agent.warmup_steps=40",
        "agent.learner.network.hidden_sizes=[8]",
        *(option for option in EVOLUTION if "network" not in option),
    ],
}


@pytest.mark.parametrize("overrides", EQUAL.values(), ids=EQUAL.keys())
def test_runners_on_ray_train_to_the_numbers_of_as_many_runners_here(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as during:
        during.delattr(EvaluationPlayer, "play")  # runners play the evaluations, too
        on_ray, agent_on_ray = train([*overrides, "num_env_runners=2"])
    put_runners_here(monkeypatch)
    here, agent_here = train([*overrides, "num_env_runners=2"])
    jax.tree.map(np.testing.assert_array_equal, agent_on_ray, agent_here)
    of_runners = {name for name in on_ray[-1] if name.startswith("runners/")} | {"rollout/steps_queued"}
    assert [{name: value for name, value in record.items() if name not in of_runners} for record in on_ray] == here
    assert (on_ray[-1]["runners/ready"], on_ray[-1]["faults/total"]) == (2, 0)
    assert on_ray[-1]["eval/mean_ep_length"] > 0


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_runners_are_killed_at_random_and_no_step_is_lost_doubled_or_seeded_twice(
    max_staleness: int, tmp_path: Path
) -> None:
    train_with_kills(max_staleness, num_kills=2, seed=7, folder=tmp_path)


def test_a_generation_has_the_same_result_if_a_runner_is_killed_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overrides = [
        "agent=openes",
        *EVOLUTION[1:],
        f"env={name_own_env(commanded_env(tmp_path))}",
        "num_env_runners=2",
        "record_interval=1",
    ]
    num_records = 0

    def kill_in_the_next_generation(event: Any) -> None:
        nonlocal num_records
        num_records += 1
        if num_records == 2:
            give_command(tmp_path, "kill")

    killed, agent_with_kill = train(overrides, kill_in_the_next_generation)
    put_runners_here(monkeypatch)  # which are not killed
    undisturbed, agent_without = train(overrides)
    assert killed[-1]["runners/restarts"] == killed[-1]["runners/chunks_lost"] == killed[-1]["faults/killed"] == 1
    jax.tree.map(np.testing.assert_array_equal, agent_with_kill, agent_without)
    assert [record["rollout/ep_rew_mean"] for record in killed] == [
        record["rollout/ep_rew_mean"] for record in undisturbed
    ]
