"""`rookery train --multirun`: several runs in sequence, each in its own directory."""

import contextlib
import os
import re
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from rookery.cli.console import indented_traceback, make_console, one_line, print_heading, print_line, print_rows
from rookery.cli.exit_codes import NOT_GOOD, SUCCESS
from rookery.cli.training import describe_results, prepare_jax, train
from rookery.configs import compose, sweep
from rookery.errors import InvalidInputError
from rookery.runners.ray.cluster import connect
from rookery.runners.ray.settings import RaySettings
from rookery.runs.directory import make_new_folder
from rookery.runs.divergence import DivergedError

MAX_NAME_LENGTH = 100
FAILED, DIVERGED = "failed", "diverged"


def run_all(overrides: Sequence[str], debug: bool, ray: RaySettings | None = None) -> int:
    """Train every combination of the values; a failing run does not stop the others."""
    jobs = sweep(overrides)
    configs = [compose(job) for job in jobs]
    if any(config["run_dir"] is not None for config in configs):
        raise InvalidInputError("run_dir cannot be set for several runs: they are written to multirun/<time>/.")
    with shared_ray(configs, ray):
        prepare_jax(*configs)
        return _run_all(jobs, configs, debug, ray)


def shared_ray(configs: Sequence[dict[str, Any]], ray: RaySettings | None) -> contextlib.AbstractContextManager[object]:
    """Start or join the Ray that all runs use, with room for the largest; each run finds it and leaves it as it is."""
    counts = [count for config in configs if isinstance(count := config["num_env_runners"], int)]
    num_env_runners = max(counts, default=0)
    return connect(ray or RaySettings(), num_env_runners) if num_env_runners > 0 else contextlib.nullcontext()


def _run_all(
    jobs: Sequence[Sequence[str]], configs: Sequence[dict[str, Any]], debug: bool, ray: RaySettings | None
) -> int:
    console = make_console()
    shared = set.intersection(*map(set, jobs))
    folder = make_new_folder(Path("multirun") / time.strftime("%Y%m%d-%H%M%S"))
    rows = []
    for number, (job, config) in enumerate(zip(jobs, configs, strict=True)):
        swept = [text for text in job if text not in shared]
        name = directory_name(number, swept)
        print_heading(console, f"run {number + 1} of {len(jobs)}", " ".join(swept))
        try:
            run = train(config | {"run_dir": str(folder / name)}, console, ray=ray)
            rows.append((name, describe_results(run)))
        except Exception as error:
            if debug:
                traceback.print_exc()
            print_line(console, f"failed: {one_line(error)}", style="bold red")
            if details := indented_traceback(error):
                print_line(console, details.rstrip())
            rows.append((name, DIVERGED if isinstance(error, DivergedError) else FAILED))
        jax.clear_caches()
    with contextlib.suppress(OSError):
        os.removedirs(folder)  # empty if no run could start
    print_line(console, f"{len(rows)} runs in {folder}", style="bold")
    print_rows(console, rows)
    return NOT_GOOD if any(outcome in (FAILED, DIVERGED) for _, outcome in rows) else SUCCESS


def directory_name(number: int, overrides: Sequence[str]) -> str:
    """Name the directory of a run after its number and its overrides, in characters that need no quoting."""
    words = re.sub(r"[^\w.=+-]+", "-", ",".join(overrides)).strip("-")
    return f"{number}-{words}"[:MAX_NAME_LENGTH].rstrip("-")
