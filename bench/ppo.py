"""Training PPO on CartPole against other implementations of the same sizes: two 64x64 tanh networks.

Speed is measured on one core, by CPU time, and on all, by the clock; every measurement is a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.table import Row

NUM_ENVS = (64, 512, 2048)
NUM_ENVS_OF_SB3 = 8
NUM_STARTS = 3

PEERS = {"rejax": "rejax", "Stable-Baselines3": "stable_baselines3"}
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


def rows() -> Iterator[Row]:
    all_cores = sorted(os.sched_getaffinity(0))
    for cores in (all_cores[:1], all_cores):
        label = "1 core" if len(cores) == 1 else f"{len(cores)} cores"
        for num_envs in NUM_ENVS:
            speeds = measure("speed", num_envs, cores=cores)
            for peer in ("plain JAX", "rejax"):
                yield compare(f"PPO, {num_envs} envs, {label}", speeds, peer)
        speeds = measure("speed_of_sb3", NUM_ENVS_OF_SB3, cores=cores)
        yield compare(f"PPO, {NUM_ENVS_OF_SB3} envs, {label}", speeds, "Stable-Baselines3")
    yield compile_row(all_cores[:1])
    yield start_row(all_cores)


def compare(name: str, speeds: dict[str, float], peer: str) -> Row:
    ours = f"{speeds['rookery'] / 1e3:.0f} k steps/s"
    if peer not in speeds:
        return Row(name, ours, f"{peer}: {INSTALL}")
    return Row(name, ours, f"{peer} {speeds[peer] / 1e3:.1f} k steps/s", speeds["rookery"] / speeds[peer])


def compile_row(cores: list[int]) -> Row:
    seconds = measure("compile_seconds", cores=cores)
    ours = f"{seconds['rookery']:.1f} CPU s"
    if "rejax" not in seconds:
        return Row("PPO, compile", ours, f"rejax: {INSTALL}")
    return Row("PPO, compile", ours, f"rejax {seconds['rejax']:.1f} CPU s", seconds["rejax"] / seconds["rookery"])


def start_row(cores: list[int]) -> Row:
    """From the start of the process to the end of the first iteration, when the programs have been compiled before."""
    with tempfile.TemporaryDirectory() as cache:
        seconds = [measure("seconds_to_first_iteration", cores=cores, cache=cache) for _ in range(1 + NUM_STARTS)]
    first, later = seconds[0]["rookery"], min(run["rookery"] for run in seconds[1:])
    return Row("PPO, second start", f"{later:.1f} s", f"first start {first:.1f} s", first / later)


def measure(function: str, *args: int, cores: list[int], cache: str | None = None) -> dict[str, float]:
    """Call a function of this module in a fresh process that may use these cores only."""
    cores_of_this_process = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # a child inherits them
    try:
        run = subprocess.run(
            [sys.executable, "-m", "bench.ppo", function, *map(str, args)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", **({"ROOKERY_CACHE_DIR": cache} if cache else {})},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        os.sched_setaffinity(0, cores_of_this_process)
    return json.loads(run.stdout.splitlines()[-1])


# What the processes do.


def speed(num_envs: int) -> dict[str, float]:
    """Return env steps per second of the programs in JAX."""
    from bench.peers.plain_ppo import PlainPPO

    contenders = {"rookery": rookery_training(num_envs), "plain JAX": peer_training(PlainPPO(num_envs), num_envs)}
    if is_installed("rejax"):
        from bench.peers.rejax_ppo import RejaxPPO

        contenders["rejax"] = peer_training(RejaxPPO(num_envs), num_envs)
    return steps_per_second(contenders, num_envs * iterations_per_call(num_envs))


def speed_of_sb3(num_envs: int) -> dict[str, float]:
    """Return env steps per second, of Stable-Baselines3 too."""
    seconds = steps_per_second({"rookery": rookery_training(num_envs)}, num_envs * iterations_per_call(num_envs))
    if is_installed("Stable-Baselines3"):
        from bench.peers.sb3_ppo import StableBaselines3PPO

        peer = StableBaselines3PPO(num_envs)
        seconds |= steps_per_second({"Stable-Baselines3": peer.iterate}, num_envs)
    return seconds


def compile_seconds() -> dict[str, float]:
    """Return the CPU seconds of compiling all that trains and evaluates with 64 envs."""
    import jax

    key, num_envs = jax.random.key(0), NUM_ENVS[0]
    workflow = rookery_workflow(num_envs)
    jax.block_until_ready(jax.random.split(key))  # what JAX does once is nobody's

    def compile_ours() -> None:
        state = workflow.init(key)
        workflow._advance.compile(state, workflow._no_metrics(state), 1)
        workflow._evaluate.compile(state.agent_state, state.eval_key)

    seconds = {"rookery": cpu_seconds_of(compile_ours)}
    if is_installed("rejax"):
        from bench.peers.rejax_ppo import RejaxPPO

        train = jax.jit(RejaxPPO(num_envs).algorithm.train)
        seconds["rejax"] = cpu_seconds_of(lambda: train.lower(key).compile())
    return seconds


def seconds_to_first_iteration() -> dict[str, float]:
    """Return the seconds since this process started until the first iteration has been trained."""
    import jax
    import psutil

    from rookery.cli.compilation_cache import enable_compilation_cache

    enable_compilation_cache()
    workflow = rookery_workflow(NUM_ENVS[0])
    jax.block_until_ready(workflow.step(workflow.init(workflow.make_key())))
    return {"rookery": time.time() - psutil.Process().create_time()}


def rookery_workflow(num_envs: int) -> Any:
    from bench.peers import plain_ppo
    from rookery.algorithms.ppo import PPOWorkflow

    agent = {
        "name": "ppo",
        "num_envs": num_envs,
        "rollout_length": plain_ppo.ROLLOUT_LENGTH,
        "num_epochs": plain_ppo.NUM_EPOCHS,
        "num_minibatches": plain_ppo.NUM_MINIBATCHES,
        "learning_rate": plain_ppo.LEARNING_RATE,
        "max_grad_norm": plain_ppo.MAX_GRAD_NORM,
        "entropy_coefficient": plain_ppo.ENTROPY_COEFFICIENT,
        "network": {"hidden_sizes": [64, 64], "activation": "tanh"},
    }
    return PPOWorkflow.build_from_config({"agent": agent, "env": {"name": "classic/cartpole"}})


def rookery_training(num_envs: int) -> Callable[[], Any]:
    """The program that `learn` runs between two records, metrics included; each call goes on from the last."""
    workflow = rookery_workflow(num_envs)
    state = workflow.init(workflow.make_key())
    carried = state, workflow._no_metrics(state)

    def run() -> Any:
        nonlocal carried
        carried = workflow._advance(*carried, iterations_per_call(num_envs))
        return carried

    return run


def peer_training(peer: Any, num_envs: int) -> Callable[[], Any]:
    """Iterations of a peer as one program; each call goes on from the last."""
    import jax

    state = jax.jit(peer.init)(jax.random.key(0))

    @jax.jit
    def advance(state: Any) -> Any:
        return jax.lax.fori_loop(0, iterations_per_call(num_envs), lambda _, state: peer.iterate(state), state)

    def run() -> Any:
        nonlocal state
        state = advance(state)
        return state

    return run


def iterations_per_call(num_envs: int) -> int:
    return max(1, 512 // num_envs)


def steps_per_second(contenders: dict[str, Callable[[], Any]], num_envs_times_iterations: int) -> dict[str, float]:
    """On one core by CPU time, which other processes cannot disturb; on several by the clock."""
    from bench.peers.plain_ppo import ROLLOUT_LENGTH
    from bench.timing import best_seconds

    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    seconds = best_seconds(contenders, clock, num_rounds=7)
    return {name: num_envs_times_iterations * ROLLOUT_LENGTH / seconds[name] for name in contenders}


def cpu_seconds_of(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def is_installed(peer: str) -> bool:
    return importlib.util.find_spec(PEERS[peer]) is not None


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
