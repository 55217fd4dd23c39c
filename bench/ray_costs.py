"""What runners on Ray cost: CPU time and bytes of a step, parameters, a killed runner, and a generation.

`python -m bench.ray_costs cpu_per_step ray` measures one of them.
"""

import contextlib
import json
import os
import pickle
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
        once, by_value = 1e3 * seconds["once"], 1e3 * seconds["by_value"]
        title = f"{megabytes} MB of parameters to {NUM_ACTORS} actors"
        yield Row(title, f"stored once {once:.0f} ms", f"by value {by_value:.0f} ms", by_value / once)
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
    """Time parameters from NumPy arrays here to JAX arrays in all actors."""
    from rookery.runners.ray.cluster import connect
    from rookery.runners.ray.settings import RaySettings

    tree = {f"layer_{index}": np.ones(int(megabytes) * 2**20 // 40, np.float32) for index in range(10)}
    with connect(RaySettings(), NUM_ACTORS):
        import ray

        actors: list[Any] = [ray.remote(num_cpus=1)(Receiver).remote() for _ in range(NUM_ACTORS)]

        def seconds(send: Any) -> float:
            start = time.perf_counter()
            ray.get(send())
            return time.perf_counter() - start

        def once() -> list[Any]:
            stored = ray.put(tree)
            return [actor.receive.remote(stored) for actor in actors]

        def by_value() -> list[Any]:
            return [actor.receive.remote(tree) for actor in actors]

        seconds(once)  # the actors import JAX
        return {
            "once": min(seconds(once) for _ in range(NUM_REPEATS)),
            "by_value": min(seconds(by_value) for _ in range(NUM_REPEATS)),
        }


def seconds_after_kill() -> dict[str, float]:
    """Time a runner from its death until its replacement has delivered a fragment; the median of some."""
    from rookery.envs.config import EnvConfig
    from rookery.runners.envs.own import name_own_env
    from rookery.runners.group import RunnerFailed, RunnerStart

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
def _group(env: Any, num_envs: int, num_steps: int, is_on_ray: bool) -> Iterator[tuple[Any, Any]]:
    """Start one runner, here or on Ray; yield its group and a request."""
    import jax

    from bench.runner import make_agent
    from rookery.runners.acting.policy_map import DEFAULT_POLICY
    from rookery.runners.acting.roles import TRAIN
    from rookery.runners.group import ActingSpec, EnvSpec, FragmentRequest, LocalRunners, RunnerSpec
    from rookery.runners.ray.cluster import connect
    from rookery.runners.ray.settings import RaySettings
    from rookery.workflows.collector import FIELDS

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    spec = RunnerSpec(EnvSpec(env, num_envs), num_steps, seed=0, fields=FIELDS)
    with contextlib.ExitStack() as opened:
        if is_on_ray:
            opened.enter_context(connect(RaySettings(), 1))
            from rookery.runners.ray.group import RayRunners

            group: Any = RayRunners(spec, 1, RaySettings())
        else:
            group = LocalRunners(spec, 1)
        opened.callback(group.close)
        agent = make_agent()
        state = agent.init(*group.describe().spaces["agent"], jax.random.key(0))
        request = FragmentRequest(TRAIN, group.put({DEFAULT_POLICY: state}))
        group.start(ActingSpec({TRAIN: agent}), request)
        _reply(group)
        yield group, request


def _sample(group: Any, request: Any, number: int) -> Any:
    """Ask for a number of fragments, one after the other; return the last."""
    from rookery.runners.group import Delivery

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


def _generation_bytes(samples_individuals: bool) -> tuple[int, int]:
    from rookery.configs import compose
    from rookery.evaluators.host_population import HostPopulation, population_envs
    from rookery.evaluators.population_player import PopulationSpec
    from rookery.registry import build_workflow
    from rookery.runners.group import RunnerSpec

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

    from rookery.runners.group import LocalRunners

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


class Receiver:
    """An actor that puts parameters on its device."""

    def receive(self, tree: Any) -> None:
        import jax

        jax.block_until_ready(jax.device_put(tree))


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
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
    ours = {os.getpid()}
    while more := {process for process, fields in stats.items() if int(fields[1]) in ours} - ours:
        ours |= more
    ticks = sum(int(stats[process][11]) + int(stats[process][12]) for process in ours)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
