import re
from collections import OrderedDict, UserDict
from fractions import Fraction
from typing import Any

import gymnasium.spaces as gym_spaces
import jax
import numpy as np
import pytest

from rookery.runners.envs.validation import (
    CALLS_PER_CHECK,
    InvalidFlagError,
    InvalidInfoError,
    InvalidObservationError,
    InvalidReplyError,
    InvalidRewardError,
    ObsStacker,
    StepChecker,
    as_failed,
    check_flag,
    check_info,
    check_reply,
    check_reward,
    stack_flags,
    stack_rewards,
    wrong_infos,
)
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.spaces import Box, Discrete, Tuple, from_gymnasium

GOOD_REWARDS = [
    1.5,
    -2,
    0,
    np.float32(0.5),
    np.float64(3.0),
    np.int8(-4),
    np.uint16(7),
    np.array(2.0),
    np.array([2.5]),
    Fraction(1, 4),
]
BAD_REWARDS = [
    True,
    np.bool_(False),
    1j,
    np.complex64(1),
    float("nan"),
    float("inf"),
    np.float32("-inf"),
    10**400,
    1e300,
    np.float64(-4e38),
    "1.0",
    None,
    [1.0],
    np.array([1.0, 2.0]),
    np.array([[1.0]]),
    np.array("a"),
]
SPACES = [
    gym_spaces.Box(-2.0, 3.0, (3,), np.float32),
    gym_spaces.Box(0, 255, (2, 3), np.uint8),
    gym_spaces.Box(-1.0, 1.0, (), np.float64),
    gym_spaces.Discrete(4, start=-2),
    gym_spaces.MultiDiscrete([3, 5], start=[1, -1]),
    gym_spaces.MultiBinary((2, 2)),
    gym_spaces.Dict(
        a=gym_spaces.Box(0, 1, (2,)), b=gym_spaces.Tuple([gym_spaces.Discrete(3), gym_spaces.MultiBinary(2)])
    ),
]


@pytest.mark.parametrize("reward", GOOD_REWARDS, ids=repr)
def test_any_real_number_is_a_reward(reward: Any) -> None:
    assert check_reward(reward) == float(np.asarray(reward).reshape(()).item())


@pytest.mark.parametrize("reward", BAD_REWARDS, ids=lambda reward: repr(reward)[:30])
def test_what_is_no_finite_real_number_is_no_reward(reward: Any) -> None:
    with pytest.raises(InvalidRewardError, match="expected"):
        check_reward(reward)


def test_many_rewards_are_judged_like_each_alone() -> None:
    mixed = [value for pair in zip(GOOD_REWARDS, BAD_REWARDS, strict=False) for value in pair]
    stacked, errors = stack_rewards(mixed)
    assert sorted(errors) == list(range(1, len(mixed), 2))
    np.testing.assert_array_equal(stacked[::2], [check_reward(reward) for reward in GOOD_REWARDS])
    np.testing.assert_array_equal(stacked[1::2], 0.0)


def test_one_wrong_reward_among_good_ones_is_found_by_its_position() -> None:
    for wrong in BAD_REWARDS:
        stacked, errors = stack_rewards([1.0, 2.0, wrong, 4.0])
        assert list(errors) == [2]
        assert stacked.tolist() == [1.0, 2.0, 0.0, 4.0]


@pytest.mark.parametrize("flag", [True, False, np.bool_(True), 0, 1, np.int64(1), np.array(True), np.array([False])])
def test_what_is_true_or_false_is_a_flag(flag: Any) -> None:
    assert check_flag("terminated", flag) is bool(flag)
    assert stack_flags([flag, True], [False, flag])[0].tolist() == [[bool(flag), True], [False, bool(flag)]]


@pytest.mark.parametrize("flag", [None, 2, 1.0, "True", np.array([True, False]), np.nan])
def test_what_is_neither_true_nor_false_is_no_flag(flag: Any) -> None:
    with pytest.raises(InvalidFlagError, match=r"truncated is .*expected True or False"):
        check_flag("truncated", flag)
    for flags in (([True, flag], [False, False]), ([False, False], [True, flag])):
        assert list(stack_flags(*flags)[1]) == [1]


def test_every_mapping_is_an_info_and_nothing_else() -> None:
    infos = [{}, OrderedDict(a=1), UserDict(b=2), None, [("a", 1)]]
    assert sorted(wrong_infos(infos)) == [3, 4]
    with pytest.raises(InvalidInfoError, match=r"info is None \(NoneType\); expected a dict"):
        check_info(None)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (None, "step returned NoneType"),
        ((1, 2, 3, 4), "step returned a tuple of 4; expected (obs, reward, terminated, truncated, info)"),
        ([1, 2, 3, 4, 5], "step returned list"),
    ],
)
def test_a_step_must_return_its_five_parts(reply: Any, text: str) -> None:
    with pytest.raises(InvalidReplyError, match=re.escape(text)):
        check_reply(reply, Phase.STEP)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_of_gymnasium_spaces_are_stacked_in_their_own_dtypes(space: gym_spaces.Space) -> None:
    space.seed(0)
    rows = [space.sample() for _ in range(5)]
    stacked, errors = ObsStacker(from_gymnasium(space)).stack(rows)
    assert errors == {}
    for row, sample in enumerate(rows):
        for leaf, expected in zip(jax.tree.leaves(stacked), jax.tree.leaves(sample), strict=True):
            assert leaf.dtype == np.asarray(expected).dtype
            np.testing.assert_array_equal(leaf[row], expected)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_no_rows_stack_to_empty_arrays(space: gym_spaces.Space) -> None:
    stacked, _ = ObsStacker(from_gymnasium(space)).stack([])
    leaves = jax.tree.leaves(space.sample())
    assert [leaf.shape for leaf in jax.tree.leaves(stacked)] == [(0, *np.shape(leaf)) for leaf in leaves]


def test_stacked_observations_do_not_change_with_the_memory_they_came_from() -> None:
    buffer = np.zeros(2, np.float32)
    stacked, _ = ObsStacker(Box(-1.0, 1.0, (2,))).stack([buffer, buffer])
    buffer[:] = 1.0
    assert not stacked.any()


VECTOR = Box(-2.0, 2.0, (2,))
IMAGES = from_gymnasium(gym_spaces.Dict(left=gym_spaces.Box(0, 255, (2,), np.uint8), right=gym_spaces.Discrete(3)))


@pytest.mark.parametrize(
    ("space", "obs", "text"),
    [
        (VECTOR, np.zeros(3, np.float32), "observation has shape [3]; expected float32[2] of Box"),
        (VECTOR, np.zeros(2), "observation has dtype float64; expected float32[2]"),
        (VECTOR, np.zeros(2, np.int8), "observation has dtype int8; expected float32[2]"),
        (VECTOR, [0.0, 0.0], "observation is of type list; expected an array float32[2]"),
        (VECTOR, np.array([0.0, np.nan], np.float32), "observation is nan at [1]; expected finite values of Box"),
        (VECTOR, np.array([-3.0, 0.0], np.float32), "observation is -3.0 at [0], which is outside of Box"),
        (IMAGES, {"left": np.zeros(2, np.uint8)}, "observation is a dict with ['left']; expected a dict with"),
        (IMAGES, {"left": np.zeros(2), "right": 1}, "observation['left'] has dtype float64; expected uint8[2]"),
        (IMAGES, {"left": np.zeros(2, np.uint8), "right": True}, "observation['right'] is of type bool"),
        (IMAGES, {"left": np.zeros(2, np.uint8), "right": 3}, "observation['right'] is 3, which is outside"),
        (IMAGES, {"left": np.zeros(2, np.uint8), "right": 2**70}, "outside of Discrete(3)"),
        (IMAGES, {"left": np.zeros(2, np.uint8), "right": np.float32(1)}, "observation['right'] has dtype float32"),
    ],
)
def test_a_wrong_observation_is_named_with_what_was_expected(space: Any, obs: Any, text: str) -> None:
    _, errors = ObsStacker(space).stack([obs])
    assert isinstance(errors[0], InvalidObservationError)
    assert text in str(errors[0])


@pytest.mark.parametrize(
    ("space", "obs"),
    [(VECTOR, np.zeros(3, np.float32)), (VECTOR, np.zeros(2)), (IMAGES, {}), (Tuple((VECTOR,)), ())],
)
def test_an_observation_of_another_form_than_its_space_comes_with_what_to_do(space: Any, obs: Any) -> None:
    _, errors = ObsStacker(space).stack([obs])
    assert str(errors[0]).endswith(": correct the observation or its space.")


def test_the_neighbors_of_a_wrong_observation_are_kept() -> None:
    good = np.ones(2, np.float32)
    wrongs = [np.zeros(3, np.float32), np.zeros(2), np.zeros(2, np.int8), [0.0, 0.0], None, np.zeros((), np.float32)]
    for wrong in wrongs:
        stacked, errors = ObsStacker(VECTOR).stack([good, wrong, good])
        assert list(errors) == [1]
        assert stacked.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_integers_of_any_width_are_stacked_and_those_that_do_not_fit_are_refused() -> None:
    stacker = ObsStacker(Discrete(5, dtype=np.int32))
    stacked, errors = stacker.stack([1, np.uint64(2), np.array(3, np.int8), np.int64(4)])
    assert (stacked.dtype, stacked.tolist(), errors) == (np.int32, [1, 2, 3, 4], {})
    for wrong in (2**70, 2**40, np.int64(2**40), True, 1.0, np.float32(1), np.array([1])):
        stacked, errors = stacker.stack([3, wrong])
        assert (stacked.tolist()[0], list(errors)) == (3, [1])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sample_bounds", [True, False])
def test_an_observation_that_is_not_finite_is_found_in_every_row_of_every_batch(
    wrong: float, sample_bounds: bool
) -> None:
    space = from_gymnasium(
        gym_spaces.Dict(a=gym_spaces.Discrete(3), b=gym_spaces.Tuple([gym_spaces.Box(-np.inf, np.inf, (2,))]))
    )
    good = {"a": 1, "b": (np.full(2, 1e30, np.float32),)}
    bad = {"a": 1, "b": (np.array([0.0, wrong], np.float32),)}
    stacker, checker = ObsStacker(space, sample_bounds), StepChecker(space, sample_bounds)
    for row in range(5):
        stacked, errors = stacker.stack([bad if k == row else good for k in range(5)])
        assert str(errors.pop(row)).startswith(f"observation['b'][0] is {wrong} at [1]; expected finite values of Box")
        assert errors == {}
        assert list(checker.check_values(stacked, 5)) == [row]


def test_an_observation_that_float32_cannot_hold_is_not_finite() -> None:
    stacker = ObsStacker(Box(-np.inf, np.inf, (1,), np.float64))
    assert list(stacker.stack([np.array([1e38]), np.array([1e300])])[1]) == [1]


def test_an_observation_outside_of_its_bounds_by_rounding_is_clipped_and_counted() -> None:
    space = Box(np.array([-1.0, 0.0, 100.0]), np.array([1.0, np.inf, 101.0]), dtype=np.float64)
    stacker = ObsStacker(space)
    stacked, errors = stacker.stack([np.array([1.0000000000000002, -1e-9, 99.9999])])
    assert (errors, stacked.tolist(), stacker.num_clipped) == ({}, [[1.0, 0.0, 100.0]], 1)
    for outside in ([1.00001, 0.0, 100.0], [0.0, -1e-5, 100.0], [0.0, 0.0, 99.999]):
        _, errors = ObsStacker(space).stack([np.array(outside)])
        assert "which is outside of Box" in str(errors[0])
    integers = ObsStacker(Box(0, 2_000_000_000, (1,), np.int32))
    assert list(integers.stack([np.array([-1], np.int32)])[1]) == [0], "integers are not rounded"


class RaisingReward:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no reward")

    def __repr__(self) -> str:
        raise ZeroDivisionError("no text")


class RaisingMapping(UserDict):
    def keys(self) -> Any:
        raise ZeroDivisionError("no keys")


def test_values_that_raise_when_they_are_read_cost_their_own_row() -> None:
    rewards, errors = stack_rewards([1.0, RaisingReward()])
    assert (rewards.tolist(), list(errors)) == ([1.0, 0.0], [1])
    assert str(errors[1]) == (
        "reward of type RaisingReward cannot be read: ZeroDivisionError('no reward'); expected a real number."
    )
    good = {"left": np.zeros(2, np.uint8), "right": 1}
    stacked, errors = ObsStacker(IMAGES).stack([good, RaisingMapping(good), good])
    assert (stacked.right.tolist(), list(errors)) == ([1, 0, 1], [1])
    assert "ZeroDivisionError('no keys')" in str(errors[1])
    assert list(wrong_infos([{}, RaisingReward()])) == [1]


def test_the_text_of_an_invalid_value_is_bounded() -> None:
    with pytest.raises(InvalidRewardError) as raised:
        check_reward("x" * 10_000_000)
    assert len(as_failed(raised.value, Phase.STEP).error) < 1_100


def test_the_bounds_of_all_envs_are_checked_in_turn() -> None:
    rows = [np.zeros(2, np.float32)] * 4
    rows[2] = np.full(2, 5.0, np.float32)
    stacker = ObsStacker(VECTOR)
    found = [list(stacker.stack(rows)[1]) for _ in range(8 * CALLS_PER_CHECK)]
    assert found[::CALLS_PER_CHECK] == [[], [], [2], [], [], [], [2], []]
    assert sum(map(len, found)) == 2
    stacker = ObsStacker(VECTOR, sample_bounds=False)
    assert all(stacker.stack(rows)[1] == {} for _ in range(4 * CALLS_PER_CHECK))


def test_arrays_of_steps_are_checked_as_a_whole_and_their_rewards_row_by_row() -> None:
    checker = StepChecker(VECTOR)
    for wrong in (np.array([1.0, np.nan, 3.0], np.float32), np.array([1.0, 1e300, 3.0])):
        rewards, errors = checker.check_rewards(wrong, 3)
        assert (rewards.dtype, rewards.tolist(), list(errors)) == (np.float64, [1.0, 0.0, 3.0], [1])
    with pytest.raises(InvalidRewardError, match=re.escape("rewards are float64[3, 1]; expected real numbers [3]")):
        checker.check_rewards(np.zeros((3, 1)), 3)
    with pytest.raises(InvalidFlagError, match=re.escape("terminated is int64[3]; expected bool[3]")):
        checker.check_flags("terminated", np.zeros(3, np.int64), 3)
    with pytest.raises(
        InvalidObservationError, match=re.escape("the batch of observations has shape [2, 2]; expected float32[3, 2]")
    ):
        checker.check_obs(np.zeros((2, 2), np.float32), 3)


def test_a_violation_becomes_a_failure_that_names_it() -> None:
    error = InvalidRewardError("reward is nan; expected a finite number.")
    expected = Failed(FaultKind.INVALID, Phase.STEP, "InvalidRewardError: reward is nan; expected a finite number.")
    assert as_failed(error, Phase.STEP) == expected


class Unreadable:
    """Says that it is an array, and cannot be converted."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("on another device")


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_arrays_of_other_libraries_are_converted(space: Any) -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.array = np.asarray(array)

        def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
            return self.array

    own = from_gymnasium(space)
    space.seed(0)
    obs = [space.sample() for _ in range(3)]
    foreign = jax.tree.map(Foreign, obs)
    stacked, errors = ObsStacker(own).stack(foreign)
    assert not errors
    jax.tree.map(np.testing.assert_array_equal, stacked, ObsStacker(own).stack(obs)[0])
    batch = StepChecker(own).check_obs(jax.tree.map(Foreign, stacked), 3)
    jax.tree.map(np.testing.assert_array_equal, batch, stacked)
    assert check_flag("terminated", Foreign(np.True_)) is True


def test_an_array_that_cannot_be_converted_is_an_invalid_observation() -> None:
    _, errors = ObsStacker(Box(-1.0, 1.0, (2,), np.float32)).stack([np.zeros(2, np.float32), Unreadable()])
    assert list(errors) == [1]
    assert "of type Unreadable; expected an array" in str(errors[1])
