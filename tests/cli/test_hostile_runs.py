"""A small slice of the campaign of hostile runs, in this process."""

from pathlib import Path

import pytest

from rookery import cli
from tests.campaigns.hostile_runs import COMMANDS, THREATS, Usage, attack
from tests.cli.conftest import FinishedRun

NAMES = ["gymnasium module", "link lock", "link episode.gif", "pipe metrics.jsonl", "moved checkpoints", "aliases"]


@pytest.mark.parametrize("name", NAMES)
def test_commands_on_a_hostile_run_are_safe(
    finished_run: FinishedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    def execute(here: Path, command: list[str]) -> tuple[int, Usage, str]:
        monkeypatch.chdir(here)
        monkeypatch.setenv("EXECUTED", str(here.parent / "executed"))
        code = cli.main(command)
        return code, Usage(0.0, 0.0), "".join(capsys.readouterr())

    for command in COMMANDS:
        _, failure = attack(tmp_path, finished_run.directory.path, command, THREATS[name], Usage(0.0, 0.0), execute)
        assert failure is None, command
