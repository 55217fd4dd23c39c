"""The device mesh, which always exists; on a laptop it has length one."""

from rookery.distributed.memory import bytes_of_tree, check_memory, format_bytes
from rookery.distributed.mesh import (
    DEVICE_AXIS,
    POPULATION_AXIS,
    SAME,
    SPLIT,
    SPLIT_MEMBERS,
    check_divides,
    device_mesh,
    replicate,
    shard_leading_axis,
)

__all__ = [
    "DEVICE_AXIS",
    "POPULATION_AXIS",
    "SAME",
    "SPLIT",
    "SPLIT_MEMBERS",
    "bytes_of_tree",
    "check_divides",
    "check_memory",
    "device_mesh",
    "format_bytes",
    "replicate",
    "shard_leading_axis",
]
