"""Exchange between the devices of the mesh, for code that runs inside its one axis."""

import jax

from rookery.distributed.mesh import DEVICE_AXIS
from rookery.types import Key, Tree


def mean_over_devices(tree: Tree) -> Tree:
    """Average every leaf over the devices."""
    return jax.lax.pmean(tree, DEVICE_AXIS)


def sum_over_devices(tree: Tree) -> Tree:
    """Add up every leaf over the devices."""
    return jax.lax.psum(tree, DEVICE_AXIS)


def key_of_this_device(key: Key) -> Key:
    """Derive a key that is another one on every device."""
    return jax.random.fold_in(key, jax.lax.axis_index(DEVICE_AXIS))
