"""The evaluator plays exactly the episodes it was asked for, each once and up to its first done."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.agent import AgentState, RandomAgent
from rookery.envs import AutoresetMode, Env, create_env, wrap_env
from rookery.errors import InvalidInputError
from rookery.evaluators import Evaluator
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, PyTreeDict

every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)


def zero_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    return jnp.zeros(sample_batch.obs.shape[:1], jnp.int32), PyTreeDict()


def assert_whole_and_different_episodes(metrics: Any, num_episodes: int) -> None:
    """Each return is the start of its episode, which also decides how long the episode must have been."""
    returns, lengths = np.asarray(metrics.episode_returns), np.asarray(metrics.episode_lengths)
    assert returns.shape == lengths.shape == (num_episodes,)
    assert (returns.dtype, lengths.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(lengths, 1 + returns.astype(int) % 5)
    assert len(set(returns)) == num_episodes


@every_mode
def test_every_episode_is_counted_once_and_up_to_its_first_done_in_every_mode(
    mode: AutoresetMode, start_reward: Env
) -> None:
    env = wrap_env(start_reward, parallel=4, autoreset_mode=mode)
    metrics = Evaluator(env=env, agent_fn=zero_action_fn, max_episode_steps=9).evaluate(
        AgentState(), jax.random.key(0), num_episodes=10
    )
    assert_whole_and_different_episodes(metrics, 10)


@pytest.mark.parametrize("num_episodes", [1, 4, 8])
def test_exactly_the_number_asked_for_is_played_whatever_the_number_of_envs(
    num_episodes: int, start_reward: Env
) -> None:
    evaluator = Evaluator(env=wrap_env(start_reward, parallel=4), agent_fn=zero_action_fn, max_episode_steps=9)
    metrics = evaluator.evaluate(AgentState(), jax.random.key(1), num_episodes)
    assert_whole_and_different_episodes(metrics, num_episodes)


@pytest.mark.parametrize("num_episodes", [16, 160])
def test_short_episodes_are_not_favored(num_episodes: int, start_reward: Env) -> None:
    evaluator = Evaluator(env=wrap_env(start_reward, parallel=64), agent_fn=zero_action_fn, max_episode_steps=9)
    metrics = evaluator.evaluate(AgentState(), jax.random.key(2), num_episodes)
    counts = np.bincount(metrics.episode_lengths, minlength=6)[1:]
    # The first sixteen of sixty-four to finish would nearly all be of length one.
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("terminates_after", "episode_length", "max_episode_steps", "expected_length", "discount"),
    [(4, None, 9, 4, 0.9), (None, 3, 9, 3, 1.0), (None, 6, 2, 2, 0.9), (4, 4, 4, 4, 1.0)],
)
def test_returns_are_discounted_and_episodes_cut_at_the_first_limit(
    terminates_after: int | None,
    episode_length: int | None,
    max_episode_steps: int,
    expected_length: int,
    discount: float,
) -> None:
    env = create_env("probe/counter", episode_length=episode_length, parallel=2, terminates_after=terminates_after)
    evaluator = Evaluator(env=env, agent_fn=zero_action_fn, max_episode_steps=max_episode_steps, discount=discount)
    metrics = evaluator.evaluate(AgentState(), jax.random.key(3), num_episodes=3)
    expected_return = sum(discount**time * (time + 1) for time in range(expected_length))
    np.testing.assert_array_equal(metrics.episode_lengths, [expected_length] * 3)
    np.testing.assert_allclose(metrics.episode_returns, [expected_return] * 3, rtol=1e-6)


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.ENVPOOL], ids=lambda mode: mode.name)
def test_a_recurrent_agent_starts_every_episode_with_a_clear_memory(mode: AutoresetMode, cue_agent: Callable) -> None:
    env = create_env("probe/memory", parallel=4, autoreset_mode=mode, delay=3)
    evaluator = Evaluator(env=env, agent_fn=cue_agent, initial_carry_fn=jnp.zeros, max_episode_steps=9)
    metrics = evaluator.evaluate(AgentState(), jax.random.key(4), num_episodes=10)
    np.testing.assert_array_equal(metrics.episode_returns, np.ones(10))
    np.testing.assert_array_equal(metrics.episode_lengths, np.full(10, 4))


def test_compiled_and_eager_and_legacy_keys_give_the_same(start_reward: Env) -> None:
    evaluator = Evaluator(env=wrap_env(start_reward, parallel=3), action_fn=zero_action_fn, max_episode_steps=9)
    eager = evaluator.evaluate(AgentState(), jax.random.key(5), 5)
    compiled = jax.jit(evaluator.evaluate, static_argnums=2)(AgentState(), jax.random.key(5), 5)
    legacy = evaluator.evaluate(AgentState(), jax.random.PRNGKey(5), 5)
    for other in (compiled, legacy):
        jax.tree.map(np.testing.assert_array_equal, eager, other)


def test_agent_states_can_be_mapped_over() -> None:
    def constant_action_fn(agent_state: AgentState, batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        return jnp.broadcast_to(agent_state.params, batch.obs.shape[:1]), PyTreeDict()

    env = create_env("probe/action_reward", parallel=2)
    evaluator = Evaluator(env=env, agent_fn=constant_action_fn, max_episode_steps=3)
    states = AgentState(params=jnp.array([0, 1, 1, 0]))
    metrics = jax.vmap(lambda state: evaluator.evaluate(state, jax.random.key(6), 3))(states)
    np.testing.assert_array_equal(metrics.episode_returns, np.repeat([[-1], [1], [1], [-1]], 3, axis=1))


def test_dict_observations_and_action_masks_are_evaluated() -> None:
    env = create_env("probe/mask", parallel=4)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    evaluator = Evaluator(env=env, agent_fn=agent.evaluate_actions, max_episode_steps=20)
    metrics = evaluator.evaluate(agent_state, jax.random.key(7), num_episodes=6)
    np.testing.assert_array_equal(metrics.episode_returns, np.full(6, 8.0))
    np.testing.assert_array_equal(metrics.episode_lengths, np.full(6, 8))


def test_another_key_gives_other_episodes(start_reward: Env) -> None:
    evaluator = Evaluator(env=wrap_env(start_reward, parallel=4), agent_fn=zero_action_fn, max_episode_steps=9)
    returns = [evaluator.evaluate(AgentState(), jax.random.key(seed), 8).episode_returns for seed in range(2)]
    assert not set(np.asarray(returns[0])) & set(np.asarray(returns[1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent_fn": None}, "agent_fn"),
        ({"discount": 2.0}, "discount=2.0.*between 0 and 1"),
        ({"discount": -0.1}, "discount=-0.1.*between 0 and 1"),
        ({"max_episode_steps": 0}, "max_episode_steps=0.*at least 1"),
    ],
)
def test_an_evaluator_that_makes_no_sense_is_refused_when_it_is_built(changes: dict, message: str) -> None:
    arguments = {"env": create_env("probe/counter"), "agent_fn": zero_action_fn, "max_episode_steps": 3}
    with pytest.raises(InvalidInputError, match=message):
        Evaluator(**{**arguments, **changes})


@pytest.mark.parametrize("num_episodes", [0, -1, 2.5])
def test_a_number_of_episodes_below_one_is_refused(num_episodes: Any) -> None:
    evaluator = Evaluator(env=create_env("probe/counter"), agent_fn=zero_action_fn, max_episode_steps=3)
    with pytest.raises(InvalidInputError, match=f"num_episodes={num_episodes}.*at least 1"):
        evaluator.evaluate(AgentState(), jax.random.key(0), num_episodes)


def test_what_is_no_key_is_refused() -> None:
    evaluator = Evaluator(env=create_env("probe/counter"), agent_fn=zero_action_fn, max_episode_steps=3)
    with pytest.raises(InvalidInputError, match=r"got 7.*jax\.random\.key\(seed\)"):
        evaluator.evaluate(AgentState(), 7, 1)
