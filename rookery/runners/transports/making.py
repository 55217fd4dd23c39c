"""The choice of a transport: environments in this process or in others."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rookery.errors import InvalidInputError
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.transport import EnvTransport


def make_transport(
    make_env: Callable[[int], Any] | None,
    existing_envs: Sequence[Any] = (),
    num_envs: int = 1,
    processes: bool = False,
    envs_per_process: int = 1,
    step_timeout: float | None = None,
    start_timeout: float | None = 60.0,
    max_memory: float | None = None,
) -> EnvTransport:
    """Make a transport, here or in other processes: of the existing environments, then of those from `make_env`."""
    if processes and existing_envs:
        raise InvalidInputError("existing environments cannot move to other processes: give make_env alone.")
    if make_env is None:
        if processes or len(existing_envs) < num_envs:
            raise InvalidInputError(
                f"num_envs={num_envs} and processes={processes} with {len(existing_envs)} existing environments and no "
                "make_env: give one, which makes the others, and all if they are to live in other processes."
            )
        return LocalTransport([None] * num_envs, existing_envs)
    make_env_fns = [functools.partial(make_env, index) for index in range(num_envs)]
    if not processes:
        return LocalTransport(make_env_fns, existing_envs)
    from rookery.runners.transports.subprocesses import ProcessTransport

    return ProcessTransport(
        make_env_fns,
        envs_per_process=envs_per_process,
        step_timeout=step_timeout,
        start_timeout=start_timeout,
        max_memory=max_memory,
    )
