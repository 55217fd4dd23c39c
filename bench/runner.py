"""The host runner on one core, in actions per CPU second: CartPole of Gymnasium, a 64x64 tanh network, sampled actions.

The bare loop steps Gymnasium's sync vector env with the same network and keeps its rows in a list: no batches, no
episode metrics, no checks, no seed for each episode. It splits its key in every step, as JAX's examples do. The tuned
loop folds a counter into the key inside the program. Only actions that an env takes count: Gymnasium's vector env
ignores the action of the step in which it resets an env. JAX dispatches synchronously in all loops, as in
`rookery train` on host environments.

RLlib's runner is measured if `RLLIB_PYTHON` is an interpreter with `ray[rllib]` and torch: alone, and with batches like
those of Rookery's runner, which its learner connectors make from its episodes. Both alternate in separate processes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.processes import measure
from bench.table import Row

NUM_STEPS = {1: 1_000, 8: 500, 64: 200}
"""Steps of each env in one call, by the number of envs."""
NUM_ARRAY_STEPS = 500
NUM_ROUNDS = 15
NUM_TURNS = 3
"""Number of processes for each contender, in turns: the speed of a process depends on its memory layout."""
INSTALL = "set RLLIB_PYTHON to the python of an environment with ray[rllib] and torch"


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))[:1]
    for num_envs in NUM_STEPS:
        speeds: dict[str, float] = {}
        for _ in range(NUM_TURNS):
            turn = measure("bench.runner", "actions_per_second", num_envs, cores=cores)
            turn |= rllib_actions_per_second(num_envs, cores)
            speeds = {name: max(speed, speeds.get(name, 0.0)) for name, speed in turn.items()}
        ours = speeds.pop("rookery")
        figure = f"{ours / 1e3:.1f} k actions/s"
        for name, theirs in speeds.items():
            yield Row(f"runner, {num_envs} envs", figure, f"{name} {theirs / 1e3:.1f} k", ours / theirs)
        if "RLlib" not in speeds:
            yield Row(f"runner, {num_envs} envs", figure, INSTALL)
    speeds = measure("bench.runner", "actions_per_second_with_faults", 64, cores=cores)
    yield Row(
        "runner, 64 envs, 16 of them fail",
        f"{speeds['failing'] / 1e3:.1f} k actions/s",
        f"none fails {speeds['healthy'] / 1e3:.1f} k",
        speeds["failing"] / speeds["healthy"],
    )
    speed = measure("bench.runner", "array_actions_per_second", 64, cores=cores)["rookery"]
    yield Row("runner, 64 envs stepped as arrays", f"{speed / 1e3:.0f} k actions/s", "")


def rllib_actions_per_second(num_envs: int, cores: list[int]) -> dict[str, float]:
    """Measure RLlib's runner with the interpreter `RLLIB_PYTHON`; return no speeds if it is not set."""
    python = os.environ.get("RLLIB_PYTHON")
    if python is None:
        return {}
    script = Path(__file__).parent / "peers" / "rllib_runner.py"
    run = subprocess.run(
        ["taskset", "-c", ",".join(map(str, cores)), python, script, str(num_envs), str(NUM_STEPS[num_envs])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


# Functions that run in the processes.


def make_agent() -> Any:
    from rookery.algorithms.ppo import PPOAgent
    from rookery.networks import ActorCriticConfig

    config = ActorCriticConfig(hidden_sizes=(64, 64), activation="tanh", shared=True)
    return PPOAgent(config=config, normalize_obs=False)


def actions_per_second(num_envs: int) -> dict[str, float]:
    """Measure the runner and the bare loops, in turns."""
    from rookery.runners.envs.libraries import make_host_env

    num_steps = NUM_STEPS[num_envs]
    runner = make_runner(make_host_env("gymnasium/CartPole-v1", num_envs), num_steps)
    contenders = {
        "rookery": lambda: runner.sample().env_steps,
        "bare loop": bare_loop(num_envs, num_steps, is_tuned=False),
        "tuned bare loop": bare_loop(num_envs, num_steps, is_tuned=True),
    }
    return best_rates(contenders)


def best_rates(
    contenders: dict[str, Callable[[], int]],
    num_rounds: int = NUM_ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the best rate of each contender: the count that a call returns, per CPU second or by another clock."""
    best = dict.fromkeys(contenders, 0.0)
    for _ in range(1 + num_rounds):
        for name, run in contenders.items():
            start = clock()
            amount = run()
            best[name] = max(best[name], amount / (clock() - start))
    return best


def actions_per_second_with_faults(num_envs: int) -> dict[str, float]:
    """Measure a runner in which every fourth env raises in one of a hundred steps, against one without faults.

    Steps of failed episodes are discarded and do not count.
    """
    import gymnasium

    from rookery.runners.envs.conversion import to_base_env

    class FailingEnv(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            if self.np_random.random() < 0.01:
                raise RuntimeError("it broke")
            return self.env.step(action)

    def make_failing(index: int) -> gymnasium.Env:
        env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        return env if index % 4 else FailingEnv(env)

    def make_healthy(index: int) -> gymnasium.Env:
        return gymnasium.make("CartPole-v1", disable_env_checker=True)

    makers = {"failing": make_failing, "healthy": make_healthy}
    runners = {name: make_runner(to_base_env(num_envs=num_envs, make_env=make), 200) for name, make in makers.items()}
    return best_rates({name: lambda runner=runner: runner.sample().env_steps for name, runner in runners.items()})


def array_actions_per_second(num_envs: int) -> dict[str, float]:
    """Measure the runner on Gymnasium's vectorized CartPole."""
    import gymnasium

    from rookery.runners.envs.conversion import to_base_env

    vector_env = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    runner = make_runner(to_base_env(vector_env), NUM_ARRAY_STEPS)
    return best_rates({"rookery": lambda: runner.sample().env_steps})


def make_runner(base_env: Any, num_steps: int) -> Any:
    import jax

    from rookery.runners.runner import EnvRunner
    from rookery.runners.sampling import RunnerConfig

    agent = make_agent()
    runner = EnvRunner(base_env, agent, config=RunnerConfig(rollout_fragment_length=num_steps))
    runner.set_agent_states(agent.init(*runner.spaces_of(), jax.random.key(0)))
    return runner


def bare_loop(num_envs: int, num_steps: int, is_tuned: bool, mode: str = "sync") -> Callable[[], int]:
    """Gymnasium's sync or async vector env and the jitted agent; a call returns the number of actions."""
    import gymnasium

    return loop_over(gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode), num_steps, is_tuned)


def loop_over(envs: Any, num_steps: int, is_tuned: bool) -> Callable[[], int]:
    """A vector env of Gymnasium and the jitted agent; a call returns the number of actions."""
    import jax
    import numpy as np

    from rookery.sample_batch import SampleBatch
    from rookery.spaces import from_gymnasium

    agent = make_agent()
    spaces = (from_gymnasium(envs.single_observation_space), from_gymnasium(envs.single_action_space))
    state, key, count = agent.init(*spaces, jax.random.key(0)), jax.random.key(1), 0
    act = jax.jit(lambda state, obs, key: agent.compute_actions(state, SampleBatch(obs=obs), key))
    act_at = jax.jit(
        lambda state, obs, key, count: agent.compute_actions(
            state, SampleBatch(obs=obs), jax.random.fold_in(key, count)
        )
    )
    obs, _ = envs.reset(seed=0)

    def run() -> int:
        nonlocal obs, key, count
        rows = []
        for _ in range(num_steps):
            if is_tuned:
                actions, extras = act_at(state, obs, key, np.uint32(count))
                count += 1
            else:
                key, action_key = jax.random.split(key)
                actions, extras = act(state, obs, action_key)
            actions = np.asarray(actions)
            next_obs, rewards, terminated, truncated, _ = envs.step(actions)
            rows.append((obs, actions, extras.log_prob, extras.value, rewards, terminated, truncated))
            obs = next_obs
        jax.block_until_ready(rows[-1][2])
        return envs.num_envs * num_steps - sum(int((row[5] | row[6]).sum()) for row in rows)

    return run


if __name__ == "__main__":
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
