"""Rows of random episodes in both kinds of tracks, with any observations and any faults, each judged by itself."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import gymnasium.spaces as gym_spaces
import jax
import numpy as np
import pytest

from rookery.agent import RandomAgent
from rookery.runners.acting.connectors import PreviousActionAndReward
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import BaseEnv, End
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import Reset, VectorEnv, VectorStep
from rookery.runners.health import RestartPolicy
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete
from rookery.testing.misbehaving_envs import raise_without_arguments
from rookery.types import PyTreeDict
from tests.runner_envs import FakeTime, make_runner, vectorized

STRIDE = 100
"""An episode has a story, a number below 1,000; a moment of it is the story times this plus the step."""
NUM_MOMENTS = 1000 * STRIDE

SPACES: dict[str, gym_spaces.Space] = {
    "discrete": gym_spaces.Discrete(NUM_MOMENTS),
    "box": gym_spaces.Box(0.0, NUM_MOMENTS, (2,), np.float32),
    "tree": gym_spaces.Dict(
        number=gym_spaces.Discrete(NUM_MOMENTS),
        picture=gym_spaces.Box(0, 255, (2, 3), np.uint8),
        pair=gym_spaces.Tuple([gym_spaces.Box(0.0, NUM_MOMENTS, (), np.float32), gym_spaces.MultiBinary(2)]),
    ),
}


def shown_at(kind: str, moment: Any) -> Any:
    """What is seen at some moments, in the structure and the dtypes of stacked observations."""
    moment = np.asarray(moment)
    match kind:
        case "discrete":
            return moment.astype(np.int64)
        case "box":
            return np.stack([moment, NUM_MOMENTS - moment], axis=-1).astype(np.float32)
    picture = (moment[..., None, None] + np.arange(6).reshape(2, 3)) % 256
    bits = np.stack([moment % 2, moment // 2 % 2], axis=-1)
    return PyTreeDict(
        number=moment.astype(np.int64),
        picture=picture.astype(np.uint8),
        pair=(moment.astype(np.float32), bits.astype(np.int8)),
    )


def moments_of(obs: Any) -> np.ndarray:
    """The moments at which something was seen."""
    if not isinstance(obs, np.ndarray):
        return obs["number"]
    return obs if obs.dtype == np.int64 else obs[..., 0].astype(np.int64)


def lengths_of(moments: np.ndarray) -> np.ndarray:
    return 1 + moments // STRIDE % 9


def is_truncated(moments: np.ndarray) -> np.ndarray:
    return moments // STRIDE % 2 == 1


def rewards_at(moments: np.ndarray) -> np.ndarray:
    """What comes with these moments, exact in float32."""
    return moments % 7 / 4


LIES: list[Callable[[tuple], Any]] = [
    lambda truth: raise_without_arguments(),
    lambda truth: "nothing",
    lambda truth: (np.zeros(7), *truth[1:]),
    lambda truth: (*truth[:-1], ["no", "dict"]),
    lambda truth: (truth[0], float("nan"), *truth[2:]),
    lambda truth: (*truth[:2], np.array([True, False]), *truth[3:]),
    lambda truth: (*truth[:3], "False", truth[4]),
]
NUM_LIES_OF_RESETS = 4


class StoryEnv(gymnasium.Env):
    """What it shows follows from the story of the episode and the step; at random it raises, or lies.

    True flags, infos and observations come in all the forms that are allowed.
    """

    def __init__(self, kind: str, fault_probability: float = 0.0) -> None:
        self.observation_space = SPACES[kind]
        self.action_space = gym_spaces.Discrete(3)
        self._kind = kind
        self._fault_probability = fault_probability

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self._moment = int(self.np_random.integers(1000)) * STRIDE
        return self._maybe_lied((self._obs(), self._info()), LIES[:NUM_LIES_OF_RESETS])

    def step(self, action: Any) -> Any:
        self._moment += 1
        moment = np.asarray(self._moment)
        is_over = bool(moment % STRIDE == lengths_of(moment))
        flags = is_over and not is_truncated(moment), is_over and is_truncated(moment)
        form = (bool, np.bool_, int, lambda flag: np.array([bool(flag)]))[self._moment % 4]
        truth = (self._obs(), float(rewards_at(moment)), *map(form, flags), self._info())
        return self._maybe_lied(truth, LIES)

    def _obs(self) -> Any:
        obs = shown_at(self._kind, self._moment)
        return dict(obs) if self._kind == "tree" else obs[()]

    def _info(self) -> dict:
        return {} if self._moment % 3 else {"moment": self._moment}

    def _maybe_lied(self, truth: tuple, lies: Sequence[Callable[[tuple], Any]]) -> Any:
        if self.np_random.random() >= self._fault_probability:
            return truth
        return lies[self.np_random.integers(len(lies))](truth)


class StoryArrays(VectorEnv):
    """Such envs stepped as arrays, whose observations are always in the same memory."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(SPACES["box"], Discrete(3), num_envs)
        self._rng = np.random.default_rng(0)
        self._moments = np.zeros(num_envs, np.int64)
        self._buffer = np.zeros((num_envs, 2), np.float32)

    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, dict]:
        self._moments[:] = self._rng.integers(1000, size=self.num_envs) * STRIDE
        return self._shown(slice(None)), {}

    def reset_at(self, index: int, seed: int | None = None) -> Reset:
        self._moments[index] = self._rng.integers(1000) * STRIDE
        return self._shown(slice(index, index + 1))[0], {}

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        envs = slice(None) if indexes is None else indexes
        self._moments[envs] += 1
        moments = self._moments[envs]
        is_over, is_cut = moments % STRIDE == lengths_of(moments), is_truncated(moments)
        return VectorStep(self._shown(envs), rewards_at(moments), is_over & ~is_cut, is_over & is_cut)

    def _shown(self, envs: Any) -> np.ndarray:
        shown = shown_at("box", self._moments[envs])
        view = self._buffer[: len(shown)]
        view[:] = shown
        return view


KINDS_OF_SAMPLES: dict[str, list[dict[str, int]]] = {
    "fragments": [{}],
    "steps": [{"num_steps": 10}],
    "episodes": [{"num_episodes": 5}],
    "mixed": [{}, {"num_episodes": 4}, {"num_steps": 11}],
}


def make_story_runner(base_env: BaseEnv, has_mapping: bool, **settings: Any) -> EnvRunner:
    fake_time = FakeTime(tick=1e-3)
    return make_runner(
        base_env,
        RandomAgent(),
        (lambda agent, episode: "default") if has_mapping else None,
        rollout_fragment_length=6,
        restart=RestartPolicy(max_restarts=100),
        clock=fake_time.clock,
        sleep=fake_time.sleep,
        **settings,
    )


def collected(runner: EnvRunner, kinds: Sequence[dict[str, int]], num_samples: int, num_steps: int = 0) -> list[Sample]:
    """Sample again and again, with single steps between; what was handed over must not change any more."""
    samples, copies = [], []
    for number in range(num_samples):
        samples.append(runner.sample(**kinds[number % len(kinds)]))
        copies.append(jax.tree.map(np.copy, samples[-1].batch))
        assert runner.ledger.is_exact
        for _ in range(num_steps):
            runner.step()
    runner.close()
    jax.tree.map(np.testing.assert_array_equal, copies, [sample.batch for sample in samples])
    return samples


def check_rows(kind: str, batch: SampleBatch, obs: Any, next_obs: Any) -> np.ndarray:
    """Compare each row with the story it belongs to; return the moments, -1 where a row holds nothing."""
    extras = batch.extras.env_extras
    is_live = extras.autoreset == 0
    moments = np.where(is_live, moments_of(obs), -1)
    for tree, shift in ((obs, 0), (next_obs, 1)):
        shown = jax.tree.map(lambda leaf: leaf[is_live], tree)
        expected = shown_at(kind, moments[is_live] + shift)
        assert jax.tree.map(lambda leaf: leaf.dtype, shown) == jax.tree.map(lambda leaf: leaf.dtype, expected)
        jax.tree.map(np.testing.assert_array_equal, shown, expected)
        assert not any(leaf[~is_live].any() for leaf in jax.tree.leaves(tree))
    is_over = is_live & ((moments + 1) % STRIDE == lengths_of(moments))
    ends = np.where(is_over, np.where(is_truncated(moments), End.TRUNCATED, End.TERMINATED), End.RUNNING)
    is_cut = np.zeros_like(is_live)
    is_cut[:-1] = is_live[:-1] & ~is_live[1:]
    np.testing.assert_array_equal(extras.end, ends)
    np.testing.assert_array_equal(extras.t[is_live], moments[is_live] % STRIDE)
    np.testing.assert_array_equal(batch.rewards, np.where(is_live, rewards_at(moments + 1), 0.0))
    np.testing.assert_array_equal(extras.termination, ends == End.TERMINATED)
    np.testing.assert_array_equal(extras.truncation, (ends == End.TRUNCATED) | (is_cut & ~is_over))
    return moments


def check_samples(kind: str, samples: list[Sample]) -> None:
    """Check all rows, that each is there once, and that episodes that ended well are there in whole."""
    names: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        batch = sample.batch.batches.default
        moments = check_rows(kind, batch, batch.obs, batch.next_obs)
        jax.tree.map(np.testing.assert_array_equal, batch.next_obs, batch.extras.env_extras.ori_obs)
        is_live = moments >= 0
        assert is_live.sum() == sample.agent_steps == sample.env_steps
        names.update(zip(batch.extras.env_extras.episode[is_live], moments[is_live] % STRIDE, strict=True))
    assert set(names.values()) == {1}
    # The last rows of an episode may wait for the next sample.
    good = [episode for sample in samples[:-1] for episode in sample.episodes if not episode.is_faulty]
    for episode in good:
        assert all((episode.number, t) in names for t in range(episode.episode_length))
    assert len(good) > 5


def episodes_in(samples: list[Sample]) -> set[int]:
    """The episodes that samples have rows of."""
    columns = [sample.batch.batches.default.extras.env_extras for sample in samples]
    return {number for extras in columns for number in extras.episode[extras.autoreset == 0].tolist()}


@pytest.mark.parametrize("samples", KINDS_OF_SAMPLES)
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("has_mapping", [False, True])
def test_rows_are_true_whatever_fails_next_to_them(kind: str, has_mapping: bool, samples: str) -> None:
    runner = make_story_runner(vectorized(lambda index: StoryEnv(kind, index % 2 * 0.1), 4), has_mapping)
    taken = collected(runner, KINDS_OF_SAMPLES[samples], 12)
    check_samples(kind, taken)
    faults = [fault for sample in taken for fault in sample.faults]
    assert {fault.env_index for fault in faults} == {1, 3}
    assert {fault.failed.phase for fault in faults} == {"reset", "step"}
    if samples == "episodes":
        assert not episodes_in(taken) & {fault.episode for fault in faults}


@pytest.mark.parametrize("has_mapping", [False, True])
def test_rows_of_complete_episodes_are_true(has_mapping: bool) -> None:
    base_env = vectorized(lambda index: StoryEnv("tree", index % 2 * 0.1), 4)
    taken = collected(make_story_runner(base_env, has_mapping, batch_mode="complete_episodes"), [{}], 8)
    check_samples("tree", taken)
    faulty = {fault.episode for sample in taken for fault in sample.faults}
    assert faulty
    assert not faulty & episodes_in(taken)


def test_rows_of_envs_in_other_processes_are_true() -> None:
    base_env = vectorized(lambda index: StoryEnv("tree", index % 2 * 0.1), 4, processes=True, envs_per_process=2)
    taken = collected(make_story_runner(base_env, has_mapping=False), KINDS_OF_SAMPLES["mixed"], 12)
    check_samples("tree", taken)
    assert any(sample.faults for sample in taken)


@pytest.mark.parametrize("samples", ["fragments", "mixed"])
@pytest.mark.parametrize("has_mapping", [False, True])
def test_rows_of_arrays_in_memory_that_is_used_again_are_true(has_mapping: bool, samples: str) -> None:
    runner = make_story_runner(VectorBaseEnv(StoryArrays(5)), has_mapping)
    check_samples("box", collected(runner, KINDS_OF_SAMPLES[samples], 12))


@pytest.mark.parametrize("has_mapping", [False, True])
def test_rows_of_single_steps_between_samples_are_true(has_mapping: bool) -> None:
    runner = make_story_runner(vectorized(lambda index: StoryEnv("tree", 0.02), 3), has_mapping)
    check_samples("tree", collected(runner, KINDS_OF_SAMPLES["mixed"], 12, num_steps=4))


@pytest.mark.parametrize("samples", ["fragments", "steps", "mixed"])
@pytest.mark.parametrize("has_mapping", [False, True])
@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode), ids=lambda mode: mode.name)
def test_rows_that_are_kept_back_are_true(
    mode: gymnasium.vector.AutoresetMode, has_mapping: bool, samples: str
) -> None:
    vector_env = gymnasium.vector.SyncVectorEnv([lambda: StoryEnv("tree")] * 3, autoreset_mode=mode)
    runner = make_story_runner(AutoresetBaseEnv(vector_env), has_mapping)
    check_samples("tree", collected(runner, KINDS_OF_SAMPLES[samples], 10))


@pytest.mark.parametrize("has_mapping", [False, True])
def test_successors_hold_what_connectors_add_to_them_also_the_last_ones(has_mapping: bool) -> None:
    runner = make_story_runner(
        vectorized(lambda index: StoryEnv("discrete", index % 2 * 0.1), 4),
        has_mapping,
        obs_connectors=lambda policy: [PreviousActionAndReward()],
    )
    num_lasts = 0
    for sample in collected(runner, KINDS_OF_SAMPLES["mixed"], 9):
        batch = sample.batch.batches.default
        moments = check_rows("discrete", batch, batch.obs["obs"], batch.next_obs["obs"])
        is_live, ends = moments >= 0, batch.extras.env_extras.end
        one_hot = np.eye(3, dtype=np.float32)[batch.actions]
        np.testing.assert_array_equal(batch.next_obs["previous_action"][is_live], one_hot[is_live])
        np.testing.assert_array_equal(batch.next_obs["previous_reward"][..., 0], batch.rewards)
        starts = is_live & (batch.extras.env_extras.t == 0)
        assert not batch.obs["previous_action"][starts].any()
        assert not batch.obs["previous_reward"][starts].any()
        num_lasts += np.count_nonzero(ends)
    assert num_lasts > 10
