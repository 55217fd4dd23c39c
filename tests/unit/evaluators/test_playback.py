"""Episodes to watch: whole, greedy, drawn from the first state to the last."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import Agent, AgentState, Carry
from rookery.envs import AutoresetMode, Env, EnvState, Wrapper, create_env, make_env, wrap_env
from rookery.errors import InvalidInputError
from rookery.evaluators import Evaluator
from rookery.evaluators.playback import PlayedEpisode, RenderError, play_episodes
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Key, PyTreeDict, pytree_field


class FunctionAgent(Agent):
    """Acts by a function, and only in evaluation; with a memory if it is given a first one."""

    action_fn: Callable = pytree_field(static=True)
    first_memory: float | None = pytree_field(static=True, default=None)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState()

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        raise AssertionError("an episode to watch is played without exploration")

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.action_fn(agent_state, sample_batch, key)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return () if self.first_memory is None else jnp.full(batch_shape, self.first_memory)


class Drawn(Wrapper):
    """Draws an env as one pixel whose brightness is the last number of its observation."""

    def render(self, env_state: EnvState) -> np.ndarray:
        return np.full((1, 1, 3), np.asarray(env_state.obs).ravel()[-1], np.uint8)


def zero_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
    return jnp.zeros(sample_batch.obs.shape[:1], jnp.int32), PyTreeDict()


def play(env: Env, agent: Agent, *args: Any, **kwargs: Any) -> list[PlayedEpisode]:
    return play_episodes(env, agent.evaluate_actions, agent.initial_carry, *args, **kwargs)


@pytest.fixture
def agent() -> FunctionAgent:
    return FunctionAgent(action_fn=zero_action_fn)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("parallel", [1, 3])
def test_an_episode_is_drawn_from_its_first_state_to_its_last(
    agent: FunctionAgent, mode: AutoresetMode, parallel: int
) -> None:
    env = wrap_env(Drawn(make_env("probe/counter", terminates_after=4)), parallel=parallel, autoreset_mode=mode)
    (episode,) = play(env, agent, AgentState(), jax.random.key(0), max_steps=9)
    assert [int(frame[0, 0, 0]) for frame in episode.frames()] == [0, 1, 2, 3, 4]
    assert episode.length == 4
    assert episode.episode_return == 1 + 2 + 3 + 4


def test_an_episode_stops_at_the_number_of_steps_asked_for(agent: FunctionAgent) -> None:
    env = wrap_env(Drawn(make_env("probe/counter")), episode_length=50)
    (episode,) = play(env, agent, AgentState(), jax.random.key(0), max_steps=3)
    assert len(list(episode.frames())) == 4
    assert episode.episode_return == 1 + 2 + 3


def test_several_episodes_start_differently_and_the_same_key_gives_the_same(
    agent: FunctionAgent, start_reward: Env
) -> None:
    env = wrap_env(Drawn(start_reward))
    plays = [play(env, agent, AgentState(), jax.random.key(1), 9, num_episodes=4) for _ in range(2)]
    first, second = ([episode.episode_return for episode in play] for play in plays)
    assert first == second
    assert len(set(first)) == 4
    assert [episode.length for episode in plays[0]] == [1 + int(start) % 5 for start in first]


def test_a_recurrent_agent_remembers_within_an_episode_and_not_beyond(cue_agent: Callable) -> None:
    env = wrap_env(Drawn(make_env("probe/memory", delay=3)))
    agent = FunctionAgent(action_fn=cue_agent, first_memory=0.0)
    episodes = play(env, agent, AgentState(), jax.random.key(2), max_steps=9, num_episodes=6)
    assert [episode.episode_return for episode in episodes] == [1.0] * 6


def test_what_is_watched_is_what_an_evaluation_counts(agent: FunctionAgent) -> None:
    env = create_env("classic/cartpole", autoreset_mode=AutoresetMode.DISABLED)
    episodes = play(env, agent, AgentState(), jax.random.key(3), max_steps=500, num_episodes=20)
    evaluator = Evaluator(env=env, agent_fn=agent.evaluate_actions, max_episode_steps=500)
    metrics = evaluator.evaluate(AgentState(), jax.random.key(4), num_episodes=20)
    # Pushing to the left alone ends within 8 to 11 steps.
    assert abs(np.mean([episode.length for episode in episodes]) - np.mean(metrics.episode_lengths)) < 1.0
    frames = list(episodes[0].frames())
    assert all(frame.dtype == np.uint8 and frame.shape == (400, 600, 3) for frame in frames)
    assert len({frame.tobytes() for frame in frames}) == len(frames)


def test_an_env_that_cannot_be_drawn_is_refused_before_it_is_played(watch: Callable, agent: FunctionAgent) -> None:
    watched = watch(make_env("probe/counter"))
    with pytest.raises(RenderError, match="CounterEnv cannot be rendered"):
        play(wrap_env(watched, episode_length=5), agent, AgentState(), jax.random.key(0), max_steps=3)
    assert watched.steps.num_calls == 0


def test_an_env_that_fails_to_be_drawn_says_why(agent: FunctionAgent) -> None:
    class Displayless(Wrapper):
        def render(self, env_state: EnvState) -> np.ndarray:
            raise OSError("no display")

    env = wrap_env(Displayless(make_env("probe/counter")), episode_length=5)
    with pytest.raises(RenderError, match=r"CounterEnv cannot be rendered.*no display"):
        play(env, agent, AgentState(), jax.random.key(0), max_steps=3)


def test_what_cannot_be_played_is_refused(agent: FunctionAgent) -> None:
    for env in (make_env("classic/cartpole"), create_env("probe/multi_agent_counter", episode_length=5)):
        with pytest.raises(InvalidInputError, match="vectorized environment with one agent"):
            play(env, agent, AgentState(), jax.random.key(0), max_steps=3)
    with pytest.raises(InvalidInputError, match="max_steps=0"):
        play(create_env("classic/cartpole"), agent, AgentState(), jax.random.key(0), max_steps=0)
