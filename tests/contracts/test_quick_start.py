"""The first program that a user writes, in all the forms in which they may write it."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

from rookery import RandomAgent
from rookery.envs import AutoresetMode, VectorWrapper, create_env, create_wrapped_brax_env
from rookery.evaluators import Evaluator
from rookery.rollout import rollout


def run(make: Callable[..., VectorWrapper], make_key: Callable[[int], Any], mode: AutoresetMode) -> tuple[float, float]:
    env = make(parallel=16, autoreset_mode=mode)
    agent = RandomAgent()
    rollout_key, env_key, agent_key, eval_key = jax.random.split(make_key(42), 4)
    env_state = env.reset(env_key)
    agent_state = agent.init(env.obs_space, env.action_space, agent_key)
    fields = ("termination", "truncation", "steps")
    trajectory, env_state = rollout(
        env.step,
        agent.compute_actions,
        env_state,
        agent_state,
        rollout_key,
        rollout_length=128,
        env_extra_fields=fields,
    )
    assert trajectory.obs.shape[:2] == trajectory.rewards.shape == (128, 16)
    assert set(trajectory.extras.env_extras) == set(fields)
    evaluator = Evaluator(env=env, agent_fn=agent.evaluate_actions, max_episode_steps=1000, discount=1.0)
    metrics = evaluator.evaluate(agent_state, eval_key, num_episodes=10)
    assert metrics.episode_returns.shape == metrics.episode_lengths.shape == (10,)
    return float(metrics.episode_returns.mean()), float(metrics.episode_lengths.mean())


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed key", "legacy key"])
def test_random_cart_poles_fall_after_a_few_dozen_steps_in_every_mode(make_key: Any, mode: AutoresetMode) -> None:
    mean_return, mean_length = run(lambda **kwargs: create_env("classic/cartpole", **kwargs), make_key, mode)
    assert mean_return == mean_length == pytest.approx(24.8)


@pytest.mark.third_party
def test_a_random_pole_of_brax_falls_after_a_few_steps() -> None:
    mean_return, mean_length = run(
        lambda **kwargs: create_wrapped_brax_env("inverted_pendulum", **kwargs), jax.random.key, AutoresetMode.NORMAL
    )
    assert 5 < mean_return == mean_length < 20
