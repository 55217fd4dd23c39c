"""Training PPO on CartPole against other implementations with the same sizes.

Every measurement runs in its own process: on one core by CPU time, or on all cores by wall-clock time.
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers import sizes
from bench.processes import measure
from bench.table import Row

NUM_ENVS = (64, 512, 2048)
NUM_ENVS_OF_SB3 = 8
NUM_STARTS = 4

MODULES = {"rejax": "rejax", "Stable-Baselines3": "stable_baselines3"}
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))
    yield from speed_rows("1 core", cores[:1])
    if len(cores) > 1:
        yield from speed_rows(f"{len(cores)} cores", cores)
        yield from speed_rows(f"{len(cores)} cores, devices={len(cores)}", cores, num_devices=len(cores))
    yield compile_row(cores[:1])
    yield start_row(cores)


def speed_rows(label: str, cores: list[int], num_devices: int = 1) -> Iterator[Row]:
    for num_envs in NUM_ENVS:
        steps = measure("bench.ppo", "steps_per_second", num_envs, num_devices, cores=cores)
        yield compare(f"PPO, {num_envs} envs, {label}", steps, ("plain JAX", "rejax"))
    if num_devices == 1:
        steps = measure("bench.ppo", "steps_per_second_against_sb3", NUM_ENVS_OF_SB3, cores=cores)
        yield compare(f"PPO, {NUM_ENVS_OF_SB3} envs, {label}", steps, ("Stable-Baselines3",))


def compare(name: str, steps_per_second: dict[str, float], peers: tuple[str, ...]) -> Row:
    """Compare with the fastest peer, and name them all."""
    speeds = {peer: steps_per_second[peer] for peer in peers if peer in steps_per_second}
    others = [f"{peer} {thousands(speed)}" for peer, speed in speeds.items()]
    others += [f"{peer}: {INSTALL}" for peer in peers if peer not in speeds]
    ours = steps_per_second["rookery"]
    ratio = ours / max(speeds.values()) if speeds else None
    return Row(name, f"{thousands(ours)} steps/s", ", ".join(others), ratio)


def thousands(speed: float) -> str:
    return f"{speed / 1e3:.0f} k" if speed >= 100e3 else f"{speed / 1e3:.1f} k"


def compile_row(cores: list[int]) -> Row:
    seconds = measure("bench.ppo", "compile_seconds", cores=cores)
    ours = f"{seconds['rookery']:.1f} CPU s"
    if "rejax" not in seconds:
        return Row("PPO, compile", ours, f"rejax: {INSTALL}")
    return Row("PPO, compile", ours, f"rejax {seconds['rejax']:.1f} CPU s", seconds["rejax"] / seconds["rookery"])


def start_row(cores: list[int]) -> Row:
    """Measure the time from the start of a process to the end of its first iteration, with cached programs."""
    with tempfile.TemporaryDirectory() as cache:
        seconds = [
            measure("bench.ppo", "seconds_to_first_iteration", cores=cores, cache=cache)["rookery"]
            for _ in range(NUM_STARTS)
        ]
    first, later = seconds[0], min(seconds[1:])
    return Row("PPO, second start", f"{later:.1f} s", f"first start {first:.1f} s", first / later)


# Functions that run in the processes.


def steps_per_second(num_envs: int, num_devices: int) -> dict[str, float]:
    """Measure the programs in JAX; the peers always use one device, whose threads use all cores."""
    import jax

    jax.config.update("jax_num_cpu_devices", num_devices)
    from bench.peers.plain_ppo import PlainPPO

    contenders = {
        "rookery": training_of(rookery_workflow(num_envs, num_devices), iterations_per_call(num_envs)),
        "plain JAX": peer_training(PlainPPO(num_envs), iterations_per_call(num_envs)),
    }
    if is_installed("rejax"):
        from bench.peers.rejax_ppo import RejaxPPO

        contenders["rejax"] = peer_training(RejaxPPO(num_envs), iterations_per_call(num_envs))
    return speeds_of(contenders, num_envs * sizes.ROLLOUT_LENGTH * iterations_per_call(num_envs))


def steps_per_second_against_sb3(num_envs: int) -> dict[str, float]:
    """Measure Rookery and Stable-Baselines3."""
    num_steps, num_iterations = num_envs * sizes.ROLLOUT_LENGTH, iterations_per_call(num_envs)
    ours = training_of(rookery_workflow(num_envs), num_iterations)
    speeds = speeds_of({"rookery": ours}, num_steps * num_iterations)
    if is_installed("Stable-Baselines3"):
        from bench.peers.sb3_ppo import StableBaselines3PPO

        speeds |= speeds_of({"Stable-Baselines3": StableBaselines3PPO(num_envs).iterate}, num_steps)
    return speeds


def compile_seconds() -> dict[str, float]:
    """Return the CPU seconds to compile training and evaluation with 64 envs."""
    import jax

    key, num_envs = jax.random.key(0), NUM_ENVS[0]
    workflow = rookery_workflow(num_envs)
    jax.block_until_ready(jax.random.split(key))  # JAX's own start-up counts for neither

    def compile_ours() -> None:
        state = workflow.init(key)
        workflow.training.advance.compile(state, workflow.training.no_metrics(state), 1, until())
        workflow.training.evaluation.compile(workflow.training.agents(state), state.eval_key)

    seconds = {"rookery": cpu_seconds_of(compile_ours)}
    if is_installed("rejax"):
        from bench.peers.rejax_ppo import RejaxPPO

        train = jax.jit(RejaxPPO(num_envs).algorithm.train)
        seconds["rejax"] = cpu_seconds_of(lambda: train.lower(key).compile())
    return seconds


def seconds_to_first_iteration() -> dict[str, float]:
    """Return the seconds from the start of this process to the end of the first iteration."""
    import jax

    from rookery.cli.compilation_cache import enable_compilation_cache

    enable_compilation_cache()
    workflow = rookery_workflow(NUM_ENVS[0])
    jax.block_until_ready(workflow.step(workflow.init(workflow.make_key())))
    return {"rookery": time.time() - float(os.environ["STARTED_AT"])}


def rookery_workflow(num_envs: int, num_devices: int = 1, env: str = "classic/cartpole", **changes: Any) -> Any:
    """Build the training with the sizes that all contenders share, except for `changes` of the agent's settings."""
    from rookery.algorithms.ppo import PPOWorkflow

    agent = {
        "name": "ppo",
        "num_envs": num_envs,
        "rollout_length": sizes.ROLLOUT_LENGTH,
        "num_epochs": sizes.NUM_EPOCHS,
        "num_minibatches": sizes.NUM_MINIBATCHES,
        "learning_rate": sizes.LEARNING_RATE,
        "max_grad_norm": sizes.MAX_GRAD_NORM,
        "discount": sizes.DISCOUNT,
        "gae_lambda": sizes.GAE_LAMBDA,
        "clip_ratio": sizes.CLIP_RATIO,
        "value_coefficient": sizes.VALUE_COEFFICIENT,
        "entropy_coefficient": sizes.ENTROPY_COEFFICIENT,
        "network": {"hidden_sizes": list(sizes.HIDDEN_SIZES), "activation": "tanh"} | changes.pop("network", {}),
    }
    config = {"agent": agent | changes, "env": {"name": env}, "devices": num_devices}
    return PPOWorkflow.build_from_config(config)


def training_of(workflow: Any, num_iterations: int) -> Callable[[], Any]:
    """The program that `learn` runs between two records, with metrics; each call continues from the last."""
    state = workflow.init(workflow.make_key())
    carried = state, workflow.training.no_metrics(state)

    def run() -> Any:
        nonlocal carried
        carried = workflow.training.advance(*carried, num_iterations, until())
        return carried

    return run


def until() -> Any:
    """Return more env steps than any measurement takes."""
    from rookery.learning.counter import Counter

    return Counter.of(10**12)


def peer_training(peer: Any, num_iterations: int) -> Callable[[], Any]:
    """Iterations of a peer as one program; each call continues from the last."""
    import jax

    state = jax.jit(peer.init)(jax.random.key(0))

    @jax.jit
    def advance(state: Any) -> Any:
        return jax.lax.fori_loop(0, num_iterations, lambda _, state: peer.iterate(state), state)

    def run() -> Any:
        nonlocal state
        state = advance(state)
        return state

    return run


def iterations_per_call(num_envs: int) -> int:
    return max(1, 512 // num_envs)


def speeds_of(contenders: dict[str, Callable[[], Any]], num_steps: int, num_rounds: int = 7) -> dict[str, float]:
    """Env steps per second: on one core by CPU time, which other processes hardly affect; on several by wall clock."""
    from bench.timing import best_seconds

    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    return {name: num_steps / seconds for name, seconds in best_seconds(contenders, clock, num_rounds).items()}


def cpu_seconds_of(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def is_installed(peer: str) -> bool:
    return importlib.util.find_spec(MODULES[peer]) is not None


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
