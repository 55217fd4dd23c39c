"""Run directories of runs on Ray, for the tests of the report."""

from pathlib import Path

from rookery.runs.directory import RunDirectory
from tests.report_runs import learning_rows, write_run

READY = {"runners/ready": 4, "runners/starting": 0, "runners/lost": 0}
ONE_STARTS = {"runners/ready": 3, "runners/starting": 1, "runners/lost": 0}
ONE_IS_LOST = {"runners/ready": 3, "runners/starting": 0, "runners/lost": 1}
STALE = {"rollout/staleness": 1.5, "rollout/staleness_max": 2, "rollout/steps_queued": 128, "time/wait_ms": 12.5}


def write_run_on_ray(path: Path, num_restarts: int = 0, **more: float) -> RunDirectory:
    """Write a run of four runners, of which one is restarted in the second third and lost in the last."""
    rows = learning_rows(num_records=30)
    counts = {"runners/restarts": num_restarts, "runners/fragments_lost": num_restarts}
    states = [READY] * 10 + [ONE_STARTS] * 10 + [ONE_IS_LOST] * 10
    return write_run(path, [row | state | counts | STALE | more for row, state in zip(rows, states, strict=True)])
