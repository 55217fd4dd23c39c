"""External simulators in the report."""

import re
from pathlib import Path

from rookery.report import write_report
from tests.report_runs import learning_rows, write_run

EXTERNAL = {"rollout/logged_share": 0.25, "rollout/staleness": 0.5, "rollout/staleness_max": 2}
COUNTS = {"rollout/steps_abandoned": 3, "rollout/steps_pending": 12, "rollout/episodes_abandoned": 4}
SERVED = {"serving/requests": 1500, "serving/started": 40, "serving/expired": 2}


def section_of(folder: Path, **more: float) -> str:
    run = write_run(folder / "run", [row | more for row in learning_rows(num_records=30)])
    page = write_report([run], folder / "report.html").read_text()
    return "".join(re.findall(r"<h2>Simulators</h2>(.*?)</section>", page, flags=re.DOTALL))


def test_simulators_have_a_section_with_their_counts(tmp_path: Path) -> None:
    section = section_of(tmp_path, **EXTERNAL, **COUNTS)
    assert "Share of steps in which the simulator acted itself" in section
    assert "Episodes abandoned" in section
    assert "Clients in numbers" not in section


def test_clients_are_counted_where_there_were_some(tmp_path: Path) -> None:
    section = section_of(tmp_path, **EXTERNAL, **COUNTS, **SERVED)
    assert "1,500" in section
    assert "Episodes expired after silence" in section


def test_other_runs_have_no_section_on_simulators(tmp_path: Path) -> None:
    assert section_of(tmp_path) == ""
