"""A cluster whose nodes are lost while a run trains on them, and come back."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.kills import check_ledger, check_seeds
from tests.ray.nodes import Nodes
from tests.ray.processes import Training, wait_until
from tests.ray_envs import give_command


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with contextlib.closing(Nodes()) as nodes:
        yield nodes


def test_half_of_the_runners_go_on_without_a_node_all_are_back_with_another_and_without_any_the_run_is_saved(
    nodes: Nodes, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        nodes.add(name)
    training = Training.start(
        tmp_path,
        "num_env_runners=4",
        "env.runner.max_restarts=0",  # a failure that counted would be the end of a slot
        f"ray.address={nodes.address}",
        "total_timesteps=10000000",
        "record_interval=64",
        "checkpoint.interval=10000000",
        seconds=0.01,
        **nodes.variables,
    )
    try:
        training.wait_for(lambda record: record["runners/ready"] == 4)
        give_command(tmp_path, "hang")
        assert wait_until(lambda: list(tmp_path.glob("command.*")))
        (path,) = tmp_path.glob("command.*")
        lost = nodes.node_of(int(path.suffix[1:]))  # within a fragment, which will never end
        nodes.kill(lost)
        halved = training.wait_for(lambda record: record["runners/starting"] == 2)
        half = training.wait_for(
            lambda record: record["time/total_timesteps"] >= halved["time/total_timesteps"] + 5 * 64
        )
        assert half["runners/ready"] == 2
        assert half["faults/unreachable"] >= 2
        nodes.add("third")
        back = training.wait_for(
            lambda record: (
                record["time/total_timesteps"] > half["time/total_timesteps"] and record["runners/ready"] == 4
            )
        )
        assert back["runners/lost"] == back["faults/killed"] == back["faults/hung"] == 0
        assert back["runners/restarts"] == back["faults/unreachable"]
        assert 1 <= back["runners/fragments_lost"] <= 2
        check_ledger(back)
        num_before = training.output.count("failed and is")
        for name in {"first", "second", "third"} - {lost}:
            nodes.kill(name)
        assert wait_until(lambda: training.output.count("failed and is") >= num_before + 4)
        training.process.send_signal(signal.SIGTERM)
        assert training.end() == 128 + signal.SIGTERM
        assert training.checkpoints()[-1] >= training.records()[-1]["time/total_timesteps"]
        check_seeds(tmp_path)
    finally:
        training.close()
