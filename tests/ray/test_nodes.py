"""A cluster whose nodes are lost while a run trains on them, and come back."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE
from tests.ray.processes import Training, program_environment, read, wait_until
from tests.ray_envs import give_command, seeds_in

WAIT_SECONDS = 15
NODES = """
import sys
from ray.cluster_utils import Cluster

memory = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
print(cluster.address, flush=True)
nodes = {}
for line in sys.stdin:
    command, name = line.split()
    if command == "add":
        nodes[name] = cluster.add_node(num_cpus=2, **memory)
        print(nodes[name].all_processes["raylet"][0].process.pid, flush=True)
    else:
        cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("removed", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A cluster on this machine: a head without CPUs, and nodes of two CPUs that are added and killed."""

    def __init__(self, folder: Path) -> None:
        (folder / "token").write_text("a1" * 32)
        self.variables = {
            LOOPBACK_VARIABLE: "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        }
        sooner = {  # Ray marks a node dead after 2 s instead of 11
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_timeout_ms": "1000",
            "RAY_health_check_failure_threshold": "3",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", NODES],
            cwd=folder,
            env=program_environment(
                **self.variables, **sooner, RAY_TMPDIR=str(folder), RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0"
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._answer()
        self.raylets: dict[int, str] = {}
        """The names of the nodes by the processes that start their workers."""

    def add(self, name: str) -> None:
        self.raylets[int(self._ask(f"add {name}"))] = name

    def kill(self, name: str) -> None:
        """Kill all processes of a node."""
        assert self._ask(f"kill {name}") == "removed"

    def node_of(self, worker: int) -> str:
        """Return the node on which a process is a worker."""
        return self.raylets[int(read(worker, "stat").rpartition(")")[2].split()[1])]

    def close(self) -> None:
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))  # short, as the paths of sockets must be
    nodes = Nodes(folder)
    yield nodes
    nodes.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_half_of_the_runners_go_on_without_a_node_all_are_back_with_another_and_without_any_the_run_is_saved(
    nodes: Nodes, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        nodes.add(name)
    training = Training.start(
        tmp_path,
        "num_env_runners=4",
        "env.runner.max_restarts=0",  # a failure that counted would be the end of a slot
        f"ray.address={nodes.address}",
        f"ray.wait_timeout={WAIT_SECONDS}",
        "total_timesteps=10000000",
        "record_interval=64",
        "checkpoint.interval=10000000",
        seconds=0.01,
        **nodes.variables,
    )
    try:
        training.wait_for(lambda record: record["runners/ready"] == 4)
        give_command(tmp_path, "hang")
        assert wait_until(lambda: list(tmp_path.glob("command.*")))
        (path,) = tmp_path.glob("command.*")
        lost = nodes.node_of(int(path.suffix[1:]))  # within a fragment, which will never end
        nodes.kill(lost)
        halved = training.wait_for(lambda record: record["runners/starting"] == 2)
        half = training.wait_for(
            lambda record: record["time/total_timesteps"] >= halved["time/total_timesteps"] + 5 * 64
        )
        assert half["runners/ready"] == 2
        assert half["faults/unreachable"] >= 2
        nodes.add("third")
        back = training.wait_for(
            lambda record: (
                record["time/total_timesteps"] > half["time/total_timesteps"] and record["runners/ready"] == 4
            )
        )
        assert back["runners/lost"] == back["faults/killed"] == back["faults/hung"] == 0
        assert back["runners/restarts"] == back["faults/unreachable"]
        assert 1 <= back["runners/fragments_lost"] <= 2
        assert back["rollout/steps_sampled"] == back["time/total_timesteps"]
        for name in {"first", "second", "third"} - {lost}:
            nodes.kill(name)
        assert training.end() == 2
        assert (
            f"0 of 4 runners were up for {WAIT_SECONDS} seconds (ray.wait_timeout), and ray.min_env_runners=1 are "
            "needed. The cause: its process"
        ) in " ".join(training.output.split())
        assert training.checkpoints()[-1] >= training.records()[-1]["time/total_timesteps"]
        seeds = seeds_in(tmp_path)
        assert len(seeds) == len(set(seeds))
    finally:
        training.close()
