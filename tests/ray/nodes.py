"""A cluster of several nodes on this machine, in a process of its own."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE
from tests.ray.processes import program_environment, read

NODES = """
import sys
from ray.cluster_utils import Cluster

options = {"object_store_memory": 80 * 2**20, "include_log_monitor": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **options})
print(cluster.address, flush=True)
nodes = {}
for line in sys.stdin:
    command, name = line.split()
    if command == "add":
        nodes[name] = cluster.add_node(num_cpus=2, **options)
        print(nodes[name].all_processes["raylet"][0].process.pid, flush=True)
    else:
        cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("removed", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A cluster on this machine: a head without CPUs, and nodes of two CPUs that are added and killed."""

    def __init__(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))  # short, as paths of sockets must be
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
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
