"""Learning from clients: simulators in other processes play CartPole and Pendulum over HTTP, and the policy is tested.

python -m tests.campaigns.clients cartpole
python -m tests.campaigns.clients pendulum
"""

import argparse
import json
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rookery
from rookery.policy import Policy
from rookery.spaces import from_gymnasium, to_json
from tests.simulator_clients import simulators

CARTPOLE = {
    "agent.num_envs": 4,
    "agent.rollout_length": 256,
    "agent.num_epochs": 10,
    "agent.learning_rate": {"start": 1e-3, "end": 0.0},
}
PENDULUM = {"agent.num_envs": 1, "agent.rollout_length": 1, "agent.warmup_steps": 500}


def train(
    agent: str, env_name: str, num_steps: int, num_clients: int, config: Mapping[str, Any], logs_every: int = 0
) -> rookery.Run:
    """Train on simulators in processes."""
    with tempfile.TemporaryDirectory() as folder:
        spaces, token_file, port = Path(folder, "spaces.json"), Path(folder, "token"), free_port()
        spaces.write_text(json.dumps(spaces_of(env_name)))
        token_file.write_text("default act " + 40 * "x" + "\n")
        token_file.chmod(0o600)
        kwargs = {"spaces": str(spaces), "port": port, "token_file": str(token_file)}
        settings = {f"env.kwargs.{name}": value for name, value in kwargs.items()} | dict(config)
        with simulators(num_clients, f"http://127.0.0.1:{port}", env_name, logs_every, token_file):
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


GOALS = {cartpole: 450.0, pendulum: -200.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[task.__name__ for task in GOALS])
    name = parser.parse_args().task
    (task,) = (task for task in GOALS if task.__name__ == name)
    start = time.monotonic()
    found, goal = task(), GOALS[task]
    print(f"{name}: mean return {found:.1f} of 20 greedy episodes, goal {goal:g}; {time.monotonic() - start:.0f} s")
    return int(found < goal)


if __name__ == "__main__":
    raise SystemExit(main())
