"""The device mesh: on the one device there is, and on four."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rookery
from rookery.distributed import DEVICE_AXIS, POPULATION_AXIS, check_divides, device_mesh, replicate, shard_leading_axis
from rookery.errors import InvalidInputError

FOUR_DEVICES_PROGRAM = """
import jax
import numpy as np
import pytest

from rookery.distributed import DEVICE_AXIS, POPULATION_AXIS, device_mesh, replicate, shard_leading_axis
from rookery.errors import InvalidInputError

devices = jax.devices()
assert len(devices) == 4
assert list(device_mesh().devices.flat) == devices
assert list(device_mesh(2).devices.flat) == devices[:2]
assert dict(device_mesh(2).shape) == {"pop": 1, "dp": 2}
assert dict(device_mesh(4, POPULATION_AXIS).shape) == {"pop": 4, "dp": 1}
with pytest.raises(InvalidInputError, match="devices=5: JAX has 4 of kind cpu"):
    device_mesh(5)

mesh = device_mesh()
tree = {"keys": jax.random.split(jax.random.key(0), 8), "obs": np.arange(24.0).reshape(8, 3)}
split = shard_leading_axis(tree, mesh)
assert split["keys"].sharding.device_set == set(devices)
shards = sorted(split["obs"].addressable_shards, key=lambda shard: shard.device.id)
for index, shard in enumerate(shards):
    np.testing.assert_array_equal(shard.data, tree["obs"][2 * index : 2 * index + 2])

for shard in replicate(tree, mesh)["obs"].addressable_shards:
    np.testing.assert_array_equal(shard.data, tree["obs"])

means = jax.shard_map(
    lambda part: jax.lax.pmean(part.mean(axis=0), DEVICE_AXIS),
    mesh=mesh,
    in_specs=jax.sharding.PartitionSpec(DEVICE_AXIS),
    out_specs=jax.sharding.PartitionSpec(),
)(split["obs"])
np.testing.assert_allclose(means, tree["obs"].mean(axis=0))

with pytest.raises(InvalidInputError, match=r"the first axis of \\['obs'\\]=6 does not divide over 4 devices"):
    shard_leading_axis({"obs": np.zeros((6, 3))}, mesh)
"""


def test_a_laptop_has_a_mesh_of_length_one() -> None:
    mesh = device_mesh(1)
    assert (mesh.axis_names, mesh.size) == ((POPULATION_AXIS, DEVICE_AXIS), 1)
    assert list(mesh.devices.flat) == jax.devices()[:1]


@pytest.mark.parametrize("num_devices", [0, -1, 10_000])
def test_a_mesh_of_more_devices_than_there_are_or_of_none_is_refused(num_devices: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"devices={num_devices}: JAX has \d+ of kind cpu"):
        device_mesh(num_devices)


@pytest.mark.parametrize(
    ("size", "num_devices", "advice"),
    [
        (10, 4, "num_envs=10 does not divide over 4 devices: use a multiple of 4 (8 or 12), or devices=2."),
        (3, 4, "num_envs=3 does not divide over 4 devices: use a multiple of 4 (4), or devices=3."),
        (7, 2, "num_envs=7 does not divide over 2 devices: use a multiple of 2 (6 or 8), or devices=1."),
        (0, 4, "num_envs=0 does not divide over 4 devices: use a multiple of 4 (4), or devices=1."),
    ],
)
def test_a_size_that_does_not_divide_is_told_the_sizes_and_devices_that_do(
    size: int, num_devices: int, advice: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_divides("num_envs", size, num_devices)
    assert str(raised.value) == advice


@pytest.mark.parametrize(("size", "num_devices"), [(8, 4), (4, 4), (7, 1)])
def test_a_size_that_divides_is_accepted(size: int, num_devices: int) -> None:
    check_divides("num_envs", size, num_devices)


def test_a_scalar_has_no_axis_to_split_and_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"\['count'\] is a scalar"):
        shard_leading_axis({"count": jnp.zeros(())}, device_mesh(1))


def test_on_one_device_splitting_and_copying_change_no_value() -> None:
    tree = {"obs": jnp.arange(6.0).reshape(3, 2)}
    for placed in (shard_leading_axis(tree, device_mesh(1)), replicate(tree, device_mesh(1))):
        assert jnp.array_equal(placed["obs"], tree["obs"])


def test_four_devices_split_the_first_axis_in_order_and_average_over_the_mesh_axis() -> None:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "PYTHONPATH": str(Path(rookery.__file__).parent.parent),
    }
    finished = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES_PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
