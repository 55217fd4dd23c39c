"""`rookery bench`: the benchmarks of a source checkout."""

import argparse
import subprocess
import sys
from pathlib import Path

import rookery
from rookery.errors import InvalidInputError

SOURCE_ROOT = Path(rookery.__file__).resolve().parent.parent
"""The parent folder of the package; in a source checkout it contains the benchmarks."""


def add_bench(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("bench", help="run the benchmarks of a source checkout")
    command.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    command.set_defaults(run_fn=run_bench, trust=True)


def run_bench(arguments: argparse.Namespace) -> int:
    if not (SOURCE_ROOT / "bench").is_dir():
        raise InvalidInputError(
            f"the benchmarks are part of a source checkout, and {SOURCE_ROOT / 'bench'} does not exist: clone the "
            "repository and run `make bench` there."
        )
    return subprocess.run([sys.executable, "-m", "bench", *arguments.names], cwd=SOURCE_ROOT, check=False).returncode
