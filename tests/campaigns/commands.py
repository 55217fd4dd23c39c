"""Malformed overrides and arguments: each is one line on standard error and exit code 2, and leaves no directory.

`python -m tests.campaigns.commands --count 400` runs the first 400 overrides and all arguments, in this process. A
command that is accepted ends before it writes anything.
"""

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from rookery import cli
from rookery.cli import training
from rookery.configs import compose
from rookery.workflows import workflow

BASE = ["agent=a2c", "total_timesteps=1000", "agent.num_envs=2", "agent.rollout_length=2"]
DEADLINE_SECONDS = 60

ODD_OVERRIDES = [
    *("", " ", "=", "==", "=1", "+=1", "~=1", "~", "+", "++", "seed", "agent", "seed=", "agent=", "env=", "env=/"),
    *("a" * 10_000 + "=1", "agent." + "b" * 10_000 + "=1", "env=" + "c" * 10_000, "agent=" + "d" * 10_000),
    *(f"{key}={'9' * 5_000}" for key in ("seed", "total_timesteps", "agent.learning_rate", "agent.num_envs")),
    *(f"agent.network.hidden_sizes={'[' * depth}{']' * depth}" for depth in (2, 50, 500, 5_000)),
    *("agent.learning_rate=" + "{a: " * 500 + "1" + "}" * 500, "agent.learning_rate=" + "(" * 500, "seed=" + "]" * 500),
    *("agent==ppo", "agent=null", "agent=[ppo]", "agent={a: 1}", "agent=3", "env=null", "env=[1]", "env={name: 3}"),
    *("env=gymnasium/", "env=gymnasium", "env=gymnasium/No-v0", "env=pettingzoo/os", "env=pettingzoo/a..b"),
    *("env=pettingzoo/", "env=classic/../x", "env=./x", "env=~/x", "env=classic/cartpole/x", "env=CLASSIC/CARTPOLE"),
    *("~agent", "~env", "hydra.run.dir=x", "+hydra=x", "hydra=x", "seed@x=1", "agent@b=ppo", "+seed=1", "+agent=ppo"),
    *("seed=${x}", "seed=${oc.env:NOT_SET}", "seed=${", "seed=$", "seed=${seed}", "total_timesteps=${agent}"),
    *("seed='", 'seed="', "seed=a=b", "seed=a:b", "seed=\\", "seed=\x07", "seed=é", "seed=a b", "seed=#", "seed=%"),
    *("devices=1000000", "devices=1e30", "num_seeds=1e9", "num_seeds=1e30", "agent.num_envs=1e12"),
    *("agent.num_envs=1e30", "agent.rollout_length=1e15", "evaluation.num_episodes=1e15"),
    *("agent.network.hidden_sizes=[1000000000000]", "agent._target_=os.system", "+agent._target_=os.system"),
    *("seed=1,2", "seed=range(3)", "seed=choice(1)", "agent=ppo,a2c", "seed=glob(*)", "seed=interval(0,1)"),
]
BAD_VALUES = ("nonsense", "[]", "[[1]]", "{a: 1}", "-1", "1.5", "nan", "-1e300", "1e400", "1e18", "true", "null", "''")

ODD_ARGUMENTS = [
    *(["nope"], ["--nope"], ["-x"], ["train", "--nope"], ["train", "-m"], ["train", "-m", "seed=range(0,1000000000)"]),
    *(["train", "-m", "seed=1", "run_dir=x"], ["train", "-m", "=1"], ["train", "-m", "seed=()"]),
    *(["train", "--show-config", "-m"], ["train", "--show-config", "agent=nope"], ["train", "--show-config=1"]),
    *(["train", "--coordinator"], ["train", "--coordinator", "x"], ["train", "--num-processes", "2"]),
    *(["train", "--process-id", "x"], ["train", "--coordinator", "127.0.0.1:1", "--process-id", "0"]),
    ["train", "--coordinator", "nowhere", "--num-processes", "1", "--process-id", "0"],
    ["train", "--coordinator", "127.0.0.1:99999", "--num-processes", "1", "--process-id", "0"],
    ["train", "--coordinator", "192.0.2.1:1234", "--num-processes", "1", "--process-id", "0"],
    ["train", "--coordinator", "127.0.0.1:1234", "--num-processes", "2", "--process-id", "2"],
    ["train", "-m", "--coordinator", "127.0.0.1:1234", "seed=1,2"],
    *([command] for command in ("resume", "evaluate", "report", "check-env")),
    *([command, "absent"] for command in ("resume", "evaluate", "report", "check-env")),
    *([command, "file"] for command in ("resume", "evaluate", "report")),
    *([command, "."] for command in ("resume", "evaluate", "report")),
    *([command, ""] for command in ("resume", "evaluate", "report", "check-env")),
    *([command, "\0"] for command in ("resume", "evaluate", "report")),
    *([command, "x" * 5_000] for command in ("resume", "evaluate", "report", "check-env")),
    *(
        ["resume", ".", "--step", "x"],
        ["resume", ".", "--step"],
        ["resume", ".", "--step", "1.5"],
        ["resume", "a", "b"],
    ),
    *(
        ["evaluate", ".", "--episodes", "x"],
        ["evaluate", ".", "--episodes", "0"],
        ["evaluate", ".", "--episodes", "-1"],
    ),
    *(
        ["evaluate", ".", "--nope"],
        ["report", ".", "-o"],
        ["report", "--nope"],
        ["list", "nope"],
        ["list", "envs", "x"],
    ),
    *(["list", "agents", "x"], ["check-env", "classic/nope"], ["bench", "--nope"], ["doctor", "x"], ["doctor", "--x"]),
    *(["train", "--debug=1"], ["--version=1"], ["train", "--help=1"], ["resume", "--yes"]),
]


class Accepted(BaseException):
    """A command passed all checks and is about to write its run directory."""


@contextlib.contextmanager
def stopped_before_writing() -> Iterator[None]:
    """Let `train` end where it would create its run directory, and let nothing take longer than the deadline."""

    def accept(*_: Any) -> None:
        raise Accepted

    def too_slow(*_: Any) -> None:
        raise TimeoutError(f"more than {DEADLINE_SECONDS} s")

    handler = signal.signal(signal.SIGALRM, too_slow)
    try:
        with (
            mock.patch.object(workflow, "created_run", accept),
            mock.patch.object(training, "new_run_directory", accept),
        ):
            yield
    finally:
        signal.signal(signal.SIGALRM, handler)


def fault_of(argv: list[str]) -> str | None:
    """Run a command; return what is wrong with its answer, "accepted", or None."""
    output, errors, before = io.StringIO(), io.StringIO(), set(os.listdir())
    signal.alarm(DEADLINE_SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code: Any = cli.main(argv)
    except Accepted:
        return "accepted"
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    text = errors.getvalue()
    if new := set(os.listdir()) - before:
        return f"left {sorted(new)}"
    if code != 2:
        return f"exit code {code}: {text!r:.200}"
    if text.count("\n") != 1 or not text.startswith("rookery: error: "):
        return f"not one line: {text!r:.300}"
    if "--debug shows" in text:
        return f"not planned: {text!r:.300}"
    return f"{len(text)} letters" if len(text) > 1_000 else None


def overrides(seed: int) -> list[str]:
    """Return odd overrides, then every key with every bad value in random order."""
    keys = [key for agent in ("a2c", "dqn", "openes") for key in leaf_keys(compose([f"agent={agent}"]))]
    pairs = [f"{key}={value}" for key in dict.fromkeys(keys) if key != "run_dir" for value in BAD_VALUES]
    random.Random(seed).shuffle(pairs)
    return ODD_OVERRIDES + pairs


def leaf_keys(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaf_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def run(num_overrides: int, seed: int, num_arguments: int | None = None) -> tuple[list[str], int, int]:
    """Return the faults, and how many commands were tried and accepted."""
    chosen = [["train", *BASE, override] for override in overrides(seed)[:num_overrides]]
    chosen += ODD_ARGUMENTS[:num_arguments]
    faults, num_accepted = [], 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), stopped_before_writing():
        Path("file").touch()
        for argv in chosen:
            fault = fault_of(argv)
            if fault == "accepted":
                num_accepted += 1
            elif fault is not None:
                shown = " ".join(argv[-2:] if argv[1:2] == BASE[:1] else argv)
                faults.append(f"{shown!r:.120}: {fault}")
                print(faults[-1], flush=True)
    return faults, len(chosen), num_accepted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400, help="number of overrides")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.monotonic()
    faults, num_commands, num_accepted = run(arguments.count, arguments.seed)
    print(
        f"commands: {num_commands} tried, {num_commands - num_accepted - len(faults)} refused in one line, "
        f"{num_accepted} accepted, {len(faults)} faults, {time.monotonic() - start:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
