"""Joining a cluster: with its token, and never one that accepts anybody unless the user says so."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE, Cluster
from rookery.runners.ray.folder import TOKEN_NAME
from tests.ray.processes import program_environment, run_program

JOIN = """
import sys
from rookery.runners.ray.cluster import connect
from rookery.runners.ray.settings import RaySettings
address = sys.argv[1] if len(sys.argv) > 1 else None
with connect(RaySettings(address=address, insecure="insecure" in sys.argv), num_env_runners=1):
    import ray
    print("joined", ray.get_runtime_context().gcs_address, ray.get(ray.remote(lambda: 3).remote()))
print("left", ray.is_initialized())
"""
ON_LOOPBACK = {LOOPBACK_VARIABLE: "0"}
"""Otherwise Ray replaces 127.0.0.1 by the address of this machine."""
OPEN = """
import sys
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


def join(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program(JOIN, *arguments, **ON_LOOPBACK, **variables)


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> str:
    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture(scope="module")
def token_path(cluster: Cluster) -> str:
    return str(Path(ray._private.worker._global_node.get_session_dir_path()).parents[1] / TOKEN_NAME)


@pytest.fixture(scope="module")
def open_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of this machine that accepts anybody."""
    folder = tmp_path_factory.mktemp("o")
    command = [sys.executable, "-c", OPEN, str(folder)]
    process = subprocess.Popen(
        command,
        env=program_environment(RAY_AUTH_MODE="disabled", **ON_LOOPBACK),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate(timeout=60)


def test_a_cluster_is_joined_with_its_token_and_left_running(address: str, token_path: str) -> None:
    result = join(address, RAY_AUTH_TOKEN_PATH=token_path)
    assert result.stdout == f"joined {address} 3\nleft False\n", result.stderr
    assert ray.cluster_resources()["CPU"] > 0


def test_the_variable_of_ray_names_the_cluster(address: str, token_path: str) -> None:
    result = join(RAY_AUTH_TOKEN_PATH=token_path, RAY_ADDRESS=address)
    assert result.stdout.startswith(f"joined {address}"), result.stderr


@pytest.mark.parametrize("token", [None, "0" * 64], ids=["no token", "another token"])
def test_a_missing_or_wrong_token_is_an_error_that_says_where_it_belongs(
    token: str | None, address: str, tmp_path: Path
) -> None:
    variables = {"HOME": str(tmp_path)}
    if token is not None:
        (tmp_path / "token").write_text(token)
        variables["RAY_AUTH_TOKEN_PATH"] = str(tmp_path / "token")
    result = join(address, **variables)
    assert (
        f"ray.address={address}: this cluster asks for its token, and there is none here, or another" in result.stderr
    )
    assert "0" * 64 not in result.stderr


def test_a_cluster_that_accepts_anybody_is_not_joined(open_address: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0" * 64)
    result = join(open_address, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert f"ray.address={open_address}: this cluster accepts anybody" in result.stderr
    assert "joined" not in result.stdout


def test_a_cluster_that_accepts_anybody_is_joined_if_the_user_says_so(open_address: str, tmp_path: Path) -> None:
    result = join(open_address, "insecure", HOME=str(tmp_path))
    assert result.stdout.startswith(f"joined {open_address} 3"), result.stderr
