"""The actor-critic agent in real rollouts: replayed log-probabilities, and the values of true successors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState, Carry
from rookery.agents.actor_critic import ROWS_AT_A_TIME, ActorCriticAgent
from rookery.algorithms.ppo import PPOAgent
from rookery.envs import AutoresetMode, Env, EnvState, create_env, wrap_env
from rookery.errors import InvalidInputError
from rookery.learning import running_statistics
from rookery.networks import ActorCriticConfig
from rookery.networks.distributions import GaussianConfig
from rookery.rollout import Experience, RolloutSource
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict, as_key

POSITION = Box(-3.0, 3.0, (3,))
SPACES: dict[str, tuple[Space, Space]] = {
    "discrete": (POSITION, Discrete(3)),
    "multi_discrete": (POSITION, MultiDiscrete([3, 2])),
    "masked": (Dict(position=POSITION, room=Discrete(4), action_mask=Box(0, 1, (4,), np.int8)), Discrete(4)),
    "continuous": (POSITION, Box(-2.0, 2.0, (2,))),
    "pixels": (Box(0, 255, (6, 6, 1), np.uint8), Discrete(3)),
}
SQUASHED = GaussianConfig(bounds="squash", state_dependent_std=True)


class WanderingState(PyTreeData):
    key: Key


class WanderingEnv(Env):
    """Random observations and rewards and sudden ends, in spaces of any kind; actions change nothing."""

    def __init__(self, kind: str) -> None:
        self.spaces = SPACES[kind]

    @property
    def obs_space(self) -> Space:
        return self.spaces[0]

    @property
    def action_space(self) -> Space:
        return self.spaces[1]

    def reset(self, key: Key) -> EnvState:
        return self._state(as_key(key)).replace(done=jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self.action_space.check(action, "action")
        return self._state(env_state.env_state.key)

    def _state(self, key: Key) -> EnvState:
        next_key, obs_key, reward_key, done_key = jax.random.split(key, 4)
        return EnvState(
            env_state=WanderingState(key=next_key),
            obs=self.obs_space.sample(obs_key),
            reward=jax.random.normal(reward_key),
            done=jax.random.bernoulli(done_key, 0.15).astype(jnp.float32),
        )


class Collected(NamedTuple):
    agent_state: AgentState
    experience: Experience
    log_prob: Array
    values: Array
    successor_values: Array


def make_state(agent: PPOAgent, obs_space: Space, action_space: Space) -> AgentState:
    """Make a state with large random parameters, without the seconds that it takes to compile `init`."""
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: agent.init(obs_space, action_space, key), jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32), shapes.params)
    statistics = running_statistics.init(obs_space) if agent.normalize_obs else None
    return shapes.replace(params=params, obs_preprocessor_state=statistics)


def collect(agent: PPOAgent, env: Any, num_steps: int) -> Collected:
    """Act until recurrent state and statistics differ from their start; return the last trajectory and its replay."""
    source = RolloutSource(env=env, agent=agent, rollout_length=num_steps)

    @jax.jit
    def run(agent_state: AgentState, key: Key) -> Collected:
        env_key, *collect_keys = jax.random.split(key, 4)
        source_state = source.init(jax.random.split(env_key, env.num_envs))

        def act(state: tuple, collect_key: Key) -> tuple[tuple, tuple[AgentState, Experience]]:
            agent_state, source_state = state
            experience, source_state = source.collect(agent_state, source_state, collect_key)
            improved = agent.update_obs_statistics(agent_state, experience.trajectory.obs)
            return (improved, source_state), (agent_state, experience)

        _, all_experience = jax.lax.scan(act, (agent_state, source_state), jnp.stack(collect_keys))
        agent_state, experience = jax.tree.map(lambda leaf: leaf[-1], all_experience)
        trajectory = experience.trajectory
        distribution, values = agent.replay(agent_state, trajectory, experience.first_carry)
        return Collected(
            agent_state=agent_state,
            experience=experience,
            log_prob=distribution.log_prob(trajectory.extras.policy_extras.raw_action),
            values=values,
            successor_values=agent.successor_values(agent_state, trajectory, values),
        )

    return run(make_state(agent, env.obs_space, env.action_space), jax.random.key(0))


def slow_successor_values(agent: ActorCriticAgent, collected: Collected) -> np.ndarray:
    """Compute the value of every successor one step at a time, with the recurrent state of that step.

    It uses only the first carry, the observations and the episode borders.
    """

    @jax.jit
    def look(obs: Any, carry: Carry, episode_start: Array) -> tuple[Array, Carry]:
        extras = PyTreeDict(policy_extras=PyTreeDict(carry=carry, episode_start=episode_start))
        batch = SampleBatch(obs=obs, extras=extras)
        _, extras = agent.compute_actions(collected.agent_state, batch, jax.random.key(0))
        return extras.value, extras.get("carry", ())

    trajectory, carry = collected.experience.trajectory, collected.experience.first_carry
    num_steps, num_envs = trajectory.rewards.shape
    starts = trajectory.extras.policy_extras.get("episode_start", np.zeros((num_steps, num_envs), np.float32))
    values = []
    for step in range(num_steps):
        obs, successor = (
            jax.tree.map(lambda leaf, step=step: leaf[step], tree)
            for tree in (trajectory.obs, trajectory.extras.env_extras.ori_obs)
        )
        _, carry = look(obs, carry, jnp.asarray(starts[step]))
        values.append(look(successor, carry, jnp.zeros(num_envs))[0])
    return np.stack(values)


@pytest.mark.parametrize(
    ("kind", "core", "shared", "mode"),
    [
        ("discrete", None, False, "normal"),
        ("discrete", "gru", False, "envpool"),
        ("multi_discrete", "gru", True, "normal"),
        ("masked", "lstm", False, "normal"),
        ("continuous", None, True, "envpool"),
        ("squashed", "lstm", True, "fast"),
        ("pixels", None, True, "normal"),
    ],
)
def test_a_replay_gives_what_the_rollout_gave_and_successors_have_their_own_values(
    kind: str, core: str | None, shared: bool, mode: str
) -> None:
    gaussian = SQUASHED if kind == "squashed" else GaussianConfig()
    config = ActorCriticConfig(
        hidden_sizes=(8,), core=core, core_size=8, shared=shared, output_init_scale=1.0, gaussian=gaussian
    )
    agent = PPOAgent(config=config, normalize_obs=True)
    env = wrap_env(
        WanderingEnv("continuous" if kind == "squashed" else kind),
        episode_length=3,
        parallel=3,
        autoreset_mode=AutoresetMode(mode),
        record_ori_obs=True,
    )
    collected = collect(agent, env, num_steps=8)
    trajectory = collected.experience.trajectory
    extras, info = trajectory.extras.policy_extras, trajectory.extras.env_extras
    assert np.sum(info.termination) > 0 or mode == "fast"  # there all episodes of an env are the same
    assert np.sum(info.truncation[:-1]) > 1
    np.testing.assert_allclose(np.exp(collected.log_prob - extras.log_prob), 1.0, atol=1e-5)
    np.testing.assert_allclose(collected.values, extras.value, atol=1e-5)

    counts = np.asarray(info.termination) == 0  # after a termination there is no value
    if mode == "envpool":
        counts &= np.asarray(info.autoreset) == 0
    expected = slow_successor_values(agent, collected)
    np.testing.assert_allclose(collected.successor_values[counts], expected[counts], atol=1e-5)


def test_there_may_be_more_truncations_than_are_looked_up_at_a_time() -> None:
    agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=(4,), core="lstm", core_size=4))
    shape = (5, 30)
    assert ROWS_AT_A_TIME < (shape[0] - 1) * shape[1] < 2 * ROWS_AT_A_TIME
    generator = np.random.default_rng(1)

    def normal(*size: int) -> Array:
        return jnp.asarray(generator.normal(size=size), jnp.float32)

    state = make_state(agent, POSITION, Discrete(2))
    successors, carry = normal(*shape, 3), jax.tree.map(lambda leaf: normal(*leaf.shape), agent.initial_carry(shape))
    trajectory = SampleBatch(
        rewards=normal(*shape),
        extras=PyTreeDict(
            policy_extras=PyTreeDict(next_carry=carry),
            env_extras=PyTreeDict(ori_obs=successors, truncation=jnp.ones(shape)),
        ),
    )
    policy_extras = PyTreeDict(carry=carry, episode_start=jnp.zeros(shape))
    batch = SampleBatch(obs=successors, extras=PyTreeDict(policy_extras=policy_extras))
    expected = jax.jit(agent.compute_actions)(state, batch, jax.random.key(0))[1].value
    values = jax.jit(agent.successor_values)(state, trajectory, normal(*shape))
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_a_recurrent_agent_without_a_carry_is_an_error_that_names_what_is_missing() -> None:
    agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=(4,), core="gru", core_size=4))
    state = make_state(agent, POSITION, Discrete(2))
    with pytest.raises(InvalidInputError, match=r"gru core.*needs carry"):
        agent.compute_actions(state, SampleBatch(obs=jnp.zeros((2, 3))), jax.random.key(0))
    with pytest.raises(InvalidInputError, match=r"needs policy_extras.episode_start"):
        agent.replay(state, SampleBatch(obs=jnp.zeros((5, 2, 3))), agent.initial_carry((2,)))


def test_the_initial_carry_of_an_agent_is_that_of_its_network() -> None:
    env = create_env("probe/memory", parallel=2, record_ori_obs=True)
    for shared in (False, True):
        agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=(4,), core="lstm", core_size=5, shared=shared))
        state = make_state(agent, env.obs_space, env.action_space)
        carry = state.extra_state.network.initial_carry((2,))
        assert jax.tree.structure(agent.initial_carry((2,))) == jax.tree.structure(carry)
        assert [leaf.shape for leaf in jax.tree.leaves(carry)] == [(2, 5)] * (2 if shared else 4)
