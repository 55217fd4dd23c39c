import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, End, EnvOutputs
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv, VectorStep
from rookery.runners.faults import FaultKind, Phase
from rookery.spaces import Box, Dict, Discrete
from rookery.testing.misbehaving_envs import (
    CountingEnv,
    FaultyEnv,
    LyingEnv,
    ReusedBufferEnv,
    raise_error,
    with_nan_reward,
)


def make_base_env(*envs: gymnasium.Env, **options: Any) -> VectorBaseEnv:
    return VectorBaseEnv(VectorEnv.wrap(lambda index: envs[index], num_envs=len(envs), **options), "test")


def act(base_env: VectorBaseEnv, *envs: int) -> EnvOutputs:
    base_env.send_actions(Actions(np.array(envs), np.zeros(len(envs), np.int64)))
    return base_env.poll()


def test_the_first_poll_resets_every_env_with_the_seed_it_was_given() -> None:
    base_env = make_base_env(*(gymnasium.make("CartPole-v1") for _ in range(3)))
    for env in range(3):
        base_env.try_reset(env, seed=env + 5)
    polled = base_env.poll()
    expected = [gymnasium.make("CartPole-v1").reset(seed=env + 5)[0] for env in range(3)]
    np.testing.assert_array_equal(polled.obs, expected)
    assert (polled.envs.tolist(), list(polled.resets), polled.agents) == ([0, 1, 2], [0, 1, 2], None)
    assert polled.is_reset.all()
    assert polled.rewards.tolist() == [0.0] * 3
    assert polled.ends.tolist() == [End.RUNNING] * 3
    assert (list(polled.stepped), list(polled.over)) == ([], [])


def test_envs_end_by_themselves_and_begin_again_when_asked_to() -> None:
    base_env = make_base_env(CountingEnv(length=2), CountingEnv(length=3, truncates=True))
    base_env.poll()
    act(base_env, 0, 1)
    polled = act(base_env, 0, 1)
    assert polled.ends.tolist() == [End.TERMINATED, End.RUNNING]
    assert (list(polled.over), list(polled.stepped)) == ([0], [0, 1])
    assert polled.obs[:, 0].tolist() == [2.0, 2.0]
    base_env.try_reset(0, seed=1)
    polled = base_env.poll(timeout=0)
    assert (polled.envs.tolist(), polled.obs.tolist(), list(polled.resets)) == ([0], [[0.0]], [0])
    polled = act(base_env, 0, 1)
    assert polled.obs[:, 0].tolist() == [1.0, 3.0]
    assert polled.ends.tolist() == [End.RUNNING, End.TRUNCATED]


class BothEnv(CountingEnv):
    def step(self, action: Any) -> tuple:
        obs, reward, *_ = super().step(action)
        return obs, reward, True, True, {}


def test_an_episode_that_is_terminated_and_truncated_is_terminated() -> None:
    base_env = make_base_env(BothEnv())
    base_env.poll()
    assert act(base_env, 0).ends.tolist() == [End.TERMINATED]


def test_envs_that_wait_for_actions_have_nothing_to_say() -> None:
    base_env = make_base_env(CountingEnv(), CountingEnv())
    base_env.poll()
    polled = base_env.poll()
    assert (len(polled.envs), polled.obs.shape, polled.failed) == (0, (0, 1), {})


def test_actions_for_an_env_that_cannot_act_are_an_error_that_says_why() -> None:
    base_env = make_base_env(CountingEnv(length=1), FaultyEnv(raise_error, at_step=0), CountingEnv())
    with pytest.raises(InvalidInputError, match="env 0 of test has not been reset: poll first"):
        act(base_env, 0)
    base_env.poll()
    act(base_env, 0, 1)
    with pytest.raises(InvalidInputError, match="env 0 of test is over: call try_reset and poll"):
        act(base_env, 0, 2)
    with pytest.raises(InvalidInputError, match="env 1 of test has failed: call try_restart and poll"):
        act(base_env, 1)
    base_env.try_reset(0, None)
    with pytest.raises(InvalidInputError, match="env 0 of test is being reset"):
        act(base_env, 0)
    base_env.poll()
    base_env.send_actions(Actions(np.array([0]), np.zeros(1, np.int64)))
    with pytest.raises(InvalidInputError, match="has not answered the actions before these: poll first"):
        act(base_env, 2)
    base_env.poll()
    assert act(base_env, 2).envs.tolist() == [2]


def test_an_env_that_fails_has_no_row_and_the_others_keep_theirs() -> None:
    lying, raising = LyingEnv(with_nan_reward, at_step=1), FaultyEnv(raise_error, at_step=1)
    base_env = make_base_env(CountingEnv(), lying, raising, CountingEnv())
    base_env.poll()
    act(base_env, 0, 1, 2, 3)
    polled = act(base_env, 0, 1, 2, 3)
    assert {env: failed.kind for env, failed in polled.failed.items()} == {1: FaultKind.INVALID, 2: FaultKind.RAISED}
    assert (polled.envs.tolist(), list(polled.stepped), list(polled.over)) == ([0, 3], [0, 3], [])
    assert (polled.obs[:, 0].tolist(), polled.rewards.tolist()) == ([2.0, 2.0], [1.0, 1.0])
    for env in (1, 2):
        base_env.try_restart(env, seed=3)
    polled = base_env.poll(timeout=0)
    assert (polled.envs.tolist(), polled.obs.tolist()) == ([1, 2], [[0.0], [0.0]])
    assert act(base_env, 0, 1, 2, 3).obs[:, 0].tolist() == [3.0, 1.0, 1.0, 3.0]


def test_an_env_that_fails_in_a_step_of_some_envs_has_no_row() -> None:
    base_env = make_base_env(CountingEnv(), CountingEnv(), FaultyEnv(raise_error, at_step=0))
    base_env.poll()
    polled = act(base_env, 1, 2)
    assert list(polled.failed) == [2]
    assert (polled.envs.tolist(), list(polled.stepped), polled.obs.tolist()) == ([1], [1], [[1.0]])


def test_a_reset_that_fails_is_told_and_can_be_tried_again() -> None:
    base_env = make_base_env(CountingEnv(), FaultyEnv(raise_error, at_reset=0))
    polled = base_env.poll()
    assert polled.envs.tolist() == [0]
    assert {env: failed.phase for env, failed in polled.failed.items()} == {1: Phase.RESET}
    base_env.try_restart(1, seed=1)
    assert list(base_env.poll().resets) == [1]


def test_resets_that_fail_next_to_good_ones_have_no_rows_and_cannot_act() -> None:
    base_env = make_base_env(
        FaultyEnv(raise_error, at_reset=1), TellingStartEnv(7), TellingStartEnv(8), FaultyEnv(raise_error, at_reset=1)
    )
    assert base_env.poll().infos == {1: {SINGLE_AGENT: {"story": 7}}, 2: {SINGLE_AGENT: {"story": 8}}}
    for env in (3, 2, 0):
        base_env.try_reset(env, None)
    polled = act(base_env, 1)
    assert (polled.envs.tolist(), polled.is_reset.tolist(), polled.obs.tolist()) == (
        [1, 2],
        [False, True],
        [[1.0], [0.0]],
    )
    assert (list(polled.stepped), list(polled.resets), sorted(polled.failed)) == ([1], [2], [0, 3])
    assert polled.infos == {2: {SINGLE_AGENT: {"story": 8}}}
    for env in (0, 3):
        with pytest.raises(InvalidInputError, match=f"env {env} of test has failed: call try_restart"):
            act(base_env, env)
    assert act(base_env, 1, 2).obs.tolist() == [[2.0], [1.0]]


class TellingStartEnv(CountingEnv):
    """Tells something with each reset."""

    def __init__(self, story: int) -> None:
        super().__init__()
        self.story = story

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        return super().reset(seed=seed)[0], {"story": self.story}


@pytest.mark.parametrize("at_reset", [None, 1])
def test_after_a_restart_or_its_failure_an_env_is_reset_like_the_others(at_reset: int | None) -> None:
    base_env = make_base_env(CountingEnv(), FaultyEnv(raise_error, at_reset=at_reset))
    base_env.poll()
    base_env.try_restart(1, None)
    base_env.try_reset(0, None)
    assert (list(base_env.poll().failed) == [1]) == (at_reset is not None)
    for env in range(2):
        base_env.try_reset(env, None)
    assert list(base_env.poll().resets) == [0, 1]


def test_last_observations_of_an_env_that_reuses_its_memory_are_true() -> None:
    base_env = make_base_env(ReusedBufferEnv(length=2), ReusedBufferEnv(length=2))
    first = base_env.poll().obs
    act(base_env, 0, 1)
    last = act(base_env, 0, 1).obs
    base_env.try_reset(0, None)
    base_env.poll(timeout=0)
    assert (first[:, 0].tolist(), last[:, 0].tolist()) == ([0.0, 0.0], [2.0, 2.0])


def test_what_a_step_gave_stays_true_if_a_reset_in_the_same_poll_writes_into_its_memory() -> None:
    class ReusedArrays(VectorEnv):
        def __init__(self) -> None:
            super().__init__(Box(-1.0, 1.0, (1,)), Discrete(2), 2)
            self._step = VectorStep(
                np.ones((1, 1), np.float32), np.ones(1), np.ones(1, np.bool_), np.zeros(1, np.bool_)
            )

        def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple:
            return np.zeros((2, 1), np.float32), {}

        def reset_at(self, index: int, seed: int | None = None) -> tuple:
            for column in (self._step.obs, self._step.rewards, self._step.terminated):
                column[:] = 0
            self._step.truncated[:] = True
            return np.zeros(1, np.float32), {}

        def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
            return self._step

    base_env = VectorBaseEnv(ReusedArrays())
    base_env.poll()
    base_env.try_reset(1, None)
    polled = act(base_env, 0)
    assert (polled.envs.tolist(), polled.is_reset.tolist()) == ([0, 1], [False, True])
    assert (polled.obs.tolist(), polled.rewards.tolist()) == ([[1.0], [0.0]], [1.0, 0.0])
    assert polled.ends.tolist() == [End.TERMINATED, End.RUNNING]


def test_infos_belong_to_the_only_agent() -> None:
    class TalkingEnv(CountingEnv):
        def step(self, action: Any) -> tuple:
            *truth, _ = super().step(action)
            return (*truth, {"count": self.num_steps})

    base_env = make_base_env(CountingEnv(), TalkingEnv())
    assert base_env.poll().infos == {}
    assert act(base_env, 0, 1).infos == {1: {SINGLE_AGENT: {"count": 1}}}
    assert not base_env.is_multi_agent


class GatedEnv(CountingEnv):
    """Steps or resets once a file is there."""

    def __init__(self, gate: Path, length: int = 2) -> None:
        super().__init__(length)
        self._gate = gate

    def step(self, action: Any) -> tuple:
        while not self._gate.exists():
            time.sleep(0.01)
        return super().step(action)


def test_envs_in_other_processes_go_on_while_another_is_busy(tmp_path: Path) -> None:
    gates = [tmp_path, tmp_path / "gate"]
    envs = VectorEnv.wrap(lambda index: GatedEnv(gates[index]), num_envs=2, processes=True, step_timeout=30.0)
    base_env = VectorBaseEnv(envs)
    try:
        base_env.poll()
        assert act(base_env, 0, 1).envs.tolist() == [0]
        with pytest.raises(InvalidInputError, match="env 1 of vector_env has not answered its last action"):
            act(base_env, 1)
        assert list(act(base_env, 0).over) == [0]
        base_env.try_reset(0, seed=1)
        polled = base_env.poll()
        assert (list(polled.resets), polled.obs.tolist()) == ([0], [[0.0]])
        assert len(base_env.poll(timeout=0.0).envs) == 0
        gates[1].touch()
        polled = base_env.poll()
        assert (polled.envs.tolist(), polled.obs.tolist()) == ([1], [[1.0]])
    finally:
        base_env.close()


class ArrayEnv(VectorEnv):
    """Counts steps, all at once, and observes dicts."""

    def __init__(self) -> None:
        super().__init__(Dict(count=Box(0, 100, (), np.int64)), Discrete(2), num_envs=2)
        self.counts = np.zeros(2, np.int64)

    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, dict]:
        self.counts[:] = 0
        return {"count": self.counts}, {}

    def reset_at(self, index: int, seed: int | None = None) -> tuple[Any, dict]:
        self.counts[index] = 0
        return {"count": self.counts[index]}, {}

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        rows = np.arange(2) if indexes is None else indexes
        self.counts[rows] += 1
        return VectorStep({"count": self.counts[rows]}, np.ones(len(rows)), actions == 1, np.zeros(len(rows), np.bool_))


class SlowToBuildEnv(CountingEnv):
    """Made for the second time it waits for a file to appear."""

    def __init__(self, folder: Path) -> None:
        super().__init__(length=2)
        if (folder / "made").exists():
            for _ in range(6_000):
                if (folder / "go on").exists():
                    break
                time.sleep(0.01)
        (folder / "made").touch()


def test_resets_do_not_wait_for_an_env_that_is_restarted(tmp_path: Path) -> None:
    def make_env(index: int) -> gymnasium.Env:
        return SlowToBuildEnv(tmp_path) if index else CountingEnv(length=2)

    base_env = VectorBaseEnv(VectorEnv.wrap(make_env, num_envs=2, processes=True), "test")
    try:
        base_env.poll()
        base_env.try_restart(1, seed=1)
        base_env.try_reset(0, seed=1)
        assert list(base_env.poll(timeout=60).resets) == [0]
        (tmp_path / "go on").touch()
        assert list(base_env.poll(timeout=60).resets) == [1]
    finally:
        (tmp_path / "go on").touch()
        base_env.close()


def test_envs_that_step_as_arrays_are_reset_while_the_others_go_on() -> None:
    base_env = VectorBaseEnv(ArrayEnv())
    assert base_env.poll().obs["count"].tolist() == [0, 0]
    base_env.send_actions(Actions(np.arange(2), np.array([1, 0])))
    assert list(base_env.poll().over) == [0]
    base_env.try_reset(0, seed=1)
    polled = act(base_env, 1)
    assert (polled.envs.tolist(), polled.is_reset.tolist()) == ([1, 0], [False, True])
    assert polled.obs["count"].tolist() == [2, 0]
