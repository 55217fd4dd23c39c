"""What runners on Ray are given, how long they may take, and what their errors say, without starting Ray."""

from typing import Any

import jax
import pytest
from ray import exceptions as ray_errors
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from rookery.runners.faults import FaultKind
from rookery.runners.ray.actor import Hello, versions_here
from rookery.runners.ray.group import as_failure, check_versions, jax_settings, timeout_of, variables_of
from rookery.runners.ray.settings import RaySettings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"NPROC": "1", "JAX_PLATFORMS": "cpu"}),
        ({"num_cpus_per_env_runner": 4}, {"NPROC": "4", "JAX_PLATFORMS": "cpu"}),
        ({"num_cpus_per_env_runner": 0.5}, {"NPROC": "1", "JAX_PLATFORMS": "cpu"}),
        ({"num_gpus_per_env_runner": 0.5}, {"NPROC": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ],
)
def test_a_runner_has_the_threads_and_the_device_that_it_reserves(
    settings: dict[str, Any], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert variables_of(RaySettings(**settings)) == expected


def test_a_runner_has_the_flags_of_xla_and_the_settings_of_jax_of_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert variables_of(RaySettings())["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    with jax.default_matmul_precision("highest"), jax.numpy_rank_promotion("warn"):
        settings = jax_settings()
    assert settings["jax_default_matmul_precision"] == "highest"
    assert settings["jax_numpy_rank_promotion"] == "warn"
    assert settings["jax_cpu_enable_async_dispatch"] is False


@pytest.mark.parametrize(
    ("sample_timeout", "slowest", "expected"),
    [(None, None, 600.0), (None, 0.1, 60.0), (None, 10.0, 200.0), (None, 60.0, 1200.0), (5.0, 60.0, 5.0)],
)
def test_a_request_may_take_20_times_as_long_as_the_slowest_so_far(
    sample_timeout: float | None, slowest: float | None, expected: float
) -> None:
    assert timeout_of(RaySettings(sample_timeout=sample_timeout), slowest) == expected


DEAD_NODE = (
    "The actor died because its node has died. Node Id: d0a9\n"
    "\tthe actor's node was terminated unexpectedly: health check failed"
)


def died(text: str, **details: Any) -> ray_errors.ActorDiedError:
    return ray_errors.ActorDiedError(ActorDiedErrorContext(actor_id=b"0" * 16, error_message=text, **details))


CLOSED = "The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            died(DEAD_NODE, never_started=True),
            FaultKind.UNREACHABLE,
            "its process 7 on node1 cannot be reached: the actor's node was terminated unexpectedly: health check "
            "failed.",
        ),
        (
            ray_errors.ActorUnavailableError(CLOSED, b"0" * 16),
            FaultKind.UNREACHABLE,
            "its process 7 on node1 cannot be reached: Socket closed.",
        ),
        (
            died("Worker exit detail: Worker died. Some common causes include: 1"),
            FaultKind.KILLED,
            "its process 7 on node1 ended: Worker died.",
        ),
        (ray_errors.OutOfMemoryError("no memory"), FaultKind.KILLED, "its process 7 on node1 ended: no memory"),
    ],
    ids=["node died", "unavailable", "killed", "out of memory"],
)
def test_the_errors_of_ray_say_whether_the_process_ended_or_its_node(
    error: ray_errors.RayError, kind: FaultKind, message: str
) -> None:
    failure = as_failure(error, Hello("node1", 7, {}))
    assert failure.failed.kind is kind
    assert failure.message == message


def test_runners_with_other_versions_are_refused_by_name() -> None:
    assert check_versions(versions_here(), "node1") is None
    failure = check_versions(versions_here() | {"jax": "0.1"}, "node1")
    assert failure is not None
    assert failure.is_fatal
    assert "the runner on node1 has jax 0.1 instead of" in failure.message
