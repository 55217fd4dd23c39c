"""The object store of Ray, when fragments do not fit into it."""

from tests.ray.full_store import MAX_STALENESS, NUM_ROUNDS
from tests.ray.processes import run_program


def test_fragments_that_do_not_fit_into_the_store_arrive_whole_and_runners_do_not_run_ahead() -> None:
    result = run_program("from tests.ray.full_store import main; main()")
    assert result.stdout.split() == [str(MAX_STALENESS + 1), str(NUM_ROUNDS)], result.stderr
