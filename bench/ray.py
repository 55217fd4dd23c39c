"""Runners on Ray: steps per second of environments that sleep, against what they allow and against RLlib.

Every environment sleeps 2 ms in a step; a runner has four and steps them one after the other, so that it allows 500
steps per second. Fragments have 32 steps of each environment. RLlib runs in a Python environment of its own, which
`RLLIB_PYTHON` names: `pip install 'ray[rllib]==2.60.0' torch==2.13.0 gymnasium==1.2.2`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.rllib_ppo import ENVS_PER_RUNNER, FRAGMENT, STEP_SECONDS, SleepingEnv
from bench.processes import measure
from bench.table import Row

NUM_RUNNERS = (1, 2, 4)
RATE_OF_RUNNER = 1.0 / STEP_SECONDS
SLOWNESS = 5
SECONDS = 15.0
"""How long each rate is measured, after `WARM_UP` seconds."""
WARM_UP = 5.0
PEER = Path(__file__).parent / "peers" / "rllib_ppo.py"


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))
    for num_runners in NUM_RUNNERS:
        nominal = num_runners * RATE_OF_RUNNER
        for name, staleness in (("synchronous", 0), ("max_staleness=1", 1)):
            rate = measure("bench.ray", "ppo_rate", num_runners, staleness, cores=cores)["rate"]
            title = f"PPO, {num_runners} runners, {name}"
            yield Row(title, f"{rate:.0f} steps/s", f"they allow {nominal:.0f}", rate / nominal)
        if python := os.environ.get("RLLIB_PYTHON"):
            peer = rllib_rate(python, num_runners)
            yield Row(title, f"{rate:.0f} steps/s", f"RLlib {peer:.0f} steps/s", rate / peer)
    allowed = (3 + 1 / SLOWNESS) * RATE_OF_RUNNER
    for name, overrides in (
        ("synchronous", ()),
        ("max_staleness=4", ("max_staleness=4",)),
        ("max_staleness=4 min_ready=0.5", ("max_staleness=4", "min_ready=0.5")),
        ("max_staleness=6 min_ready=0.5", ("max_staleness=6", "min_ready=0.5")),
    ):
        rate = measure("bench.ray", "straggler_rate", *overrides, cores=cores)["rate"]
        yield Row(
            f"IMPALA, one of 4 runners {SLOWNESS} times slower, {name}",
            f"{rate:.0f} steps/s",
            f"they allow {allowed:.0f}",
            rate / allowed,
        )
    rates = {number: measure("bench.ray", "evolution_rate", number, cores=cores)["rate"] for number in NUM_RUNNERS}
    for number in NUM_RUNNERS[1:]:
        yield Row(
            f"OpenES, {number} runners",
            f"{rates[number]:.2f} generations/s",
            f"{number} times one runner {number * rates[1]:.2f}",
            rates[number] / rates[1] / number,
        )


def rllib_rate(python: str, num_runners: int) -> float:
    """Return the steps per second of RLlib's PPO with the same environment, batch and network."""
    command = [python, str(PEER), str(num_runners), str(WARM_UP), str(SECONDS)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(run.stdout.splitlines()[-1])["rate"])


# Functions that run in the processes.


def ppo_rate(num_runners: str, max_staleness: str) -> dict[str, float]:
    """Measure PPO on sleeping environments."""
    options = [f"max_staleness={max_staleness}", "agent.num_epochs=4", "agent.num_minibatches=4"]
    return {"rate": steps_per_second("ppo", SleepingEnv, int(num_runners), options)}


def straggler_rate(*overrides: str) -> dict[str, float]:
    """Measure IMPALA on four runners, of which one is slow."""
    with tempfile.TemporaryDirectory() as folder:
        return {"rate": steps_per_second("impala", partial(SlowInOneRunner, folder, os.getpid()), 4, overrides)}


def evolution_rate(num_runners: str) -> dict[str, float]:
    """Measure generations of 32 individuals that each play one episode of 32 steps."""
    options = ["agent.population_size=32", f"agent.num_lanes={ENVS_PER_RUNNER}", "env.episode_length=32"]
    rate = steps_per_second("openes", SleepingEnv, int(num_runners), options, sizes=())
    return {"rate": rate / (32 * 32)}


class SlowInOneRunner(SleepingEnv):
    """Sleeps longer in the first process that makes one, besides that of the learner."""

    def __init__(self, folder: str, learner: int) -> None:
        super().__init__()
        if os.getpid() == learner:
            return
        path = Path(folder) / "slow"
        try:
            path.touch(exist_ok=False)
            path.write_text(str(os.getpid()))
        except FileExistsError:
            pass
        if path.read_text() == str(os.getpid()):
            self.step_seconds *= SLOWNESS


def steps_per_second(
    agent: str,
    make_env: Any,
    num_runners: int,
    overrides: Sequence[str],
    sizes: Sequence[str] | None = None,
    seconds: float = SECONDS,
) -> float:
    """Train on runners of Ray; return the steps per second after a while."""
    from rookery.configs import compose
    from rookery.registry import build_workflow
    from rookery.runners.envs.own import name_own_env

    if sizes is None:
        sizes = (f"agent.num_envs={num_runners * ENVS_PER_RUNNER}", f"agent.rollout_length={FRAGMENT}")
    settings = [
        f"agent={agent}",
        f"env={name_own_env(make_env)}",
        f"num_env_runners={num_runners}",
        "total_timesteps=1000000000",
        "record_interval=128",
        "evaluation.interval=null",
        "recorders=[]",
        "run_dir=null",
        *sizes,
        *overrides,
    ]
    workflow = build_workflow(compose(settings))
    window = Window(seconds)

    def look(event: Any) -> None:
        if window.note(time.perf_counter(), event.metrics["time/total_timesteps"]):
            event.stop("measured")

    try:
        workflow.learn(workflow.init(workflow.make_key()), look)
    finally:
        workflow.close()
    return window.rate


class Window:
    """The records of a run after its warm-up: at least two, at least some seconds apart."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun: float | None = None
        """The time of the first record."""
        self._noted: list[tuple[float, float]] = []
        """The times and steps of the records after the warm-up."""

    def note(self, now: float, num_steps: float) -> bool:
        """Note a record; return whether the window is long enough."""
        if self._begun is None:
            self._begun = now
        if now - self._begun >= WARM_UP:
            self._noted.append((now, num_steps))
        return len(self._noted) > 1 and now - self._noted[0][0] >= self._seconds

    @property
    def rate(self) -> float:
        """Steps per second."""
        (start, before), (end, after) = self._noted[0], self._noted[-1]
        return (after - before) / (end - start)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
