"""The classic-control environments equal Gymnasium's: step by step, over episodes, in their spaces and at the start."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import scipy.stats

from rookery.envs import classic
from rookery.envs.classic.acrobot import AcrobotState
from rookery.envs.classic.cartpole import CartPoleState
from rookery.envs.classic.mountain_car import MountainCarState
from rookery.envs.classic.pendulum import PendulumState
from rookery.envs.env import Env, EnvState
from rookery.spaces import Discrete, from_gymnasium, to_gymnasium
from rookery.types import PyTreeData

NUM_PAIRS = 1000
NUM_RESETS = 10_000
ROUNDING = 1e-5
"""So close to where an episode ends, float32 may decide otherwise than float64."""
TURN = 2 * math.pi
POLE_LIMIT = math.radians(12)


@dataclass(frozen=True)
class Case:
    """One of our environments, Gymnasium's, and where to compare them.

    States are drawn uniformly in `ranges`, past the end of episodes; every tenth entry is put on one of its `borders`.
    """

    name: str
    gymnasium_name: str
    state_class: type[PyTreeData]
    starts: tuple[tuple[float, float], ...]
    """The bounds of the first state, by Gymnasium's documentation."""
    ranges: tuple[tuple[float, float], ...]
    borders: tuple[tuple[float, ...], ...]
    distance_to_end: Callable[[np.ndarray], np.ndarray]
    """How far each of the successors is from where the episode ends."""
    angles: tuple[int, ...] = ()
    """The entries that are equal if they differ by whole turns."""
    max_action: float = 0.0
    tolerance: float = 1e-5

    @property
    def env(self) -> Env:
        return classic.make(self.name)

    def make_gymnasium(self) -> Any:
        return gymnasium.make(self.gymnasium_name).unwrapped

    def draw_states(self, rng: np.random.Generator, num: int) -> np.ndarray:
        low, high = np.transpose(self.ranges)
        states = rng.uniform(low, high, (num, len(self.ranges)))
        on_border = rng.random(states.shape) < 0.1
        border_values = np.stack([rng.choice(borders, num) for borders in self.borders], axis=1)
        return np.where(on_border, border_values, states).astype(np.float32)

    def draw_actions(self, rng: np.random.Generator, num: int) -> np.ndarray:
        space = self.env.action_space
        if isinstance(space, Discrete):
            return rng.integers(space.n, size=num).astype(np.int32)
        return rng.uniform(-self.max_action, self.max_action, (num, 1)).astype(np.float32)

    def ours_at(self, states: np.ndarray) -> EnvState:
        """Our envs `[N]` in these states `[N, D]`."""
        num = len(states)
        started = jax.vmap(self.env.reset)(jax.random.split(jax.random.key(0), num))
        names = self.state_class.__dataclass_fields__  # type: ignore[attr-defined]
        return started.replace(env_state=self.state_class(**dict(zip(names, states.T, strict=True))))

    def difference(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        difference = ours.astype(np.float64) - theirs
        for entry in self.angles:
            difference[..., entry] -= TURN * np.round(difference[..., entry] / TURN)
        return difference


CASES = {
    case.name: case
    for case in [
        Case(
            "cartpole",
            "CartPole-v1",
            CartPoleState,
            starts=((-0.05, 0.05),) * 4,
            ranges=((-3, 3), (-4, 4), (-0.5, 0.5), (-5, 5)),
            borders=((-2.4, 2.4), (0.0, -10.0, 10.0), (-POLE_LIMIT, POLE_LIMIT, math.pi), (0.0, -20.0, 20.0)),
            distance_to_end=lambda states: np.minimum(
                np.abs(np.abs(states[:, 0]) - 2.4), np.abs(np.abs(states[:, 2]) - POLE_LIMIT)
            ),
        ),
        Case(
            "pendulum",
            "Pendulum-v1",
            PendulumState,
            starts=((-math.pi, math.pi), (-1, 1)),
            ranges=((-20, 20), (-8, 8)),
            borders=((-math.pi, 0.0, math.pi / 2, math.pi), (-8.0, 0.0, 8.0)),
            distance_to_end=lambda states: np.full(len(states), np.inf),
            angles=(0,),
            max_action=4.0,
        ),
        Case(
            "acrobot",
            "Acrobot-v1",
            AcrobotState,
            starts=((-0.1, 0.1),) * 4,
            ranges=((-math.pi, math.pi), (-math.pi, math.pi), (-4 * math.pi, 4 * math.pi), (-9 * math.pi, 9 * math.pi)),
            borders=((-math.pi, 0.0, math.pi),) * 2
            + ((-4 * math.pi, 0.0, 4 * math.pi), (-9 * math.pi, 0.0, 9 * math.pi)),
            distance_to_end=lambda states: np.abs(-np.cos(states[:, 0]) - np.cos(states[:, 0] + states[:, 1]) - 1.0),
            angles=(0, 1),
            tolerance=1e-4,
        ),
        Case(
            "mountain_car",
            "MountainCar-v0",
            MountainCarState,
            starts=((-0.6, -0.4), (0, 0)),
            ranges=((-1.2, 0.6), (-0.07, 0.07)),
            borders=((-1.2, 0.49, 0.5, 0.6), (-0.07, 0.0, 0.07)),
            distance_to_end=lambda states: np.abs(states[:, 0] - 0.5),
        ),
        Case(
            "mountain_car_continuous",
            "MountainCarContinuous-v0",
            MountainCarState,
            starts=((-0.6, -0.4), (0, 0)),
            ranges=((-1.2, 0.6), (-0.07, 0.07)),
            borders=((-1.2, 0.44, 0.45, 0.6), (-0.07, 0.0, 0.07)),
            distance_to_end=lambda states: np.abs(states[:, 0] - 0.45),
            max_action=2.0,
        ),
    ]
}

pytestmark = pytest.mark.usefixtures("optimized_programs")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def their_step(env: Any, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, bool]:
    """Step Gymnasium's env; return its state, observation, reward and termination."""
    obs, reward, terminated, _, _ = env.step(int(action) if action.ndim == 0 else action)
    return np.array(env.state, np.float64), obs, float(reward), terminated


def their_steps_from(case: Case, states: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
    """Step Gymnasium's env once from each state; return states, observations, rewards and terminations, `[N, ...]`."""
    env, steps = case.make_gymnasium(), []
    for state, action in zip(states, actions, strict=True):
        env.reset()
        env.state = state.astype(np.float64)
        steps.append(their_step(env, action))
    return [np.array(column) for column in zip(*steps, strict=True)]


def fields_of(state: EnvState) -> np.ndarray:
    """The simulator states of our envs, `[N, D]`."""
    return np.stack(jax.tree.leaves(state.env_state), axis=1)


@every_case
def test_a_thousand_steps_from_anywhere_equal_gymnasium_s(case: Case) -> None:
    rng = np.random.default_rng(0)
    states, actions = case.draw_states(rng, NUM_PAIRS), case.draw_actions(rng, NUM_PAIRS)
    their_states, their_obs, their_rewards, their_terminations = their_steps_from(case, states, actions)
    after = jax.jit(jax.vmap(case.env.step))(case.ours_at(states), actions)

    clear = case.distance_to_end(their_states) > ROUNDING
    assert np.count_nonzero(~clear) <= 10, "too many pairs are excluded from the comparison of endings"
    np.testing.assert_array_equal(np.asarray(after.done)[clear], their_terminations[clear])
    tolerance = case.tolerance
    np.testing.assert_allclose(np.asarray(after.reward)[clear], their_rewards[clear], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(after.obs, their_obs, rtol=tolerance, atol=tolerance)
    difference = case.difference(fields_of(after), their_states)
    assert np.all(np.abs(difference) <= tolerance * (1 + np.abs(their_states)))


@pytest.mark.parametrize("name", ["cartpole", "acrobot", "mountain_car", "mountain_car_continuous"])
def test_close_to_where_episodes_end_they_end_as_gymnasium_s(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(1)
    states, actions = case.draw_states(rng, 100_000), case.draw_actions(rng, 100_000)
    after = jax.jit(jax.vmap(case.env.step))(case.ours_at(states), actions)
    distances = case.distance_to_end(fields_of(after).astype(np.float64))
    close = np.nonzero((distances > 2 * ROUNDING) & (distances < 1e-3))[0][:100]

    _, _, _, their_terminations = their_steps_from(case, states[close], actions[close])
    assert 10 < np.count_nonzero(their_terminations) < len(close) - 10
    np.testing.assert_array_equal(np.asarray(after.done)[close], their_terminations)


def swing(obs: np.ndarray) -> np.ndarray:
    """Drive a mountain car in the direction it moves, which takes it to the goal."""
    return np.array(2 if obs[1] >= 0 else 0, np.int32)


def press_on(obs: np.ndarray) -> np.ndarray:
    """Drive a mountain car to the right, which takes it nowhere."""
    return np.array(2, np.int32)


def swing_continuously(obs: np.ndarray) -> np.ndarray:
    """Drive a continuous mountain car in the direction it moves."""
    return np.array([1.0 if obs[1] >= 0 else -1.0], np.float32)


def damp(obs: np.ndarray) -> np.ndarray:
    """Turn the pendulum against its motion."""
    return np.array([-0.5 * obs[2]], np.float32)


def chase(obs: np.ndarray) -> np.ndarray:
    """Push the cart to the side the pole leans to, which delays its fall; held longer, any two simulations part."""
    return np.array(obs[2] > 0, np.int32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "policy", "ends"),
    [
        ("cartpole", chase, True),
        ("mountain_car", swing, True),
        ("mountain_car", press_on, False),
        ("mountain_car_continuous", swing_continuously, True),
        ("pendulum", damp, False),
    ],
)
def test_an_episode_of_up_to_200_steps_follows_gymnasium_s(
    name: str, policy: Callable[[np.ndarray], np.ndarray], ends: bool, seed: int
) -> None:
    case = CASES[name]
    theirs = case.make_gymnasium()
    obs, _ = theirs.reset(seed=seed)
    start = np.array(theirs.state, np.float32)
    theirs.state = start.astype(np.float64)
    their_steps, actions = [], []
    for _ in range(200):
        actions.append(policy(obs))
        their_steps.append(their_step(theirs, actions[-1]))
        obs = their_steps[-1][1]
        if their_steps[-1][3]:
            break
    _, their_obs, their_rewards, their_terminations = map(np.array, zip(*their_steps, strict=True))
    assert bool(their_terminations[-1]) == ends

    ours = jax.tree.map(lambda leaf: leaf[0], case.ours_at(start[None]))
    step = case.env.step

    def follow(state: EnvState, action: jax.Array) -> tuple[EnvState, EnvState]:
        state = step(state, action)
        return state, state

    _, after = jax.jit(lambda state, actions: jax.lax.scan(follow, state, actions))(ours, np.stack(actions))
    np.testing.assert_allclose(after.obs, their_obs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.reward, their_rewards, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(after.done, their_terminations)


@every_case
def test_spaces_and_time_limit_are_gymnasium_s(case: Case) -> None:
    theirs = case.make_gymnasium()
    assert to_gymnasium(case.env.obs_space) == theirs.observation_space
    if isinstance(case.env.action_space, Discrete):  # ours count in int32, theirs in int64
        assert Discrete(case.env.action_space.n, dtype=np.int64) == from_gymnasium(theirs.action_space)
    else:
        assert to_gymnasium(case.env.action_space) == theirs.action_space
    assert case.env.max_episode_steps == gymnasium.spec(case.gymnasium_name).max_episode_steps


@every_case
def test_ten_thousand_resets_are_distributed_as_gymnasium_s(case: Case) -> None:
    gymnasium_env, starts = case.make_gymnasium(), []
    for index in range(NUM_RESETS):
        gymnasium_env.reset(seed=0 if index == 0 else None)
        starts.append(np.array(gymnasium_env.state, np.float64))
    resets = jax.jit(jax.vmap(case.env.reset))(jax.random.split(jax.random.key(0), NUM_RESETS))

    all_ours = [np.asarray(field, np.float64) for field in jax.tree.leaves(resets.env_state)]
    drawn = []
    for ours, theirs, (low, high) in zip(all_ours, np.transpose(starts), case.starts, strict=True):
        if low == high:
            np.testing.assert_array_equal(ours, theirs)
            continue
        width = high - low
        assert np.all((ours >= np.float32(low)) & (ours <= np.float32(high)))
        np.testing.assert_allclose([ours.min(), ours.max()], [low, high], rtol=0, atol=0.002 * width)
        np.testing.assert_allclose(ours.mean(), (low + high) / 2, rtol=0, atol=0.01 * width)
        np.testing.assert_allclose(ours.std(), width / math.sqrt(12), rtol=0.02)
        assert scipy.stats.ks_2samp(ours, theirs).pvalue > 0.001
        drawn.append(ours)
    # The entries are drawn independently of each other.
    correlations = np.atleast_2d(np.corrcoef(drawn)) - np.eye(len(drawn))
    assert np.abs(correlations).max() < 0.05
