"""Many devices: the mesh that always exists, of length one on a laptop."""

from rookery.distributed.mesh import (
    DEVICE_AXIS,
    SAME,
    SPLIT,
    check_divides,
    device_mesh,
    replicate,
    shard_leading_axis,
)

__all__ = ["DEVICE_AXIS", "SAME", "SPLIT", "check_divides", "device_mesh", "replicate", "shard_leading_axis"]
