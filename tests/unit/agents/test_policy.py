"""The policy agent in real rollouts: extras for losses, recurrent state, and normalization of observations."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.agents.policy import PolicyAgent
from rookery.envs import create_env
from rookery.errors import InvalidInputError
from rookery.networks.distributions import GaussianConfig
from rookery.networks.policy import PolicyConfig
from rookery.rollout import recurrent_rollout, rollout
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.testing.check_agent import check_agent
from rookery.types import PyTreeDict

CORES = [None, "gru", "lstm"]
OBS_SPACE = Dict(
    position=Box(-3.0, 3.0, (3,)),
    room=Discrete(4, start=1),
    grid=Box(0, 255, (5, 5, 1), np.uint8),
    action_mask=Box(0, 1, (5,), np.int8),
)
SQUASHED = GaussianConfig(bounds="squash", state_dependent_std=True)


def make_agent(core: str | None = None, **changes: Any) -> PolicyAgent:
    normalize_obs = changes.pop("normalize_obs", False)
    config = PolicyConfig(**{"hidden_sizes": (16,), "core": core, "core_size": 8, "output_init_scale": 1.0, **changes})
    return PolicyAgent(config=config, normalize_obs=normalize_obs)


def draw(space: Space, batch_shape: tuple = ()) -> Any:
    return space.sample(jax.random.key(5), batch_shape)


def one_step(agent: PolicyAgent, obs: Any, batch_shape: tuple) -> SampleBatch:
    policy_extras = PyTreeDict(carry=agent.initial_carry(batch_shape), episode_start=jnp.ones(batch_shape))
    return SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))


@pytest.mark.parametrize(
    ("core", "normalize_obs", "obs_space", "action_space"),
    [
        (None, False, Box(-1.0, 1.0, (2,)), Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]))),
        ("gru", True, OBS_SPACE, Discrete(5, start=-1)),
        ("lstm", False, Discrete(3), Dict(a=MultiDiscrete([2, 3]), b=Tuple([MultiBinary(2), Box(0.0, 1.0, ())]))),
    ],
    ids=["box", "masked_dict", "composite"],
)
def test_it_keeps_the_promises_of_an_agent(
    core: str | None, normalize_obs: bool, obs_space: Space, action_space: Space
) -> None:
    agent = make_agent(core, normalize_obs=normalize_obs, gaussian=SQUASHED)
    report = check_agent(agent, obs_space, action_space)
    assert report.passed, report


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("batch_shape", [(), (4,)])
def test_training_extras_are_what_a_loss_needs_and_evaluation_has_the_carry_alone(
    core: str | None, batch_shape: tuple
) -> None:
    agent, space = make_agent(core), Box(-1.0, 1.0, (2,))
    state = agent.init(space, Discrete(3, start=7), jax.random.key(0))
    batch = one_step(agent, draw(space, batch_shape), batch_shape)
    carry_extras = set() if core is None else {"carry"}
    actions, extras = agent.compute_actions(state, batch, jax.random.key(1))
    assert set(extras) == {"log_prob", "raw_action"} | carry_extras
    assert extras.log_prob.shape == extras.raw_action.shape == actions.shape == batch_shape
    np.testing.assert_array_equal(actions, extras.raw_action + 7)
    _, extras = agent.evaluate_actions(state, batch, jax.random.key(1))
    assert set(extras) == carry_extras


def test_evaluation_takes_the_mode_whatever_the_key() -> None:
    agent, space = make_agent(), Box(-1.0, 1.0, (2,))
    state = agent.init(space, Box(-1.0, 1.0, (2,)), jax.random.key(0))
    batch = one_step(agent, draw(space, (50,)), (50,))
    greedy = [agent.evaluate_actions(state, batch, jax.random.key(seed))[0] for seed in (1, 2)]
    np.testing.assert_array_equal(*greedy)
    explored = [agent.compute_actions(state, batch, jax.random.key(seed))[0] for seed in (1, 2)]
    assert np.mean(explored[0] == explored[1]) < 0.5
    distribution = agent.replay(state, batch)
    np.testing.assert_allclose(greedy[0], jnp.clip(distribution.mean, -1.0, 1.0), atol=1e-6)


ENVS = {"discrete": "classic/cartpole", "squashed": "classic/pendulum", "dict_obs": "probe/counter"}
ROLLOUT_LENGTH = 30


@cache
def roll(core: str | None, env_name: str, normalize_obs: bool) -> tuple[PolicyAgent, AgentState, SampleBatch, Any]:
    """Roll twice; return the second trajectory, which starts within episodes, and the carry before it."""
    library_kwargs = {"dict_obs": True, "terminates_after": 7} if env_name == "probe/counter" else {}
    env = create_env(env_name, parallel=3, **library_kwargs)
    agent = make_agent(core, normalize_obs=normalize_obs, gaussian=SQUASHED)
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    env_state, carry = env.reset(jax.random.key(1)), agent.initial_carry((3,))

    @jax.jit
    def collect(env_state: Any, agent_state: AgentState, carry: Any, key: Any) -> tuple[SampleBatch, Any, Any]:
        return recurrent_rollout(env.step, agent.compute_actions, env_state, agent_state, carry, key, ROLLOUT_LENGTH)

    trajectory, env_state, carry = collect(env_state, agent_state, carry, jax.random.key(2))
    agent_state = agent.update_obs_statistics(agent_state, trajectory.obs)
    trajectory, _, _ = collect(env_state, agent_state, carry, jax.random.key(3))
    return agent, agent_state, trajectory, carry


@cache
def log_prob_program(agent: PolicyAgent) -> Any:
    """Compile what a loss computes for a trajectory: the log-probabilities of its actions."""

    @jax.jit
    def log_prob(agent_state: AgentState, trajectory: SampleBatch, carry: Any) -> Any:
        return agent.replay(agent_state, trajectory, carry).log_prob(trajectory.extras.policy_extras.raw_action)

    return log_prob


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("env", ENVS)
def test_replaying_a_rollout_gives_the_log_probabilities_of_the_rollout(core: str | None, env: str) -> None:
    agent, state, trajectory, carry = roll(core, ENVS[env], normalize_obs=env != "discrete")
    log_prob = log_prob_program(agent)(state, trajectory, carry)
    np.testing.assert_allclose(log_prob, trajectory.extras.policy_extras.log_prob, atol=1e-5)


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("mistake", ["shifted early", "shifted late", "never", "fresh carry"])
def test_a_replay_with_wrong_episode_borders_is_noticed(core: str, mistake: str) -> None:
    agent, state, trajectory, carry = roll(core, "classic/cartpole", normalize_obs=True)
    extras = trajectory.extras.policy_extras
    starts = extras.episode_start
    assert 0 < float(jnp.sum(starts)) < starts.size
    match mistake:
        case "shifted early":
            starts = jnp.roll(starts, -1, axis=0)
        case "shifted late":
            starts = jnp.roll(starts, 1, axis=0)
        case "never":
            starts = jnp.zeros_like(starts)
        case "fresh carry":
            carry = agent.initial_carry((3,))
    mistaken = trajectory.replace(extras=trajectory.extras.replace(policy_extras=extras.replace(episode_start=starts)))
    log_prob = log_prob_program(agent)(state, mistaken, carry)
    assert float(jnp.max(jnp.abs(log_prob - extras.log_prob))) > 1e-3


def test_statistics_updated_between_rollout_and_loss_would_change_the_log_probabilities() -> None:
    agent, state, trajectory, carry = roll(None, "classic/pendulum", normalize_obs=True)
    updated = agent.update_obs_statistics(state, trajectory.obs + 1.0)
    extras = trajectory.extras.policy_extras
    log_prob = log_prob_program(agent)(updated, trajectory, carry)
    assert float(jnp.max(jnp.abs(log_prob - extras.log_prob))) > 1e-3


@pytest.mark.parametrize("method", ["compute_actions", "evaluate_actions"])
def test_observations_are_normalized_alike_in_training_and_evaluation(method: str) -> None:
    space, actions = Box(-np.inf, np.inf, (2,)), Box(-1.0, 1.0, (2,))
    plain, normalizing = make_agent(), make_agent(normalize_obs=True)
    plain_state = plain.init(space, actions, jax.random.key(0))
    state = normalizing.init(space, actions, jax.random.key(0))
    obs = 1000.0 + 0.1 * jax.random.normal(jax.random.key(1), (400, 2))
    state = normalizing.update_obs_statistics(state, obs)
    exact = np.asarray(obs, np.float64)
    by_hand = (exact - exact.mean(0)) / exact.std(0)
    key = jax.random.key(2)
    expected, _ = getattr(plain, method)(plain_state, one_step(plain, jnp.asarray(by_hand, jnp.float32), (400,)), key)
    given, _ = getattr(normalizing, method)(state, one_step(normalizing, obs, (400,)), key)
    np.testing.assert_allclose(given, expected, atol=1e-3)


def test_acting_leaves_the_statistics_as_they_are_and_weights_of_zero_are_ignored() -> None:
    agent, space = make_agent(normalize_obs=True), Box(-1.0, 1.0, (2,))
    state = agent.init(space, Discrete(2), jax.random.key(0))
    assert float(state.obs_preprocessor_state.count.value) == 0.0
    obs, weights = draw(space, (6,)), jnp.asarray([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    state = agent.update_obs_statistics(state, obs.at[1].set(jnp.nan), weights)
    assert float(state.obs_preprocessor_state.count.value) == 4.0
    np.testing.assert_allclose(state.obs_preprocessor_state.mean["obs"], obs[weights == 1].mean(0), atol=1e-6)


def test_without_normalization_there_are_no_statistics() -> None:
    agent, space = make_agent(), Box(-1.0, 1.0, (2,))
    state = agent.init(space, Discrete(2), jax.random.key(0))
    assert state.obs_preprocessor_state is None
    assert agent.update_obs_statistics(state, draw(space, (6,))) is state


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_recurrent_agent_in_a_plain_rollout_is_an_error_that_names_initial_carry(core: str) -> None:
    env = create_env("classic/cartpole", parallel=2)
    agent = make_agent(core)
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    with pytest.raises(InvalidInputError, match=r"start the rollout from agent\.initial_carry"):
        rollout(env.step, agent.compute_actions, env.reset(jax.random.key(1)), agent_state, jax.random.key(2), 5)
    with pytest.raises(InvalidInputError, match="needs carry"):
        agent.evaluate_actions(agent_state, SampleBatch(obs=jnp.zeros((2, 4))), jax.random.key(0))
    without_starts = SampleBatch(obs=jnp.zeros((3, 2, 4)))
    with pytest.raises(InvalidInputError, match=r"needs policy_extras\.episode_start"):
        agent.replay(agent_state, without_starts, agent.initial_carry((2,)))


@pytest.mark.parametrize("core", CORES)
def test_a_population_is_a_vmap_over_agent_states(core: str | None) -> None:
    env = create_env("classic/pendulum", parallel=2)
    agent = make_agent(core, normalize_obs=True)
    keys = jax.random.split(jax.random.key(0), 3)
    population = jax.vmap(lambda key: agent.init(env.obs_space, env.action_space, key))(keys)
    env_state, carry = env.reset(jax.random.key(1)), agent.initial_carry((2,))

    def log_probs(agent_state: AgentState) -> tuple[Any, Any]:
        trajectory, _, _ = recurrent_rollout(
            env.step, agent.compute_actions, env_state, agent_state, carry, jax.random.key(2), 10
        )
        agent_state = agent.update_obs_statistics(agent_state, trajectory.obs)
        return trajectory.extras.policy_extras.log_prob, agent_state.obs_preprocessor_state.mean

    mapped, means = jax.vmap(log_probs)(population)
    program = jax.jit(log_probs)
    alone = [program(jax.tree.map(lambda leaf, i=index: leaf[i], population)) for index in range(3)]
    np.testing.assert_allclose(mapped, np.stack([log_prob for log_prob, _ in alone]), atol=1e-4)
    np.testing.assert_allclose(means["obs"], np.stack([mean["obs"] for _, mean in alone]), atol=1e-4)


def test_states_of_equal_agents_share_one_compiled_program() -> None:
    traces = []

    @jax.jit
    def act(agent: PolicyAgent, state: AgentState, batch: SampleBatch) -> Any:
        traces.append(1)
        return agent.compute_actions(state, batch, jax.random.key(0))

    space = Box(-1.0, 1.0, (2,))
    for seed in range(3):
        agent = make_agent("gru")
        state = agent.init(Box(-1.0, 1.0, (2,)), Discrete(3), jax.random.key(seed))
        act(agent, state, one_step(agent, draw(space, (4,)), (4,)))
    assert len(traces) == 1
