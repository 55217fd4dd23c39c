"""The Ray of our own: who can reach it, what it prints, and what is left of it."""

import os
import signal
import stat
import time
from pathlib import Path

import pytest
import ray

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE, Cluster, connect, describe_waiting
from rookery.runners.ray.folder import TOKEN_NAME
from rookery.runners.ray.settings import RaySettings
from tests.ray.processes import (
    LOOPBACK_IN_HEX,
    children_of,
    listening_addresses,
    processes_naming,
    read,
    run_program,
    wait_until,
)


@ray.remote(num_cpus=1)
class Answering:
    def niceness(self) -> int:
        return os.nice(0)

    def variables(self) -> dict[str, str]:
        return dict(os.environ)


@pytest.fixture(scope="module")
def folder(cluster: Cluster) -> Path:
    """The private folder of the Ray of these tests."""
    return Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]


@pytest.fixture(scope="module")
def token(folder: Path) -> str:
    return (folder / TOKEN_NAME).read_text()


@pytest.fixture(scope="module")
def actor(cluster: Cluster) -> object:
    actor = Answering.remote()  # type: ignore[attr-defined]
    ray.get(actor.niceness.remote())
    return actor


def test_every_socket_listens_on_this_machine_alone(actor: object) -> None:
    addresses = {process: listening_addresses(process) for process in children_of(os.getpid())}
    assert sum(map(len, addresses.values())) >= 4, "driver, GCS, raylet, worker"
    assert [found for found in addresses.values() if not set(found) <= set(LOOPBACK_IN_HEX)] == []


def test_only_the_user_reads_the_token(folder: Path, token: str) -> None:
    assert stat.S_IMODE((folder / TOKEN_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(token) == 64


def test_the_token_is_in_no_log_command_line_or_variable(folder: Path, token: str, actor: object) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != TOKEN_NAME]
    assert len(files) > 5, "the logs of Ray"
    assert [path for path in files if token.encode() in path.read_bytes()] == []
    processes = children_of(os.getpid())
    assert [process for process in processes if token in read(process, "cmdline") + read(process, "environ")] == []
    variables = ray.get(actor.variables.remote())  # type: ignore[attr-defined]
    assert token not in "".join(variables.values())


def test_the_variables_of_this_process_stay_as_they_were(cluster: Cluster) -> None:
    names = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_worker_niceness"}
    assert names.isdisjoint(os.environ)


def test_ray_leaves_the_handler_of_sigterm_to_the_program(cluster: Cluster) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_runners_are_not_nicer_than_the_learner(actor: object) -> None:
    assert ray.get(actor.niceness.remote()) == os.nice(0)  # type: ignore[attr-defined]


def test_ray_keeps_no_event_of_each_request(actor: object) -> None:
    variables = ray.get(actor.variables.remote())  # type: ignore[attr-defined]
    assert variables["RAY_task_events_report_interval_ms"] == "0"


def test_what_nodes_report_goes_to_the_log_of_the_run(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = ray._private.worker.global_worker.gcs_client
    ray._private.utils.publish_error_to_driver("worker_died", "a worker died early", gcs_client=client)
    time.sleep(1.0)  # Ray reports it before there is a run directory
    cluster.log_to(tmp_path)
    ray._private.utils.publish_error_to_driver("worker_died", "a worker died late", gcs_client=client)
    assert wait_until(lambda: "died late" in (tmp_path / "ray.log").read_text())
    assert "a worker died early" in (tmp_path / "ray.log").read_text()
    assert "died" not in "".join(capfd.readouterr())


def test_a_ray_that_the_program_started_is_used_as_it_is(cluster: Cluster) -> None:
    before = ray.get_runtime_context().gcs_address
    with connect(RaySettings(address="auto"), num_env_runners=2) as ours:
        ours.log_to(Path("nowhere"))
    assert ray.is_initialized()
    assert ray.get_runtime_context().gcs_address == before


def test_runners_without_room_say_what_they_wait_for(cluster: Cluster) -> None:
    settings = RaySettings(num_cpus_per_env_runner=2, resources_per_env_runner={"simulator": 1})
    total = int(ray.cluster_resources()["CPU"])
    text = describe_waiting(settings, num_up=1, num_waiting=3, num_env_runners=4)
    assert text.startswith("1 of 4 runners are up; 3 wait for 2 CPU and 1 simulator each, the cluster has ")
    assert text.endswith(f" of {total} CPU and 0 of 0 simulator free.")


def test_a_program_starts_ray_on_this_machine_alone_and_nothing_is_left_of_it_also_after_an_error() -> None:
    code = """
import contextlib, os, sys
from tests.ray.processes import LOOPBACK_IN_HEX, children_of, listening_addresses
from rookery.runners.ray.cluster import connect
from rookery.runners.ray.settings import RaySettings

with contextlib.suppress(ZeroDivisionError), connect(RaySettings(), num_env_runners=1):
    import ray
    print(ray._private.worker._global_node.get_session_dir_path())
    assert ray.get(ray.remote(lambda: 3).remote()) == 3
    addresses = [address for process in children_of(os.getpid()) for address in listening_addresses(process)]
    assert len(addresses) >= 4 and set(addresses) <= set(LOOPBACK_IN_HEX), addresses
    1 / 0
connect(RaySettings(resources_per_env_runner={"simulator": 2}), num_env_runners=3)
print(ray._private.worker._global_node.get_session_dir_path())
assert ray.cluster_resources()["simulator"] == 6
sys.exit("not closed")
"""
    result = run_program(code)
    assert result.stderr == "not closed\n"
    folders = [Path(line).parents[1] for line in result.stdout.splitlines()]
    assert len(set(folders)) == 2
    assert [folder for folder in folders if folder.exists()] == []
    for folder in folders:
        assert wait_until(lambda folder=folder: processes_naming(str(folder)) == [])  # type: ignore[misc]


def test_a_ray_that_would_listen_on_all_interfaces_is_not_started() -> None:
    code = """
import ray
from rookery.runners.ray.cluster import connect
from rookery.runners.ray.settings import RaySettings
connect(RaySettings(), num_env_runners=1)
"""
    result = run_program(code)
    assert (
        "InvalidInputError: `import ray` came first, so that Ray would listen on all network interfaces"
        in result.stderr
    )
    assert f"set {LOOPBACK_VARIABLE}=0 before that import, or call ray.init() yourself" in result.stderr
