"""Learning from clients: simulators in other processes play CartPole and Pendulum over HTTP, and the policy is tested.

python -m tests.campaigns.clients cartpole
python -m tests.campaigns.clients pendulum
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rookery
from rookery.policy import Policy
from rookery.spaces import from_gymnasium, to_json
from tests.served_training import Served, kill_clients, play_fleet
from tests.simulator_clients import simulators

CARTPOLE = {
    "agent.num_envs": 4,
    "agent.rollout_length": 256,
    "agent.num_epochs": 10,
    "agent.learning_rate": {"start": 1e-3, "end": 0.0},
}
KILLED = ("total_timesteps=100_000_000", "agent.num_envs=4", "agent.rollout_length=32", "checkpoint.interval=256")
SECONDS_TO_GO_ON = 90.0
PENDULUM = {"agent.num_envs": 1, "agent.rollout_length": 1, "agent.warmup_steps": 500}


def served_settings(folder: Path, env_name: str) -> dict[str, Any]:
    """Write the files that a served environment needs; return its settings."""
    spaces, token_file = folder / "spaces.json", folder / "token"
    spaces.write_text(json.dumps(spaces_of(env_name)))
    token_file.write_text("default act " + 40 * "x" + "\n")
    token_file.chmod(0o600)
    return {"spaces": str(spaces), "port": free_port(), "token_file": str(token_file)}


def url_of(kwargs: Mapping[str, Any]) -> str:
    return f"http://127.0.0.1:{kwargs['port']}"


def train(
    agent: str, env_name: str, num_steps: int, num_clients: int, config: Mapping[str, Any], logs_every: int = 0
) -> rookery.Run:
    """Train on simulators in processes."""
    with tempfile.TemporaryDirectory() as folder:
        kwargs = served_settings(Path(folder), env_name)
        settings = {f"env.kwargs.{name}": value for name, value in kwargs.items()} | dict(config)
        with simulators(num_clients, url_of(kwargs), env_name, logs_every, Path(kwargs["token_file"])):
            return rookery.train(agent, "served", total_timesteps=num_steps, config=settings)


def spaces_of(env_name: str) -> dict[str, Any]:
    env = gymnasium.make(env_name)
    spaces = {"observation": env.observation_space, "action": env.action_space}
    return {name: to_json(from_gymnasium(space)) for name, space in spaces.items()}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def mean_return(policy: Policy, env_name: str, num_episodes: int = 20) -> float:
    """Play greedy episodes."""
    env = gymnasium.make_vec(env_name, num_envs=num_episodes)
    obs, _ = env.reset(seed=1)
    returns, is_over = np.zeros(num_episodes), np.zeros(num_episodes, bool)
    while not is_over.all():
        obs, rewards, terminated, truncated, _ = env.step(policy.predict(obs)[0])
        returns += rewards * ~is_over
        is_over |= terminated | truncated
    return float(returns.mean())


def cartpole(num_steps: int = 100_000) -> float:
    """PPO on CartPole that 4 processes play."""
    run = train("ppo", "CartPole-v1", num_steps, 4, CARTPOLE)
    return mean_return(run.policy, "CartPole-v1")


def pendulum(num_steps: int = 20_000) -> float:
    """SAC on Pendulum that a process plays, which chooses every third action itself."""
    run = train("sac", "Pendulum-v1", num_steps, 1, PENDULUM, logs_every=3)
    share = run.metrics["rollout/logged_share"]
    print(f"share of logged actions: {np.nanmean(share):.3f}")
    return mean_return(run.policy, "Pendulum-v1")


def kills(count: int) -> None:
    """Kill a training again and again, and resume it; its clients are never started again."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        kwargs, run_dir = served_settings(Path(folder), "CartPole-v1"), Path(folder, "run")
        overrides = [f"env.kwargs.{name}={value}" for name, value in kwargs.items()]
        command = ["train", "agent=ppo", "env=served", *overrides, f"run_dir={run_dir}", *KILLED]
        with simulators(3, url_of(kwargs), "CartPole-v1", token_file=Path(kwargs["token_file"])) as clients:
            num_steps = 0
            for _ in range(count + 1):
                with rookery_process(*command) as training:
                    at_least = wait_for_steps(run_dir, num_steps, training)
                    time.sleep(draw.uniform(0.0, 1.0))
                    training.kill()
                    training.wait()
                num_steps = rookery.load(run_dir).num_steps
                assert num_steps >= at_least, "the last checkpoint is whole"
                assert all(client.poll() is None for client in clients), "clients outlive the server"
                command = ["resume", str(run_dir), "--trust"]


@contextlib.contextmanager
def rookery_process(*arguments: str) -> Iterator[subprocess.Popen]:
    """Run a command of Rookery; kill it in the end."""
    process = subprocess.Popen([sys.executable, "-m", "rookery", *arguments], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_steps(run_dir: Path, before: int, training: subprocess.Popen) -> int:
    """Wait for a checkpoint of more steps than before; return its steps."""
    deadline = time.monotonic() + SECONDS_TO_GO_ON
    while time.monotonic() < deadline:
        assert training.poll() is None, "the training ended by itself"
        steps = [int(path.name) for path in run_dir.glob("checkpoints/*") if path.name.isdecimal()]
        if max(steps, default=0) > before:
            return max(steps)
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint after {before} steps in {SECONDS_TO_GO_ON:g} s")


def lost(count: int) -> None:
    """Kill 3 of 8 clients in each round."""
    served = Served(max_episodes=8, lease=0.5)
    kill_clients(served, count)
    served.base_env.close()


def fleet() -> None:
    """Play 1,000 clients of 100 steps, and begin 10,000 episodes more than there may be."""
    served = Served(max_episodes=1_000, lease=5.0)
    play_fleet(served, num_clients=1_000, num_steps=100, num_refused=10_000)
    served.base_env.close()


GOALS = {cartpole: 450.0, pendulum: -200.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["cartpole", "pendulum", "kills", "lost", "fleet"])
    parser.add_argument("--count", type=int, default=50, help="number of kills")
    arguments, start = parser.parse_args(), time.monotonic()
    others = {"kills": lambda: kills(arguments.count), "lost": lambda: lost(arguments.count), "fleet": fleet}
    if arguments.task in others:
        others[arguments.task]()
        print(f"{arguments.task}: all held; {time.monotonic() - start:.0f} s")
        return 0
    (task,) = (task for task in GOALS if task.__name__ == arguments.task)
    found, goal = task(), GOALS[task]
    seconds = time.monotonic() - start
    print(f"{arguments.task}: mean return {found:.1f} of 20 greedy episodes, goal {goal:g}; {seconds:.0f} s")
    return int(found < goal)


if __name__ == "__main__":
    raise SystemExit(main())
