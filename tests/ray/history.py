"""A run in a process of its own that is killed, stopped and resumed again and again."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from tests.ray.processes import RUN_NAME, Training, children_of, listening_addresses, read, wait_until

INTERVAL = 64
OVERRIDES = (
    "num_env_runners=2",
    "max_staleness=2",
    f"record_interval={INTERVAL}",
    f"checkpoint.interval={2 * INTERVAL}",
)

SOON = {"RAY_gcs_rpc_server_reconnect_timeout_s": "2"}
"""A driver waits two seconds for its GCS instead of 60."""


@dataclass
class History:
    """A run and what was seen of each of its processes."""

    folder: Path
    exit_codes: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    """The last checkpoint after each process."""
    last_records: list[int] = field(default_factory=list)
    """The step of the last record after each process."""
    left_over: list[list[int]] = field(default_factory=list)
    """The processes that were still there half a minute after a driver that was told to stop."""
    addresses: list[set[str]] = field(default_factory=list)
    """The addresses on which the processes of each run accept connections while it trains."""
    tokens: set[str] = field(default_factory=set)
    records: list[dict[str, Any]] = field(default_factory=list)

    def train(self, *arguments: str, total_timesteps: int = 10**6, **variables: str) -> Training:
        total = f"total_timesteps={total_timesteps}"
        return Training.start(self.folder, *OVERRIDES, total, *arguments, seconds=0.002, **variables)

    def resume(self) -> Training:
        return Training(self.folder, "resume", RUN_NAME, "--trust")

    def stop(self, training: Training, number: signal.Signals, seconds: float = 0.0, part: str = "rookery") -> None:
        """Let a run save two checkpoints, wait, and send a signal to the process of it whose command has this part."""
        try:
            before = max(training.checkpoints(), default=0)
            training.wait_for(lambda record: record["time/total_timesteps"] >= before + 4 * INTERVAL)
            sleep(seconds)
            processes = children_of(training.process.pid)
            started = [identity_of(process) for process in processes]
            self.addresses.append({address for process in processes for address in listening_addresses(process)})
            self.tokens.update(token for process in processes if (token := token_of(process)))
            os.kill(next(process for process in processes if part in read(process, "cmdline")), number)
            self._note(training)
            if number is not signal.SIGKILL:  # two processes of Ray live a minute longer then
                wait_until(lambda: not any(map(is_alive, started)), 30.0)
                self.left_over.append([identity[0] for identity in started if is_alive(identity)])
        finally:
            training.close()

    def finish(self, training: Training) -> None:
        try:
            self._note(training)
        finally:
            training.close()

    def _note(self, training: Training) -> None:
        self.exit_codes.append(training.end())
        self.saved.append(training.checkpoints()[-1])
        self.records = training.records()
        self.last_records.append(self.records[-1]["time/total_timesteps"])


def token_of(process: int) -> str:
    """Return the token of the Ray to which a process belongs; empty if it has none."""
    variables = dict(line.partition("=")[::2] for line in read(process, "environ").split("\0"))
    path = Path(variables.get("RAY_AUTH_TOKEN_PATH", os.devnull))
    return path.read_text() if path.exists() else ""


def identity_of(process: int) -> tuple[int, str]:
    """Return a process with the time of its start: numbers are given again."""
    return process, (read(process, "stat").rpartition(")")[2].split() or [""] * 20)[19]


def is_alive(identity: tuple[int, str]) -> bool:
    process, started = identity
    state = read(process, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z" and state[19] == started
