"""Sick simulators: short trainings in processes, of which one in three fails in a known way.

Each training must end well, with all its steps, an exact ledger and faults of the sick environment alone, and leave no
process behind. Some are killed by SIGKILL, and must leave no process either.

    python -m tests.campaigns.simulators
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np

from rookery.testing import misbehaving_envs as sick
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, LyingEnv, StepResult
from tests.campaigns import run_campaign

NUM_ENVS = 3
SICK_ENV = 1
NUM_STEPS = 600
SECONDS_PER_STEP = 0.02
"""The others must not be done before the sick env is found to hang."""
AT_STEP, LENGTH = 30, 40
"""The sick env fails in this step of each episode, which would have this length."""
TRAIN = "--train"
"""The option of a process that trains: its kind, and the file for its result."""
MARK = "ROOKERY_CAMPAIGN"
"""A variable in the environment of all processes of a training, by which they are found."""
SECONDS_TO_TRAIN = 180.0
SECONDS_TO_END = 2.0


def raise_a_long_text() -> NoReturn:
    raise ValueError("x" * 10_000_000)


def print_100_megabytes() -> None:
    for _ in range(50):
        sick.print_a_lot()


def kill_own_group() -> None:
    os.killpg(0, signal.SIGKILL)


def start_thread_that_exits() -> None:
    """End the process from another thread, as an engine that crashes does."""
    threading.Thread(target=sick.exit_process).start()
    sick.hang()


class HealthyEnv(CountingEnv):
    def step(self, action: Any) -> StepResult:
        time.sleep(SECONDS_PER_STEP)
        return super().step(action)


class RaisingReward:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no reward")


def with_reward(reward: Any) -> Callable[[StepResult], StepResult]:
    return lambda truth: (truth[0], reward, *truth[2:])


def with_info(info: Any) -> Callable[[StepResult], StepResult]:
    return lambda truth: (*truth[:4], info)


def faulty(fault_fn: Callable[[], None], **options: Any) -> Callable[[], gymnasium.Env]:
    return partial(FaultyEnv, fault_fn, length=LENGTH, **(options or {"at_step": AT_STEP}))


def lying(lie_fn: Callable[[StepResult], StepResult], at_step: int = AT_STEP) -> Callable[[], gymnasium.Env]:
    return partial(LyingEnv, lie_fn, at_step=at_step, length=LENGTH)


KINDS: dict[str, tuple[Callable[[], gymnasium.Env], str | None]] = {
    "raises": (faulty(sick.raise_error), r"ValueError\('bad leg'\)"),
    "raises a long text": (faulty(raise_a_long_text), r"ValueError\('x+ \.\.\. "),
    "raises what cannot be sent": (faulty(sick.raise_unpicklable), "UnpicklableError"),
    "raises KeyboardInterrupt": (faulty(sick.raise_keyboard_interrupt), "KeyboardInterrupt"),
    "calls sys.exit": (faulty(sick.raise_system_exit), "SystemExit"),
    "raises in a reset": (faulty(sick.raise_error, at_reset=1), "bad leg"),
    "observes NaN": (lying(sick.with_nan_obs), "observation is nan"),
    "gives an infinite reward": (lying(with_reward(1e300)), r"reward is 1e\+300"),
    "gives a reward that raises": (lying(with_reward(RaisingReward())), "no reward"),
    "observes another shape": (lying(sick.with_wrong_shape), "shape"),
    "returns four values": (lying(sick.with_four_values), "tuple of 4"),
    "reports huge metrics": (lying(with_info({"episode_metrics": {"huge": 10**400}}), at_step=LENGTH - 1), None),
    "segfaults": (faulty(sick.segfault), "SIGSEGV"),
    "exits": (faulty(sick.exit_process), "code 3"),
    "exits in a thread": (faulty(start_thread_that_exits), "code 3"),
    "is killed": (faulty(sick.kill_process), "SIGKILL"),
    "kills its group": (faulty(kill_own_group), "SIGKILL"),
    "kills the group of its parent": (faulty(sick.kill_parent_group), "SIGKILL"),
    "hangs": (faulty(sick.hang), "no answer within"),
    "hangs in C": (faulty(sick.hang_in_c), "no answer within"),
    "forks": (faulty(sick.fork_child), None),
    "starts a session": (faulty(sick.start_session), None),
    "closes descriptors": (faulty(sick.close_descriptors), "closed a file descriptor"),
    "eats memory": (faulty(sick.eat_memory), "more than max_memory=400"),
    "prints 100 MB": (faulty(print_100_megabytes), None),
}
"""What makes the sick env, and what its faults say; None if there is no fault."""
KILLED_KINDS = ("hangs in C", "forks", "starts a session")
"""Kinds whose training is also killed."""


@dataclass
class Trained:
    """What a training reports."""

    env_steps: int = 0
    num_samples: int = 0
    is_exact: bool = False
    num_lost: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)
    """Env and text of each."""
    num_dead_rows: int = 0
    """Rows of healthy envs without a step."""


def train(kind: str, result: Path) -> None:
    """Train with one sick env, in this process; write down what came of it, and that it has begun."""
    from rookery.registry import build_workflow
    from rookery.runners.envs.vector_base_env import VectorBaseEnv
    from rookery.runners.envs.vector_env import TransportVectorEnv
    from rookery.runners.groups import group
    from rookery.runners.runner import EnvRunner
    from rookery.runners.transports.making import make_transport

    make_sick_env, _ = KINDS[kind]
    trained, sample = Trained(), EnvRunner.sample

    def make_envs(env: Any, num_envs: int, **options: Any) -> VectorBaseEnv:
        def make_env(index: int) -> gymnasium.Env:
            return make_sick_env() if index == SICK_ENV else HealthyEnv(LENGTH)

        transport = make_transport(make_env, num_envs=num_envs, processes=True, step_timeout=3.0, max_memory=400)
        return VectorBaseEnv(TransportVectorEnv(transport), env.name)

    def watched(runner: EnvRunner, *args: Any, **kwargs: Any) -> Any:
        sampled = sample(runner, *args, **kwargs)
        trained.num_samples += 1
        if trained.num_samples == 3:  # the sick env has played longer than it is well
            result.with_suffix(".begun").touch()
        trained.faults += [(fault.env_index, fault.failed.error) for fault in sampled.faults]
        is_dead = sampled.batch.batches.default.extras.env_extras.autoreset > 0
        trained.num_dead_rows += int(np.delete(is_dead, SICK_ENV, axis=1).sum())
        trained.is_exact, trained.num_lost = runner.ledger.is_exact, runner.num_lost_envs
        return sampled

    gymnasium.register("SickSimulator-v0", entry_point=CountingEnv)  # evaluated in health
    EnvRunner.sample, group.make_envs = watched, make_envs  # type: ignore[method-assign, assignment]
    workflow = build_workflow(
        {
            "agent": {
                "name": "a2c",
                "num_envs": NUM_ENVS,
                "rollout_length": 20,
                "network": {"hidden_sizes": [8]},
            },
            "env": {"name": "gymnasium/SickSimulator-v0"},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": NUM_STEPS,
            "recorders": [],
        }
    )
    state = workflow.learn(workflow.init(workflow.make_key()))
    trained.env_steps = int(state.env_steps)
    workflow.close()
    result.write_text(json.dumps(vars(trained)))


def problems_of(kind: str, is_killed: bool = False) -> list[str]:
    """Train in another process; return what did not hold."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.simulators", TRAIN, kind, str(result)],
            env=os.environ | {MARK: mark},
            stdout=subprocess.DEVNULL,
            stderr=(Path(folder) / "errors").open("wb"),
        )
        try:
            problems = []
            if is_killed:
                _wait_until(lambda: result.with_suffix(".begun").exists() or process.poll() is not None)
                process.kill()
                process.wait()
            else:
                exit_code = process.wait(SECONDS_TO_TRAIN)
                if exit_code == 0:
                    problems += _problems_in(kind, Trained(**json.loads(result.read_text())))
                else:
                    last_lines = (Path(folder) / "errors").read_bytes()[-1000:].decode(errors="replace")
                    problems.append(f"exit code {exit_code}: {last_lines}")
        except subprocess.TimeoutExpired:
            process.kill()
            problems = [f"not done after {SECONDS_TO_TRAIN:.0f} s"]
        until = time.monotonic() + SECONDS_TO_END
        while (left := _marked_processes(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return problems + ([f"{len(left)} processes are left after {SECONDS_TO_END:.0f} s"] if left else [])


def _problems_in(kind: str, trained: Trained) -> list[str]:
    _, expected = KINDS[kind]
    texts = [text for _, text in trained.faults]
    held = {
        f"{trained.env_steps} steps of {NUM_STEPS}": trained.env_steps >= NUM_STEPS,
        "the ledger is not exact": trained.is_exact,
        f"{trained.num_lost} envs are lost": trained.num_lost == 0,
        f"faults of healthy envs: {trained.faults}": {env for env, _ in trained.faults} <= {SICK_ENV},
        f"{trained.num_dead_rows} rows of healthy envs are empty": trained.num_dead_rows == 0,
        f"faults say {texts}": all(expected is not None and re.search(expected, text) for text in texts),
        "there is no fault": bool(texts) or expected is None,
        "a text is too long": all(len(text) < 2_000 for text in texts),
    }
    return [problem for problem, holds in held.items() if not holds]


def _marked_processes(mark: str) -> list[int]:
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:
            continue  # it has ended, or is of another user
    return found


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS_TO_TRAIN
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)


def cases(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Train on sick simulators; the seed is not used."""
    trainings = [(kind, False) for kind in KINDS] + [(kind, True) for kind in KILLED_KINDS]
    for kind, is_killed in trainings[:count]:
        yield f"{kind}, trainer killed" if is_killed else kind, "; ".join(problems_of(kind, is_killed)) or None


if __name__ == "__main__":
    if TRAIN in sys.argv:
        train(sys.argv[2], Path(sys.argv[3]))
    else:
        run_campaign("Train on sick simulators.", len(KINDS) + len(KILLED_KINDS), cases)
