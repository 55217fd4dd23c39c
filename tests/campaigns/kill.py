"""Runs of all kinds, killed with SIGKILL at random moments: training, resuming, and going back with `resume --step`.

`python -m tests.campaigns.kill --minutes 5 --count 200`. After every kill all checkpoints must be intact and their
records on disk, and the run must resume. A run that reaches its end must have the records of one that was never killed;
on the host, where the episodes differ, records at increasing steps up to the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rookery.errors import RookeryError
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory

INTERVAL = 160
TOTAL = 30 * INTERVAL - 7
TIMES = [
    f"total_timesteps={TOTAL}",
    f"record_interval={INTERVAL}",
    f"checkpoint.interval={INTERVAL}",
    f"evaluation.interval={5 * INTERVAL}",
]
DEADLINE_SECONDS = 300
SMALL = ["agent.network.hidden_sizes=[4]", "evaluation.num_episodes=2", "env.episode_length=20"]
ON_POLICY = [*SMALL, "agent.num_envs=4", "agent.rollout_length=8", "env=classic/cartpole"]
REPLAY = [*SMALL, "agent.num_envs=4", "agent.warmup_steps=32", "agent.batch_size=8", "agent.buffer_capacity=512"]
EVOLUTION = [*SMALL, "agent.population_size=4", "env=classic/cartpole"]
KINDS = {
    "a2c": ["agent=a2c", *ON_POLICY],
    "ppo, two seeds": ["agent=ppo", *ON_POLICY, "agent.num_minibatches=2", "num_seeds=2", "agent.normalize_obs=true"],
    "impala, recurrent": ["agent=impala", *ON_POLICY, "agent.network.core=gru", "agent.network.core_size=4"],
    "ppo, two devices": ["agent=ppo", *ON_POLICY, "agent.num_minibatches=2", "devices=2"],
    "dqn": ["agent=dqn", *REPLAY, "env=classic/cartpole"],
    "dqn, no replay saved": ["agent=dqn", *REPLAY, "env=classic/cartpole", "checkpoint.replay=false"],
    "sac": ["agent=sac", *REPLAY, "env=classic/pendulum"],
    "openes": ["agent=openes", *EVOLUTION],
    "ga, two seeds": ["agent=ga", *EVOLUTION, "num_seeds=2"],
    "map_elites": ["agent=map_elites", *EVOLUTION, "agent.cells=[4,4]"],
    "a2c on the host": ["agent=a2c", *ON_POLICY, "env=gymnasium/CartPole-v1"],
    "a2c in processes": ["agent=a2c", *ON_POLICY, "env=gymnasium/CartPole-v1", "env.runner.processes=true"],
    "a2c on Ray": ["agent=a2c", *ON_POLICY, "env=gymnasium/CartPole-v1", "num_env_runners=2"],
    "dqn on Ray": ["agent=dqn", *REPLAY, "env=gymnasium/CartPole-v1", "num_env_runners=2", "max_staleness=2"],
    "dqn on the host": ["agent=dqn", *REPLAY, "env=gymnasium/CartPole-v1"],
    "openes on the host": ["agent=openes", *EVOLUTION, "env=gymnasium/CartPole-v1", "agent.num_lanes=2"],
}
NOT_EXACT = ("host", "processes", "Ray", "no replay")


class Run:
    """A run of one kind that is killed again and again."""

    def __init__(self, kind: str, folder: Path, moments: random.Random) -> None:
        self.kind = kind
        self.folder = folder
        self.moments = moments
        self.is_exact = not any(word in kind for word in NOT_EXACT)
        self.faults: list[str] = []
        self.num_kills = self.num_back = self.num_ends = 0
        self.reference = self._train_to_the_end("reference")

    @property
    def path(self) -> Path:
        return self.folder / "killed"

    def kill_once(self) -> None:
        """Start or resume the run, and kill it at a random moment."""
        command = self._next_command()
        # Often late enough to go back next time.
        num_wanted = 2 if command[0] == "train" and self.moments.random() < 0.7 else 0
        with self._start(command) as process:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if self._is_training(process.pid) and len(self._steps()) >= num_wanted:
                    break
                time.sleep(0.01)
            time.sleep(self.moments.choice([0.05, 0.3, 3.0]) * self.moments.random())
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
        if process.returncode == -signal.SIGKILL:
            self.num_kills += 1
        elif process.returncode:
            self._fault(f"{' '.join(command[:4])} ended with {process.returncode}: {errors.strip()[-300:]}")
            shutil.rmtree(self.path, ignore_errors=True)
        if (self.path / "config.yaml").exists():
            for fault in faults_in(self.path):
                self._fault(fault)
        if process.returncode == 0:
            self._compare()

    def finish(self) -> None:
        """Let the run reach its end, and compare it."""
        if self.path.exists():
            self._train_to_the_end("killed", self._next_command(may_go_back=False))
            self._compare()

    def _next_command(self, may_go_back: bool = True) -> list[str]:
        if not (self.path / "config.yaml").exists():
            return self._train_command("killed")
        steps = self._steps()
        if may_go_back and len(steps) > 1 and self.moments.random() < 0.6:
            self.num_back += 1
            return ["resume", "killed", "--step", str(self.moments.choice(steps[:-1])), "--yes"]
        return ["resume", "killed"]

    def _train_command(self, name: str) -> list[str]:
        return ["train", *KINDS[self.kind], *TIMES, f"run_dir={name}", "recorders=[jsonl,tensorboard]"]

    def _start(self, command: list[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "rookery", *command],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _steps(self) -> list[int]:
        return Checkpoints(self.path / "checkpoints").steps()

    def _is_training(self, pid: int) -> bool:
        lock = self.path / "lock"
        return lock.exists() and f"process {pid} " in lock.read_text()

    def _train_to_the_end(self, name: str, command: list[str] | None = None) -> list[dict[str, Any]]:
        with self._start(command or self._train_command(name)) as process:
            _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        if process.returncode:
            self._fault(f"{name} ended with {process.returncode}: {errors.strip()[-300:]}")
            return []
        return records(self.folder / name)

    def _compare(self) -> None:
        self.num_ends += 1
        found, expected = records(self.path), self.reference
        steps = [row["time/total_timesteps"] for row in found]
        if self.is_exact and found != expected:
            self._fault(f"{len(found)} records differ from the {len(expected)} of the run that was never killed")
        elif not self.is_exact and (steps != sorted(set(steps)) or steps[-1] < TOTAL):
            self._fault(f"records at steps {steps}")
        shutil.rmtree(self.path)

    def _fault(self, text: str) -> None:
        self.faults.append(f"{self.kind}: {text}")
        print(self.faults[-1], flush=True)


def faults_in(path: Path) -> list[str]:
    """Return what is wrong with a killed run: damaged checkpoints, records that are missing, broken or doubled."""
    faults, checkpoints = [], Checkpoints(path / "checkpoints")
    metrics = path / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
    keys = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            keys.append((row["seed"], row["time/total_timesteps"]))
        except (ValueError, LookupError):
            faults.append(f"line {number} of {metrics.name} is broken")
    if len(keys) != len(set(keys)):
        faults.append(f"doubled lines in {metrics.name}")
    num_seeds = RunDirectory.open(path).config["num_seeds"]
    for step in checkpoints.steps():
        try:
            num_records = checkpoints.open(step).metadata["num_records"]
        except RookeryError as error:
            faults.append(str(error))
            continue
        if len(lines) < num_records * num_seeds:
            faults.append(f"checkpoint {step} counts on {num_records * num_seeds} lines, there are {len(lines)}")
    return faults


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what the clock says."""
    by_the_clock = ("time/fps", "time/time_elapsed")
    rows = RunDirectory.open(path).read_metrics()
    return [{name: value for name, value in row.items() if name not in by_the_clock} for row in rows]


def run(count: int, minutes: float, seed: int, kinds: list[str]) -> list[Run]:
    """Kill runs of these kinds in turn, until `count` kills are done or the time is over."""
    end, moments = time.monotonic() + 60 * minutes, random.Random(seed)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(10**9):
            if sum(run.num_kills for run in runs) >= count or time.monotonic() > end:
                break
            if number < len(kinds):
                folder = Path(name) / str(number)
                folder.mkdir()
                runs.append(Run(kinds[number], folder, moments))
            runs[number % len(kinds)].kill_once()
        for one in runs:
            one.finish()
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="number of kills")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time; runs end and are compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    start = time.monotonic()
    runs = run(arguments.count, arguments.minutes, arguments.seed, arguments.kinds)
    faults = [fault for run in runs for fault in run.faults]
    totals = [sum(getattr(run, name) for run in runs) for name in ("num_kills", "num_back", "num_ends")]
    print(
        f"kill: {totals[0]} kills in {len(runs)} kinds of run, {totals[1]} went back with --step, {totals[2]} runs "
        f"compared at their end, {len(faults)} faults, {time.monotonic() - start:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
