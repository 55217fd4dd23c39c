"""The CPU time of `import rookery`, against `import jax`, and how long a short training takes from its start."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.table import Row

NUM_STARTS = 5
NUM_TRAININGS = 3
TRAINING = ("train", "agent=ppo", "env=classic/cartpole", "total_timesteps=20000")


def cpu_seconds_of_import(module: str) -> float:
    """Return the minimum over several new processes."""
    code = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    runs = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(NUM_STARTS)
    )
    return min(float(run.stdout) for run in runs)


class Seconds(NamedTuple):
    """The seconds of a training from its start to the first output, the first record and the end, and of its CPUs."""

    output: float
    record: float
    end: float
    cpu: float


def seconds_of_training(cache: Path) -> Seconds:
    """Train in a new process."""
    environment = os.environ | {"ROOKERY_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    with tempfile.TemporaryDirectory() as folder:
        start, cpu_start = time.perf_counter(), cpu_seconds_of_children()
        command = [sys.executable, "-m", "rookery", *TRAINING]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
            assert process.stdout is not None
            lines = [(time.perf_counter() - start, line) for line in process.stdout]
        end = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}.")
    first_record = next(seconds for seconds, line in lines if "steps/s" in line)
    return Seconds(lines[0][0], first_record, end, cpu_seconds_of_children() - cpu_start)


def cpu_seconds_of_children() -> float:
    """Return the CPU seconds of all child processes that have ended: other programs do not change them much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best_of(trainings: list[Seconds]) -> str:
    return " / ".join(f"{min(seconds):.1f}" for seconds in zip(*trainings, strict=True)) + " s"


def rows() -> Iterator[Row]:
    jax_alone, with_rookery = cpu_seconds_of_import("jax"), cpu_seconds_of_import("rookery")
    yield Row(
        name="import rookery",
        ours=f"{with_rookery:.2f} s",
        other=f"import jax {jax_alone:.2f} s",
        ratio=jax_alone / with_rookery,
    )
    with tempfile.TemporaryDirectory() as cache:
        folders = [Path(cache) / str(number) for number in range(NUM_TRAININGS)]
        cold = best_of([seconds_of_training(folder) for folder in folders])
        warm = best_of([seconds_of_training(folder) for folder in folders])
    yield Row(name="PPO run: output / record / end / CPU", ours=warm, other=f"with an empty cache {cold}")
