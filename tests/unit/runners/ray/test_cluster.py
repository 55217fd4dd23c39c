"""What is known of Ray without starting it."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rookery.errors import InvalidInputError, MissingExtraError
from rookery.runners.ray import cluster
from rookery.runners.ray.cluster import connect, waiting_text
from rookery.runners.ray.log import RayLog
from rookery.runners.ray.probe import check_cluster, environment
from rookery.runners.ray.settings import RaySettings


@pytest.mark.parametrize(
    ("settings", "num_up", "expected"),
    [
        ({}, 6, "6 of 8 runners are up; 2 wait for 1 CPU each, the cluster has 0 of 6 free."),
        ({}, 7, "7 of 8 runners are up; 1 waits for 1 CPU, the cluster has 0 of 6 free."),
        (
            {"num_cpus_per_env_runner": 0.5, "num_gpus_per_env_runner": 1},
            0,
            "0 of 8 runners are up; 8 wait for 0.5 CPU and 1 GPU each, the cluster has 0 of 6 CPU and 1 of 2 GPU free.",
        ),
        (
            {"num_cpus_per_env_runner": 0, "resources_per_env_runner": {"disk": 1}},
            2,
            "2 of 8 runners are up; 6 wait for 1 disk each, the cluster has 0 of 0 free.",
        ),
        ({"num_cpus_per_env_runner": 0}, 2, "2 of 8 runners are up; 6 wait for a node of the cluster."),
    ],
)
def test_waiting_runners_say_what_they_need_and_what_there_is(
    settings: dict[str, Any], num_up: int, expected: str
) -> None:
    text = waiting_text(RaySettings(**settings), num_up, 8 - num_up, 8, {"CPU": 6.0, "GPU": 2.0}, {"GPU": 1.0})
    assert text == expected


def test_importing_the_package_does_not_import_ray() -> None:
    code = "import sys, rookery.cli.training, rookery.runners.ray.cluster; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_missing_ray_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed: pip install 'rookery\[ray\]'"):
        connect(RaySettings(), 1)


def test_a_ray_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.58.1")
    with pytest.raises(InvalidInputError, match=r"ray 2\.58\.1 does not check tokens by default: install 2\.59"):
        connect(RaySettings(address="auto"), 1)


def test_an_invalid_variable_of_ray_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(InvalidInputError, match="RAY_ADDRESS=ray://head:10001: a run needs a place in the cluster"):
        connect(RaySettings(), 1)


def test_tokens_that_are_turned_off_are_an_error_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InvalidInputError, match="RAY_AUTH_MODE=disabled turns tokens off: unset it"):
        check_cluster("ray.address=head:1", "head:1", insecure=False)


class FakeRay:
    """A Ray that was imported, and is connected to the cluster at `address`."""

    def __init__(self, for_clusters: bool = True, address: str = "10.0.0.1:6379") -> None:
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=for_clusters)
        self._private = SimpleNamespace(ray_constants=constants)
        self._context = SimpleNamespace(gcs_address=address)

    def is_initialized(self) -> bool:
        return False

    def get_runtime_context(self) -> Any:
        return self._context


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], None]:
    """Take the place of Ray."""

    def use(fake: FakeRay) -> None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(cluster, "_is_imported", lambda: True)
        monkeypatch.setattr(cluster, "_ray", lambda: fake)
        monkeypatch.setattr(cluster, "check_cluster", lambda *arguments: None)
        monkeypatch.setattr(cluster, "_redirect_output", lambda opened: RayLog())
        monkeypatch.setattr(cluster, "_init", lambda opened, **options: None)

    return use


def test_a_ray_that_was_imported_for_this_machine_alone_joins_nobody(imported: Callable[[FakeRay], None]) -> None:
    imported(FakeRay(for_clusters=False))
    message = (
        r"ray.address=head:1: Ray was imported for this machine alone \(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0\). Join a "
        "cluster from a new process."
    )
    with pytest.raises(InvalidInputError, match=message):
        connect(RaySettings(address="head:1"), 1)


def test_a_ray_that_was_imported_without_tokens_joins_nobody(
    imported: Callable[[FakeRay], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(FakeRay())
    monkeypatch.setattr(cluster, "_checks_tokens", lambda: False)
    message = "ray.address=head:1: `import ray` came first, without tokens: set RAY_AUTH_MODE=token before that import"
    with pytest.raises(InvalidInputError, match=message):
        connect(RaySettings(address="head:1"), 1)
    connect(RaySettings(address="head:1", insecure=True), 1).close()


@pytest.mark.parametrize(
    ("address", "tls", "num_warnings"),
    [("10.0.0.1:6379", None, 1), ("10.0.0.1:6379", "1", 0), ("127.0.0.1:6379", None, 0)],
)
def test_a_cluster_that_is_joined_without_encryption_over_the_network_is_warned_of(
    address: str,
    tls: str | None,
    num_warnings: int,
    imported: Callable[[FakeRay], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    imported(FakeRay(address=address))
    monkeypatch.setattr(cluster, "_checks_tokens", lambda: True)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    if tls is not None:
        monkeypatch.setenv("RAY_USE_TLS", tls)
    connect(RaySettings(address=address), 1).close()
    expected = f"ray.address={address}: tokens and data travel over the network without encryption"
    assert [message[: len(expected)] for message in caplog.messages] == [expected] * num_warnings


def test_the_object_store_fits_into_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {}
    for free in (0, 2**30, 2**40):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(cluster.shutil, "disk_usage", lambda folder, usage=usage: usage)
        sizes[free] = cluster.store_bytes()
    assert sizes == {0: cluster.MIN_STORE_BYTES, 2**30: 2**30 * 9 // 10, 2**40: cluster.STORE_BYTES}


def test_variables_are_restored_also_the_mode_that_ray_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "before")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with environment({"RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": "path"}):
        assert "RAY_AUTH_TOKEN" not in os.environ
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == "path"
        os.environ["RAY_AUTH_MODE"] = "token"
    assert os.environ["RAY_AUTH_TOKEN"] == "before"
    assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(os.environ)
