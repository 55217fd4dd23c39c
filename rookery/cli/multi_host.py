"""Training on several hosts: the same command on each, with the address of the first."""

import argparse

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
    import jax

    jax.distributed.initialize(arguments.coordinator, arguments.num_processes, arguments.process_id)
    return True
