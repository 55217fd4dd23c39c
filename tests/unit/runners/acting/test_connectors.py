"""Connectors against Gymnasium's own wrappers and plain NumPy, alone and in a runner."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.acting.connectors import (
    ClipActions,
    FlattenObs,
    FrameStack,
    NormalizeObs,
    ObsConnector,
    PreviousActionAndReward,
    Rows,
    Unsquash,
)
from rookery.runners.acting.pipelines import Pipeline
from rookery.runners.envs.base_env import ALL, End
from rookery.runners.runner import EnvRunner
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, to_gymnasium
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error
from tests.runner_envs import Moment, ParityAgent, ScriptedEnv, in_dicts, make_runner, vectorized

NUMBER = Box(-np.inf, np.inf, (1,))
BUTTON = Discrete(2)


def rows(
    columns: Sequence[int], starts: Sequence[bool] | None = None, actions: Any = None, rewards: Any = None
) -> Rows:
    starts = [False] * len(columns) if starts is None else starts
    rewards = np.zeros(len(columns)) if rewards is None else np.asarray(rewards)
    return Rows(np.array(columns), np.array(starts), actions, rewards)


def numbers(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


# Flatten.

NESTED = Dict(
    {
        "position": Box(-1.0, 2.0, (2, 2)),
        "kind": Discrete(3, start=-1),
        "choices": MultiDiscrete([2, 3]),
        "pair": Tuple((MultiBinary(2), Box(0, 255, (2,), np.uint8))),
    }
)


def test_observations_are_flattened_as_gymnasium_does() -> None:
    connector = FlattenObs()
    flat_space = connector.bind(NESTED, BUTTON)
    samples = NESTED.sample(jax.random.key(0), (7,))
    flat = connector(jax.tree.map(np.asarray, samples), rows(range(7)))
    assert flat.dtype == np.float32
    peer = to_gymnasium(NESTED)
    for index in range(7):
        one = jax.tree.map(lambda leaf, index=index: np.asarray(leaf[index]), samples)
        one["kind"] = int(one["kind"])
        expected = gymnasium.spaces.flatten(peer, {name: one[name] for name in NESTED.spaces})
        np.testing.assert_allclose(flat[index], expected)
    assert flat_space.shape == gymnasium.spaces.flatten_space(peer).shape
    assert flat_space.contains(flat[0])


@pytest.mark.parametrize("space", [Discrete(4), MultiBinary(3), MultiDiscrete([2, 2]), Box(0.0, 1.0)])
def test_every_single_space_can_be_flattened(space: Space) -> None:
    connector = FlattenObs()
    flat_space = connector.bind(space, BUTTON)
    flat = connector(np.asarray(space.sample(jax.random.key(0), (5,))), rows(range(5)))
    assert flat.shape == (5, *flat_space.shape)
    assert all(flat_space.contains(row) for row in flat)


# Frame stack.


@pytest.mark.parametrize("shape", [(2,), (3, 4, 1)])
def test_frames_are_stacked_as_gymnasium_does(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    num_columns, num_frames = 3, 4
    connector = FrameStack(num_frames)
    space = connector.bind(Box(-np.inf, np.inf, shape), BUTTON)
    connector.reserve(num_columns)
    history: dict[int, list[np.ndarray]] = {column: [] for column in range(num_columns)}
    for step in range(30):
        columns = (
            np.arange(num_columns) if step == 0 else rng.permutation(num_columns)[: rng.integers(1, num_columns + 1)]
        )
        starts = np.ones(len(columns), bool) if step == 0 else rng.random(len(columns)) < 0.2
        obs = rng.standard_normal((len(columns), *shape)).astype(np.float32)
        shown = connector(obs, rows(columns, starts))
        for column, is_start, one, stacked in zip(columns, starts, obs, shown, strict=True):
            history[column] = [one] * num_frames if is_start else [*history[column][1:], one]
            np.testing.assert_array_equal(stacked, np.concatenate(history[column], axis=-1))
    assert shown.shape[1:] == space.shape == (*shape[:-1], shape[-1] * num_frames)


def test_frames_of_a_runner_are_those_of_the_wrapped_env() -> None:
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 3)
    runner = make_runner(
        vectorized(lambda index: gymnasium.make("CartPole-v1")),
        obs_connectors=lambda policy: [FrameStack(3)],
        rollout_fragment_length=16,
    )
    samples = [runner.sample() for _ in range(4)]
    batches = [sample.batch.batches.default for sample in samples]
    seeds = iter(sorted((episode.number, episode.seed) for sample in samples for episode in sample.episodes))
    obs, _ = env.reset(seed=next(seeds)[1])
    for batch in batches:
        for t in range(16):
            np.testing.assert_array_equal(batch.obs[t, 0], obs.reshape(-1))
            obs, _, terminated, truncated, _ = env.step(int(batch.actions[t, 0]))
            np.testing.assert_array_equal(batch.extras.env_extras.ori_obs[t, 0], obs.reshape(-1))
            assert batch.extras.env_extras.termination[t, 0] == terminated
            if terminated or truncated:
                following = next(seeds, None)
                if following is None:
                    return
                obs, _ = env.reset(seed=following[1])


def test_more_columns_do_not_disturb_the_frames_that_are_there() -> None:
    connector = FrameStack(2)
    connector.bind(NUMBER, BUTTON)
    connector.reserve(1)
    connector(numbers([1]), rows([0], [True]))
    connector.reserve(3)
    np.testing.assert_array_equal(connector(numbers([2, 9]), rows([0, 2], [False, True])), [[1, 2], [9, 9]])


def test_the_dtype_of_pixels_stays() -> None:
    connector = FrameStack(2)
    space = connector.bind(Box(0, 255, (2, 2, 3), np.uint8), BUTTON)
    connector.reserve(1)
    shown = connector(np.full((1, 2, 2, 3), 200, np.uint8), rows([0], [True]))
    assert (shown.dtype, space.dtype, space.shape) == (np.uint8, np.uint8, (2, 2, 6))


# Normalization.


def test_observations_are_normalized_by_the_statistics_of_all_so_far() -> None:
    rng = np.random.default_rng(0)
    connector = NormalizeObs(clip=5.0)
    space = connector.bind(Box(-np.inf, np.inf, (3,)), BUTTON)
    seen = np.zeros((0, 3))
    for size in (1, 4, 2, 50):
        obs = (rng.standard_normal((size, 3)) * [1.0, 100.0, 1e-3] + [1e4, 0.0, -5.0]).astype(np.float32)
        seen = np.concatenate([seen, obs])
        shown = connector(obs, rows(range(size)))
        std = seen.std(axis=0)
        expected = (obs - seen.mean(axis=0)) / np.where(std > 1e-8, std, 1.0)
        np.testing.assert_allclose(shown, np.clip(expected, -5.0, 5.0), rtol=1e-4, atol=1e-5)
        assert shown.dtype == np.float32
    assert all(space.contains(row) for row in shown)


def test_a_constant_observation_is_normalized_to_zero() -> None:
    connector = NormalizeObs()
    connector.bind(NUMBER, BUTTON)
    for _ in range(3):
        shown = connector(numbers([7.0, 7.0]), rows([0, 1]))
    np.testing.assert_array_equal(shown, 0.0)


def test_statistics_go_over_to_an_evaluation_which_does_not_change_them() -> None:
    rng = np.random.default_rng(0)
    trained, evaluated = NormalizeObs(), NormalizeObs(update=False)
    for connector in (trained, evaluated):
        connector.bind(NUMBER, BUTTON)
    trained(numbers(rng.standard_normal(50) * 3 + 1), rows(range(50)))
    state = trained.get_state()
    evaluated.set_state(state)
    probe = numbers([0.5, 2.0])
    first = evaluated(probe, rows([0, 1]))
    evaluated(numbers([100.0]), rows([0]))
    np.testing.assert_array_equal(first, evaluated(probe, rows([0, 1])))
    trained(numbers([100.0]), rows([0]))
    jax.tree.map(np.testing.assert_array_equal, state, evaluated.get_state())
    assert trained.get_state()["count"] == 51.0


# Previous action and reward.


def test_the_previous_action_and_reward_are_zero_at_the_start() -> None:
    connector = PreviousActionAndReward()
    space = connector.bind(NUMBER, Discrete(3))
    first = connector(numbers([5]), rows([0], [True]))
    np.testing.assert_array_equal(first["previous_action"], [[0, 0, 0]])
    then = connector(numbers([6, 7]), rows([0, 1], [False, True], actions=np.array([2, 1]), rewards=[1.5, 9.0]))
    np.testing.assert_array_equal(then["previous_action"], [[0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(then["previous_reward"], [[1.5], [0.0]])
    assert space.contains(jax.tree.map(lambda leaf: leaf[0], then))
    assert space.contains(jax.tree.map(lambda leaf: leaf[0], first))


# Actions.


@pytest.mark.parametrize("space", [Box(-2.0, 1.0, (3,)), Box(np.array([0.0, -1e-3]), np.array([1e5, 1e-3]))])
def test_actions_are_unsquashed_as_gymnasium_does(space: Box) -> None:
    connector = Unsquash()
    inner = connector.bind(space)
    low, high = np.ones(space.shape, np.float32) * -1, np.ones(space.shape, np.float32)

    class Received(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(1)
        action_space = to_gymnasium(space)

        def step(self, action: Any) -> Any:
            self.action = action
            return 0, 0.0, False, False, {}

    env = Received()
    wrapped = gymnasium.wrappers.RescaleAction(env, low, high)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, *space.shape)).astype(np.float32)
    for action, mapped in zip(actions, connector(actions), strict=True):
        wrapped.step(action)
        np.testing.assert_allclose(mapped, env.action, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(connector(low[None])[0], space.low)
    np.testing.assert_array_equal(connector(high[None])[0], space.high)
    assert inner.contains(high)
    assert connector(actions).dtype == space.dtype


def test_actions_are_cut_off_at_the_bounds() -> None:
    connector = ClipActions()
    space = connector.bind(Box(-2.0, 1.0, (2,)))
    np.testing.assert_array_equal(
        connector(np.array([[-9.0, 0.5], [3.0, -2.0]], np.float32)), [[-2.0, 0.5], [1.0, -2.0]]
    )
    assert space == Box(-2.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("connector", "spaces", "message"),
    [
        (FrameStack(2), (Discrete(3), BUTTON), "FrameStack"),
        (NormalizeObs(), (Discrete(3), BUTTON), "NormalizeObs"),
        (Unsquash(), (Discrete(2),), "Unsquash"),
        (Unsquash(), (Box(-np.inf, 1.0, (1,)),), "finite bounds"),
        (ClipActions(), (Discrete(2),), "ClipActions"),
    ],
)
def test_a_connector_says_which_spaces_it_can_work_with(connector: Any, spaces: tuple, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        connector.bind(*spaces)


# Pipelines.


def test_connectors_work_one_after_the_other_and_tell_each_other_their_spaces() -> None:
    obs_space = Dict({"x": Box(0.0, 1.0, (2,)), "k": Discrete(3)})
    pipeline = Pipeline(
        [FlattenObs(), FrameStack(2), NormalizeObs()], [Unsquash(), ClipActions()], obs_space, Box(-2.0, 1.0, (1,))
    )
    pipeline.reserve(2)
    assert pipeline.obs_space.shape == (10,)
    assert pipeline.action_space == Box(-1.0, 1.0, (1,))
    obs = {"x": np.ones((2, 2), np.float32), "k": np.array([0, 2])}
    assert pipeline.to_policy(obs, rows([0, 1], [True, True])).shape == (2, 10)
    np.testing.assert_allclose(pipeline.to_env(np.array([[5.0], [0.0]], np.float32)), [[1.0], [-0.5]])
    state = pipeline.get_state()
    other = Pipeline([FlattenObs(), FrameStack(2), NormalizeObs()], [], obs_space, Box(-2.0, 1.0, (1,)))
    other.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, other.get_state(), state)


# In a runner.


def runner_with(env: Any, connectors: Any, **settings: Any) -> EnvRunner:
    return make_runner(env, obs_connectors=connectors, **settings)


@pytest.mark.parametrize("has_mapping", [False, True])
def test_the_last_observation_passes_the_connectors_like_any_other(has_mapping: bool) -> None:
    mapping = (lambda agent, episode: "default") if has_mapping else None
    runner = runner_with(
        vectorized(lambda index: CountingEnv(3)),
        lambda policy: [PreviousActionAndReward(), FlattenObs(), FrameStack(2)],
        mapping=mapping,
    )
    batch = runner.sample(num_episodes=2).batch.batches.default
    successors = batch.extras.env_extras.ori_obs[:, 0]  # per frame: observation, one-hot action, reward
    actions = np.eye(2)[batch.actions[:, 0]]
    for t in range(6):
        frame = [t % 3 + 1, *actions[t], 1.0]
        np.testing.assert_array_equal(successors[t, 4:], frame)
        if t not in (2, 5):
            np.testing.assert_array_equal(batch.obs[t + 1, 0], successors[t])
    first = [0.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(batch.obs[3, 0], first + first)


def test_an_agent_in_the_place_of_another_that_has_just_ended_sees_nothing_of_it() -> None:
    script = [
        Moment({"a": 1, "b": 11}),
        Moment({"a": 2, "b": 12, "c": 21}, terminated=["a"]),
        Moment({"b": 13, "c": 22}),
        Moment({"b": 14, "c": 23}, terminated=[ALL]),
    ]
    runner = runner_with(in_dicts(ScriptedEnv(script, agents="abc")), lambda policy: [FrameStack(2)])
    batch = runner.sample(num_episodes=1).batch.batches.default
    pairs = {
        (tuple(batch.obs[t, column]), tuple(batch.extras.env_extras.ori_obs[t, column]))
        for t, column in zip(*np.nonzero(batch.extras.env_extras.autoreset == 0), strict=True)
    }
    assert pairs == {
        ((1, 1), (1, 2)),
        ((11, 11), (11, 12)),
        ((11, 12), (12, 13)),
        ((12, 13), (13, 14)),
        ((21, 21), (21, 22)),
        ((21, 22), (22, 23)),
    }


def test_the_frames_of_an_env_that_failed_are_forgotten() -> None:
    runner = runner_with(vectorized(lambda index: FaultyEnv(raise_error, at_step=2)), lambda policy: [FrameStack(2)])
    batch = runner.sample(num_steps=4).batch.batches.default
    is_live = batch.extras.env_extras.autoreset[:, 0] == 0
    np.testing.assert_array_equal(batch.obs[is_live, 0], [[0, 0], [0, 1]])


def test_spaces_of_a_runner_are_those_after_the_connectors() -> None:
    runner = runner_with(vectorized(lambda index: CountingEnv(3)), lambda policy: [FrameStack(4)])
    obs_space, _ = runner.spaces_of()
    assert obs_space.shape == (4,)


def test_each_policy_has_its_own_connectors() -> None:
    script = [Moment({"a": 1, "b": 1}), Moment({"a": 2, "b": 2}, terminated=[ALL])]

    def connectors(policy: str) -> list[ObsConnector]:
        return [FrameStack(3)] if policy == "a" else []

    runner = runner_with(
        in_dicts(ScriptedEnv(script)),
        connectors,
        policies={"a": ParityAgent(), "b": ParityAgent()},
        mapping=lambda agent, episode: agent,
    )
    batches = runner.sample(num_episodes=1).batch.batches
    np.testing.assert_array_equal(batches.a.obs[0, 0], [1, 1, 1])
    np.testing.assert_array_equal(batches.b.obs[0, 0], [1])


@pytest.mark.parametrize("is_multi_agent", [False, True])
def test_what_connectors_learned_is_in_the_state_of_the_runner(is_multi_agent: bool) -> None:
    agent = ParityAgent()

    def make() -> EnvRunner:
        script = [Moment({"a": 3}), Moment({"a": 5}), Moment({"a": 10}, terminated=[ALL])]
        env = in_dicts(ScriptedEnv(script)) if is_multi_agent else vectorized(lambda index: CountingEnv(3))
        return EnvRunner(env, agent, obs_connectors=lambda policy: [NormalizeObs()])

    first, second = make(), make()
    first.set_agent_states(agent.init(NUMBER, BUTTON, jax.random.key(0)))
    first.sample(num_episodes=2)
    state = first.get_state()
    second.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, second.get_state()["connectors"], state["connectors"])
    second.set_agent_states(agent.init(NUMBER, BUTTON, jax.random.key(0)))
    counts = []
    for runner in (first, second):
        runner.sample(num_episodes=2)
        counts.append(float(runner.get_state()["connectors"]["default"][0]["count"]))
    assert counts[0] == counts[1] > state["connectors"]["default"][0]["count"]


def test_an_end_without_observation_keeps_what_the_policy_saw() -> None:
    script = [Moment({"a": 4, "b": 8}), Moment({"a": 5}, {"b": 3.0}, truncated=[ALL])]
    runner = runner_with(in_dicts(ScriptedEnv(script)), lambda policy: [FrameStack(2)])
    batch = runner.sample(num_episodes=1).batch.batches.default
    gone = batch.extras.env_extras.end == End.GONE_TRUNCATED
    np.testing.assert_array_equal(batch.obs[gone], [[8, 8]])
    np.testing.assert_array_equal(batch.extras.env_extras.ori_obs[gone], [[8, 8]])
