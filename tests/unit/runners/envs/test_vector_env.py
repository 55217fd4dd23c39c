import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import gymnasium.spaces as gym_spaces
import jax
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.runners.envs.validation import CALLS_PER_CHECK
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import Reset, TransportVectorEnv, VectorEnv, VectorStep
from rookery.runners.faults import EnvFaultError, Failed, FaultKind, Phase, fault_report
from rookery.runners.transports.local import LocalTransport
from rookery.spaces import Box, Dict, Discrete, from_gymnasium
from rookery.testing.misbehaving_envs import (
    CountingEnv,
    FaultyEnv,
    LyingEnv,
    ReusedBufferEnv,
    StepResult,
    raise_without_arguments,
    with_four_values,
    with_list_info,
    with_nan_reward,
    with_two_rewards,
    with_wrong_dtype,
    with_wrong_shape,
)
from rookery.types import PyTreeDict

SPACES = [
    gym_spaces.Box(-2.0, 3.0, (3,), np.float64),
    gym_spaces.Box(-1.0, 1.0, (), np.float32),
    gym_spaces.Discrete(4, start=-2),
    gym_spaces.MultiDiscrete([3, 5], start=[1, -1]),
    gym_spaces.MultiBinary((2, 2)),
    gym_spaces.Dict(
        a=gym_spaces.Box(0, 1, (2,)), b=gym_spaces.Tuple([gym_spaces.Discrete(3), gym_spaces.MultiBinary(2)])
    ),
]


class EchoEnv(gymnasium.Env):
    """Observes its own action, after checking that it is what its space says."""

    def __init__(self, space: gym_spaces.Space) -> None:
        self.observation_space = self.action_space = space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        return self.action_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        assert not any(leaf.flags.writeable for leaf in jax.tree.leaves(action) if isinstance(leaf, np.ndarray))
        return action, 1.0, False, False, {}


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_reach_envs_as_their_space_says_and_cannot_be_written_to(space: gym_spaces.Space) -> None:
    vector_env = VectorEnv.wrap(lambda index: EchoEnv(space), num_envs=3)
    vector_env.vector_reset([1, 2, 3])
    actions = jax.tree.map(np.asarray, from_gymnasium(space).sample(jax.random.key(0), (3,)))
    step = vector_env.vector_step(actions)
    assert step.failed == {}
    for seen, sent in zip(jax.tree.leaves(step.obs), jax.tree.leaves(actions), strict=True):
        np.testing.assert_array_equal(seen, sent)


def test_actions_of_another_shape_or_kind_are_refused_before_any_env_steps() -> None:
    vector_env = VectorEnv.wrap(lambda index: CountingEnv(), num_envs=2)
    vector_env.vector_reset()
    for actions in (np.zeros(3, np.int64), np.zeros((2, 1), np.int64), np.zeros(2)):
        with pytest.raises(ShapeError, match="actions has"):
            vector_env.vector_step(actions)
    assert vector_env.vector_step(np.zeros(2, np.int64)).obs.tolist() == [[1.0], [1.0]]


def test_wrapped_envs_step_like_the_envs_alone() -> None:
    vector_env = VectorEnv.wrap(lambda index: gymnasium.make("CartPole-v1"), num_envs=3)
    envs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    seeds = [5, 6, 7]
    obs, _ = vector_env.vector_reset(seeds)
    np.testing.assert_array_equal(obs, [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    rng, num_ends = np.random.default_rng(0), 0
    for _ in range(100):
        actions = rng.integers(0, 2, 3)
        step = vector_env.vector_step(actions)
        singles = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        np.testing.assert_array_equal(step.obs, [single[0] for single in singles])
        assert step.obs.dtype == np.float32
        assert step.rewards.tolist() == [single[1] for single in singles]
        assert step.terminated.tolist() == [single[2] for single in singles]
        for index in np.flatnonzero(step.terminated).tolist():
            num_ends += 1
            np.testing.assert_array_equal(
                vector_env.reset_at(index, 50 + num_ends)[0], envs[index].reset(seed=50 + num_ends)[0]
            )
    assert num_ends > 3


def test_only_the_envs_that_are_named_step_in_the_order_in_which_they_are_named() -> None:
    vector_env = VectorEnv.wrap(lambda index: CountingEnv(), num_envs=4)
    vector_env.vector_reset()
    vector_env.vector_step(np.zeros(2, np.int64), np.array([3, 1]))
    step = vector_env.vector_step(np.zeros(3, np.int64), np.array([1, 2, 3]))
    assert step.obs[:, 0].tolist() == [2.0, 1.0, 2.0]


def test_existing_envs_come_first_and_the_others_are_made_for_their_index() -> None:
    made: list[int] = []

    def make_env(index: int) -> gymnasium.Env:
        made.append(index)
        return CountingEnv(length=index)

    existing = [CountingEnv(length=7), CountingEnv(length=8)]
    vector_env = VectorEnv.wrap(make_env, existing, num_envs=4)
    vector_env.vector_reset()
    assert made == [2, 3]
    assert vector_env.get_sub_environments()[:2] == existing
    assert [env.length for env in vector_env.get_sub_environments()] == [7, 8, 2, 3]
    assert VectorEnv.wrap(existing_envs=existing).num_envs == 2


def test_envs_that_nothing_can_make_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"num_envs=2 .*with 1 existing environments and no make_env"):
        VectorEnv.wrap(existing_envs=[CountingEnv()], num_envs=2)
    with pytest.raises(InvalidInputError, match="existing environments cannot move"):
        VectorEnv.wrap(lambda index: CountingEnv(), [CountingEnv()], processes=True)


@pytest.mark.parametrize(
    ("lie_fn", "text"),
    [
        (with_nan_reward, "InvalidRewardError: reward is nan"),
        (with_two_rewards, "InvalidRewardError: reward has shape [2]"),
        (with_wrong_shape, "InvalidObservationError: observation has shape [2]; expected float32[1]"),
        (with_wrong_dtype, "InvalidObservationError: observation has dtype float64; expected float32[1]"),
        (with_list_info, "InvalidInfoError: info is ['not', 'a', 'dict']"),
        (with_four_values, "InvalidReplyError: step returned a tuple of 4"),
    ],
)
def test_an_env_that_lies_fails_alone_with_what_is_wrong(lie_fn: Any, text: str) -> None:
    vector_env = VectorEnv.wrap(lambda i: LyingEnv(lie_fn, at_step=1) if i == 1 else CountingEnv(), num_envs=3)
    vector_env.vector_reset()
    assert vector_env.vector_step(np.zeros(3, np.int64)).failed == {}
    step = vector_env.vector_step(np.zeros(3, np.int64))
    assert list(step.failed) == [1]
    assert (step.failed[1].kind, step.failed[1].phase) == (FaultKind.INVALID, Phase.STEP)
    assert text in step.failed[1].error
    assert step.obs[[0, 2], 0].tolist() == [2.0, 2.0]
    assert step.rewards.tolist()[::2] == [1.0, 1.0]


class NegativeEnv(CountingEnv):
    """Observes what its space does not hold, from its first observation on."""

    def _obs(self) -> np.ndarray:
        return np.array([-1.0], np.float32)


def test_bounds_are_checked_unless_given_not_to() -> None:
    with pytest.raises(EnvFaultError, match="outside of Box"):
        VectorEnv.wrap(lambda index: NegativeEnv()).vector_reset()
    vector_env = VectorEnv.wrap(lambda index: NegativeEnv(), sample_bounds=False)
    assert vector_env.vector_reset()[0].tolist() == [[-1.0]]
    assert vector_env.vector_step(np.zeros(1, np.int64)).failed == {}


class RoundingEnv(CountingEnv):
    """Observes what its space does not hold, by rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def _obs(self) -> np.ndarray:
        return np.array([1.0000000000000002])


def test_what_is_outside_of_its_bounds_by_rounding_is_counted() -> None:
    vector_env = VectorEnv.wrap(lambda index: RoundingEnv())
    base_env = VectorBaseEnv(vector_env)
    base_env.poll()
    assert vector_env.vector_step(np.zeros(1, np.int64)).obs.tolist() == [[1.0]]
    assert base_env.num_clipped == 2
    assert fault_report(Counter(obs_clipped=base_env.num_clipped), 0)["rollout/obs_clipped"] == 2


def test_resets_do_not_change_whose_turn_it_is_to_have_its_bounds_checked() -> None:
    def with_negative_obs(truth: StepResult) -> StepResult:
        obs, *others = truth
        return (-obs, *others)

    vector_env = VectorEnv.wrap(lambda index: LyingEnv(with_negative_obs) if index == 3 else CountingEnv(), num_envs=4)
    vector_env.vector_reset()
    failed = []
    for _ in range(4 * CALLS_PER_CHECK):
        failed += vector_env.vector_step(np.zeros(4, np.int64)).failed
        for index in range(4):
            vector_env.reset_at(index)
    assert failed == [3]


def test_an_env_that_raises_fails_alone_and_is_restarted() -> None:
    vector_env = VectorEnv.wrap(
        lambda index: FaultyEnv(raise_without_arguments, at_step=1) if index == 0 else CountingEnv(), num_envs=2
    )
    vector_env.vector_reset()
    first = vector_env.get_sub_environments()[0]
    vector_env.vector_step(np.zeros(2, np.int64))
    step = vector_env.vector_step(np.zeros(2, np.int64))
    assert {env: failed.kind for env, failed in step.failed.items()} == {0: FaultKind.RAISED}
    assert "Traceback" in step.failed[0].traceback
    vector_env.restart_at(0)
    assert vector_env.reset_at(0, 3)[0].tolist() == [0.0]
    assert vector_env.get_sub_environments()[0] is not first


def test_a_reset_that_fails_raises_with_the_traceback_of_the_env() -> None:
    vector_env = VectorEnv.wrap(lambda index: FaultyEnv(raise_without_arguments, at_reset=0))
    with pytest.raises(EnvFaultError, match=r"env 0 \(.*seed 4\) raised at reset(.|\n)*Traceback"):
        vector_env.reset_at(0, 4)


def test_observations_of_an_env_that_reuses_its_memory_stay_true() -> None:
    vector_env = VectorEnv.wrap(lambda index: ReusedBufferEnv(length=2), num_envs=2)
    first, _ = vector_env.vector_reset()
    steps = [vector_env.vector_step(np.zeros(2, np.int64)).obs for _ in range(2)]
    again, _ = vector_env.reset_at(0)
    vector_env.vector_step(np.zeros(1, np.int64), np.array([0]))
    assert [obs[:, 0].tolist() for obs in (first, *steps)] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert again.tolist() == [0.0]


class TalkingEnv(CountingEnv):
    def step(self, action: Any) -> tuple:
        *truth, _ = super().step(action)
        return (*truth, {"action": action} if action else {})


def test_empty_infos_are_left_out() -> None:
    vector_env = VectorEnv.wrap(lambda index: TalkingEnv(), num_envs=3)
    vector_env.vector_reset()
    assert vector_env.vector_step(np.array([0, 1, 0])).infos == {1: {"action": 1}}


def test_envs_in_other_processes_give_the_same_numbers() -> None:
    def run(processes: bool) -> list[Any]:
        vector_env = VectorEnv.wrap(lambda index: gymnasium.make("CartPole-v1"), num_envs=2, processes=processes)
        results = [vector_env.vector_reset([3, 4])[0]]
        for _ in range(5):
            step = vector_env.vector_step(np.array([0, 1]))
            results += [step.obs, step.rewards]
        vector_env.close()
        return results

    for local, remote in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(local, remote)


class NervousEnvs(LocalTransport):
    """Answers only what is waited for, and tells at any time that env 1 has failed."""

    kept: dict[int, Any] = {}  # noqa: RUF012

    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Any]:
        self.kept |= super().receive()
        failed = Failed(FaultKind.KILLED, Phase.STEP, "SIGKILL")
        return {1: failed} | {index: self.kept.pop(index) for index in wait_for}


def test_what_nobody_asked_for_is_not_taken_for_the_answer_to_the_next_request() -> None:
    vector_env = TransportVectorEnv(NervousEnvs([CountingEnv, CountingEnv]))
    vector_env.vector_reset()
    assert vector_env.vector_step(np.zeros(1, np.int64), np.array([0])).failed == {}
    step = vector_env.vector_step(np.zeros(2, np.int64))
    assert (step.failed, step.obs[:, 0].tolist()) == ({}, [2.0, 1.0])
    vector_env.vector_step(np.zeros(1, np.int64), np.array([0]))
    assert vector_env.reset_at(1)[0].tolist() == [0.0]


class BadStartEnv(CountingEnv):
    """Returns from a reset what it is made to return; observations begin with its index."""

    def __init__(self, index: int, spoil_fn: Callable[[Any, dict], Any]) -> None:
        super().__init__()
        self.index = index
        self.spoil_fn = spoil_fn

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return self.spoil_fn(np.array([self.index], np.float32), {"index": self.index})


BAD_STARTS: dict[int, tuple[Callable[[Any, dict], Any], str]] = {
    0: (lambda obs, info: (obs.astype(np.float64), info), "dtype float64"),
    2: (lambda obs, info: obs, "expected the tuple"),
    3: (lambda obs, info: (obs, [info]), "expected a dict"),
    5: (lambda obs, info: (np.repeat(obs, 2), info), "shape"),
}


@pytest.mark.parametrize("processes", [False, True])
def test_resets_that_fail_leave_the_rows_of_the_others_as_they_are(processes: bool) -> None:
    def make_env(index: int) -> BadStartEnv:
        spoil_fn, _ = BAD_STARTS.get(index, (lambda obs, info: (obs, info), ""))
        return BadStartEnv(index, spoil_fn)

    vector_env = VectorEnv.wrap(make_env, num_envs=7, processes=processes)
    for index in (6, 5, 4, 3, 2, 1, 0):
        vector_env.begin_reset(index)
    reset = vector_env.finished_resets(range(7))
    vector_env.close()
    assert sorted(reset.envs) == [1, 4, 6]
    assert (reset.obs.dtype, reset.obs[:, 0].tolist()) == (np.float32, reset.envs)
    assert reset.infos == {index: {"index": index} for index in (1, 4, 6)}
    assert sorted(reset.failed) == sorted(BAD_STARTS)
    for index, failed in reset.failed.items():
        assert (failed.kind, failed.phase) == (FaultKind.INVALID, Phase.RESET)
        assert BAD_STARTS[index][1] in failed.error


def test_infos_of_resets_may_be_any_mapping_and_empty_ones_are_left_out() -> None:
    given = {0: {}, 1: PyTreeDict(a=1), 2: PyTreeDict()}
    vector_env = VectorEnv.wrap(lambda index: BadStartEnv(index, lambda obs, info: (obs, given[index])), num_envs=3)
    assert vector_env.vector_reset()[1] == {1: {"a": 1}}
    assert [vector_env.reset_at(index)[1] for index in range(3)] == [{}, {"a": 1}, {}]


@pytest.mark.parametrize("index", [1, 2])
def test_a_reset_gives_what_that_env_shows_although_others_were_begun_before(index: int) -> None:
    vector_env = VectorEnv.wrap(lambda index: BadStartEnv(index, lambda obs, info: (obs, info)), num_envs=3)
    vector_env.vector_reset()
    vector_env.begin_reset(0)
    assert vector_env.reset_at(index)[0].tolist() == [index]


def test_a_reset_of_all_is_in_order_although_one_was_begun_before() -> None:
    vector_env = VectorEnv.wrap(lambda index: BadStartEnv(index, lambda obs, info: (obs, info)), num_envs=3)
    vector_env.begin_reset(2)
    assert vector_env.vector_reset()[0][:, 0].tolist() == [0.0, 1.0, 2.0]


class FlagsEnv(CountingEnv):
    """Says of its end and its step what it is made to say."""

    def __init__(self, terminated: Any = False, truncated: Any = False, info: Any = None) -> None:
        super().__init__()
        self.said = terminated, truncated, info or {}

    def step(self, action: Any) -> tuple:
        obs, reward, *_ = super().step(action)
        return obs, reward, *self.said


@pytest.mark.parametrize("false", [False, np.False_, 0, np.array(False), np.array([False])], ids=repr)
@pytest.mark.parametrize("true", [True, np.True_, 1, np.array(True), np.array([True])], ids=repr)
def test_a_step_is_quiet_only_if_no_env_ends_whatever_flags_are_made_of(true: Any, false: Any) -> None:
    def step_of(*envs: FlagsEnv) -> VectorStep:
        vector_env = VectorEnv.wrap(existing_envs=envs)
        vector_env.vector_reset()
        return vector_env.vector_step(np.zeros(len(envs), np.int64))

    nobody = FlagsEnv(false, false)
    quiet = step_of(nobody, nobody)
    assert quiet.is_quiet
    assert (quiet.terminated.tolist(), quiet.truncated.tolist()) == ([False, False], [False, False])
    step = step_of(nobody, FlagsEnv(true, false), FlagsEnv(false, true), FlagsEnv(true, true))
    assert step.terminated.tolist() == [False, True, False, True]
    assert step.truncated.tolist() == [False, False, True, True]
    assert step.terminated.dtype == step.truncated.dtype == np.bool_
    for env in (FlagsEnv(true, false), FlagsEnv(false, true), FlagsEnv(false, false, {"a": 1})):
        assert not step_of(nobody, env).is_quiet


@pytest.mark.parametrize("wrong", [None, "False", 2, np.array([True, True]), np.zeros(0, bool), 0.0], ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_flag_that_is_neither_true_nor_false_fails_its_env_alone(wrong: Any, name: str) -> None:
    vector_env = VectorEnv.wrap(existing_envs=[FlagsEnv(), FlagsEnv(**{name: wrong}), FlagsEnv(truncated=True)])
    vector_env.vector_reset()
    step = vector_env.vector_step(np.zeros(3, np.int64))
    assert list(step.failed) == [1]
    assert f"{name} is {wrong!r}" in step.failed[1].error
    assert step.truncated.tolist() == [False, False, True]
    assert not step.is_quiet


def test_a_step_that_a_time_limit_ends_is_not_quiet() -> None:
    vector_env = TransportVectorEnv(LocalTransport([CountingEnv, CountingEnv]), time_limit=2)
    vector_env.vector_reset()
    steps = [vector_env.vector_step(np.zeros(2, np.int64)) for _ in range(2)]
    assert [step.is_quiet for step in steps] == [True, False]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [True, True]]
    assert not steps[1].terminated.any()


class ArrayEnv(VectorEnv):
    """Counts steps, all at once; rewards are the actions, and an action of -1 raises."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(Dict(count=Box(0, 100, (), np.int64)), Box(-1.0, np.inf, ()), num_envs)
        self.counts = np.zeros(num_envs, np.int64)
        self.num_vector_resets = 0

    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, Mapping[int, Mapping]]:
        self.num_vector_resets += 1
        self.counts[:] = 0 if seeds is None else [seed or 0 for seed in seeds]
        return {"count": self.counts.copy()}, {1: {"first": True}}

    def reset_at(self, index: int, seed: int | None = None) -> Reset:
        self.counts[index] = seed or 0
        return {"count": self.counts[index].copy()}, {}

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        if (actions == -1).any():
            raise ArithmeticError
        rows = np.arange(self.num_envs) if indexes is None else indexes
        self.counts[rows] += 1
        is_over = self.counts[rows] > 2
        return VectorStep({"count": self.counts[rows]}, actions, is_over, np.zeros_like(is_over))


def test_an_array_env_is_reset_as_a_whole_when_all_are_and_else_one_by_one() -> None:
    env = ArrayEnv(3)
    for index in range(3):
        env.begin_reset(index, seed=10 * index)
    reset = env.finished_resets()
    assert reset.envs == [0, 1, 2]
    assert reset.obs["count"].tolist() == [0, 10, 20]
    assert reset.infos == {1: {"first": True}}
    assert env.num_vector_resets == 1
    env.begin_reset(1, seed=7)
    reset = env.finished_resets()
    assert reset.envs == [1]
    assert reset.obs["count"].tolist() == [7]
    assert env.num_vector_resets == 1


class TellingArrayEnv(ArrayEnv):
    """Tells what it is made to tell."""

    given: Any = None

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        return replace(super().vector_step(actions, indexes), infos=self.given)


def test_an_info_of_an_array_env_that_is_no_dict_fails_its_env_alone() -> None:
    env = TellingArrayEnv(3)
    env.vector_reset()
    env.given = {0: {"a": 1}, 2: "hello"}
    env.begin_step(np.ones(3, np.float32))
    failed = env.finished_step().failed  # type: ignore[union-attr]
    assert list(failed) == [2]
    assert "info is 'hello'" in failed[2].error


@pytest.mark.parametrize(("given", "text"), [([{}], "info is"), ({1: {}}, r"infos are of \[1\]")])
def test_infos_of_an_array_env_that_belong_to_nobody_fail_the_step(given: Any, text: str) -> None:
    env = TellingArrayEnv(3)
    env.vector_reset()
    env.given = given
    env.begin_step(np.array([1.0, 2.0], np.float32), np.array([0, 2]))
    failed = env.finished_step().failed  # type: ignore[union-attr]
    assert list(failed) == [0, 2]
    assert re.search(text, failed[0].error)


def test_a_reward_of_an_array_env_that_is_not_finite_fails_its_env_alone() -> None:
    env = ArrayEnv(3)
    env.vector_reset()
    env.begin_step(np.array([1.0, 2.0], np.float32), np.array([0, 2]))
    assert env.finished_step().rewards.tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    env.begin_step(np.array([1.0, np.nan], np.float32), np.array([0, 2]))
    assert list(env.finished_step().failed) == [2]  # type: ignore[union-attr]


class ShowingArrayEnv(VectorEnv):
    """Observes what it is made to observe."""

    def __init__(self, shown: Sequence[float]) -> None:
        super().__init__(Box(-np.inf, np.inf, ()), Discrete(2), len(shown))
        self.shown = np.array(shown, np.float32)

    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, Mapping[int, Mapping]]:
        return self.shown.copy(), {}

    def reset_at(self, index: int, seed: int | None = None) -> Reset:
        return self.shown[index].copy(), {}

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        nobody = np.zeros(self.num_envs, np.bool_)
        return VectorStep(self.shown.copy(), np.zeros(self.num_envs), nobody, nobody)


def test_an_observation_of_an_array_env_that_is_not_finite_fails_its_env_alone() -> None:
    env = ShowingArrayEnv([0.0, np.nan, np.inf])
    for index in range(3):
        env.begin_reset(index, seed=None)
    reset = env.finished_resets()
    assert (reset.envs, sorted(reset.failed)) == ([0], [1, 2])
    env.shown[:] = [0.0, 1.0, np.nan]
    env.begin_step(np.zeros(3, np.int32))
    assert list(env.finished_step().failed) == [2]  # type: ignore[union-attr]


def test_an_array_env_that_raises_fails_for_all_that_were_stepped() -> None:
    env = ArrayEnv(3)
    env.vector_reset()
    env.begin_step(np.array([0.0, -1.0], np.float32), np.array([0, 2]))
    step = env.finished_step()
    assert step is not None
    assert {index: failed.error for index, failed in step.failed.items()} == dict.fromkeys([0, 2], "ArithmeticError()")
    assert step.obs["count"].shape == (2,)


@pytest.mark.parametrize(
    ("infos", "failed"),
    [
        ({1: [3]}, [1]),
        ({0: {}, 1: {"a": 1}, 2: {"b": 2}}, []),
        ({0: "hello", 1: 7, 2: {"b": 2}}, [0, 1]),
        (None, [0, 1, 2]),
        ({7: {}}, [0, 1, 2]),
        ({1: np.zeros(2)}, [1]),
    ],
    ids=str,
)
def test_infos_of_a_reset_of_an_array_env_are_checked_too(infos: Any, failed: list[int]) -> None:
    class TellingEnv(ArrayEnv):
        def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, Any]:
            obs, _ = super().vector_reset(seeds)
            return obs, infos

    env = TellingEnv(3)
    for index in range(3):
        env.begin_reset(index)
    reset = env.finished_resets(range(3))
    assert reset.envs == [env for env in range(3) if env not in failed]
    assert len(reset.obs["count"]) == len(reset.envs)
    assert sorted(reset.failed) == failed
    assert all("InvalidInfoError" in failure.error for failure in reset.failed.values())
    assert reset.infos == {env: infos[env] for env in reset.envs if infos.get(env)}


def test_spaces_of_gymnasium_are_converted() -> None:
    env = VectorEnv.wrap(lambda index: CountingEnv())
    assert env.action_space == Discrete(2, dtype=np.int64)
    assert env.observation_space == Box(0.0, np.inf, (1,))
