"""The device mesh with its two axes, and the placement of arrays on it.

One of the axes has length one: a run splits either the environments and individuals of a training over its devices, or
the members of a population of trainings.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.errors import InvalidInputError
from rookery.types import Tree

DEVICE_AXIS = "dp"
"""The name of the mesh axis over which environments, keys, replay and individuals are split."""
POPULATION_AXIS = "pop"
"""The name of the mesh axis over which members of a population are split, each with a training of its own."""
AXES = (POPULATION_AXIS, DEVICE_AXIS)
SPLIT = PartitionSpec(DEVICE_AXIS)
"""An array whose first axis is split over the devices."""
SPLIT_MEMBERS = PartitionSpec(POPULATION_AXIS)
"""An array whose first axis, that of the members, is split over the devices."""
SAME = PartitionSpec()
"""An array that is the same on all devices."""


def device_mesh(num_devices: int | None = None, axis: str = DEVICE_AXIS) -> Mesh:
    """Make a mesh of the first `num_devices` devices, which lie along `axis`; of all devices if None."""
    devices = jax.devices()
    if num_devices is None:
        num_devices = len(devices)
    if not 1 <= num_devices <= len(devices):
        advice = ""
        if devices[0].platform == "cpu":
            advice = f" To use cores of a CPU as devices, set JAX_NUM_CPU_DEVICES={num_devices} before JAX starts."
        raise InvalidInputError(f"devices={num_devices}: JAX has {len(devices)} of kind {devices[0].platform}.{advice}")
    shape = [num_devices if name == axis else 1 for name in AXES]
    return Mesh(np.array(devices[:num_devices]).reshape(shape), AXES)


def check_divides(name: str, size: int, num_devices: int) -> None:
    """Raise unless `size` is a positive multiple of the number of devices; the message suggests sizes."""
    if size % num_devices == 0 and size > 0:
        return
    below = size // num_devices * num_devices
    sizes = " or ".join(str(near) for near in (below, below + num_devices) if near > 0)
    fitting = max((count for count in range(1, num_devices) if size > 0 and size % count == 0), default=1)
    raise InvalidInputError(
        f"{name}={size} does not divide over {num_devices} devices: use a multiple of {num_devices} ({sizes}), "
        f"or devices={fitting}."
    )


def shard_leading_axis(tree: Tree, mesh: Mesh) -> Tree:
    """Split the first axis of every leaf over the devices."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.ndim == 0:
            raise InvalidInputError(f"{jax.tree_util.keystr(path)} is a scalar and cannot be split over devices.")
        check_divides(
            f"the first axis of {jax.tree_util.keystr(path) or 'the array'}", leaf.shape[0], mesh.shape[DEVICE_AXIS]
        )
    return jax.device_put(tree, NamedSharding(mesh, SPLIT))


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """Copy every leaf to each device."""
    return jax.device_put(tree, NamedSharding(mesh, SAME))
