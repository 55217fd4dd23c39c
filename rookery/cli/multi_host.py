"""Training on several hosts: the same command on each, with the address of the first."""

import argparse
import socket

from rookery.errors import InvalidInputError


def add_multi_host(command: argparse.ArgumentParser) -> None:
    """Declare the arguments that connect the processes of one run."""
    group = command.add_argument_group(
        "several hosts", "the same command on every host, each with its own --process-id"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="address of the process with id 0")
    group.add_argument("--num-processes", type=int, metavar="N", help="number of processes")
    group.add_argument("--process-id", type=int, metavar="I", help="id of this process, from 0")


def join_hosts(arguments: argparse.Namespace) -> bool:
    """Wait for the other processes; return False if this is the only one."""
    given = {
        "--coordinator": arguments.coordinator,
        "--num-processes": arguments.num_processes,
        "--process-id": arguments.process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return False
    if missing:
        raise InvalidInputError(
            f"{' and '.join(missing)} must be given too: several hosts need all of {', '.join(given)}."
        )
    if not 0 <= arguments.process_id < arguments.num_processes:
        raise InvalidInputError(
            f"--process-id {arguments.process_id}: with --num-processes {arguments.num_processes} "
            f"the ids are 0 to {arguments.num_processes - 1}."
        )
    check_address(arguments.coordinator, must_listen=arguments.process_id == 0)
    import jax

    jax.distributed.initialize(
        arguments.coordinator,
        arguments.num_processes,
        arguments.process_id,
        coordinator_bind_address=arguments.coordinator,  # by default it listens on all interfaces
    )
    return True


def check_address(address: str, must_listen: bool) -> None:
    """Raise unless `address` is HOST:PORT and, with `must_listen`, this host can listen there: JAX would abort."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InvalidInputError(f"--coordinator {address}: expected HOST:PORT, like 10.0.0.1:1234.")
    if not must_listen:
        return
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise InvalidInputError(
            f"--coordinator {address}: this host cannot listen there ({error.strerror}). Give an address of the host "
            "with --process-id 0 and a free port."
        ) from error
