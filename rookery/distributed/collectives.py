"""Exchange between the devices of the mesh. Outside of a mesh there is one device, and nothing to exchange."""

import jax

from rookery.distributed.mesh import DEVICE_AXIS
from rookery.types import Key, Tree


def num_devices() -> int:
    """The number of devices that run this program together."""
    return 1 if device_axis() is None else jax.lax.axis_size(DEVICE_AXIS)


def device_axis() -> str | None:
    """The name of the mapped device axis; None outside of a mesh."""
    try:
        jax.lax.axis_size(DEVICE_AXIS)
    except NameError:
        return None
    return DEVICE_AXIS


def mean_over_devices(tree: Tree) -> Tree:
    """Average every leaf over the devices."""
    axis = device_axis()
    return tree if axis is None else jax.lax.pmean(tree, axis)


def sum_over_devices(tree: Tree) -> Tree:
    """Add up every leaf over the devices."""
    axis = device_axis()
    return tree if axis is None else jax.lax.psum(tree, axis)


def key_of_this_device(key: Key) -> Key:
    """Derive a key that differs between devices."""
    return jax.random.fold_in(key, 0 if device_axis() is None else jax.lax.axis_index(DEVICE_AXIS))
