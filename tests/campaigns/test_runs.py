"""A small slice of the campaigns on runs, and what their checks find."""

import math
from pathlib import Path

from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from tests.campaigns import commands, kill, memory


def test_malformed_commands_are_refused_in_one_line_and_leave_nothing() -> None:
    faults, num_commands, _ = commands.run(num_overrides=24, seed=0, num_arguments=12)
    assert faults == []
    assert num_commands == 36


def test_the_kill_campaign_finds_damage_and_lost_broken_and_doubled_records(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, {"num_seeds": 1})
    lines = [f'{{"seed": 0, "time/total_timesteps": {step}}}\n' for step in (10, 20)]
    run.metrics_path.write_text("".join(lines) + '{"torn')
    path = Checkpoints(run.checkpoints_path).save({"a": 1.0}, 20, {"num_records": 2})
    assert kill.faults_in(tmp_path) == []
    run.metrics_path.write_text(lines[0])
    assert kill.faults_in(tmp_path) == ["checkpoint 20 counts on 2 lines, there are 1"]
    run.metrics_path.write_text(lines[0] * 2 + "{\n")
    assert kill.faults_in(tmp_path) == ["line 3 of metrics.jsonl is broken", "doubled lines in metrics.jsonl"]
    run.metrics_path.write_text("".join(lines))
    (path / "arrays.safetensors").unlink()
    (fault,) = kill.faults_in(tmp_path)
    assert fault.startswith("checkpoint 20 is damaged")


def test_the_memory_campaign_measures_a_run(tmp_path: Path) -> None:
    per_event, at_the_end = memory.growth("device", 20, tmp_path)
    assert math.isfinite(per_event)
    assert at_the_end > 10**6
