"""Simulators as HTTP clients, in large numbers and over a long time: `python -m tests.campaigns.clients KIND`.

cartpole  PPO learns CartPole that 4 processes play
pendulum  SAC learns Pendulum that a process plays, which chooses every third action itself
kills     a training is killed and resumed again and again; its clients go on
lost      3 of 8 clients are killed in each round
fleet     1,000 clients on connections of their own, and 10,000 episodes that nobody ends
reloads   a newer checkpoint appears every 100 ms while clients ask as fast as they can
stops     SIGTERM while 100 slow clients are connected and a step is open; a second SIGTERM
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import rookery
from rookery.policy import Policy
from rookery.spaces import from_gymnasium, to_json
from tests.campaigns import reloads, stops
from tests.campaigns.kill import faults_in
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
START_SECONDS = 4.0
"""About as long as a training needs until its first step."""
PENDULUM = {"agent.num_envs": 1, "agent.rollout_length": 1, "agent.warmup_steps": 500}
MAX_BYTES = 16 * 2**20


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


# The kinds: each takes a count and returns what it found, or raises `AssertionError`.


def cartpole(num_steps: int) -> str:
    run = train("ppo", "CartPole-v1", num_steps, 4, CARTPOLE)
    return _reached(mean_return(run.policy, "CartPole-v1"), 450.0)


def pendulum(num_steps: int) -> str:
    run = train("sac", "Pendulum-v1", num_steps, 1, PENDULUM, logs_every=3)
    share = float(np.nanmean(run.metrics["rollout/logged_share"]))
    return f"{_reached(mean_return(run.policy, 'Pendulum-v1'), -200.0)}; {share:.3f} of the actions were logged"


def _reached(found: float, goal: float) -> str:
    text = f"mean return {found:.1f} of 20 greedy episodes, goal {goal:g}"
    assert found >= goal, text
    return text


def kills(count: int) -> str:
    """Kill a training, every fourth time while it starts; its clients are never started again."""
    draw, waits = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as folder:
        kwargs, run_dir = served_settings(Path(folder), "CartPole-v1"), Path(folder, "run")
        overrides = [f"env.kwargs.{name}={value}" for name, value in kwargs.items()]
        command = ["train", "agent=ppo", "env=served", *overrides, f"run_dir={run_dir}", *KILLED]
        with simulators(3, url_of(kwargs), "CartPole-v1", token_file=Path(kwargs["token_file"])) as clients:
            num_steps = 0
            for number in range(count + 1):
                with rookery_process(*command) as training:
                    if number < count and number % 4 == 3:
                        at_least = num_steps
                        time.sleep(draw.uniform(0.0, START_SECONDS))
                    else:
                        start = time.monotonic()
                        at_least = wait_for_steps(run_dir, num_steps, training)
                        waits.append(time.monotonic() - start)
                        time.sleep(draw.uniform(0.0, 1.0))
                    training.kill()
                    training.wait()
                faults = faults_in(run_dir)
                assert not faults, faults
                num_steps = rookery.load(run_dir).num_steps
                assert num_steps >= at_least, "no checkpoint is lost"
                assert all(client.poll() is None for client in clients), "clients outlive the server"
                command = ["resume", str(run_dir), "--trust"]
    return f"{count} kills, {num_steps:,} steps; at most {max(waits):.1f} s from the command to a newer checkpoint"


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


def lost(count: int) -> str:
    served = Served(max_episodes=8, lease=0.5)
    steps = kill_clients(served, count)
    served.base_env.close()
    return f"{3 * count} clients killed, {len(steps):,} episodes"


def fleet(count: int) -> str:
    served = Served(max_episodes=count)
    found = play_fleet(served, num_clients=count, num_steps=100, num_endless=10 * count, lease=2.0)
    served.base_env.close()
    grown = found.num_bytes[-1] - found.num_bytes[0]
    text = f"answers {found.answers}; memory {found.num_bytes[0] / 2**20:.0f} MB, then {grown / 2**20:+.1f} MB"
    assert grown <= MAX_BYTES, text
    return text


class Kind(NamedTuple):
    run: Callable[[int], str]
    count: int
    what: str


KINDS = {
    "cartpole": Kind(cartpole, 100_000, "steps"),
    "pendulum": Kind(pendulum, 20_000, "steps"),
    "kills": Kind(kills, 100, "kills"),
    "lost": Kind(lost, 50, "rounds"),
    "fleet": Kind(fleet, 1_000, "clients"),
    "reloads": Kind(reloads.run, 600, "reloads"),
    "stops": Kind(stops.run, 10, "stops of each sort"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    counts = ", ".join(f"{kind.count} {kind.what}" for kind in KINDS.values())
    parser.add_argument("--count", type=int, help=f"instead of {counts}")
    arguments, start = parser.parse_args(), time.monotonic()
    kind = KINDS[arguments.kind]
    found = kind.run(arguments.count or kind.count)
    print(f"{arguments.kind}: {found}; {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
