"""The process of a run on Ray: killed and resumed, told to stop, and finished."""

import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.ray.processes import (
    LOOPBACK_IN_HEX,
    RUN_NAME,
    Training,
    children_of,
    listening_addresses,
    read,
    wait_until,
)
from tests.ray_envs import seeds_in

INTERVAL = 64
OVERRIDES = (
    "num_env_runners=2",
    "max_staleness=2",
    f"record_interval={INTERVAL}",
    f"checkpoint.interval={2 * INTERVAL}",
)


@dataclass
class History:
    """A run whose process is killed twice, whose Ray is killed, and that is stopped by SIGTERM and by SIGINT.

    Then it is told that it has all its steps.
    """

    folder: Path
    exit_codes: list[int] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
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

    def train(self, *arguments: str, total_timesteps: int = 10**6) -> Training:
        total = f"total_timesteps={total_timesteps}"
        return Training.start(self.folder, *OVERRIDES, total, *arguments, seconds=0.002)

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
        self.records = training.records()

    def _note(self, training: Training) -> None:
        self.exit_codes.append(training.end())
        self.outputs.append(training.output)
        self.saved.append(training.checkpoints()[-1])
        self.last_records.append(training.records()[-1]["time/total_timesteps"])


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


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder, moments = tmp_path_factory.mktemp("driver"), random.Random(3)
    history = History(folder)
    history.stop(history.train(), signal.SIGKILL, moments.uniform(0.0, 0.5))
    history.stop(history.train("--or-resume"), signal.SIGKILL, moments.uniform(0.0, 0.5))
    history.stop(history.train("--or-resume"), signal.SIGKILL, part="raylet/raylet")
    history.stop(history.resume(), signal.SIGTERM)
    history.stop(history.train("--or-resume"), signal.SIGINT)
    history.finish(history.train("--or-resume", total_timesteps=history.saved[-1]))
    return history


def test_a_run_whose_process_or_ray_was_killed_goes_on_and_has_every_record_once(history: History) -> None:
    steps = [record["time/total_timesteps"] for record in history.records]
    assert history.exit_codes[:3] == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert steps == list(range(INTERVAL, history.saved[-1] + 1, INTERVAL))
    assert history.saved == sorted(set(history.saved[:-1])) + history.saved[-1:]


def test_every_sampled_step_of_a_killed_run_is_trained_queued_or_discarded(history: History) -> None:
    for record in history.records:
        assert record["rollout/steps_sampled"] == (
            record["time/total_timesteps"] + record["rollout/steps_queued"] + record["rollout/steps_discarded"]
        )


def test_no_process_of_a_killed_run_plays_the_seed_of_another(history: History) -> None:
    seeds = seeds_in(history.folder)
    assert len(seeds) > 100
    assert len(seeds) == len(set(seeds))


@pytest.mark.parametrize(("process", "exit_code"), [(3, 143), (4, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_run_that_is_told_to_stop_is_saved_and_leaves_no_process(
    process: int, exit_code: int, history: History
) -> None:
    assert history.exit_codes[process] == exit_code
    assert history.saved[process] >= history.last_records[process]
    assert history.left_over[process - 3] == []


def test_runs_listen_on_this_machine_alone_while_they_train(history: History) -> None:
    assert len(history.addresses) == 5
    assert all(history.addresses)
    assert set().union(*history.addresses) <= set(LOOPBACK_IN_HEX)


def test_no_file_or_output_of_a_run_has_a_token(history: History) -> None:
    assert len(history.tokens) == 5, "each process has a Ray, and a token, of its own"
    files = [path for path in history.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    contents = [path.read_bytes() for path in files]
    assert [token for token in history.tokens if any(token.encode() in content for content in contents)] == []


def test_a_finished_run_says_so(history: History) -> None:
    assert history.exit_codes[-1] == 0
    assert history.outputs[-1].removeprefix(history.outputs[-2]).split() == f"the run in {RUN_NAME} is finished".split()
