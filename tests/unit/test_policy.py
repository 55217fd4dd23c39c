"""A policy in hand: observations in, actions out."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import Agent, RandomAgent
from rookery.agents.policy import PolicyAgent
from rookery.algorithms.dqn import DQNAgent
from rookery.algorithms.ppo import PPOAgent
from rookery.algorithms.sac import SACAgent
from rookery.algorithms.td3 import TD3Agent
from rookery.errors import InvalidInputError, RookeryError, ShapeError
from rookery.networks import ActorCriticConfig
from rookery.networks.policy import PolicyConfig
from rookery.policy import Policy
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, to_gymnasium

OBS = Box(-1.0, 1.0, (4,))
IN_A_BOX = Box(-2.0, 0.1, (2,), np.float64)
THREE = Discrete(3)


def policy_of(agent: Agent, obs_space: Space = OBS, action_space: Space = THREE) -> Policy:
    state = agent.init(obs_space, action_space, jax.random.key(1))
    return Policy(agent, state, obs_space, action_space, num_steps=12)


def observations(space: Space, num_rows: int, seed: int = 0) -> Any:
    return jax.tree.map(np.asarray, space.sample(jax.random.key(seed), (num_rows,)))


def row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.mark.parametrize(
    ("agent", "action_space"),
    [(PPOAgent(), Discrete(3)), (SACAgent(), IN_A_BOX), (TD3Agent(), IN_A_BOX), (DQNAgent(), Discrete(3))],
    ids=["ppo", "sac", "td3", "dqn"],
)
def test_predict_returns_the_greedy_action_of_the_agent(agent: Agent, action_space: Space) -> None:
    policy, obs = policy_of(agent, OBS, action_space), observations(OBS, 5)
    batch = SampleBatch(obs=jnp.asarray(obs))
    expected, _ = jax.jit(agent.evaluate_actions)(policy.agent_state, batch, jax.random.key(9))
    actions, state = policy.predict(obs)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    assert state is None
    for index in range(5):
        np.testing.assert_allclose(policy.predict(obs[index])[0], expected[index], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(policy(obs[index]), policy.predict(obs[index])[0])


@pytest.mark.parametrize(
    "action_space",
    [
        Discrete(4, start=-2, dtype=np.int64),
        IN_A_BOX,
        MultiDiscrete([2, 3], dtype=np.int64),
        MultiBinary(3),
        Dict(move=IN_A_BOX, jump=Discrete(2)),
        Tuple([Discrete(2, dtype=np.int64), IN_A_BOX]),
    ],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_action_is_one_that_gymnasium_accepts(action_space: Space, deterministic: bool) -> None:
    policy, space = policy_of(PPOAgent(), OBS, action_space), to_gymnasium(action_space)
    for index in range(8):
        action, _ = policy.predict(observations(OBS, 1, index)[0], deterministic=deterministic)
        assert space.contains(action), action


def test_what_gymnasium_returns_is_accepted_as_it_is() -> None:
    space = Dict(
        place=Discrete(5, dtype=np.int64), pixels=Box(0, 255, (2, 2), np.uint8), pair=Tuple([OBS, Discrete(2)])
    )
    policy, gym_space = policy_of(PPOAgent(), space), to_gymnasium(space)
    gym_space.seed(3)
    obs = gym_space.sample()
    obs["place"] = int(obs["place"])  # a Python int, as many environments return it
    action, _ = policy.predict(obs)
    assert action in (0, 1, 2)
    assert isinstance(policy_of(PPOAgent(), Discrete(5)).predict(3)[0].item(), int)


def test_a_batch_is_told_from_one_observation_by_the_space() -> None:
    policy = policy_of(PPOAgent(), Discrete(5))
    assert np.shape(policy.predict(3)[0]) == ()
    assert np.shape(policy.predict(np.array([3, 4]))[0]) == (2,)


def test_float64_observations_act_like_float32_ones() -> None:
    policy, obs = policy_of(PPOAgent(), OBS, IN_A_BOX), observations(OBS, 1)[0]
    np.testing.assert_array_equal(policy.predict(obs.astype(np.float64))[0], policy.predict(obs)[0])


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3, np.float32), r"shape \[3\]"),
        (np.zeros((2, 2, 4), np.float32), r"shape \[2, 2, 4\]"),
        ("abc", "observation"),
        (np.array(["a", "b", "c", "d"]), "dtype"),
        ((np.zeros(4, np.float32), {}), r"expected an array of numbers\. `env\.reset\(\)` returns"),
    ],
)
def test_an_observation_of_another_form_is_one_sentence(obs: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        policy_of(PPOAgent()).predict(obs)


PIXELS = Box(0, 255, (2, 2), np.uint8)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (Discrete(4), 99, r"is 99, which is outside of Discrete\(4\)"),
        (Discrete(4), np.int32(-1), "is -1, which"),
        (Discrete(4, start=5), np.array([5, 4]), r"is 4 at \[1\], which"),
        (PIXELS, np.full((2, 2), 300), r"is 300 at \[0, 0\], which"),
        (MultiDiscrete([2, 3]), np.array([1, 3], np.int32), r"is 3 at \[1\], which"),
        (MultiBinary(2), np.array([0, 2], np.int8), r"is 2 at \[1\], which"),
        (Dict(a=Discrete(3), b=OBS), {"a": 3, "b": np.zeros(4)}, r"\['a'\] is 3, which"),
        (OBS, [[1, 2], [3]], "expected an array of numbers"),
        (Tuple([OBS]), ([[1, 2], [3]],), r"the observation\[0\] is \[\[1, 2\], \[3\]\]"),
    ],
)
def test_a_value_outside_of_the_space_is_one_sentence(space: Space, obs: Any, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        policy_of(RandomAgent(), space).predict(obs)


@pytest.mark.parametrize(
    ("space", "obs"),
    [(Discrete(4, start=5), 8), (PIXELS, np.full((2, 2), 255)), (MultiBinary(2), [0, 1]), (OBS, np.full(4, 9.0))],
    ids=str,
)
def test_values_of_other_dtypes_are_accepted(space: Space, obs: Any) -> None:
    policy_of(RandomAgent(), space).predict(obs)


def test_a_missing_entry_of_a_dict_observation_is_named() -> None:
    policy = policy_of(PPOAgent(), Dict(a=OBS, b=OBS))
    with pytest.raises(RookeryError, match=r"\['a', 'b'\]"):
        policy.predict({"a": np.zeros(4, np.float32)})


def test_samples_differ_from_call_to_call_and_greedy_actions_do_not() -> None:
    policy, obs = policy_of(PPOAgent(), OBS, Box(-100.0, 100.0, (2,))), np.zeros(4, np.float32)
    samples = {policy.predict(obs, deterministic=False)[0].tobytes() for _ in range(8)}
    assert len(samples) == 8
    assert len({policy.predict(obs)[0].tobytes() for _ in range(8)}) == 1


def samples_of(policy: Policy) -> list[float]:
    return [float(policy.predict(np.zeros(4, np.float32), deterministic=False)[0][0]) for _ in range(4)]


def test_policies_sample_differently_unless_they_have_the_same_seed() -> None:
    one, other = (policy_of(PPOAgent(), OBS, IN_A_BOX) for _ in range(2))
    assert samples_of(one) != samples_of(other)
    one.seed(3)
    other.seed(3)
    assert samples_of(one) == samples_of(other)
    other.seed(4)
    assert samples_of(one) != samples_of(other)
    for wrong in (-1, 2**32):
        with pytest.raises(InvalidInputError, match="seed"):
            one.seed(wrong)


def test_masked_actions_are_never_taken() -> None:
    space = Dict(obs=OBS, action_mask=Box(0, 1, (3,), np.int8))
    policy = policy_of(PPOAgent(), space)
    obs = {"obs": observations(OBS, 64), "action_mask": np.tile(np.array([0, 1, 0], np.int8), (64, 1))}
    for deterministic in (True, False):
        assert set(policy.predict(obs, deterministic=deterministic)[0].tolist()) == {1}


class TestRecurrent:
    @pytest.fixture(params=["gru", "lstm"])
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        agent = PPOAgent(config=ActorCriticConfig(core=request.param, core_size=8))
        return Policy(*agent.acting_part(agent.init(OBS, IN_A_BOX, jax.random.key(1))), OBS, IN_A_BOX)

    def test_the_state_goes_from_step_to_step_as_in_a_trajectory(self, policy: Policy) -> None:
        obs, agent = observations(OBS, 6), policy.agent
        assert isinstance(agent, PolicyAgent)
        network = policy.agent_state.extra_state.network
        starts = jnp.array([1.0, 0, 0, 1, 0, 0])
        distribution, _ = network.unroll(
            policy.agent_state.params, jnp.asarray(obs)[:, None], agent.initial_carry((1,)), starts[:, None]
        )
        expected = distribution.action(distribution.mode())[:, 0]
        state = None
        for index in range(6):
            action, state = policy.predict(obs[index], state, episode_start=bool(starts[index]))
            np.testing.assert_allclose(action, expected[index], rtol=1e-5, atol=1e-6)

    def test_each_row_of_a_batch_has_its_own_state(self, policy: Policy) -> None:
        obs = [observations(OBS, 3, seed) for seed in range(3)]
        state = None
        for step in range(3):
            actions, state = policy.predict(obs[step], state, episode_start=np.array([False, step == 1, False]))
        alone = None
        for step in range(3):
            action, alone = policy.predict(obs[step][0], alone)
        np.testing.assert_allclose(actions[0], action, rtol=1e-5, atol=1e-6)
        late = None
        for step in range(1, 3):
            action, late = policy.predict(obs[step][1], late)
        np.testing.assert_allclose(actions[1], action, rtol=1e-5, atol=1e-6)

    def test_calling_it_names_predict(self, policy: Policy) -> None:
        assert policy.is_recurrent
        with pytest.raises(InvalidInputError, match=r"policy\.predict\(obs, state\)"):
            policy(np.zeros(4, np.float32))

    def test_a_state_of_another_batch_size_is_one_sentence(self, policy: Policy) -> None:
        _, state = policy.predict(observations(OBS, 3))
        with pytest.raises(ShapeError, match="None where episodes begin"):
            policy.predict(observations(OBS, 2), state)

    @pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 1)), "first", [[1], [1, 2]]], ids=str)
    def test_episode_starts_of_another_form_are_one_sentence(self, policy: Policy, wrong: Any) -> None:
        _, state = policy.predict(observations(OBS, 2))
        with pytest.raises(ShapeError, match="episode_start"):
            policy.predict(observations(OBS, 2), state, episode_start=wrong)


def test_it_says_what_it_is() -> None:
    assert repr(policy_of(PolicyAgent(config=PolicyConfig(core="gru")))) == (
        "Policy(recurrent PolicyAgent, Box(-1.0, 1.0, (4,), float32) -> Discrete(3), 12 env steps)"
    )


def test_warm_up_compiles_what_predict_then_uses(capfd: pytest.CaptureFixture) -> None:
    policy = policy_of(RandomAgent())
    policy.warm_up(1, 4)
    with jax.log_compiles():
        policy.predict(np.zeros(4, np.float32))
        policy.predict(np.zeros((4, 4), np.float32))
    assert "Compiling" not in capfd.readouterr().err


def test_warm_up_gives_observations_of_the_space() -> None:
    policy_of(RandomAgent(), Tuple([Discrete(2, start=5), MultiDiscrete([2, 2], [3, -4])])).warm_up(1, 2)


def test_a_trained_policy_plays_an_environment_of_gymnasium() -> None:
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    agent = PPOAgent()
    policy = policy_of(agent, Box(-np.inf, np.inf, (4,)), Discrete(2, dtype=np.int64))
    for _ in range(5):
        obs, _, terminated, *_ = env.step(policy(obs))
    assert env.observation_space.contains(obs)
    assert not terminated
