"""Runs measurements in separate processes, pinned to cores, and reads their results as JSON."""

import json
import os
import subprocess
import sys
import time


def measure(
    module: str, function: str, *args: int | str, cores: list[int], cache: str | None = None
) -> dict[str, float]:
    """Call a function of a benchmark in a new process that may use only these cores."""
    cores_of_this_process = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # a child inherits them
    try:
        run = subprocess.run(
            [sys.executable, "-m", module, function, *map(str, args)],
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "STARTED_AT": str(time.time()),
                **({"ROOKERY_CACHE_DIR": cache} if cache else {}),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        os.sched_setaffinity(0, cores_of_this_process)
    return json.loads(run.stdout.splitlines()[-1])
