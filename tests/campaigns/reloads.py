"""Reloads at full speed: `rookery serve` takes a newer checkpoint every 100 ms, while clients ask as fast as they can.

No request may fail, each answer must be that of the version that it names, and versions never go back.
"""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

import rookery
from tests.campaigns.serving import served_run
from tests.fleet import Connection

TRAINING = ["agent=a2c", "env=classic/pendulum", "agent.num_envs=2", "agent.rollout_length=4", "checkpoint.interval=8"]
TRAINING += ["checkpoint.keep=null", "evaluation.num_episodes=2", "agent.network.hidden_sizes=[64,64]"]
OBSERVATIONS = [[1.0, 0.0, 0.5], [0.0, 1.0, -0.5], [-1.0, 0.0, 1.0], [0.6, 0.8, 0.0]]
TOLERANCE = 1e-5
"""Between actions of one version in batches of several sizes; those of two versions differ by more."""
INTERVAL = 0.1
LOOK_SECONDS = 0.02
"""Between two looks for newer checkpoints, in place of two seconds."""
NUM_CLIENTS = 8
PATIENCE = 60.0
COMMAND = f"""
import sys
from rookery import cli
from rookery.serving import reload

reload.RELOAD_SECONDS = {LOOK_SECONDS}
sys.exit(cli.main(sys.argv[1:]))
"""


def run(count: int) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints = train(folder / "trained", count)
        expected = {int(path.name): actions for path, actions in actions_of(folder / "trained", checkpoints)}
        least = min(np.abs(np.subtract(*pair)).max() for pair in pairwise(expected.values()))
        assert least > 2 * TOLERANCE, f"the actions of two versions differ by {least:.1g} only"
        (folder / "expected.json").write_text(json.dumps(expected))
        first, *later = checkpoints
        shutil.copytree(folder / "trained", folder / "run", ignore=shutil.ignore_patterns("checkpoints"))
        published = folder / "run" / "checkpoints"
        shutil.copytree(first, published / first.name)
        with served_run(folder / "run", "--no-token", program=("-c", COMMAND)) as (url, _):
            with asking(url, folder / "expected.json") as clients:
                time.sleep(count * INTERVAL / 4)
                quiet = end(clients)
            with asking(url, folder / "expected.json") as clients:
                for path in later:
                    time.sleep(INTERVAL)
                    path.rename(published / path.name)
                    wait_for_version(url, int(path.name))
                found = end(clients)
            metrics = urlopen(f"{url}/metrics").read().decode()
    loaded = re.search(r'rookery_reloads_total\{outcome="loaded"\} (\d+)', metrics)
    assert loaded is not None
    assert int(loaded[1]) == len(later)
    assert 'outcome="refused"' not in metrics
    return f"{len(later)} reloads; {found}; without reloads {quiet}"


def train(run_dir: Path, count: int) -> list[Path]:
    """Train with a checkpoint after each update; return their folders, the first before all updates."""
    overrides = [*TRAINING, f"total_timesteps={8 * count}", f"run_dir={run_dir}"]
    command = [sys.executable, "-m", "rookery", "train", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted((run_dir / "checkpoints").iterdir())


def actions_of(run_dir: Path, checkpoints: list[Path]) -> list[tuple[Path, list[Any]]]:
    """Return the greedy actions of each checkpoint."""
    first, obs = rookery.load(run_dir, step=int(checkpoints[0].name)), np.array(OBSERVATIONS, np.float32)
    found = []
    for path in checkpoints:
        policy = rookery.load(path)
        found.append((path, first.with_state(policy.agent_state, policy.num_steps).predict(obs)[0].tolist()))
    return found


def wait_for_version(url: str, version: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if json.loads(urlopen(f"{url}/v1/policies/default").read())["version"] == version:
            return
        time.sleep(0.01)
    raise AssertionError(f"version {version} is not served after {PATIENCE:g} s")


@contextlib.contextmanager
def asking(url: str, expected: Path) -> Iterator[subprocess.Popen]:
    """Run a process with clients that ask."""
    command = [sys.executable, "-m", "tests.campaigns.reloads", url, str(expected)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
        try:
            assert clients.stdout is not None
            assert clients.stdout.readline() == "asking\n"
            yield clients
        finally:
            clients.kill()


def end(clients: subprocess.Popen) -> str:
    """Let clients end; return what they found."""
    output, _ = clients.communicate("\n", timeout=PATIENCE)
    assert clients.returncode == 0, "an answer was wrong"
    return output.strip()


# In the process of the clients.


class Checker:
    """Checks all answers."""

    def __init__(self, expected: dict[int, np.ndarray]) -> None:
        self._expected = expected
        self.is_ending = False
        self.newest = -1
        self.versions: set[int] = set()
        self.seconds: list[float] = []

    async def ask(self, connection: Connection, path: str, body: dict[str, Any], rows: list[int]) -> None:
        """Ask for the actions on these rows of the observations."""
        before, start = self.newest, time.perf_counter()
        status, answer = await connection.post(path, body)
        self.seconds.append(time.perf_counter() - start)
        assert status == 200, answer
        version, actions = answer["version"], answer.get("actions", [answer.get("action")])
        assert version >= before, f"version {version} came after {before}"
        self.newest = max(self.newest, version)
        self.versions.add(version)
        difference = np.abs(np.array(actions) - self._expected[version][rows]).max()
        assert difference < TOLERANCE, f"actions of version {version} differ by {difference}"

    async def act(self, connection: Connection) -> None:
        """Ask without an episode, for 16 actions at a time."""
        rows = [0, 1, 2, 3] * 4
        while not self.is_ending:
            obs = [OBSERVATIONS[row] for row in rows]
            await self.ask(connection, "/v1/policies/default/act", {"obs": obs}, rows)

    async def play(self, connection: Connection, row: int) -> None:
        """Play an episode without end."""
        status, started = await connection.post("/v1/episodes", {})
        assert status == 201
        path, seq = f"/v1/episodes/{started['episode']}/step", 0
        while not self.is_ending:
            await self.ask(connection, path, {"seq": seq, "obs": OBSERVATIONS[row]}, [row])
            seq += 1

    async def end_at_a_line(self) -> None:
        await asyncio.to_thread(sys.stdin.readline)
        self.is_ending = True


async def ask_at_full_speed(url: str, expected: Path) -> None:
    table = {int(step): np.array(actions) for step, actions in json.loads(expected.read_text()).items()}
    checker = Checker(table)
    connections = [await Connection.open(url) for _ in range(NUM_CLIENTS)]
    print("asking", flush=True)
    half = NUM_CLIENTS // 2
    playing = [checker.play(connection, row) for row, connection in enumerate(connections[:half])]
    acting = map(checker.act, connections[half:])
    await asyncio.gather(checker.end_at_a_line(), *playing, *acting)
    seconds = 1e3 * np.array(checker.seconds)
    p50, p99, most = np.percentile(seconds, (50, 99, 100))
    print(
        f"{len(seconds):,} answers of {len(checker.versions)} versions, p50 {p50:.1f}, p99 {p99:.1f}, max {most:.1f} ms"
    )


if __name__ == "__main__":
    asyncio.run(ask_at_full_speed(sys.argv[1], Path(sys.argv[2])))
