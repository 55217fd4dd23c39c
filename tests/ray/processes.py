"""The processes of a Ray, and programs that start or join one in a process of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import rookery
from rookery.runs.checkpoint import Checkpoints

ROOT = Path(rookery.__file__).parent.parent
TIMEOUT_SECONDS = 120
RUN_NAME = "run"
ENV_MODULE = """
import gymnasium
from tests.ray_envs import CommandedEnv

gymnasium.register("Commanded-v0", entry_point=CommandedEnv)
"""
TRAINING = (
    "agent=impala",
    "env=gymnasium/commanded:Commanded-v0",
    "agent.num_envs=4",
    "agent.rollout_length=8",
    "agent.network.hidden_sizes=[8]",
    "evaluation.interval=1000000",
    "evaluation.num_episodes=1",
    "recorders=[jsonl]",
)
LISTENS = "0A"
LOOPBACK_IN_HEX = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
"""127.0.0.1, the same as an address of IPv6, and ::1, as /proc shows them."""


def run_program(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, without the variables of Ray that these tests have."""
    command = [sys.executable, "-c", code, *arguments]
    options = {"capture_output": True, "text": True, "check": False, "timeout": TIMEOUT_SECONDS}
    return subprocess.run(command, env=program_environment(**variables), **options)  # type: ignore[call-overload, no-any-return]


def program_environment(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return ours | {"PYTHONPATH": str(ROOT), **variables}


def wait_until(condition: Callable[[], Any], seconds: float = TIMEOUT_SECONDS) -> bool:
    """Return whether a condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Training:
    """`rookery train` in a process of its own, in a folder whose module registers `CommandedEnv`."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.folder = folder
        self.run = folder / RUN_NAME
        (folder / "commanded.py").write_text(ENV_MODULE)
        self._output = open(folder / "output", "a+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rookery", *arguments],
            cwd=folder,
            env=program_environment(**variables),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    @classmethod
    def start(cls, folder: Path, *overrides: str, seconds: float = 0.0, **variables: str) -> Self:
        """Train on environments whose steps take as many seconds; evaluate only in the end."""
        kwargs = f"env.kwargs={{folder: {folder}, seconds: {seconds}}}"
        return cls(folder, "train", *TRAINING, kwargs, f"run_dir={RUN_NAME}", *overrides, **variables)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def records(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def checkpoints(self) -> list[int]:
        return Checkpoints(self.run / "checkpoints").steps()

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a record of which a condition is true, and return it."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = [record for record in self.records() if condition(record)]
            assert found or self.process.poll() is None, self.output
            return bool(found)

        assert wait_until(is_there), f"{self.records()[-1:]} {self.output}"
        return found[0]

    def end(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return self.process.wait(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


def process_ids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def children_of(parent: int) -> list[int]:
    """Return a process and all that it has started, and those have started."""
    parents = {}
    for process in process_ids():
        text = read(process, "stat").rpartition(")")[2].split()
        if text:
            parents[process] = int(text[1])
    found = [parent]
    for process in found:
        found += [child for child, its_parent in parents.items() if its_parent == process]
    return found


def is_running(process: int) -> bool:
    """Return whether a process has not ended; one that nobody has waited for has ended."""
    return read(process, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def processes_naming(text: str) -> list[int]:
    """Return the processes whose command line or variables contain a text."""
    return [process for process in process_ids() if text in read(process, "cmdline") + read(process, "environ")]


def read(process: int, name: str) -> str:
    """Return a file of a process; empty if the process is gone."""
    try:
        return Path(f"/proc/{process}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def listening_addresses(process: int) -> list[str]:
    """Return the addresses on which a process accepts connections, as /proc shows them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                sockets[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    opened = []
    for path in Path(f"/proc/{process}/fd").glob("*"):
        try:
            opened.append(os.readlink(path))
        except OSError:  # closed meanwhile
            continue
    return [sockets[link] for link in opened if link in sockets]
