"""Starts a Ray that only this user of this machine can reach, or joins a cluster; leaves nothing behind.

Ray reads variables when it is imported, so it is imported here, after they are set. It forks, so it is started before
JAX touches its devices. Only this module and the probe use private names of Ray, which tests on the pinned version
guard.
"""

import atexit
import contextlib
import importlib.metadata
import importlib.util
import logging
import math
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rookery.addresses import is_loopback
from rookery.errors import InvalidInputError, missing_extra
from rookery.runners.ray.folder import TOKEN_NAME, private_folder
from rookery.runners.ray.log import RayLog
from rookery.runners.ray.probe import (
    MODE_VARIABLE,
    TOKEN_PATH_VARIABLE,
    TOKEN_VARIABLE,
    check_cluster,
    environment,
    first_sentence,
)
from rookery.runners.ray.settings import AUTO, LOCAL, RaySettings, check_address

logger = logging.getLogger(__name__)

LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
ADDRESS_VARIABLE, TLS_VARIABLE = "RAY_ADDRESS", "RAY_USE_TLS"
NICENESS = 0
"""Ray's own niceness of workers, 15, starves environments."""
OWN_VARIABLES = {
    LOOPBACK_VARIABLE: "0",  # the only way to a node on 127.0.0.1: Ray replaces a given address
    MODE_VARIABLE: None,  # unset, a new Ray checks tokens
    TOKEN_VARIABLE: None,  # it would count more than the file, and processes print their variables
    "RAY_worker_niceness": str(NICENESS),
    "RAY_task_events_report_interval_ms": "0",  # Ray would keep an event for every request
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""The variables of a Ray of our own; None: it must not be set."""
MIN_VERSION = (2, 59)
"""The first version whose clusters check tokens by default."""
STORE_BYTES, MIN_STORE_BYTES = 2**31, 80 * 2**20
SHARED_MEMORY = Path("/dev/shm")


class Cluster:
    """The Ray that a run uses. `close` ends it if it is our own, leaves a joined one, and keeps one of the user."""

    def __init__(self, opened: contextlib.ExitStack, log: RayLog | None = None) -> None:
        self._opened, self._log = opened, log
        atexit.register(self.close)

    def log_to(self, folder: Path) -> None:
        """Append what Ray reports to `ray.log` in this folder from now on, with what it has reported so far."""
        if self._log is not None:
            self._log.append_to(folder)

    def close(self) -> None:
        """End all processes of our own Ray and remove its files. May be called twice."""
        atexit.unregister(self.close)
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connect(settings: RaySettings, num_env_runners: int) -> Cluster:
    """Start a Ray with room for this number of runners, or join the cluster that the settings name.

    If the program has called `ray.init`, its Ray is used as it is.
    """
    if _is_imported() and _ray().is_initialized():
        return Cluster(contextlib.ExitStack())
    check_version()
    variable = os.environ.get(ADDRESS_VARIABLE) if settings.address in (None, AUTO) else None
    if variable:
        check_address(f"{ADDRESS_VARIABLE}={variable}", variable)
    address = variable or settings.address or LOCAL
    with contextlib.ExitStack() as opened:
        is_own = address == LOCAL
        log = _start(settings, num_env_runners, opened) if is_own else _join(settings, address, opened)
        return Cluster(opened.pop_all(), log)


def check_version() -> str:
    """Return the installed version of Ray; raise if there is none, or if it does not check tokens."""
    if importlib.util.find_spec("ray") is None:
        raise missing_extra("ray", "ray")
    version = importlib.metadata.version("ray")
    if tuple(int(number) for number in version.split(".")[:2]) < MIN_VERSION:
        raise InvalidInputError(
            f"ray {version} does not check tokens by default: install {'.'.join(map(str, MIN_VERSION))} or newer with "
            "pip install --upgrade 'rookery[ray]'"
        )
    return version


def store_bytes() -> int:
    """Return the size of the object store of our own Ray: at most what fits into shared memory."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else STORE_BYTES
    return max(MIN_STORE_BYTES, min(STORE_BYTES, free * 9 // 10))


def _start(settings: RaySettings, num_env_runners: int, opened: contextlib.ExitStack) -> RayLog:
    if _is_imported() and _ray()._private.ray_constants.ENABLE_RAY_CLUSTER:
        raise InvalidInputError(
            f"`import ray` came first, so that Ray would listen on all network interfaces: set {LOOPBACK_VARIABLE}=0 "
            "before that import, or call ray.init() yourself, and your Ray is used as it is."
        )
    folder = opened.enter_context(private_folder())
    with environment(OWN_VARIABLES | {TOKEN_PATH_VARIABLE: str(folder / TOKEN_NAME)}):
        _forget_token()
        opened.callback(_forget_token)
        log = _redirect_output(opened)
        whole = {name: amount * num_env_runners for name, amount in settings.resources().items()}
        num_cpus, num_gpus = math.ceil(whole.pop("CPU", 0)), whole.pop("GPU", 0)
        _init(
            opened,
            address=LOCAL,
            num_cpus=max(num_cpus, 1),
            num_gpus=None if num_gpus else 0,  # if runners need some: all that Ray finds
            resources=whole,
            include_dashboard=False,
            object_store_memory=store_bytes(),
            # A folder inside: Ray lets everybody write to its own.
            _temp_dir=str(folder / "ray"),
        )
    return log


def _join(settings: RaySettings, address: str, opened: contextlib.ExitStack) -> RayLog:
    given = f"ray.address={address}"
    if _is_imported() and not _ray()._private.ray_constants.ENABLE_RAY_CLUSTER:
        raise InvalidInputError(
            f"{given}: Ray was imported for this machine alone ({LOOPBACK_VARIABLE}=0). Join a cluster from a new "
            "process."
        )
    mode = os.environ.get(MODE_VARIABLE) if settings.insecure else "token"
    if not settings.insecure and _is_imported() and not _checks_tokens():
        raise InvalidInputError(
            f"{given}: `import ray` came first, without tokens: set {MODE_VARIABLE}=token before that import, or call "
            "ray.init() yourself, and your Ray is used as it is."
        )
    check_cluster(given, address, settings.insecure)
    with environment({MODE_VARIABLE: mode}):
        log = _redirect_output(opened)
        try:
            _init(opened, address=address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InvalidInputError(f"{given}: cannot join: {first_sentence(error)}") from error
    host = _ray().get_runtime_context().gcs_address.rpartition(":")[0]
    if os.environ.get(TLS_VARIABLE) != "1" and not is_loopback(host):
        logger.warning(
            "%s: tokens and data travel over the network without encryption: use a private network, or Ray's TLS (%s).",
            given,
            TLS_VARIABLE,
        )
    return log


def describe_waiting(settings: RaySettings, num_up: int, num_waiting: int, num_env_runners: int) -> str:
    """Say what runners that are not placed yet wait for, by the present resources of the cluster."""
    ray = _ray()
    total, free = ray.cluster_resources(), ray.available_resources()
    return waiting_text(settings, num_up, num_waiting, num_env_runners, total, free)


def waiting_text(
    settings: RaySettings,
    num_up: int,
    num_waiting: int,
    num_env_runners: int,
    total: Mapping[str, float],
    free: Mapping[str, float],
) -> str:
    """Say what runners wait for: `6 of 8 runners are up; 2 wait for 1 CPU each, the cluster has 0 of 6 free.`"""
    needed = settings.resources()
    waits = f"{num_waiting} wait{'s' if num_waiting == 1 else ''}"
    text = f"{num_up} of {num_env_runners} runners are up; {waits}"
    if not needed:
        return f"{text} for a node of the cluster."
    wanted = " and ".join(f"{amount:g} {name}" for name, amount in needed.items())
    rest = " and ".join(
        f"{free.get(name, 0):g} of {total.get(name, 0):g}{f' {name}' if len(needed) > 1 else ''}" for name in needed
    )
    return f"{text} for {wanted}{' each' if num_waiting > 1 else ''}, the cluster has {rest} free."


def _redirect_output(opened: contextlib.ExitStack) -> RayLog:
    """Send what Ray logs, and the errors of its nodes that it prints, to a log until `opened` is closed."""
    worker, ray_logger, log = _ray()._private.worker, logging.getLogger("ray"), RayLog()
    printed, handlers, level = worker.print_to_stdstream, list(ray_logger.handlers), ray_logger.level

    def restore() -> None:
        worker.print_to_stdstream, ray_logger.handlers[:] = printed, handlers
        ray_logger.setLevel(level)
        log.close()

    opened.callback(restore)
    ray_logger.handlers[:] = [log]
    worker.print_to_stdstream = lambda data, ignore_prefix: log.write("\n".join(data["lines"]))
    return log


def _init(opened: contextlib.ExitStack, **options: Any) -> None:
    """Call `ray.init`; leave the handler of SIGTERM as it is, which Ray would replace."""
    opened.callback(_ray().shutdown)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _ray().init(log_to_driver=False, logging_level=logging.WARNING, **options)
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _is_imported() -> bool:
    return "ray" in sys.modules


def _ray() -> Any:
    import ray

    return ray


def _forget_token() -> None:
    """Let Ray read the token again: it keeps that of the Ray before."""
    _ray()._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _checks_tokens() -> bool:
    raylet = _ray()._raylet
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)
