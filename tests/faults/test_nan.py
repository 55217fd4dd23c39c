"""A slice of the campaign of runs that meet NaN: `python -m tests.campaigns.nan`."""

from pathlib import Path

import pytest

from rookery.envs.libraries import LIBRARIES
from tests.campaigns.nan import CASES, Case, provide_envs, run_case


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
def test_a_run_that_meets_nan_does_what_is_documented(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIBRARIES, "poisoned", LIBRARIES["probe"])  # removed after the test
    provide_envs()
    assert run_case(case, tmp_path) is None
