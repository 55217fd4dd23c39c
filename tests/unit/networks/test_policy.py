"""Policy networks: shapes, masks, memory and first values."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.configuration import to_mapping
from rookery.errors import InvalidInputError, RookeryError, ShapeError, UnknownNameError
from rookery.networks.distributions import Categorical, GaussianConfig, MultiCategorical, TanhGaussian
from rookery.networks.policy import PolicyConfig, PolicyNetwork, Trunk, TrunkConfig
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.types import PyTreeDict

OBS = Box(-1.0, 1.0, (3,))
CORES = [None, "gru", "lstm"]


def small(**changes: Any) -> PolicyConfig:
    return PolicyConfig(**{"hidden_sizes": (8,), "core_size": 6, **changes})


def draw(space: Space, batch_shape: tuple = (), seed: int = 5) -> Any:
    return space.sample(jax.random.key(seed), batch_shape)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)])
def test_one_step_has_one_distribution_for_each_observation(core: str | None, batch_shape: tuple) -> None:
    network = PolicyNetwork(OBS, Discrete(5), small(core=core))
    params, carry = network.init(jax.random.key(0)), network.initial_carry(batch_shape)
    distribution, next_carry = network(params, draw(OBS, batch_shape), carry, jnp.ones(batch_shape))
    assert distribution.batch_shape == batch_shape
    assert distribution.logits.shape == (*batch_shape, 5)
    assert jax.tree.map(jnp.shape, next_carry) == jax.tree.map(jnp.shape, carry)
    assert bool(jax.tree.leaves(carry)) is (core is not None)


@pytest.mark.parametrize("core", CORES)
def test_unroll_equals_step_by_step(core: str | None) -> None:
    network = PolicyNetwork(OBS, Discrete(5), small(core=core, output_init_scale=1.0))
    params = network.init(jax.random.key(0))
    obs, starts = draw(OBS, (9, 4)), jax.random.bernoulli(jax.random.key(1), 0.3, (9, 4))
    first_carry = jax.tree.map(lambda leaf: leaf + 0.5, network.initial_carry((4,)))
    unrolled, last_carry = network.unroll(params, obs, first_carry, starts)
    carry = first_carry
    for t in range(9):
        distribution, carry = network(params, obs[t], carry, starts[t])
        np.testing.assert_allclose(distribution.logits, unrolled.logits[t], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), carry, last_carry)


@pytest.mark.parametrize(
    "action_space",
    [
        Discrete(4, start=2),
        MultiDiscrete([2, 3]),
        MultiBinary(3),
        Box(-2.0, 5.0, (2, 2)),
        Dict(a=Discrete(3), b=Tuple([Box(0.0, 1.0, ()), MultiBinary(2)])),
    ],
    ids=str,
)
def test_the_first_policy_is_nearly_the_same_in_all_states(action_space: Space) -> None:
    network = PolicyNetwork(OBS, action_space, small())
    distribution, _ = network(network.init(jax.random.key(0)), 5.0 * draw(OBS, (64,)))
    actions = distribution.action(distribution.sample(jax.random.key(1)))
    action_space.check(actions, "action", (64,))
    assert float(jnp.std(distribution.entropy())) < 1e-2
    for leaf in jax.tree.leaves(distribution):
        assert float(jnp.max(jnp.std(leaf, axis=0))) < 0.05


def test_the_output_layer_is_orthogonal_with_a_small_gain() -> None:
    params = PolicyNetwork(OBS, Discrete(4), small()).init(jax.random.key(0))
    kernel = np.asarray(params.head.output.kernel, np.float64)
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(4), atol=1e-9)


def test_every_layer_has_its_own_random_numbers() -> None:
    obs_space = Dict(left=Box(-1.0, 1.0, (10, 10, 1)), right=Box(-1.0, 1.0, (10, 10, 1)))
    network = PolicyNetwork(obs_space, Discrete(4), small(hidden_sizes=(8, 8), core="gru", core_size=8))
    params = network.init(jax.random.key(0))
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    for index, kernel in enumerate(kernels):
        for other in kernels[:index]:
            assert kernel.shape != other.shape or float(jnp.max(jnp.abs(kernel - other))) > 1e-3


def test_networks_of_equal_configs_are_equal_and_hash_alike() -> None:
    def build(**changes):
        return PolicyNetwork(Box(-1.0, 1.0, (3,)), Discrete(5), small(hidden_sizes=[8], **changes))

    assert build() == build()
    assert hash(build()) == hash(build())
    assert build() != build(core="gru")
    assert Trunk(OBS, TrunkConfig()) == Trunk(OBS, TrunkConfig())


@pytest.mark.parametrize("action_space", [Discrete(5), Box(-1.0, 1.0, (2,))], ids=str)
def test_params_have_no_empty_leaf_and_only_the_gaussian_has_free_parameters(action_space: Space) -> None:
    params = PolicyNetwork(OBS, action_space, small()).init(jax.random.key(0))
    assert all(leaf.size > 0 for leaf in jax.tree.leaves(params))
    assert ("free" in params.head) is isinstance(action_space, Box)


def test_a_policy_without_hidden_layers_is_linear() -> None:
    network = PolicyNetwork(OBS, Discrete(2), small(hidden_sizes=()))
    params = network.init(jax.random.key(0))
    obs = draw(OBS, (6,))
    expected = np.asarray(obs) @ np.asarray(params.head.output.kernel)
    np.testing.assert_allclose(network(params, obs)[0].logits, expected, atol=1e-6)


def test_the_mask_of_the_observation_is_honored_in_steps_and_unrolls() -> None:
    obs_space = Dict(position=OBS, action_mask=Box(0, 1, (4,), np.int8))
    network = PolicyNetwork(obs_space, Discrete(4), small(core="gru"))
    params = network.init(jax.random.key(0))
    mask = jnp.asarray([[1, 0, 0, 1], [0, 1, 0, 0]], jnp.int8)
    obs = PyTreeDict(position=draw(OBS, (2,)), action_mask=mask)
    distribution, _ = network(params, obs, network.initial_carry((2,)), jnp.ones(2))
    assert isinstance(distribution, Categorical)
    np.testing.assert_array_equal(jnp.exp(distribution.log_probs) > 0.0, mask == 1)
    sequence = jax.tree.map(lambda leaf: leaf[:, None], obs)  # [T, B = 1]
    unrolled, _ = network.unroll(params, sequence, network.initial_carry((1,)), jnp.ones((2, 1)))
    np.testing.assert_array_equal(jnp.exp(unrolled.log_probs)[:, 0] > 0.0, mask == 1)


@pytest.mark.parametrize(("nvec", "mask_shape"), [([2, 3], (5,)), ([3, 3], (2, 3))])
def test_the_mask_of_a_multi_discrete_space_has_an_entry_for_each_value_of_each_component(
    nvec: list, mask_shape: tuple
) -> None:
    obs_space = Dict(position=OBS, action_mask=Box(0, 1, mask_shape, np.bool_))
    network = PolicyNetwork(obs_space, MultiDiscrete(nvec), small())
    mask = jnp.ones((7, sum(nvec)), bool).at[:, 1].set(False)
    obs = PyTreeDict(position=draw(OBS, (7,)), action_mask=mask.reshape(7, *mask_shape))
    distribution, _ = network(network.init(jax.random.key(0)), obs)
    assert isinstance(distribution, MultiCategorical)
    np.testing.assert_array_equal(distribution.log_probs[:, 0, 1], -np.inf)
    assert np.all(distribution.log_probs[:, 1, :3] > -np.inf)


def test_a_mask_that_does_not_fit_the_action_space_is_an_error_at_init() -> None:
    obs_space = Dict(position=OBS, action_mask=Box(0, 1, (4,), np.int8))
    with pytest.raises(ShapeError, match="action mask"):
        PolicyNetwork(obs_space, Discrete(5), small()).init(jax.random.key(0))
    with pytest.raises(InvalidInputError, match="cannot be masked"):
        PolicyNetwork(obs_space, Box(-1.0, 1.0, (4,)), small()).init(jax.random.key(0))


def test_the_gaussian_config_reaches_the_distribution() -> None:
    config = small(gaussian=GaussianConfig(bounds="squash", state_dependent_std=True, initial_std=0.5))
    network = PolicyNetwork(OBS, Box(-1.0, 1.0, (2,)), config)
    distribution, _ = network(network.init(jax.random.key(0)), draw(OBS, (3,)))
    assert isinstance(distribution, TanhGaussian)
    np.testing.assert_allclose(jnp.exp(distribution.log_std), 0.5, rtol=0.05)
    assert float(jnp.max(jnp.std(distribution.log_std, axis=0))) > 0.0


def test_configs_that_cannot_work_are_errors_when_built() -> None:
    with pytest.raises(UnknownNameError, match=r"'rleu'.*'relu'"):
        PolicyConfig(activation="rleu")
    with pytest.raises(UnknownNameError, match=r"'he_norml'.*'he_normal'"):
        PolicyConfig(kernel_init="he_norml")
    with pytest.raises(UnknownNameError, match=r"'rnn'"):
        PolicyConfig(core="rnn")
    with pytest.raises(InvalidInputError, match="hidden_sizes"):
        PolicyConfig(hidden_sizes=(64, 0))
    with pytest.raises(InvalidInputError, match="infinite bound"):
        PolicyNetwork(OBS, Box(0.0, np.inf, (2,)), small(gaussian=GaussianConfig(bounds="squash")))


def test_observations_that_do_not_fit_and_missing_memory_are_errors() -> None:
    network = PolicyNetwork(OBS, Discrete(5), small(core="gru"))
    params = network.init(jax.random.key(0))
    with pytest.raises(ShapeError, match="does not end in the shape"):
        network(params, jnp.zeros((4, 2)), network.initial_carry((4,)), jnp.zeros(4))
    with pytest.raises(InvalidInputError, match="initial_carry"):
        network(params, jnp.zeros((4, 3)))


def test_a_population_of_policies_is_a_vmap_over_their_params() -> None:
    network = PolicyNetwork(OBS, Box(-1.0, 1.0, (2,)), small(core="lstm"))
    population = jax.vmap(network.init)(jax.random.split(jax.random.key(0), 3))
    obs, carry = draw(OBS, (4,)), network.initial_carry((4,))
    mapped, _ = jax.vmap(network, in_axes=(0, None, None, None))(population, obs, carry, jnp.ones(4))
    for index in range(3):
        alone, _ = network(jax.tree.map(lambda leaf, i=index: leaf[i], population), obs, carry, jnp.ones(4))
        np.testing.assert_allclose(mapped.mean[index], alone.mean, atol=1e-6)
    assert float(jnp.max(jnp.abs(mapped.mean[0] - mapped.mean[1]))) > 0.0


class OwnTorso(nn.Module):
    """Encodes both parts of an observation."""

    width: int = 7

    @nn.compact
    def __call__(self, obs: Any) -> Any:
        assert all(len(leaf) == len(obs["a"]) for leaf in obs.values())  # rows, whatever the batch
        return nn.Dense(self.width)(jnp.concatenate([obs["a"], nn.Embed(4, 2)(obs["b"])], axis=-1))


class RowsInOne(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        return nn.Dense(3)(obs.reshape(-1))


class Integers(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        return (nn.Dense(3)(obs) > 0).astype(jnp.int32)


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        return nn.BatchNorm(use_running_average=True)(obs)


class OneRowOnly(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        return jnp.zeros((1, 3)) + nn.Dense(3)(obs[:1])


class Unfinished(nn.Module):
    width: int


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 3)])
def test_an_own_encoder_sees_rows_and_the_layers_follow(core: str | None, batch_shape: tuple) -> None:
    space = Dict({"a": OBS, "b": Discrete(4)})
    network = PolicyNetwork(space, Discrete(5), small(encoder=OwnTorso, core=core))
    params, carry = network.init(jax.random.key(0)), network.initial_carry(batch_shape)
    layers = params["trunk"]["layers"]
    assert layers["encoder"]["own"]["Dense_0"]["kernel"].shape == (5, 7)
    assert layers["hidden"]["hidden_0"]["kernel"].shape == (7, 8)
    distribution, _ = network(params, draw(space, batch_shape), carry, jnp.ones(batch_shape))
    assert distribution.logits.shape == (*batch_shape, 5)


def test_an_own_encoder_is_a_name_in_configs() -> None:
    name = f"{__name__}:OwnTorso"
    assert TrunkConfig(encoder=OwnTorso) == TrunkConfig(encoder=name)
    assert to_mapping(TrunkConfig(encoder=OwnTorso))["encoder"] == name


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (RowsInOne, r"RowsInOne returned float32\[3\] for 1 observations of Box.*: expected float32\[1, F\]"),
        (Integers, r"Integers returned int32\[1, 3\] for 1 observations"),
        (OneRowOnly, r"OneRowOnly returned float32\[1, 3\] for 2 observations of Box.*: expected float32\[2, F\]"),
        (WithStatistics, r"WithStatistics has variables 'batch_stats', which training does not keep"),
    ],
)
def test_a_wrong_own_encoder_is_refused_while_shapes_are_computed(encoder: type, message: str) -> None:
    trunk = Trunk(OBS, TrunkConfig(encoder=encoder))
    with pytest.raises(RookeryError, match=message):
        jax.eval_shape(trunk.init, jax.random.key(0))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (Unfinished, "is called without arguments, and that fails: .*'width'"),
        (dict, r"encoder=builtins:dict is <class 'dict'>: expected a subclass of flax\.linen\.Module"),
    ],
)
def test_an_own_encoder_is_a_flax_module_without_arguments(encoder: type, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        TrunkConfig(encoder=encoder)


def test_a_network_of_more_layers_than_policy_files_may_have_is_refused() -> None:
    PolicyConfig(hidden_sizes=(1,) * 64)
    with pytest.raises(InvalidInputError, match="65 layers"):
        PolicyConfig(hidden_sizes=(1,) * 65)
