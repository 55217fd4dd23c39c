"""Run the benchmarks: `rookery bench`, or `rookery bench rollout` for some of them."""

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from bench.table import Row, print_table
from rookery.errors import unknown_name

BENCHMARKS = (
    "start",
    "predict",
    "rollout",
    "autoreset",
    "evaluation",
    "ppo",
    "cnn",
    "gru",
    "brax",
    "sac",
    "td3",
    "dqn",
    "replay",
    "evolution",
    "hybrids",
    "pbt",
    "qd",
    "scale",
    "runner",
    "runner_memory",
    "process_envs",
    "external",
    "serving",
    "ray",
    "ray_costs",
)


def fail(message: str) -> NoReturn:
    """Print the error in one line and exit."""
    print(f"rookery: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def rows_of(names: Sequence[str]) -> Iterator[Row]:
    """Run the named benchmarks one after the other."""
    for name in names:
        if name not in BENCHMARKS:
            fail(str(unknown_name("benchmark", name, BENCHMARKS)))
    for name in names:
        try:
            benchmark = importlib.import_module(f"bench.{name}")
        except ModuleNotFoundError as error:
            fail(f"the benchmark {name} needs {error.name}: pip install -e '.[dev]', or `make bench`.")
        yield from benchmark.rows()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="rookery bench", description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHMARKS, help=", ".join(BENCHMARKS))
    print_table(rows_of(parser.parse_args().names))
