"""Ctrl-C at any line of the runner, and going on with it: every step is accounted for and no row skips one."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest

import rookery.runners
from rookery.runners.envs.base_env import ALL
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv, MultiAgentDictEnv
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.runners.seeds import episode_seed
from rookery.runners.transports.making import make_transport
from tests.runner_envs import make_runner, vectorized

LENGTHS = (2, 3, 7)
OBS_SPACE = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = gymnasium.spaces.Discrete(2)
RUNNERS = str(Path(rookery.runners.__file__).parent)


class SeedEnv(gymnasium.Env):
    """Shows its step and the two halves of its seed; writes down each seed that it is reset with."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, length: int, log: Path) -> None:
        self._length, self._log = length, log

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        assert seed is not None
        with self._log.open("a") as log:
            log.write(f"{seed}\n")
        self._obs = np.array([0, *divmod(seed, 1 << 16)], np.float32)
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._obs[0] += 1
        return self._obs, 1.0, bool(self._obs[0] == self._length), False, {}


class SeedEnvOfTwo(MultiAgentDictEnv):
    """Two agents see the same; the second acts in every other step."""

    possible_agents = ("a", "b")
    observation_spaces, action_spaces = dict.fromkeys("ab", OBS_SPACE), dict.fromkeys("ab", ACTION_SPACE)

    def __init__(self, length: int, log: Path) -> None:
        self._env = SeedEnv(length, log)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, _ = self._env.reset(seed=seed)
        return dict.fromkeys("ab", obs), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, reward, is_over, _, _ = self._env.step(0)
        agents = "a" if obs[0] % 2 and not is_over else "ab"
        return dict.fromkeys(agents, obs), {"a": reward}, {ALL: is_over}, {ALL: False}, {}


def single_agent(log: Path, **options: Any) -> EnvRunner:
    base_env = vectorized(lambda index: SeedEnv(LENGTHS[index], log), num_envs=3, **options)
    return make_runner(base_env, rollout_fragment_length=5)


def two_agents(log: Path, **options: Any) -> EnvRunner:
    transport = make_transport(lambda index: SeedEnvOfTwo(LENGTHS[index], log), num_envs=3, **options)
    return make_runner(MultiAgentBaseEnv(transport), rollout_fragment_length=5)


@pytest.mark.parametrize(
    ("make", "num_lines_between"),
    [
        pytest.param(single_agent, 41, id="in-process"),
        pytest.param(lambda log: single_agent(log, processes=True), 211, id="processes"),
        pytest.param(lambda log: single_agent(log, processes=True, envs_per_process=2), 211, id="two-per-process"),
        pytest.param(two_agents, 41, id="two-agents"),
        pytest.param(lambda log: two_agents(log, processes=True), 211, id="two-agents-in-processes"),
    ],
)
def test_a_runner_that_was_interrupted_at_any_line_goes_on_exactly(
    tmp_path: Path, make: Callable[[Path], EnvRunner], num_lines_between: int
) -> None:
    log = tmp_path / "seeds"
    runner = make(log)
    runner.sample()
    num_lines = 0
    while sample_until_line(runner, num_lines):
        assert runner.ledger.is_exact
        for sample in (runner.sample(), runner.sample()):
            check_rows(sample)
        assert runner.ledger.is_exact
        assert runner.num_lost_envs == 0
        num_lines += num_lines_between
    runner.close()
    seeds = log.read_text().split()
    assert len(set(seeds)) == len(seeds)
    assert num_lines > 300


def sample_until_line(runner: EnvRunner, num_lines: int) -> bool:
    """Sample and raise KeyboardInterrupt after this many lines of the runner; return whether it came to that."""
    countdown = iter(range(num_lines))

    def trace_call(frame: FrameType, event: str, argument: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(RUNNERS) else None

    def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and next(countdown, None) is None:
            raise KeyboardInterrupt
        return trace_line

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        runner.sample()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def check_rows(sample: Sample) -> None:
    """Check that the rows of each episode are its own steps, one after the other."""
    for batch in sample.batch.batches.values():
        extras = batch.extras.env_extras
        for column in range(extras.t.shape[1]):
            check_column(column % len(LENGTHS), list(live_rows(batch, extras, column)))


def live_rows(batch: Any, extras: Any, column: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    for row in np.flatnonzero(extras.autoreset[:, column] == 0):
        here = row, column
        yield int(extras.episode[here]), int(extras.t[here]), batch.obs[here], extras.ori_obs[here]


def check_column(env: int, rows: list[tuple[int, int, np.ndarray, np.ndarray]]) -> None:
    for number, t, obs, successor in rows:
        assert number % len(LENGTHS) == env
        np.testing.assert_array_equal(obs, [t, *divmod(episode_seed(0, 0, number), 1 << 16)])
        np.testing.assert_array_equal(successor[1:], obs[1:])
        assert successor[0] in (t + 1, t + 2)
    for (number, _, _, successor), (next_number, next_t, next_obs, _) in itertools.pairwise(rows):
        assert next_number > number or (next_number == number and next_obs[0] == successor[0] == next_t)
        if next_number > number:
            assert (successor[0], next_t) == (LENGTHS[env], 0)
