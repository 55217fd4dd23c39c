"""Runs on Ray of which runners, drivers, heads and nodes are killed with SIGKILL.

`python -m tests.campaigns.ray_kills --count 30`. It takes about ten minutes.

| kind | kills | what must hold |
| --- | --- | --- |
| twins | `count`, within a fragment | all others, and the replacements, return the bytes of runners in this process |
| synchronous, stale | `count` each | `max_staleness` 0 and 2: each round has an exact ledger; no seed twice |
| drivers, heads | a sixth of `count` each | the resumed run has every record once, an exact ledger, and no seed twice |
| | and then SIGINT | it is saved, and nothing is left of it |
| nodes | a tenth of `count` | the runners of other nodes go on; all are back on a new node |
| | and then all | the run waits for `ray.wait_timeout`, saves and exits with 2 |
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE, connect
from rookery.runners.ray.settings import RaySettings

os.environ.setdefault(LOOPBACK_VARIABLE, "0")  # before the tests import ray

from rookery.envs.config import EnvConfig
from rookery.runners.groups.group import EnvSpec, RunnerSpec
from tests.ray.history import INTERVAL, SOON, History
from tests.ray.kills import NUM_RUNNERS, Twins, check_ledger, check_seeds, train_with_kills
from tests.ray.nodes import Nodes
from tests.ray.processes import Training
from tests.runner_envs import SummingAgent

WAIT_SECONDS = 60
"""More than runners take to start on a loaded machine."""


def kill_twins(count: int, moments: random.Random, folder: Path) -> str:
    """Kill runners on Ray whose fragments are compared with those of runners in this process."""
    spec = RunnerSpec(EnvSpec(EnvConfig("gymnasium/CartPole-v1", episode_length=20), 3), 7, seed=5)
    with connect(RaySettings(), NUM_RUNNERS), contextlib.closing(Twins(spec, NUM_RUNNERS, SummingAgent())) as twins:
        for _ in range(count):
            twins.sample()
            twins.sample(killed=moments.randrange(NUM_RUNNERS))
        twins.sample()
    num_fragments = (2 * count + 1) * NUM_RUNNERS - count
    return f"{count} kills of a runner, {num_fragments} fragments equal to the byte"


def kill_runners(max_staleness: int, count: int, moments: random.Random, folder: Path) -> str:
    """Kill runners of a training."""
    with connect(RaySettings(), NUM_RUNNERS):
        killer = train_with_kills(max_staleness, count, moments.randrange(2**32), folder)
    killed = [killer.killed[index] for index in range(NUM_RUNNERS)]
    return (
        f"{sum(killed)} kills of runners {killed}, {killer.num_rounds} rounds with an exact ledger, "
        f"{killer.num_compared} equal to those without kills before the first, {check_seeds(folder)} seeds"
    )


def kill_drivers(count: int, moments: random.Random, folder: Path) -> str:
    """Kill the process that trains."""
    return _kill_parts(["rookery"] * max(count // 6, 1), moments, folder)


def kill_heads(count: int, moments: random.Random, folder: Path) -> str:
    """Kill the GCS and the raylet of the Ray of a run in turn."""
    return _kill_parts((["gcs/gcs_server", "raylet/raylet"] * count)[: max(count // 6, 1)], moments, folder)


def _kill_parts(parts: list[str], moments: random.Random, folder: Path) -> str:
    history = History(folder)
    for part in parts:
        history.stop(history.train("--or-resume", **SOON), signal.SIGKILL, moments.uniform(0.0, 2.0), part)
    history.stop(history.train("--or-resume"), signal.SIGINT)
    history.finish(history.train("--or-resume", total_timesteps=history.saved[-1] + 4 * INTERVAL))
    steps = [record["time/total_timesteps"] for record in history.records]
    assert steps == list(range(INTERVAL, history.saved[-1] + 1, INTERVAL)), steps
    codes = [-signal.SIGKILL if part == "rookery" else 1 for part in parts]
    assert history.exit_codes == [*codes, 130, 0], history.exit_codes
    assert history.left_over == [[]], history.left_over
    for record in history.records:
        check_ledger(record)
    return f"{len(parts)} kills, {len(steps)} records, {check_seeds(folder)} seeds"


def kill_nodes(count: int, moments: random.Random, folder: Path) -> str:
    """Kill nodes of a cluster in which a run trains, and add others."""
    number = max(count // 10, 1)
    with contextlib.closing(Nodes()) as nodes:
        names = ["0", "1"]
        for name in names:
            nodes.add(name)
        training = Training.start(
            folder,
            "num_env_runners=4",
            f"ray.address={nodes.address}",
            f"ray.wait_timeout={WAIT_SECONDS}",
            "total_timesteps=10000000",
            "record_interval=64",
            "checkpoint.interval=10000000",
            seconds=0.01,
            **nodes.variables,
        )
        with contextlib.closing(training):
            last = training.wait_for(lambda record: record["runners/ready"] == 4)
            for index in range(number):
                time.sleep(moments.uniform(0.0, 1.0))
                nodes.kill(names.pop(moments.randrange(2)))
                last = _wait_for(training, last, num_ready=2)
                names.append(f"{index + 2}")
                nodes.add(names[-1])
                last = _wait_for(training, last, num_ready=4)
            for name in names:
                nodes.kill(name)
            code, records, output = training.end(), training.records(), " ".join(training.output.split())
    assert code == 2, code
    assert f"0 of 4 runners were up for {WAIT_SECONDS} seconds (ray.wait_timeout)" in output, output[-500:]
    assert records[-1]["runners/lost"] == records[-1]["faults/killed"] == records[-1]["faults/hung"] == 0, records[-1]
    for record in records:
        check_ledger(record)
    return f"{number} kills of a node with two of four runners, {len(records)} records, {check_seeds(folder)} seeds"


def _wait_for(training: Training, last: dict[str, float], num_ready: int) -> dict[str, float]:
    """Wait until as many runners have trained some rounds after a record."""
    step = last["time/total_timesteps"] + 5 * 64
    return training.wait_for(
        lambda record: record["time/total_timesteps"] >= step and record["runners/ready"] == num_ready
    )


KINDS: dict[str, Callable[[int, random.Random, Path], str]] = {
    "twins": kill_twins,
    "synchronous": partial(kill_runners, 0),
    "stale": partial(kill_runners, 2),
    "drivers": kill_drivers,
    "heads": kill_heads,
    "nodes": kill_nodes,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="number of kills of runners (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    num_failures, start = 0, time.monotonic()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = KINDS[kind](arguments.count, random.Random(arguments.seed), Path(folder))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                num_failures += 1
                outcome = f"FAILED: {error!s:.500}"
        print(f"{kind}: {outcome}, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
