"""The CPU time of `import rookery`, against `import jax`."""

import subprocess
import sys
from collections.abc import Iterator

from bench.table import Row

NUM_STARTS = 5


def cpu_seconds_of_import(module: str) -> float:
    """Return the minimum over several new processes."""
    code = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    runs = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(NUM_STARTS)
    )
    return min(float(run.stdout) for run in runs)


def rows() -> Iterator[Row]:
    jax_alone, with_rookery = cpu_seconds_of_import("jax"), cpu_seconds_of_import("rookery")
    yield Row(
        name="import rookery",
        ours=f"{with_rookery:.2f} s",
        other=f"import jax {jax_alone:.2f} s",
        ratio=jax_alone / with_rookery,
    )
