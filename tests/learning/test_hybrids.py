"""Hybrids learn: the learner from the episodes of the population, and the population from the learner."""

from collections.abc import Callable
from typing import Any

import pytest

Train = Callable[..., Any]

SMALL = ("env.episode_length=10", "agent.num_episodes=4", "agent.learner.network.hidden_sizes=[32]", "num_seeds=1")
FAST = ("agent.learner.actor_learning_rate=3e-3", "agent.learner.critic_learning_rate=3e-3", "agent.update_ratio=0.5")


@pytest.mark.usefixtures("fast_programs")
def test_erl_swings_up_a_pendulum_within_a_few_generations(train: Train) -> None:
    trained = train("agent=erl", "env=classic/pendulum", "total_timesteps=11_000")
    assert trained.recorded("eval/rl_mean_reward").min() >= -300.0, trained.returns


@pytest.mark.parametrize("method", ["erl_es", "erl_eda"])
def test_the_learner_follows_the_cue_where_the_search_has_a_mean(train: Train, method: str) -> None:
    episodes = ["agent.learner_episodes=4", "total_timesteps=3_000", "agent.warmup_steps=500"]
    episodes += ["agent.learner_eval_episodes=4"]
    trained = train(f"agent={method}", "env=probe/continuous", *SMALL, *FAST, *episodes)
    assert trained.recorded("eval/rl_mean_reward").min() > -0.1


def test_with_discrete_actions_the_learner_and_the_population_follow_the_cue(train: Train) -> None:
    episodes = ["agent.learner_episodes=4", "total_timesteps=4_000", "agent.warmup_steps=500"]
    dqn = ["agent.gradient=dqn", "agent.learner.learning_rate=3e-3", "agent.learner.target_update_rate=0.05"]
    trained = train("agent=erl", "env=probe/cue_reward", *SMALL, *dqn, "agent.update_ratio=0.5", *episodes)
    assert trained.recorded("eval/rl_mean_reward").min() == 1.0
    assert trained.returns.min() == 1.0


@pytest.mark.parametrize("options", [(), ("agent.evolution=openes", "agent.gradient=sac")])
def test_individuals_that_climb_follow_the_cue(train: Train, options: tuple[str, ...]) -> None:
    climbing = ["total_timesteps=4_000", "agent.warmup_steps=800"]
    trained = train("agent=cem_rl", "env=probe/continuous", *SMALL, *FAST, *climbing, *options)
    assert trained.recorded("eval/rl_mean_reward").min() > -0.1
