"""The population evaluator gives every agent what it would earn alone, to the bit, on any number of lanes."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.envs import AutoresetMode, Env, EnvState, EpisodeWrapper, create_env, make_env, wrap_env
from rookery.errors import RookeryError
from rookery.evaluators import PopulationEvaluator
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict

POPULATION_SIZE, NUM_EPISODES, MAX_EPISODE_STEPS = 9, 3, 7
ALL_LANES = [1, 2, 7, 200]


class Shop(Env):
    """Pays what the action names and closes when the action says so; shows `[luck, count]`, luck drawn per episode."""

    @property
    def obs_space(self) -> Space:
        return Box(0.0, np.inf, (2,))

    @property
    def action_space(self) -> Space:
        return Box(-np.inf, np.inf, (2,))

    def reset(self, key: Key) -> EnvState:
        obs = jnp.stack([jax.random.uniform(key), jnp.zeros(())])
        return EnvState(env_state=obs, obs=obs, reward=jnp.zeros(()), done=jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self.action_space.check(action, "action")
        obs = env_state.env_state + jnp.array([0.0, 1.0])
        return EnvState(env_state=obs, obs=obs, reward=action[0], done=action[1])


class Genes(PyTreeData):
    pay: Array
    episode_length: Array


def population() -> AgentState:
    """Agents that differ in what they earn per step and in how long they stay, some beyond the limit of steps."""
    pay = 10.0 ** jnp.arange(-4.0, POPULATION_SIZE - 4.0)
    return AgentState(params=Genes(pay=pay, episode_length=1.0 + (5.0 * jnp.arange(float(POPULATION_SIZE))) % 9.0))


def earn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Earn the own pay and leave after the own length."""
    genes, count = agent_state.params, sample_batch.obs[..., 1]
    leaves = (count + 1.0 >= genes.episode_length).astype(jnp.float32)
    return jnp.stack([jnp.broadcast_to(genes.pay, count.shape), leaves], axis=-1), PyTreeDict()


def gamble(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Earn at random, more with luck, and leave at random: all that may depend on a lane's past is at work."""
    pay_key, leave_key = jax.random.split(key)
    luck, count = sample_batch.obs[..., 0], sample_batch.obs[..., 1]
    pay = jnp.broadcast_to(agent_state.params.pay, count.shape) * (luck + jax.random.normal(pay_key, count.shape))
    leaves = jax.random.bernoulli(leave_key, 0.3, count.shape).astype(jnp.float32)
    return jnp.stack([pay, leaves], axis=-1), PyTreeDict()


def evaluator(agent_fn: Callable, num_lanes: int, env: Env | None = None, **kwargs: Any) -> PopulationEvaluator:
    return PopulationEvaluator(
        env=EpisodeWrapper(Shop(), None) if env is None else env,
        agent_fn=agent_fn,
        num_lanes=num_lanes,
        **{"max_episode_steps": MAX_EPISODE_STEPS, **kwargs},
    )


@pytest.mark.parametrize(("num_lanes", "discount"), [(4, 1.0), (200, 0.9)])
def test_every_agent_earns_what_a_plain_loop_says(num_lanes: int, discount: float) -> None:
    metrics = evaluator(earn, num_lanes, discount=discount).evaluate(population(), jax.random.key(0), NUM_EPISODES)
    genes = population().params
    for agent in range(POPULATION_SIZE):
        length = min(int(genes.episode_length[agent]), MAX_EPISODE_STEPS)
        expected = sum(discount**time * float(genes.pay[agent]) for time in range(length))
        np.testing.assert_array_equal(metrics.episode_lengths[agent], [length] * NUM_EPISODES)
        np.testing.assert_allclose(metrics.episode_returns[agent], [expected] * NUM_EPISODES, rtol=1e-6)
    assert metrics.episode_returns.shape == (POPULATION_SIZE, NUM_EPISODES)
    assert (metrics.episode_returns.dtype, metrics.episode_lengths.dtype) == (jnp.float32, jnp.int32)


def test_results_are_the_same_to_the_bit_for_any_number_of_lanes() -> None:
    results = [
        evaluator(gamble, num_lanes, discount=0.9).evaluate(population(), jax.random.key(1), NUM_EPISODES)
        for num_lanes in ALL_LANES
    ]
    assert len(np.unique(results[0].episode_returns)) == POPULATION_SIZE * NUM_EPISODES
    assert len(np.unique(results[0].episode_lengths)) > 3
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


def network_action_fn(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """A multi-layer perceptron whose output is the action: sums whose order could depend on the batch."""
    hidden = sample_batch.obs
    for weights in agent_state.params:
        hidden = jnp.tanh(hidden @ weights)
    return hidden, PyTreeDict()


@pytest.mark.usefixtures("optimized_programs")
def test_networks_on_a_continuous_env_earn_the_same_to_the_bit_for_any_number_of_lanes() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(3, 64), (64, 64), (64, 1)]
    params = [jax.random.normal(key, (5, *shape)) for key, shape in zip(keys, shapes, strict=True)]
    env = create_env("classic/pendulum")
    results = [
        evaluator(network_action_fn, num_lanes, env, max_episode_steps=40).evaluate(
            AgentState(params=params), jax.random.key(1), num_episodes=2
        )
        for num_lanes in (1, 3, 64)
    ]
    assert len(np.unique(results[0].episode_returns)) == 10
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


def test_statistics_of_observations_are_those_of_all_steps_the_agents_took_for_any_number_of_lanes() -> None:
    results = [
        evaluator(gamble, num_lanes, track_obs=True).play(population(), jax.random.key(1), NUM_EPISODES)
        for num_lanes in (1, 7, 64)
    ]
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0].obs_statistics, other.obs_statistics)
    statistics, lengths = results[0].obs_statistics, np.asarray(results[0].episode_lengths).ravel()
    counts = np.concatenate([np.arange(length) for length in lengths])
    assert float(statistics.count.value) == lengths.sum()
    np.testing.assert_allclose(statistics.mean["obs"][1], counts.mean(), rtol=1e-6)
    np.testing.assert_allclose(statistics.std["obs"][1], counts.std(), rtol=1e-6)


def test_an_observation_that_is_not_finite_is_left_out_of_the_statistics() -> None:
    class BrokenShop(Shop):
        def step(self, env_state: EnvState, action: Any) -> EnvState:
            after = super().step(env_state, action)
            return after.replace(obs=jnp.where(after.obs[1] == 2.0, jnp.nan, after.obs))

    broken = EpisodeWrapper(BrokenShop(), None)
    episodes = evaluator(earn, 4, broken, track_obs=True).play(population(), jax.random.key(1), NUM_EPISODES)
    statistics = episodes.obs_statistics
    assert 0 < float(statistics.count.value) < int(episodes.episode_lengths.sum())
    assert np.all(np.isfinite(statistics.mean["obs"]))


def test_a_part_of_a_population_plays_the_episodes_it_plays_in_the_whole() -> None:
    whole = evaluator(gamble, 4).play(population(), jax.random.key(2), NUM_EPISODES)
    part = jax.tree.map(lambda leaf: leaf[3:7], population())
    alone = evaluator(gamble, 3).play(part, jax.random.key(2), NUM_EPISODES, first_agent=3)
    np.testing.assert_array_equal(alone.episode_returns, whole.episode_returns[3:7])


def test_an_episode_depends_on_the_key_and_on_its_own_indices_only() -> None:
    many = evaluator(gamble, 4).evaluate(population(), jax.random.key(2), NUM_EPISODES)
    fewer_agents = jax.tree.map(lambda leaf: leaf[:5], population())
    few = evaluator(gamble, 4).evaluate(fewer_agents, jax.random.key(2), NUM_EPISODES - 1)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:5, : NUM_EPISODES - 1], b), many, few)
    other = evaluator(gamble, 4).evaluate(population(), jax.random.key(3), NUM_EPISODES)
    assert not np.any(np.asarray(many.episode_returns) == np.asarray(other.episode_returns))


def test_every_episode_starts_anew_and_is_counted_whole(start_reward: Env) -> None:
    def stay(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        return jnp.zeros(sample_batch.obs.shape[:-1], jnp.int32), PyTreeDict()

    env = EpisodeWrapper(start_reward, None)
    metrics = evaluator(stay, 3, env).evaluate(population(), jax.random.key(4), NUM_EPISODES)
    returns = np.asarray(metrics.episode_returns)
    np.testing.assert_array_equal(metrics.episode_lengths, 1 + returns.astype(int) % 5)
    assert len(np.unique(returns)) == POPULATION_SIZE * NUM_EPISODES


def test_a_recurrent_agent_gets_a_clear_memory_in_every_episode_of_a_lane(cue_agent: Callable) -> None:
    env = EpisodeWrapper(make_env("probe/memory", delay=3), None)
    metrics = evaluator(cue_agent, 2, env, initial_carry_fn=jnp.zeros).evaluate(
        population(), jax.random.key(5), NUM_EPISODES
    )
    np.testing.assert_array_equal(metrics.episode_returns, np.ones((POPULATION_SIZE, NUM_EPISODES)))
    np.testing.assert_array_equal(metrics.episode_lengths, np.full((POPULATION_SIZE, NUM_EPISODES), 4))


@pytest.mark.usefixtures("optimized_programs")
def test_of_a_vectorized_env_the_single_env_is_taken() -> None:
    vectorized = wrap_env(Shop(), parallel=5, autoreset_mode=AutoresetMode.NORMAL)
    single = evaluator(gamble, 4).evaluate(population(), jax.random.key(6))
    jax.tree.map(
        np.testing.assert_array_equal,
        evaluator(gamble, 4, vectorized).evaluate(population(), jax.random.key(6)),
        single,
    )


def test_the_own_limit_of_the_env_cuts_an_episode_before_the_limit_of_the_evaluator() -> None:
    env = EpisodeWrapper(Shop(), 2)
    metrics = evaluator(earn, 4, env).evaluate(population(), jax.random.key(7))
    expected = np.minimum(np.asarray(population().params.episode_length), 2)
    np.testing.assert_array_equal(metrics.episode_lengths[:, 0], expected)


def test_dict_observations_and_legacy_keys_work() -> None:
    def count_action_fn(agent_state: AgentState, batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        return jnp.zeros(batch.obs["count"].shape, jnp.int32), PyTreeDict()

    env = create_env("probe/counter", terminates_after=3, dict_obs=True)
    metrics = evaluator(count_action_fn, 4, env).evaluate(population(), jax.random.PRNGKey(8))
    np.testing.assert_array_equal(metrics.episode_returns, np.full((POPULATION_SIZE, 1), 6.0))


def test_a_lane_takes_the_next_episode_at_once(watch: Callable) -> None:
    num_lanes = 4
    watched = watch(Shop())
    metrics = evaluator(earn, num_lanes, EpisodeWrapper(watched, None)).evaluate(
        population(), jax.random.key(9), NUM_EPISODES
    )
    lengths = np.asarray(metrics.episode_lengths)
    assert watched.steps.num_calls <= lengths.sum() / num_lanes + lengths.max()
    # In lockstep, every group of four episodes would take as long as its longest.
    assert watched.steps.num_calls < lengths.size / num_lanes * lengths.max() * 0.8


def equations_in_loops(
    jaxpr: jax.extend.core.Jaxpr, inside: frozenset[str] = frozenset()
) -> Iterator[tuple[Any, bool]]:
    """All equations inside loops, each with whether it lies in a branch of a conditional."""
    for equation in jaxpr.eqns:
        if "while" in inside:
            yield equation, "cond" in inside
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from equations_in_loops(getattr(value, "jaxpr", value), inside | {equation.primitive.name})


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr))


def test_parameters_of_lanes_are_exchanged_in_a_conditional_branch_only() -> None:
    def weigh(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
        actions, extras = earn(agent_state, sample_batch, key)
        return actions + 0.0 * jnp.sum(agent_state.extra_state), extras

    states = population().replace(extra_state=jnp.ones((POPULATION_SIZE, 31)))
    program = jax.make_jaxpr(lambda states, key: evaluator(weigh, 4).evaluate(states, key))(states, jax.random.key(0))
    reads = [
        in_branch
        for equation, in_branch in equations_in_loops(program.jaxpr)
        if equation.primitive.name in ("gather", "dynamic_slice")
        and equation.invars[0].aval.shape == (POPULATION_SIZE, 31)
    ]
    assert reads
    assert all(reads)


def test_compiled_by_the_caller_gives_the_same() -> None:
    evaluate = evaluator(gamble, 4).evaluate
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(lambda states, key: evaluate(states, key, num_episodes=2))(population(), jax.random.key(10)),
        evaluate(population(), jax.random.key(10), num_episodes=2),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_lanes": 0}, "num_lanes=0.*at least 1"),
        ({"discount": 2.0}, "discount=2.0.*between 0 and 1"),
        ({"max_episode_steps": 0}, "max_episode_steps=0.*at least 1"),
    ],
)
def test_an_evaluator_that_makes_no_sense_is_refused_when_it_is_built(changes: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        evaluator(earn, **{"num_lanes": 4, **changes})


@pytest.mark.parametrize("num_episodes", [0, -1, 2.5])
def test_a_number_of_episodes_below_one_is_refused(num_episodes: Any) -> None:
    with pytest.raises(RookeryError, match=f"num_episodes={num_episodes}.*at least 1"):
        evaluator(earn, 4).evaluate(population(), jax.random.key(0), num_episodes)


@pytest.mark.parametrize(
    "states",
    [
        AgentState(params=Genes(pay=jnp.ones((4,)), episode_length=jnp.ones((5,)))),
        AgentState(params=Genes(pay=jnp.ones((4,)), episode_length=jnp.ones(()))),
        AgentState(),
    ],
    ids=["different sizes", "no axis", "no leaves"],
)
def test_a_population_without_a_common_first_axis_is_refused(states: AgentState) -> None:
    with pytest.raises(RookeryError, match="population"):
        evaluator(earn, 4).evaluate(states, jax.random.key(0))


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(RookeryError, match=r"got 7.*jax\.random\.key\(seed\)"):
        evaluator(earn, 4).evaluate(population(), 7)
