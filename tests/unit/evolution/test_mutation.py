"""Mutation: how many genes move, how far, and which never do."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from scipy import stats

from rookery.evolution.mutation import cloud_around, gaussian, is_not_normalization, iso_line, polynomial, row_wise
from rookery.networks.mlp import MLP
from rookery.types import Params

MUTATIONS = {
    "gaussian": partial(gaussian, std=0.1),
    "polynomial": partial(polynomial, probability=1.0),
    "row_wise": partial(row_wise, row_probability=1.0, gene_probability=1.0),
    "iso_line": lambda params, key: iso_line(params, jax.tree.map(lambda leaf: leaf + 1.0, params), key),
}


def population(params: Params, num_individuals: int = 4) -> Params:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_individuals, *leaf.shape)), params)


class NamedByFlax(nn.Module):
    """A network whose layers have the names that Flax gives them."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return nn.RMSNorm()(nn.LayerNorm()(nn.Dense(3)(inputs)))


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS)
@pytest.mark.parametrize(
    "network", [MLP(hidden_sizes=(3, 3), output_size=2, layer_norm=True), NamedByFlax()], ids=["ours", "flax"]
)
def test_mutation_leaves_normalization_layers_alone_and_changes_all_others(
    network: nn.Module, mutate: Callable[..., Params]
) -> None:
    params = population(network.init(jax.random.key(0), jnp.zeros(2))["params"])
    mutated = mutate(params, jax.random.key(1))
    num_left_alone = 0
    for (path, before), after in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(mutated), strict=True
    ):
        if "norm" in jax.tree_util.keystr(path).lower():
            np.testing.assert_array_equal(before, after)
            num_left_alone += 1
        else:
            assert np.all(np.asarray(before) != np.asarray(after))
    assert num_left_alone == (4 if isinstance(network, MLP) else 3)


@pytest.mark.parametrize(
    ("name", "is_mutable"),
    [
        ("norm_0", False),
        ("norm", False),
        ("LayerNorm_12", False),
        ("BatchNorm", False),
        ("hidden_0", True),
        ("part_norm", True),
        ("normal", True),
    ],
)
def test_normalization_layers_are_known_by_their_names(name: str, is_mutable: bool) -> None:
    assert is_not_normalization((DictKey("params"), DictKey(name), SequenceKey(0))) == is_mutable
    assert is_not_normalization((GetAttrKey(name), DictKey("scale"))) == is_mutable


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS)
def test_every_layer_is_mutated_by_a_key_of_its_own(mutate: Callable[..., Params]) -> None:
    layer = jnp.ones((2, 5))
    mutated = mutate({"hidden_0": layer, "hidden_1": layer}, jax.random.key(0))
    assert np.all(np.asarray(mutated["hidden_0"]) != np.asarray(mutated["hidden_1"]))


@pytest.mark.parametrize("mutate", [partial(gaussian, std=1.0), polynomial, row_wise])
def test_the_caller_may_decide_what_is_mutable(mutate: Callable[..., Params]) -> None:
    params = {"a": jnp.zeros((50, 9)), "norm_0": jnp.zeros((50, 9))}
    mutated = mutate(params, jax.random.key(0), is_mutable=lambda path: path[0].key == "norm_0")
    np.testing.assert_array_equal(mutated["a"], params["a"])
    assert np.any(np.asarray(mutated["norm_0"]))


def test_gaussian_mutation_moves_the_share_of_genes_that_it_should_by_normal_noise() -> None:
    params = {"a": jnp.full((200, 50), 3.0), "b": jnp.full((200, 50), 3.0)}
    mutated = gaussian(params, jax.random.key(2), std=0.5, probability=0.2)
    moved = {name: np.asarray(leaf) != 3.0 for name, leaf in mutated.items()}
    for name, leaf in mutated.items():
        assert abs(moved[name].mean() - 0.2) < 0.02
        assert stats.kstest((np.asarray(leaf)[moved[name]] - 3.0) / 0.5, "norm").pvalue > 1e-3
    assert np.any(moved["a"] != moved["b"])


@pytest.mark.parametrize("eta", [1.0, 20.0])
def test_polynomial_mutation_moves_genes_as_in_the_paper(eta: float) -> None:
    mutated = polynomial(jnp.full((100, 100), 2.0), jax.random.key(3), eta, probability=1.0, span=4.0)
    distance = (np.asarray(mutated, np.float64).ravel() - 2.0) / 4.0

    def distribution(delta: np.ndarray) -> np.ndarray:
        """Integrate 0.5 (eta + 1) (1 - |delta|)^eta."""
        tail = 0.5 * (1.0 - np.abs(delta)) ** (eta + 1.0)
        return np.where(delta < 0.0, tail, 1.0 - tail)

    assert np.abs(distance).max() <= 1.0
    assert stats.kstest(distance, distribution).pvalue > 1e-3


def test_polynomial_mutation_moves_the_share_of_genes_that_it_should() -> None:
    mutated = polynomial(jnp.zeros((100, 100)), jax.random.key(4), probability=0.1)
    assert abs(np.mean(np.asarray(mutated) != 0.0) - 0.1) < 0.02


def test_row_wise_mutation_leaves_whole_rows_alone() -> None:
    mutated = row_wise(
        {"kernel": jnp.ones((20, 50, 30)), "bias": jnp.ones((1000, 30))},
        jax.random.key(5),
        row_probability=0.3,
        gene_probability=0.5,
    )
    for leaf in mutated.values():
        moved = np.asarray(leaf).reshape(1000, 30) != 1.0
        touched = moved.any(axis=1)
        assert abs(touched.mean() - 0.3) < 0.08
        assert abs(moved[touched].mean() - 0.5) < 0.02


def always(genes: jax.Array, **probabilities: float) -> np.ndarray:
    kinds = {"super_probability": 0.0, "reset_probability": 0.0} | probabilities
    return np.asarray(row_wise(genes, jax.random.key(6), row_probability=1.0, gene_probability=1.0, **kinds))


@pytest.mark.parametrize(("magnitude", "counts_as"), [(2.0, 2.0), (-0.5, 0.5), (0.0, 0.1)])
def test_row_wise_mutation_is_relative_to_the_size_of_a_gene_and_moves_zeros_too(
    magnitude: float, counts_as: float
) -> None:
    genes = jnp.full((100, 100), magnitude)
    for probabilities, strength in [({}, 0.1), ({"super_probability": 1.0}, 10.0)]:
        noise = (always(genes, **probabilities).ravel() - magnitude) / (strength * counts_as)
        assert abs(noise.mean()) < 0.05
        assert abs(noise.std() - 1.0) < 0.04
    assert stats.kstest(always(genes, reset_probability=1.0).ravel(), "norm").pvalue > 1e-3


def test_row_wise_mutation_resets_and_super_mutates_the_shares_that_it_should() -> None:
    after = always(jnp.full((200, 100), 1e6), super_probability=0.05, reset_probability=0.1).ravel()
    is_reset, is_super = np.abs(after) < 100.0, np.abs(after / 1e6 - 1.0) > 0.6
    assert abs(is_reset.mean() - 0.1) < 0.02
    # Of noise ten times as large as the gene, 95.2 % moves it further than 0.6 of its size; that is what is counted.
    assert abs((is_super & ~is_reset).mean() - 0.05 * 0.952) < 0.01


def test_iso_line_variation_goes_one_step_along_the_line_for_all_genes() -> None:
    first, second = {"a": jnp.zeros((500, 4)), "b": jnp.ones((500, 3))}, {"a": jnp.full((500, 4), 2.0)}
    second["b"] = jnp.full((500, 3), 5.0)
    varied = iso_line(first, second, jax.random.key(7), iso_std=0.0, line_std=0.2)
    steps = np.concatenate([np.asarray(varied["a"]) / 2.0, (np.asarray(varied["b"]) - 1.0) / 4.0], axis=1)
    np.testing.assert_allclose(steps, np.repeat(steps[:, :1], 7, axis=1), atol=1e-5)
    assert stats.kstest(steps[:, 0] / 0.2, "norm").pvalue > 1e-3


def test_iso_line_variation_between_equals_is_isotropic() -> None:
    params = {"a": jnp.ones((100, 40)), "b": jnp.ones((100, 40))}
    varied = iso_line(params, params, jax.random.key(8), iso_std=0.3)
    noise = np.stack([(np.asarray(leaf) - 1.0) / 0.3 for leaf in varied.values()])
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.1


def test_a_cloud_holds_the_individual_itself_and_noisy_copies() -> None:
    params = {"kernel": jnp.full((3, 2), 4.0), "norm_0": {"scale": jnp.ones(2)}}
    cloud = cloud_around(params, jax.random.key(9), 500, 0.1)
    np.testing.assert_array_equal(cloud["kernel"][0], params["kernel"])
    assert abs(np.asarray(cloud["kernel"][1:] - 4.0).std() - 0.1) < 0.01
    np.testing.assert_array_equal(cloud["norm_0"]["scale"], np.ones((500, 2)))
