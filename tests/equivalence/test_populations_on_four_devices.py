"""Strategies do on four devices what they do on one, with an individual from outside in every other generation."""

import os
import subprocess
import sys
from pathlib import Path

import rookery

PROGRAM = '''
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rookery.algorithms.evolution.ga import GA
from rookery.algorithms.evolution.map_elites import MAPElites
from rookery.algorithms.evolution.nsga2 import NSGA2
from rookery.algorithms.evolution.open_es import OpenES, OpenESHyperparameters
from rookery.evolution.evosax import EvosaxOptimizer
from rookery.distributed import DEVICE_AXIS, device_mesh

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
PARAMS = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
PLACE = 9


def results(population):
    """Some results are invalid. Nothing is added up: sums are rounded differently for shares of another size."""
    flat = jnp.concatenate([population["kernel"].reshape(-1, 6), population["bias"]], axis=1)
    bad = jnp.where(flat[:, 0] > 1.6, jnp.nan, 0.0)
    return bad - jnp.max(jnp.abs(flat), axis=1), flat[:, :2]


def tell_one(optimizer, state, fitness, descriptors):
    return optimizer.tell(state, fitness)


def tell_several(optimizer, state, fitness, descriptors):
    return optimizer.tell(state, jnp.stack([fitness, descriptors[:, 0]], axis=1))


def tell_described(optimizer, state, fitness, descriptors):
    return optimizer.tell(state, fitness, descriptors)


def run(optimizer, tell, num_devices):
    optimizer = optimizer.replace(axis_name=DEVICE_AXIS)

    def generation(state, number):
        population, state = optimizer.ask(state)
        assert population["bias"].shape == (16 // num_devices, 3)
        outsider = jax.tree.map(lambda leaf: leaf[None] + 0.1 * number.astype(jnp.float32), PARAMS)
        place = jnp.where(number % 2 == 1, PLACE, 16)[None]  # past the population: nothing is injected
        state = optimizer.inject(state, outsider, place)
        population = optimizer.gathered(state.asked)
        return tell(optimizer, state, *results(state.asked)), population

    def evolve(key):
        state, populations = jax.lax.scan(generation, optimizer.init(PARAMS, key), jnp.arange(5, dtype=jnp.int32))
        return state.replace(key=jax.random.key_data(state.key)), optimizer.center(state), populations

    spec = PartitionSpec()
    mapped = jax.shard_map(evolve, mesh=device_mesh(num_devices), in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)(jax.random.key(0))


for optimizer, tell in [
    (GA(population_size=16), tell_one),
    (NSGA2(population_size=16, objectives=("a", "b")), tell_several),
    (MAPElites(population_size=16, cells=(4, 4), low=(-2.0, -2.0), high=(2.0, 2.0)), tell_described),
    (EvosaxOptimizer(population_size=16, strategy="CMA_ES"), tell_one),
    (EvosaxOptimizer(population_size=16, strategy="PSO"), tell_one),
    (OpenES(population_size=16, hyperparameters=OpenESHyperparameters(noise_std=0.5)), tell_one),
]:
    one, four = run(optimizer, tell, 1), run(optimizer, tell, 4)
    assert int(one[0].num_invalid) > 0
    assert np.any(one[2]["bias"][0] != one[2]["bias"][4])
    assert np.all(one[2]["bias"][3][PLACE] == one[2]["bias"][3][PLACE][0])
    # A mean is added up: a sum of shares is rounded differently.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if isinstance(optimizer, OpenES) else {"rtol": 0.0}
    jax.tree_util.tree_map_with_path(
        lambda path, a, b: np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerance), one, four
    )
'''


def test_four_devices_evolve_what_one_device_evolves() -> None:
    root = Path(rookery.__file__).parent.parent
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
