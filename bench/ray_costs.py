"""What runners on Ray cost: CPU time and bytes of a step, parameters, a killed runner, and a generation.

`python -m bench.ray_costs cpu_per_step ray` measures one of them.
"""

import contextlib
import itertools
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bench.peers.rllib_ppo import ENVS_PER_RUNNER, FRAGMENT, SleepingEnv
from bench.processes import measure
from bench.ray import steps_per_second
from bench.table import Row

NUM_ENVS, NUM_STEPS = 8, 128
NUM_REQUESTS = 150
PLACES = ("process", "ray", "processes")
NUM_ACTORS, MEGABYTES = 4, (1, 10, 100)
NUM_REPEATS = 5
NUM_KILLS, SECONDS_BETWEEN_KILLS = 3, 10.0
KILLS_SECONDS = 60.0
POPULATION_SIZE, CHUNK_SIZE = 64, 16


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))
    run = partial(measure, "bench.ray_costs", cores=cores)
    cpu = {place: run("cpu_per_step", place)["microseconds"] for place in PLACES}
    for place, title in (("process", "in this process"), ("processes", "envs in processes")):
        yield Row(
            "CPU of a step on Ray, all processes",
            f"{cpu['ray']:.1f} us",
            f"{title} {cpu[place]:.1f} us",
            cpu[place] / cpu["ray"],
        )
    for size in ("4", "84x84"):
        yield Row(f"bytes of a step, {size} float32", f"{run('bytes_per_step', size)['bytes']:,.0f} B", "")
    for megabytes in MEGABYTES:
        seconds = run("seconds_to_send", megabytes)
        once, for_each = 1e3 * seconds["once"], 1e3 * seconds["for_each"]
        title = f"{megabytes} MB of parameters to {NUM_ACTORS} runners, which act once"
        ours = f"stored once {once:.0f} ms (nothing new {1e3 * seconds['unchanged']:.0f} ms)"
        yield Row(title, ours, f"stored for each {for_each:.0f} ms", for_each / once)
    sizes = run("megabytes")
    yield Row("memory of a runner on Ray", f"{sizes['runner']:.0f} MB", f"Ray itself {sizes['ray']:.0f} MB")
    yield Row("kill -9 of a runner to its next fragment", f"{run('seconds_after_kill')['seconds']:.1f} s", "aim 3.0 s")
    killed, undisturbed = (run("rate_with_kills", seconds)["rate"] for seconds in (SECONDS_BETWEEN_KILLS, 0))
    title = f"IMPALA, 4 runners, one killed every {SECONDS_BETWEEN_KILLS:.0f} s"
    yield Row(title, f"{killed:.0f} steps/s", f"none killed {undisturbed:.0f} steps/s", killed / undisturbed)
    sent = run("bytes_per_generation")
    yield Row(
        f"bytes of a generation of OpenES, 1,282 parameters, {POPULATION_SIZE} individuals",
        f"{sent['recipe'] / 1e3:.1f} kB and {sent['replies'] / 1e3:.1f} kB back",
        f"sent individuals {sent['individuals'] / 1e3:.0f} kB",
        sent["individuals"] / sent["recipe"],
    )


# Functions that run in the processes.


def cpu_per_step(place: str) -> dict[str, float]:
    """Measure the CPU time of all processes, in requests of 128 steps of 8 environments of CartPole."""
    from rookery.envs.config import EnvConfig, RunnerSettings

    env = EnvConfig("gymnasium/CartPole-v1", runner=RunnerSettings(processes=place == "processes"))
    with _group(env, NUM_ENVS, NUM_STEPS, is_on_ray=place == "ray") as (group, request):
        _sample(group, request, 5)
        start = cpu_seconds_of_all()
        _sample(group, request, NUM_REQUESTS)
        seconds = cpu_seconds_of_all() - start
    return {"microseconds": 1e6 * seconds / (NUM_REQUESTS * NUM_STEPS * NUM_ENVS)}


def bytes_per_step(size: str) -> dict[str, float]:
    """Count the bytes of a reply as it is sent."""
    from rookery.envs.config import EnvConfig
    from rookery.runners.envs.own import name_own_env

    shape = tuple(map(int, size.split("x")))
    env = EnvConfig(name_own_env(partial(ShapedEnv, shape)))
    with _group(env, 1, NUM_STEPS, is_on_ray=False) as (group, request):
        return {"bytes": len(pickle.dumps(_sample(group, request, 2), protocol=5)) / NUM_STEPS}


def seconds_to_send(megabytes: str) -> dict[str, float]:
    """Time parameters from NumPy arrays here until all runners have acted with them, and a request without new ones."""
    from rookery.agent import RandomAgent
    from rookery.envs.config import EnvConfig
    from rookery.runners.acting.policy_map import DEFAULT_POLICY
    from rookery.runners.acting.roles import TRAIN
    from rookery.runners.groups.group import FragmentRequest

    params = {f"layer_{index}": np.ones(int(megabytes) * 2**20 // 40, np.float32) for index in range(10)}
    env = EnvConfig("gymnasium/CartPole-v1")
    with _group(env, 1, 1, is_on_ray=True, num_runners=NUM_ACTORS, agent=RandomAgent()) as (group, request):
        small = RandomAgent().init(*group.describe().spaces["agent"], None)
        versions = itertools.count(1)

        def put() -> Any:
            large = small.replace(params=params)
            return FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: large}), next(versions))

        def seconds(make_requests: Any) -> float:
            start = time.perf_counter()
            for index, request in enumerate(make_requests()):
                group.send(index, request)
            _replies(group)
            return time.perf_counter() - start

        contenders = {
            "once": lambda: [put()] * NUM_ACTORS,
            "for_each": lambda: [put() for _ in range(NUM_ACTORS)],
            "unchanged": lambda: [request] * NUM_ACTORS,
        }
        for make_requests in contenders.values():  # programs for these parameters compile
            seconds(make_requests)
        return {
            name: min(seconds(make_requests) for _ in range(NUM_REPEATS)) for name, make_requests in contenders.items()
        }


def megabytes() -> dict[str, float]:
    """Measure the memory of Ray without a runner, and of the process of a runner with four environments."""
    from rookery.envs.config import EnvConfig
    from rookery.runners.ray.cluster import connect
    from rookery.runners.ray.settings import RaySettings

    with connect(RaySettings(), 1):
        ray = sum(map(proportional_megabytes, processes_of(os.getpid(), process_stats()) - {os.getpid()}))
    with _group(EnvConfig("gymnasium/CartPole-v1"), ENVS_PER_RUNNER, FRAGMENT, is_on_ray=True) as (group, request):
        _sample(group, request, 5)
        runner = proportional_megabytes(group._slots[0].greeting.pid)
    return {"ray": ray, "runner": runner}


def seconds_after_kill() -> dict[str, float]:
    """Time a runner from its death until its replacement has delivered a fragment; the median of some."""
    from rookery.envs.config import EnvConfig
    from rookery.runners.envs.own import name_own_env
    from rookery.runners.groups.group import RunnerFailed, RunnerStart

    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        env = EnvConfig(name_own_env(partial(KillableEnv, folder)))
        with _group(env, ENVS_PER_RUNNER, FRAGMENT, is_on_ray=True) as (group, request):
            _sample(group, request, 1)
            for _ in range(NUM_KILLS):
                (Path(folder) / "kill").touch()
                start = time.perf_counter()
                group.send(0, request)
                assert isinstance(_reply(group), RunnerFailed)
                group.rebuild(0, RunnerStart(None, 1), request)
                _reply(group)
                _sample(group, request, 1)
                seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds)[len(seconds) // 2]}


def rate_with_kills(seconds_between: str) -> dict[str, float]:
    """Measure IMPALA on four runners, of which one is killed every few seconds; 0: none is."""
    with tempfile.TemporaryDirectory() as folder:
        is_over = threading.Event()

        def kill() -> None:
            while float(seconds_between) and not is_over.wait(float(seconds_between)):
                (Path(folder) / "kill").touch()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            options = ["max_staleness=2"]
            rate = steps_per_second("impala", partial(KillableEnv, folder), 4, options, seconds=KILLS_SECONDS)
        finally:
            is_over.set()
            thread.join()
    return {"rate": rate}


def bytes_per_generation() -> dict[str, float]:
    """Count the bytes of a plan and its requests, with a recipe and with individuals, and of the replies."""
    with_recipe, replies = _generation_bytes(samples_individuals=True)
    with_individuals, _ = _generation_bytes(samples_individuals=False)
    return {"recipe": with_recipe, "individuals": with_individuals, "replies": replies}


@contextlib.contextmanager
def _group(
    env: Any, num_envs: int, num_steps: int, is_on_ray: bool, num_runners: int = 1, agent: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Start runners, here or on Ray; yield their group and a request."""
    import jax

    from bench.runner import make_agent
    from rookery.runners.acting.policy_map import DEFAULT_POLICY
    from rookery.runners.acting.roles import TRAIN
    from rookery.runners.groups.group import ActingSpec, EnvSpec, FragmentRequest, LocalRunners, RunnerSpec
    from rookery.runners.ray.cluster import connect
    from rookery.runners.ray.settings import RaySettings
    from rookery.workflows.host.collector import FIELDS

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    spec = RunnerSpec(EnvSpec(env, num_envs), num_steps, seed=0, fields=FIELDS)
    with contextlib.ExitStack() as opened:
        if is_on_ray:
            opened.enter_context(connect(RaySettings(), num_runners))
            from rookery.runners.ray.group import RayRunners

            group: Any = RayRunners(spec, num_runners, RaySettings())
        else:
            group = LocalRunners(spec, num_runners)
        opened.callback(group.close)
        agent = agent or make_agent()
        state = agent.init(*group.describe().spaces["agent"], jax.random.key(0))
        request = FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: state}))
        group.start(ActingSpec({TRAIN: agent}), request)
        _replies(group)
        yield group, request


def _sample(group: Any, request: Any, number: int) -> Any:
    """Ask for a number of fragments, one after the other; return the last."""
    from rookery.runners.groups.group import Delivery

    for _ in range(number):
        group.send(0, request)
        reply = _reply(group)
        assert isinstance(reply, Delivery), reply
    return reply


def _reply(group: Any) -> Any:
    """Wait for the next reply of the only runner."""
    while not (replies := group.receive(1.0)):
        pass
    return replies[0]


def _replies(group: Any) -> None:
    """Wait for a reply of every runner."""
    replies: dict[int, Any] = {}
    while len(replies) < group.num_runners:
        replies |= group.receive(1.0)


def _generation_bytes(samples_individuals: bool) -> tuple[int, int]:
    from rookery.configs import compose
    from rookery.evaluators.host_population import HostPopulation, population_envs
    from rookery.evaluators.population_player import PopulationSpec
    from rookery.registry import build_workflow
    from rookery.runners.groups.group import RunnerSpec

    settings = ["agent=openes", "env=gymnasium/CartPole-v1", "env.episode_length=20", "run_dir=null", "recorders=[]"]
    sizes = [f"agent.population_size={POPULATION_SIZE}", "agent.network.hidden_sizes=[32,32]"]
    workflow = build_workflow(compose([*settings, *sizes]))
    training: Any = workflow.training
    env, optimizer = workflow.settings.train.env, training.optimizer
    group = counting_runners(RunnerSpec(population_envs(env, 4), 1, seed=0))
    group.samples_individuals = samples_individuals
    spec = PopulationSpec(env, workflow.agent, False, track_obs=False, optimizer=optimizer)
    training.player = HostPopulation(group, spec, CHUNK_SIZE)
    try:
        training.step(workflow.init(workflow.make_key()))
    finally:
        training.player.close()
        workflow.close()
    return group.num_sent, group.num_received


def counting_runners(spec: Any) -> Any:
    """Make a runner in this process that counts the bytes that Ray would send."""
    import jax

    from rookery.runners.groups.group import LocalRunners

    class CountingRunners(LocalRunners):
        num_sent = num_received = 0

        def put(self, tree: Any) -> Any:
            self.num_sent += len(pickle.dumps(jax.tree.map(np.asarray, tree), protocol=5))
            return super().put(tree)

        def send(self, index: int, request: Any) -> None:
            self.num_sent += len(pickle.dumps((request.chunk, request.individuals), protocol=5))
            super().send(index, request)

        def receive(self, timeout: float | None = None) -> Any:
            replies = super().receive(timeout)
            self.num_received += len(pickle.dumps(replies, protocol=5))
            return replies

    return CountingRunners(spec)


class ShapedEnv(gymnasium.Env):
    """Observes zeros of a shape, forever."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(self.observation_space.shape, np.float32), 1.0, False, False, {}


class KillableEnv(SleepingEnv):
    """Kills the first process that sees a file."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._file = Path(folder) / "kill"

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        try:
            self._file.unlink()
        except FileNotFoundError:
            return super().step(action)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def cpu_seconds_of_all() -> float:
    """Return the CPU seconds of this process and of all that it has started and that live."""
    stats = process_stats()
    ticks = sum(int(stats[process][11]) + int(stats[process][12]) for process in processes_of(os.getpid(), stats))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_stats() -> dict[int, list[str]]:
    """Return what /proc says of each process, from its state on."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
    return stats


def processes_of(process: int, stats: dict[int, list[str]]) -> set[int]:
    """Return a process and all that it has started."""
    found = {process}
    while more := {child for child, fields in stats.items() if int(fields[1]) in found} - found:
        found |= more
    return found


def proportional_megabytes(process: int) -> float:
    """Return the memory of a process, with its share of what it has in common with others."""
    (line,) = re.findall(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    return int(line) / 1e3


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
