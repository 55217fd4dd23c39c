"""A slice of the campaign: the kind that is hardest to clean up after."""

import sys

import pytest

from tests.campaigns.simulators import problems_of


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_training_on_a_simulator_that_starts_a_session_ends_well_and_leaves_no_process() -> None:
    assert problems_of("starts a session") == []
