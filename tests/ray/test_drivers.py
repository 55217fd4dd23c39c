"""The process of a run on Ray: killed and resumed, told to stop, and finished."""

import random
import signal

import pytest

from tests.ray.history import INTERVAL, SOON, History
from tests.ray.kills import check_ledger, check_seeds
from tests.ray.processes import LOOPBACK_IN_HEX


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder, moments = tmp_path_factory.mktemp("driver"), random.Random(3)
    history = History(folder)
    history.stop(history.train(), signal.SIGKILL, moments.uniform(0.0, 0.5))
    history.stop(history.train("--or-resume", **SOON), signal.SIGKILL, part="gcs/gcs_server")
    history.stop(history.resume(), signal.SIGTERM)
    return history


def test_a_run_whose_process_or_gcs_was_killed_goes_on_and_has_every_record_once(history: History) -> None:
    steps = [record["time/total_timesteps"] for record in history.records]
    assert history.exit_codes[:2] == [-signal.SIGKILL, 1]
    assert steps == list(range(INTERVAL, history.saved[-1] + 1, INTERVAL))
    assert history.saved == sorted(set(history.saved))


def test_every_sampled_step_of_a_killed_run_is_trained_queued_or_discarded(history: History) -> None:
    for record in history.records:
        check_ledger(record)


def test_no_process_of_a_killed_run_plays_the_seed_of_another(history: History) -> None:
    assert check_seeds(history.folder) > 100


def test_a_run_that_is_told_to_stop_is_saved_and_leaves_no_process(history: History) -> None:
    assert history.exit_codes[-1] == 128 + signal.SIGTERM
    assert history.saved[-1] >= history.last_records[-1]
    assert history.left_over == [[]]


def test_runs_listen_on_this_machine_alone_while_they_train(history: History) -> None:
    assert len(history.addresses) == 3
    assert all(history.addresses)
    assert set().union(*history.addresses) <= set(LOOPBACK_IN_HEX)


def test_no_file_or_output_of_a_run_has_a_token(history: History) -> None:
    assert len(history.tokens) == 3, "each process has a Ray, and a token, of its own"
    files = [path for path in history.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    contents = [path.read_bytes() for path in files]
    assert [token for token in history.tokens if any(token.encode() in content for content in contents)] == []
