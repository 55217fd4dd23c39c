"""Measures of episodes: read from text, taken at every step, reduced over the episode."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.envs import Env, EnvState, EpisodeWrapper
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.evaluators import PopulationEvaluator
from rookery.evaluators.measures import Measure
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Space
from rookery.types import Array, Key, PyTreeDict

LENGTH = 4


class Ladder(Env):
    """Counts its steps, pays the action, tells the square of the count; ends after four steps."""

    @property
    def obs_space(self) -> Space:
        return Box(0.0, np.inf, (2,))

    @property
    def action_space(self) -> Space:
        return Box(-np.inf, np.inf, (1,))

    def reset(self, key: Key) -> EnvState:
        return self._state(jnp.zeros(()), jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self._state(env_state.env_state + 1.0, action[0])

    @staticmethod
    def _state(count: Array, reward: Array) -> EnvState:
        info = PyTreeDict(metrics=PyTreeDict(square=count**2))
        obs = jnp.stack([count, -count])
        done = (count >= LENGTH).astype(jnp.float32)
        return EnvState(env_state=count, obs=obs, reward=reward, done=done, info=info)


def act(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    return agent_state.params * jnp.ones_like(sample_batch.obs[..., :1]), PyTreeDict()


def play(*measures: str) -> Any:
    evaluator = PopulationEvaluator(
        env=EpisodeWrapper(Ladder(), None),
        agent_fn=act,
        max_episode_steps=10,
        num_lanes=2,
        measures=tuple(Measure.parse(text) for text in measures),
    )
    return evaluator.play(AgentState(params=jnp.array([2.0, 3.0, 5.0])), jax.random.key(0), num_episodes=2)


def test_measures_are_summed_averaged_or_taken_from_the_last_step() -> None:
    episodes = play("sum:reward", "mean:action.0", "last:obs.1", "mean:obs.0", "sum:metrics.square")
    assert episodes.measures.shape == (3, 2, 5)
    for agent, pay in enumerate([2.0, 3.0, 5.0]):
        np.testing.assert_allclose(episodes.measures[agent, 0], [LENGTH * pay, pay, -4.0, 2.5, 1.0 + 4.0 + 9.0 + 16.0])
        np.testing.assert_array_equal(episodes.measures[agent, 0], episodes.measures[agent, 1])


def test_the_sum_of_rewards_is_the_return() -> None:
    episodes = play("sum:reward")
    np.testing.assert_array_equal(episodes.measures[..., 0], episodes.episode_returns)


@pytest.mark.parametrize("text", ["reward", "max:reward", "sum:", "last:obs[0]", "sum:obs.-1", "sum: reward"])
def test_what_is_no_measure_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError, match="like sum:reward"):
        Measure.parse(text)


def test_a_measure_that_the_environment_does_not_have_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"metrics\.squares"):
        play("sum:metrics.squares")


@pytest.mark.parametrize(("text", "message"), [("last:obs", "2 numbers: choose one"), ("last:obs.2", "2 numbers")])
def test_a_measure_is_one_number(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        play(text)
