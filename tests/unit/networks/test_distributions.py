"""Distributions against SciPy, float64 and Monte Carlo."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import log_expit, logsumexp

from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.networks.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    DiagonalGaussian,
    Distribution,
    GaussianConfig,
    MultiCategorical,
    TanhGaussian,
    distribution_family,
)
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, to_gymnasium
from rookery.types import Array, PyTreeDict

NUM_DRAWS = 50_000
RAGGED = MultiDiscrete([[2, 4], [3, 1]], start=[[1, 0], [-2, 5]])
UNIT_BOX = Box(-1.0, 1.0, (3,))
WIDE_BOX = Box(np.array([-2.0, 0.0, 10.0]), np.array([2.0, 1.0, 30.0]))


def normals(seed: int, *shape: int) -> Array:
    return jax.random.normal(jax.random.key(seed), shape)


def example(kind: str, batch_shape: tuple = (), seed: int = 0) -> Distribution:
    """One distribution of each kind, with parameters drawn at random."""
    a, b = normals(seed, *batch_shape, 12), 0.5 * normals(seed + 100, *batch_shape, 12)
    match kind:
        case "categorical":
            return Categorical(space=Discrete(5, start=3), logits=a[..., :5])
        case "masked_categorical":
            mask = jnp.broadcast_to(jnp.asarray([1, 0, 1, 1, 0], jnp.int8), (*batch_shape, 5))
            return Categorical(space=Discrete(5, start=3), logits=a[..., :5], mask=mask)
        case "multi_categorical":
            return MultiCategorical(space=RAGGED, logits=a[..., :10])
        case "masked_multi_categorical":
            mask = jnp.broadcast_to(jnp.asarray([1, 1, 0, 1, 1, 0, 1, 0, 1, 1], bool), (*batch_shape, 10))
            return MultiCategorical(space=RAGGED, logits=a[..., :10], mask=mask)
        case "bernoulli":
            return Bernoulli(space=MultiBinary((2, 2)), logits=a[..., :4].reshape(*batch_shape, 2, 2))
        case "diagonal_gaussian":
            return DiagonalGaussian(space=WIDE_BOX, mean=a[..., :3], log_std=b[..., :3])
        case "tanh_gaussian":
            return TanhGaussian(space=WIDE_BOX, mean=a[..., :3], log_std=b[..., :3])
        case "composite":
            parts = PyTreeDict(
                flags=example("bernoulli", batch_shape, seed + 1),
                pair=Composite(
                    space=Tuple([Discrete(5, start=3), WIDE_BOX]),
                    parts=(
                        example("categorical", batch_shape, seed + 2),
                        example("tanh_gaussian", batch_shape, seed + 3),
                    ),
                ),
            )
            space = Dict(pair=Tuple([Discrete(5, start=3), WIDE_BOX]), flags=MultiBinary((2, 2)))
            return Composite(space=space, parts=parts)
    raise AssertionError(kind)


KINDS = [
    "categorical",
    "masked_categorical",
    "multi_categorical",
    "masked_multi_categorical",
    "bernoulli",
    "diagonal_gaussian",
    "tanh_gaussian",
    "composite",
]


def draw_many(distribution: Distribution, num_draws: int = NUM_DRAWS, seed: int = 7) -> tuple[Any, Array, Any]:
    """Draw from a distribution without batch axes by repeating it: the draws and their log-probabilities."""

    @jax.jit
    def draw(distribution, key):
        batch = repeated(distribution, num_draws)
        raw = batch.sample(key)
        return raw, batch.log_prob(raw), batch

    return draw(distribution, jax.random.key(seed))


@jax.jit
def measures(distribution: Distribution, other: Distribution, raw: Any) -> tuple[Array, Array, Array]:
    """The log-probability of a raw action, the entropy, and the KL divergence from another distribution."""
    return distribution.log_prob(raw), distribution.entropy(), distribution.kl_divergence(other)


def repeated(distribution: Distribution, num_times: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_times, *leaf.shape)), distribution)


# Every kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_shape", [(), (3, 2)])
def test_results_have_the_batch_shape_only_and_actions_are_in_the_space(kind: str, batch_shape: tuple) -> None:
    distribution, other = example(kind, batch_shape), example(kind, batch_shape, seed=50)
    gym_space = to_gymnasium(distribution.space)
    for raw in (distribution.sample(jax.random.key(1)), distribution.mode()):
        assert distribution.batch_shape == batch_shape
        assert [measure.shape for measure in measures(distribution, other, raw)] == [batch_shape] * 3
        action = distribution.action(raw)
        distribution.space.check(action, "action", batch_shape)
        for index in np.ndindex(batch_shape):
            one = jax.tree.map(lambda leaf, index=index: np.asarray(leaf[index]), action)
            assert gym_space.contains(_cast_like(gym_space, one))


def _cast_like(gym_space: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cast_like(gym_space[name], entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_cast_like(space, entry) for space, entry in zip(gym_space.spaces, value, strict=True))
    return np.asarray(value, gym_space.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_rows(kind: str) -> None:
    batch, other = example(kind, (4,)), example(kind, (4,), seed=50)
    raw = batch.sample(jax.random.key(1))
    expected = np.stack(measures(batch, other, raw))
    for index in range(4):
        row, other_row, raw_row = jax.tree.map(lambda leaf, i=index: leaf[i], (batch, other, raw))
        np.testing.assert_allclose(measures(row, other_row, raw_row), expected[:, index], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_the_mean_of_the_negative_log_probability(kind: str) -> None:
    distribution = example(kind)
    _, log_probs, _ = draw_many(distribution)
    error = float(jnp.std(log_probs)) / math.sqrt(NUM_DRAWS)
    assert float(distribution.entropy()) == pytest.approx(-float(jnp.mean(log_probs)), abs=5 * error + 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_divergence_is_the_mean_of_the_log_ratio_and_zero_to_itself(kind: str) -> None:
    distribution, other = example(kind), example(kind, seed=50)
    raw, log_probs, _ = draw_many(distribution)
    log_ratios = log_probs - jax.jit(lambda other, raw: repeated(other, NUM_DRAWS).log_prob(raw))(other, raw)
    error = float(jnp.std(log_ratios)) / math.sqrt(NUM_DRAWS)
    assert float(distribution.kl_divergence(other)) == pytest.approx(float(jnp.mean(log_ratios)), abs=5 * error + 1e-5)
    assert float(distribution.kl_divergence(other)) > 0.01
    assert float(distribution.kl_divergence(distribution)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tanh_gaussian", "composite")])
def test_mode_is_at_least_as_likely_as_any_draw(kind: str) -> None:
    distribution = example(kind)
    _, log_probs, _ = draw_many(distribution, 2_000)
    assert float(distribution.log_prob(distribution.mode())) >= float(jnp.max(log_probs)) - 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_distributions_cross_jit_and_vmap(kind: str) -> None:
    distribution = example(kind, (4,))

    @jax.jit
    def sample(distribution, key):
        raw = distribution.sample(key)
        return raw, distribution.log_prob(raw)

    raw, log_prob = sample(distribution, jax.random.key(3))
    np.testing.assert_allclose(distribution.log_prob(raw), log_prob, atol=1e-5)
    mapped = jax.vmap(lambda one, raw: one.log_prob(raw))(distribution, raw)
    np.testing.assert_allclose(mapped, log_prob, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_raw_action_of_another_shape_is_an_error_instead_of_a_broadcast(kind: str) -> None:
    distribution = example(kind, (4,))
    raw = jax.tree.map(lambda leaf: leaf[:, None], distribution.sample(jax.random.key(0)))
    with pytest.raises(ShapeError, match="raw action"):
        distribution.log_prob(raw)


def test_kl_divergence_of_different_kinds_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="same kind"):
        example("diagonal_gaussian").kl_divergence(example("tanh_gaussian"))


# Categorical


def test_categorical_log_probs_are_those_of_float64() -> None:
    logits = 30.0 * normals(1, 6, 5)
    expected = np.asarray(logits, np.float64)
    expected = expected - logsumexp(expected, axis=-1, keepdims=True)
    distribution = Categorical(space=Discrete(5), logits=logits)
    np.testing.assert_allclose(distribution.log_probs, expected, atol=2e-5)
    actions = jnp.asarray([0, 1, 2, 3, 4, 0])
    np.testing.assert_allclose(distribution.log_prob(actions), expected[np.arange(6), actions], atol=2e-5)
    np.testing.assert_allclose(distribution.entropy(), scipy.stats.entropy(np.exp(expected), axis=-1), atol=1e-5)


@pytest.mark.parametrize("kind", ["categorical", "masked_categorical"])
def test_categorical_samples_follow_their_probabilities(kind: str) -> None:
    distribution = example(kind)
    raw, _, _ = draw_many(distribution)
    probs = np.exp(np.asarray(distribution.log_probs, np.float64))
    possible = probs > 0.0
    counts = np.bincount(raw, minlength=5)
    assert np.all(counts[~possible] == 0)
    expected = probs[possible] / probs[possible].sum() * NUM_DRAWS
    assert scipy.stats.chisquare(counts[possible], expected).pvalue > 1e-3


def test_actions_of_a_discrete_space_begin_at_its_start() -> None:
    distribution = Categorical(space=Discrete(3, start=-1), logits=jnp.asarray([0.0, 5.0, 0.0]))
    assert int(distribution.mode()) == 1
    assert int(distribution.action(distribution.mode())) == 0


def test_masked_actions_have_probability_zero_and_the_others_are_renormalized() -> None:
    logits, mask = normals(2, 5), jnp.asarray([True, False, True, False, True])
    distribution = Categorical(space=Discrete(5), logits=logits, mask=mask)
    probs = jnp.exp(distribution.log_probs)
    assert np.all(np.asarray(probs)[~np.asarray(mask)] == 0.0)
    weights = np.exp(np.asarray(logits, np.float64)) * np.asarray(mask)
    np.testing.assert_allclose(probs, weights / weights.sum(), atol=1e-6)
    assert float(distribution.entropy()) == pytest.approx(scipy.stats.entropy(weights), abs=1e-5)
    assert float(distribution.log_prob(jnp.asarray(1))) == -math.inf


def test_masked_gradients_are_finite_and_those_of_the_allowed_actions_alone() -> None:
    logits, mask = normals(3, 5), jnp.asarray([1.0, 0.0, 1.0, 0.0, 1.0])
    allowed = np.asarray([0, 2, 4])

    def loss(logits, mask, space, action):
        distribution = Categorical(space=space, logits=logits, mask=mask)
        other = Categorical(space=space, logits=jnp.zeros_like(logits), mask=mask)
        kl_divergences = distribution.kl_divergence(other) + other.kl_divergence(distribution)
        return distribution.log_prob(action) + distribution.entropy() + kl_divergences

    program = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    value, gradient = program(logits, mask, Discrete(5), jnp.asarray(2))
    expected_value, expected = program(logits[allowed], None, Discrete(3), jnp.asarray(1))
    assert float(value) == pytest.approx(float(expected_value), abs=1e-5)
    np.testing.assert_allclose(gradient[allowed], expected, atol=1e-5)
    np.testing.assert_array_equal(gradient[np.asarray([1, 3])], 0.0)


def test_the_gradient_is_finite_even_for_a_masked_action() -> None:
    def log_prob(logits):
        mask = jnp.asarray([True, False, True])
        return Categorical(space=Discrete(3), logits=logits, mask=mask).log_prob(jnp.asarray(1))

    assert np.all(np.isfinite(jax.grad(log_prob)(normals(4, 3))))


@pytest.mark.parametrize(
    ("kind", "space", "size"), [(Categorical, Discrete(4), 4), (MultiCategorical, MultiDiscrete([3, 1]), 4)]
)
def test_a_row_that_allows_nothing_acts_as_if_it_allowed_everything(kind: type, space: Space, size: int) -> None:
    logits, mask = normals(5, 2, size), jnp.zeros((2, size)).at[0].set(1.0)

    def total(logits, mask):
        distribution = kind(space=space, logits=logits, mask=mask)
        return jnp.sum(distribution.log_prob(distribution.mode()) + distribution.entropy())

    program = jax.jit(jax.value_and_grad(total))
    value, gradient = program(logits, mask)
    expected_value, expected_gradient = program(logits, None)
    assert float(value) == pytest.approx(float(expected_value), abs=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_a_mask_of_another_shape_is_an_error() -> None:
    with pytest.raises(ShapeError, match="action mask"):
        Categorical(space=Discrete(3), logits=jnp.zeros((2, 3)), mask=jnp.ones(3))


# MultiCategorical


@pytest.mark.parametrize("kind", ["multi_categorical", "masked_multi_categorical"])
def test_multi_categorical_is_a_categorical_for_each_component(kind: str) -> None:
    distribution = example(kind, (6,))
    raw = distribution.sample(jax.random.key(0))
    ends = np.cumsum(RAGGED.nvec.flatten())
    mask = distribution.mask
    log_prob, entropy = 0.0, 0.0
    for component, (end, n) in enumerate(zip(ends, RAGGED.nvec.flatten(), strict=True)):
        part = Categorical(
            space=Discrete(int(n)),
            logits=distribution.logits[:, end - n : end],
            mask=None if mask is None else mask[:, end - n : end],
        )
        part_raw = raw.reshape(6, 4)[:, component]
        log_prob, entropy = log_prob + part.log_prob(part_raw), entropy + part.entropy()
        np.testing.assert_array_equal(distribution.mode().reshape(6, 4)[:, component], part.mode())
    np.testing.assert_allclose(distribution.log_prob(raw), log_prob, atol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), entropy, atol=1e-5)
    gradient = jax.grad(lambda logits: jnp.sum(distribution.replace(logits=logits).entropy()))(distribution.logits)
    assert np.all(np.isfinite(gradient))


def test_multi_categorical_samples_follow_their_joint_probabilities() -> None:
    distribution = example("multi_categorical")
    raw, log_probs, _ = draw_many(distribution)
    codes = np.ravel_multi_index(np.asarray(raw).reshape(NUM_DRAWS, 4).T, RAGGED.nvec.flatten())
    num_codes = int(np.prod(RAGGED.nvec))
    expected = np.zeros(num_codes)
    expected[codes] = np.exp(np.asarray(log_probs, np.float64))
    assert np.all(expected > 0.0)
    counts = np.bincount(codes, minlength=num_codes)
    assert scipy.stats.chisquare(counts, expected / expected.sum() * NUM_DRAWS).pvalue > 1e-3


def test_actions_of_a_multi_discrete_space_begin_at_their_starts() -> None:
    distribution = example("multi_categorical", (2,))
    raw = jnp.zeros((2, 2, 2), jnp.int32)
    np.testing.assert_array_equal(distribution.action(raw), np.broadcast_to(RAGGED.start, (2, 2, 2)))


# Bernoulli


def test_bernoulli_is_exact_at_extreme_logits() -> None:
    logits = jnp.asarray([-200.0, -20.0, 0.0, 20.0, 200.0])
    distribution = Bernoulli(space=MultiBinary(5), logits=logits)
    for raw in (jnp.zeros(5, jnp.int8), jnp.ones(5, jnp.int8)):
        expected = np.where(
            raw == 1, log_expit(np.asarray(logits, np.float64)), log_expit(-np.asarray(logits, np.float64))
        )
        assert float(distribution.log_prob(raw)) == pytest.approx(expected.sum(), rel=1e-6)
    expected_entropy = scipy.stats.bernoulli.entropy(scipy.special.expit(np.asarray(logits, np.float64))).sum()
    assert float(distribution.entropy()) == pytest.approx(expected_entropy, abs=1e-6)
    gradient = jax.grad(lambda logits: distribution.replace(logits=logits).entropy())(logits)
    assert np.all(np.isfinite(gradient))


def test_bernoulli_samples_follow_their_probabilities() -> None:
    distribution = example("bernoulli")
    raw, _, _ = draw_many(distribution)
    probs = np.asarray(jax.nn.sigmoid(distribution.logits), np.float64).flatten()
    for ones, prob in zip(np.asarray(raw, np.int64).sum(0).flatten(), probs, strict=True):
        assert scipy.stats.binomtest(int(ones), NUM_DRAWS, prob).pvalue > 1e-3


# Gaussians


def reference_log_prob(distribution: Distribution, raw: Array, squashed: bool) -> np.ndarray:
    mean, log_std, raw = (np.asarray(x, np.float64) for x in (distribution.mean, distribution.log_std, raw))
    log_prob = scipy.stats.norm.logpdf(raw, mean, np.exp(log_std))
    if squashed:
        log_prob -= 2.0 * (math.log(2.0) - np.logaddexp(raw, -raw))  # log(1 - tanh^2) = -2 log cosh
    return log_prob.sum(-1)


@pytest.mark.parametrize("kind", [DiagonalGaussian, TanhGaussian])
@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("center", [-20.0, -1.0, 0.0, 3.0, 20.0])
def test_log_probabilities_are_those_of_float64_and_gradients_are_finite(kind: type, std: float, center: float) -> None:
    mean = jnp.full((50, 3), center) + 0.01 * normals(1, 50, 3)
    log_std = jnp.full((50, 3), math.log(std))
    distribution = kind(space=UNIT_BOX, mean=mean, log_std=log_std)
    raw = distribution.sample(jax.random.key(2))
    expected = reference_log_prob(distribution, raw, squashed=kind is TanhGaussian)
    np.testing.assert_allclose(distribution.log_prob(raw), expected, atol=1e-4)

    def total(mean, log_std, raw):
        distribution = kind(space=UNIT_BOX, mean=mean, log_std=log_std)
        return jnp.sum(distribution.log_prob(raw) + distribution.entropy())

    for gradient in jax.grad(total, argnums=(0, 1, 2))(mean, log_std, raw):
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("kind", ["diagonal_gaussian", "tanh_gaussian"])
def test_gaussian_actions_follow_their_distribution(kind: str) -> None:
    distribution = example(kind)
    raw, _, batch = draw_many(distribution, 20_000)
    actions = np.asarray(batch.action(raw), np.float64)
    low, high = WIDE_BOX.low.astype(np.float64), WIDE_BOX.high.astype(np.float64)
    mean, std = np.asarray(distribution.mean, np.float64), np.exp(np.asarray(distribution.log_std, np.float64))
    for i in range(3):
        if kind == "tanh_gaussian":
            values = np.arctanh(np.clip((actions[:, i] - low[i]) / (high[i] - low[i]) * 2 - 1, -1 + 1e-7, 1 - 1e-7))
        else:
            values = np.asarray(raw[:, i], np.float64)
            np.testing.assert_allclose(actions[:, i], np.clip(values, low[i], high[i]), rtol=1e-6)
        assert scipy.stats.kstest(values, scipy.stats.norm(mean[i], std[i]).cdf).pvalue > 1e-3


def test_squashed_density_integrates_to_one_over_the_unit_interval() -> None:
    distribution = TanhGaussian(space=Box(-5.0, 9.0, (1,)), mean=jnp.asarray([0.3]), log_std=jnp.asarray([-0.5]))
    actions = np.linspace(-1 + 1e-4, 1 - 1e-4, 20_001)
    density = np.exp(
        repeated(distribution, actions.size).log_prob(jnp.asarray(np.arctanh(actions)[:, None], jnp.float32))
    )
    assert np.trapezoid(density, actions) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("std", [1e-3, 0.3, 1.0, math.exp(2.0)])
@pytest.mark.parametrize("center", [0.0, 1.7, -20.0])
def test_squashed_entropy_equals_adaptive_integration(std: float, center: float) -> None:
    def integrand(z):
        return scipy.stats.norm.pdf(z) * 2.0 * (math.log(2.0) - np.logaddexp(center + std * z, -center - std * z))

    kink = [-center / std] if abs(center / std) < 10.0 else None
    correction = scipy.integrate.quad(integrand, -12.0, 12.0, points=kink, limit=500)[0]
    expected = scipy.stats.norm.entropy(scale=std) + correction
    distribution = TanhGaussian(
        space=Box(-1.0, 1.0, (1,)), mean=jnp.asarray([center]), log_std=jnp.asarray([math.log(std)])
    )
    assert float(distribution.entropy()) == pytest.approx(float(expected), abs=1e-3)


def test_gaussian_entropy_and_kl_divergence_have_their_closed_forms() -> None:
    first, second = example("diagonal_gaussian"), example("diagonal_gaussian", seed=9)
    stds = [np.exp(np.asarray(d.log_std, np.float64)) for d in (first, second)]
    assert float(first.entropy()) == pytest.approx(scipy.stats.norm.entropy(scale=stds[0]).sum(), rel=1e-5)
    gap = np.asarray(first.mean, np.float64) - np.asarray(second.mean, np.float64)
    expected = np.log(stds[1] / stds[0]) + (stds[0] ** 2 + gap**2) / (2 * stds[1] ** 2) - 0.5
    assert float(first.kl_divergence(second)) == pytest.approx(expected.sum(), rel=1e-5)


def test_sampling_is_reparameterized() -> None:
    def sample(mean, log_std):
        return jnp.sum(DiagonalGaussian(space=UNIT_BOX, mean=mean, log_std=log_std).sample(jax.random.key(0)))

    mean_gradient, log_std_gradient = jax.grad(sample, argnums=(0, 1))(jnp.zeros(3), jnp.zeros(3))
    np.testing.assert_array_equal(mean_gradient, 1.0)
    np.testing.assert_allclose(log_std_gradient, jax.random.normal(jax.random.key(0), (3,)), rtol=1e-6)


def test_mode_of_a_squashed_gaussian_is_its_median() -> None:
    distribution = example("tanh_gaussian")
    raw, _, batch = draw_many(distribution)
    median = np.median(np.asarray(batch.action(raw)), axis=0)
    np.testing.assert_allclose(distribution.action(distribution.mode()), median, rtol=0.03)


def test_squashed_actions_reach_but_never_pass_the_bounds() -> None:
    box = Box(np.array([0.1, -3.4e38, -7.3], np.float32), np.array([0.7, 3.4e38, 1.1], np.float32))
    distribution = TanhGaussian(space=box, mean=jnp.zeros(3), log_std=jnp.zeros(3))
    for raw, bound in ((jnp.full(3, 50.0), box.high), (jnp.full(3, -50.0), box.low)):
        action = distribution.action(raw)
        assert box.contains(action)
        np.testing.assert_allclose(action, bound, rtol=1e-6)
    np.testing.assert_allclose(distribution.action(jnp.zeros(3)), [0.4, 0.0, -3.1], rtol=1e-6)


def test_unbounded_sides_are_not_clipped() -> None:
    box = Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]))
    distribution = DiagonalGaussian(space=box, mean=jnp.zeros(2), log_std=jnp.zeros(2))
    np.testing.assert_array_equal(distribution.action(jnp.asarray([-100.0, -100.0])), [-100.0, 0.0])
    np.testing.assert_array_equal(distribution.action(jnp.asarray([100.0, 100.0])), [100.0, 100.0])


# Composite


def test_composite_sums_over_its_parts() -> None:
    distribution, other = example("composite", (3,)), example("composite", (3,), seed=50)
    raw = distribution.sample(jax.random.key(0))
    flags, (choice, move) = distribution.parts.flags, distribution.parts.pair.parts
    expected = flags.log_prob(raw.flags) + choice.log_prob(raw.pair[0]) + move.log_prob(raw.pair[1])
    np.testing.assert_allclose(distribution.log_prob(raw), expected, atol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), flags.entropy() + choice.entropy() + move.entropy(), atol=1e-5)
    parts = zip((flags, choice, move), (other.parts.flags, *other.parts.pair.parts), strict=True)
    np.testing.assert_allclose(
        distribution.kl_divergence(other), sum(part.kl_divergence(other) for part, other in parts), atol=1e-5
    )


def test_parts_of_a_composite_draw_independently() -> None:
    part = DiagonalGaussian(space=UNIT_BOX, mean=jnp.zeros((5_000, 3)), log_std=jnp.zeros((5_000, 3)))
    distribution = Composite(space=Tuple([UNIT_BOX, UNIT_BOX]), parts=(part, part))
    first, second = distribution.sample(jax.random.key(0))
    assert abs(np.corrcoef(first.flatten(), second.flatten())[0, 1]) < 0.05


# The family of an action space


FAMILIES = {
    "discrete": (Discrete(4, start=2), 4, 0),
    "multi_discrete": (RAGGED, 10, 0),
    "multi_binary": (MultiBinary((2, 3)), 6, 0),
    "box": (Box(-1.0, 1.0, (2, 2)), 4, 4),
    "scalar_box": (Box(-1.0, 1.0, ()), 1, 1),
    "dict": (Dict(a=Discrete(3), b=Box(-1.0, 1.0, (2,)), c=Tuple([Box(0.0, 1.0, (1,)), MultiBinary(2)])), 8, 3),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batch_shape", [(), (2, 5)])
def test_the_family_of_a_space_builds_distributions_over_it(name: str, batch_shape: tuple) -> None:
    space, num_outputs, num_free = FAMILIES[name]
    family = distribution_family(space)
    assert (family.num_outputs, len(family.initial_free_parameters)) == (num_outputs, num_free)
    distribution = family.build(normals(0, *batch_shape, num_outputs), jnp.zeros(num_free), None)
    assert distribution.space == space
    assert distribution.batch_shape == batch_shape
    space.check(distribution.action(distribution.sample(jax.random.key(1))), "action", batch_shape)


def test_every_output_and_free_parameter_of_a_composite_family_matters() -> None:
    space, num_outputs, num_free = FAMILIES["dict"]
    family = distribution_family(space)
    raw = family.build(normals(0, num_outputs), jnp.zeros(num_free), None).sample(jax.random.key(1))
    gradient = jax.grad(lambda *parameters: family.build(*parameters, None).log_prob(raw), argnums=(0, 1))
    gradients = jax.jit(gradient)(normals(0, num_outputs), jnp.zeros(num_free))
    assert all(np.all(gradient != 0.0) for gradient in gradients)


@pytest.mark.parametrize("bounds", ["clip", "squash"])
@pytest.mark.parametrize("state_dependent_std", [False, True])
def test_the_standard_deviation_starts_where_the_config_says(bounds: str, state_dependent_std: bool) -> None:
    config = GaussianConfig(bounds=bounds, state_dependent_std=state_dependent_std, initial_std=0.3)
    family = distribution_family(UNIT_BOX, config)
    distribution = family.build(jnp.zeros(family.num_outputs), jnp.asarray(family.initial_free_parameters), None)
    assert type(distribution) is (TanhGaussian if bounds == "squash" else DiagonalGaussian)
    np.testing.assert_allclose(jnp.exp(distribution.log_std), 0.3, rtol=1e-6)


def test_the_standard_deviation_stays_within_its_limits() -> None:
    config = GaussianConfig(state_dependent_std=True, min_log_std=-3.0, max_log_std=1.0)
    family = distribution_family(Box(-1.0, 1.0, (2,)), config)
    distribution = family.build(jnp.asarray([0.0, 0.0, -50.0, 50.0]), jnp.zeros(0), None)
    np.testing.assert_array_equal(distribution.log_std, [-3.0, 1.0])


def test_configs_and_spaces_that_cannot_work_are_errors_before_anything_is_built() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown bounds 'clamp'\. Did you mean 'clip'\?$"):
        GaussianConfig(bounds="clamp")
    with pytest.raises(InvalidInputError, match="max_log_std"):
        GaussianConfig(initial_std=100.0)
    with pytest.raises(InvalidInputError, match="positive"):
        GaussianConfig(initial_std=0.0)
    with pytest.raises(InvalidInputError, match="infinite bound"):
        distribution_family(Box(0.0, np.inf, (2,)), GaussianConfig(bounds="squash"))
    with pytest.raises(InvalidInputError, match="MultiDiscrete"):
        distribution_family(Box(0, 5, (2,), np.int32))
    with pytest.raises(InvalidInputError, match="not empty"):
        distribution_family(Dict({}))


@pytest.mark.parametrize("space", [UNIT_BOX, MultiBinary(2), Tuple([Discrete(2)])])
def test_a_mask_for_actions_that_cannot_be_masked_is_an_error(space: Space) -> None:
    family = distribution_family(space)
    with pytest.raises(InvalidInputError, match="cannot be masked"):
        family.build(jnp.zeros(family.num_outputs), jnp.asarray(family.initial_free_parameters), jnp.ones(2))
