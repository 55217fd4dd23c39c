"""Campaigns: many odd cases at once, as scripts. `python -m tests.campaigns.mutations --count 1000 --seed 0`.

Each prints one line per failure and one summary line, and exits with 1 if something did not hold. A small slice of
each runs in the ordinary tests.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable

# Before JAX is imported: compile quickly, and the same program once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def run_campaign(
    description: str, count: int, cases_fn: Callable[[int, int], Iterable[tuple[str, str | None]]]
) -> None:
    """Run the cases that `cases_fn(count, seed)` yields: the name of each, and what did not hold or None."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count, help=f"number of cases (default: {count})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (default: 0)")
    arguments = parser.parse_args()
    start, num_cases, num_failures = time.monotonic(), 0, 0
    for name, failure in cases_fn(arguments.count, arguments.seed):
        num_cases += 1
        if failure is not None:
            num_failures += 1
            print(f"{name}: {failure}", flush=True)
    seconds = time.monotonic() - start
    print(f"{num_cases} cases, {num_failures} did not hold, {seconds:.0f} s")
    sys.exit(1 if num_failures or not num_cases else 0)
