"""Targets against plain loops in float64, and against numbers worked by hand."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.learning.advantages import n_step_returns
from rookery.learning.targets import (
    NStep,
    categorical_projection,
    huber,
    n_step,
    polyak,
    quantile_huber_loss,
    take_rows,
)

WINDOWS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (5, 5), (6, 3), (8, 1), (10, 4), (13, 10)]
"""Pairs of `L` and `num_steps`; with 100 columns each, 1,000 random masks."""


class Windows:
    """Random windows `[L, 100]` with a probability of done for each column, from never to always.

    Some rewards are NaN, and all values of the successors of terminations: a target may be NaN only where it sums
    such a reward.
    """

    def __init__(self, length: int, num_steps: int) -> None:
        rng = np.random.default_rng(100 * length + num_steps)
        shape = (length, 100)
        self.length, self.num_steps, self.discount = length, num_steps, 0.875
        self.rewards, self.next_values = rng.normal(size=(2, *shape))
        self.rewards[rng.random(shape) < 0.1] = np.nan
        terminated, truncated = (rng.random(shape) < rng.choice([0.0, 0.1, 0.5, 1.0], shape[1]) for _ in range(2))
        self.terminations, self.dones = terminated, terminated | truncated
        self.next_values[terminated] = np.nan

    def n_step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Follow each window from each row: returns, discounts, last rows and whole targets."""
        shape = (self.length - self.num_steps + 1, self.rewards.shape[1])
        returns, discounts, last, targets = np.zeros((4, *shape))
        for t, n in np.ndindex(shape):
            for step in range(self.num_steps):
                row = t + step
                returns[t, n] += self.discount**step * self.rewards[row, n]
                if self.dones[row, n]:
                    break
            last[t, n] = row
            targets[t, n] = returns[t, n]
            if not self.terminations[row, n]:
                discounts[t, n] = self.discount ** (row - t + 1)
                targets[t, n] += discounts[t, n] * self.next_values[row, n]
        return returns, discounts, last, targets

    def arguments(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        arrays = (self.rewards, self.terminations, self.dones)
        return tuple(jnp.asarray(array, jnp.float32) for array in arrays)  # type: ignore[return-value]


@pytest.fixture(params=WINDOWS, ids=lambda pair: f"L={pair[0]},num_steps={pair[1]}")
def windows(request: pytest.FixtureRequest) -> Windows:
    return Windows(*request.param)


def targets_of(steps: NStep, next_values: jax.Array) -> jax.Array:
    bootstraps = take_rows(next_values, steps.last)
    return steps.returns + steps.discounts * jnp.where(steps.discounts > 0.0, bootstraps, 0.0)


@partial(jax.jit, static_argnums=3)
def steps_and_targets(
    arguments: tuple[jax.Array, ...], next_values: jax.Array, discount: float, num_steps: int
) -> tuple[NStep, jax.Array]:
    steps = n_step(*arguments, discount, num_steps)
    return steps, targets_of(steps, next_values)


def test_n_step_equals_a_walk_along_each_window(windows: Windows) -> None:
    next_values = jnp.asarray(windows.next_values, jnp.float32)
    steps, whole = steps_and_targets(windows.arguments(), next_values, windows.discount, windows.num_steps)
    returns, discounts, last, targets = windows.n_step()
    np.testing.assert_array_equal(steps.last, last)
    np.testing.assert_allclose(steps.discounts, discounts, rtol=1e-6)
    np.testing.assert_allclose(steps.returns, returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole, targets, rtol=1e-5, atol=1e-6)


def test_whole_targets_are_the_n_step_returns_of_a_trajectory(windows: Windows) -> None:
    rewards, terminations, dones = windows.arguments()
    next_values = jnp.asarray(windows.next_values, jnp.float32)
    _, whole = steps_and_targets(windows.arguments(), next_values, windows.discount, windows.num_steps)
    expected = jax.jit(n_step_returns, static_argnums=5)(
        rewards, next_values, terminations, dones, windows.discount, windows.num_steps
    )
    np.testing.assert_allclose(whole, np.asarray(expected)[: len(whole)], rtol=1e-5, atol=1e-6)


def column(*numbers: float) -> jax.Array:
    return jnp.asarray(numbers, jnp.float32)[:, None]  # [L, 1]


NEVER, MIDDLE = column(0.0, 0.0, 0.0, 0.0), column(0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("terminations", "dones", "returns", "discounts", "last"),
    [
        (NEVER, NEVER, [1.0 + 2.0 / 2.0 + 4.0 / 4.0, 2.0 + 4.0 / 2.0 + 8.0 / 4.0], [1.0 / 8.0, 1.0 / 8.0], [2, 3]),
        # The episode ends at the second row by its time limit, then in a terminal state (whatever the limit says).
        (NEVER, MIDDLE, [1.0 + 2.0 / 2.0, 2.0], [1.0 / 4.0, 1.0 / 2.0], [1, 1]),
        (MIDDLE, MIDDLE, [1.0 + 2.0 / 2.0, 2.0], [0.0, 0.0], [1, 1]),
    ],
    ids=["none ends", "truncation", "termination"],
)
def test_three_steps_with_a_done_in_the_middle_are_as_worked_by_hand(
    terminations: jax.Array, dones: jax.Array, returns: list[float], discounts: list[float], last: list[int]
) -> None:
    steps = n_step(column(1.0, 2.0, 4.0, 8.0), terminations, dones, discount=0.5, num_steps=3)
    np.testing.assert_array_equal(steps.returns[:, 0], returns)
    np.testing.assert_array_equal(steps.discounts[:, 0], discounts)
    np.testing.assert_array_equal(steps.last[:, 0], last)


def test_only_the_first_of_two_dones_in_a_window_ends_the_sum() -> None:
    dones, terminations = column(0.0, 1.0, 1.0, 0.0), column(0.0, 0.0, 1.0, 0.0)
    steps = n_step(column(1.0, 2.0, 4.0, 8.0), terminations, dones, discount=0.5, num_steps=4)
    assert (steps.returns.item(), steps.discounts.item(), steps.last.item()) == (2.0, 0.25, 1)


def test_one_step_gives_the_rewards_themselves_and_takes_no_row_from_elsewhere() -> None:
    rewards, terminations = column(0.1, np.nan, -0.0), column(0.0, 1.0, 0.0)
    steps = n_step(rewards, terminations, terminations, discount=0.9, num_steps=1)
    np.testing.assert_array_equal(steps.returns.view(jnp.int32), rewards.view(jnp.int32))
    np.testing.assert_array_equal(steps.discounts, column(0.9, 0.0, 0.9))
    np.testing.assert_array_equal(steps.last[:, 0], [0, 1, 2])
    single_row = jnp.ones((1, 5, 2))
    assert "gather" not in str(jax.make_jaxpr(take_rows)(single_row, jnp.zeros((1, 5), jnp.int32)))


def test_masks_may_be_boolean_and_the_discount_a_traced_number_per_seed() -> None:
    rewards, terminations, dones = Windows(10, 4).arguments()
    rewards = jnp.nan_to_num(rewards)
    discounts = jnp.asarray([0.0, 0.5, 1.0])
    over_seeds = jax.vmap(lambda discount: n_step(rewards, terminations.astype(bool), dones.astype(bool), discount, 4))
    one_by_one = jax.jit(n_step, static_argnums=(3, 4))
    each = [one_by_one(rewards, terminations, dones, discount, 4) for discount in (0, 0.5, 1)]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(over_seeds)(discounts), expected)


def test_gradients_of_targets_are_finite_and_zero_for_what_does_not_count() -> None:
    def total(rewards: jax.Array, next_values: jax.Array, discount: jax.Array) -> jax.Array:
        return jnp.sum(targets_of(n_step(rewards, MIDDLE, MIDDLE, discount, 4), next_values))

    rewards, next_values = column(1.0, 2.0, np.nan, np.nan), column(1.0, np.nan, 1.0, 1.0)
    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(rewards, next_values, jnp.asarray(0.5))
    np.testing.assert_array_equal(gradients[0], column(1.0, 0.5, 0.0, 0.0))
    np.testing.assert_array_equal(gradients[1], jnp.zeros((4, 1)))
    assert gradients[2] == 2.0


def test_rows_are_taken_from_every_leaf_and_keep_their_dtype() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (3, 4))
    tree = {
        "pixels": rng.integers(0, 256, (5, 4, 2, 3)).astype(np.uint8),
        "flag": rng.random((5, 4)) < 0.5,
        "one row": rng.normal(size=(1, 4, 2)).astype(np.float32),
    }
    taken = jax.jit(take_rows)(jax.tree.map(jnp.asarray, tree), jnp.asarray(rows, jnp.int32))
    for name, leaf in tree.items():
        assert taken[name].dtype == leaf.dtype
        for t, n in np.ndindex(3, 4):
            np.testing.assert_array_equal(taken[name][t, n], leaf[0 if name == "one row" else rows[t, n], n])


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 1, 4)])
def test_a_leaf_without_a_column_for_each_sample_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"leaf \['obs'\] has shape \[5.*\]; expected \[L, 4, \.\.\.\]"):
        take_rows({"obs": jnp.ones(shape), "fine": jnp.ones((5, 4))}, jnp.zeros((2, 4), jnp.int32))


AWKWARD = np.asarray([0.0, -0.0, 0.1, -3e-39, 1e-30, 3.3e38, -1e8, np.inf, np.nan], np.float32)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("as_rate", [float, jnp.float32], ids=["number", "array"])
def test_polyak_copies_every_bit_at_rate_one_and_keeps_every_bit_at_rate_zero(as_rate: Callable[[int], Any]) -> None:
    targets, params = (jnp.asarray(array) for array in (AWKWARD[:, None].repeat(9, 1), AWKWARD[None, :].repeat(9, 0)))
    for update in (polyak, jax.jit(polyak)):
        assert bits(update({"w": targets}, {"w": params}, as_rate(1))) == bits(params)
        assert bits(update({"w": targets}, {"w": params}, as_rate(0))) == bits(targets)


def test_polyak_moves_by_the_share_worked_by_hand_and_stays_where_both_agree() -> None:
    targets = {"kernel": jnp.asarray([[1.0, 2.0]]), "bias": jnp.asarray([-4.0])}
    params = {"kernel": jnp.asarray([[3.0, 2.0]]), "bias": jnp.asarray([4.0])}
    moved = polyak(targets, params, 0.25)
    np.testing.assert_array_equal(moved["kernel"], [[1.5, 2.0]])
    np.testing.assert_array_equal(moved["bias"], [-2.0])
    numbers = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)
    np.testing.assert_array_equal(polyak(numbers, numbers, 0.005), numbers)


def test_polyak_keeps_the_dtype_of_the_parameters() -> None:
    half = jnp.ones(3, jnp.bfloat16)
    assert polyak(half, 2 * half, jnp.asarray(0.5)).dtype == jnp.bfloat16


@pytest.mark.parametrize("param", [jnp.ones((3, 1)), jnp.ones(3, jnp.bfloat16)], ids=["shape", "dtype"])
def test_polyak_names_the_leaf_that_differs(param: jax.Array) -> None:
    with pytest.raises(ShapeError, match=r"leaf \['bias'\] is float32\[3\] in the targets and .* in the params"):
        polyak({"bias": jnp.ones(3), "w": jnp.ones(2)}, {"bias": param, "w": jnp.ones(2)}, 0.5)


def test_polyak_refuses_parameters_that_cannot_move_by_a_share() -> None:
    with pytest.raises(ShapeError, match="expected floats"):
        polyak(jnp.ones(3, jnp.int32), jnp.ones(3, jnp.int32), 0.5)


def test_huber_is_as_worked_by_hand_on_both_sides_of_delta() -> None:
    errors = jnp.asarray([0.0, 1.0, -1.0, 2.0, -2.0, 5.0, -5.0])
    np.testing.assert_array_equal(huber(errors, 2.0), [0.0, 0.5, 0.5, 2.0, 2.0, 8.0, 8.0])
    np.testing.assert_array_equal(huber(errors), [0.0, 0.5, 0.5, 1.5, 1.5, 4.5, 4.5])


def test_the_gradient_of_huber_is_the_error_clipped_at_delta_also_for_infinite_errors() -> None:
    errors = jnp.asarray([0.0, 1.0, -1.0, 2.0, -2.0, 5.0, -5.0, np.inf, -np.inf])
    gradient = jax.grad(lambda errors: jnp.sum(huber(errors, 2.0)))(errors)
    np.testing.assert_array_equal(gradient, np.clip(errors, -2.0, 2.0))


def projection_in_float64(probabilities: np.ndarray, support: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Share out the mass of each target by the distances to the atoms themselves."""
    projected = np.zeros(probabilities.shape)
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for n in range(len(probabilities)):
        for probability, value in zip(probabilities[n], support[n], strict=True):
            value = min(max(value, atoms[0]), atoms[-1])
            for k, atom in enumerate(atoms):
                projected[n, k] += probability * max(0.0, 1.0 - abs(value - atom) / spacing)
    return projected


def random_distributions(num_atoms: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num_atoms)
    atoms = np.linspace(-10.0, 10.0, num_atoms)
    return rng.dirichlet(np.full(num_atoms, 0.5), size=20), rng.normal(0.0, scale, (20, num_atoms)), atoms


def as_float32(*arrays: np.ndarray) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


@pytest.mark.parametrize("num_atoms", [2, 3, 51])
def test_the_projection_equals_the_sum_over_targets_and_atoms_and_keeps_the_mass(num_atoms: int) -> None:
    probabilities, support, atoms = random_distributions(num_atoms, scale=8.0)
    projected = jax.jit(categorical_projection)(*as_float32(probabilities, support, atoms))
    np.testing.assert_allclose(projected, projection_in_float64(probabilities, support, atoms), atol=3e-6)
    np.testing.assert_allclose(np.asarray(projected, np.float64).sum(axis=1), 1.0, atol=1e-6)
    assert np.all(projected >= 0.0)


def test_the_mean_is_kept_where_nothing_is_clipped_and_is_that_of_the_clipped_values_elsewhere() -> None:
    for scale in (2.0, 30.0):
        probabilities, support, atoms = random_distributions(51, scale)
        assert np.any(np.abs(support) > 10.0) == (scale == 30.0)
        projected = np.asarray(jax.jit(categorical_projection)(*as_float32(probabilities, support, atoms)), np.float64)
        expected = np.sum(probabilities * np.clip(support, -10.0, 10.0), axis=1)
        np.testing.assert_allclose(projected @ atoms, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("support", "projected"),
    [
        ([0.0, 1.0, 2.0, 3.0], [0.5, 0.25, 0.125, 0.125]),
        ([3.0, 3.0, 0.0, 0.0], [0.25, 0.0, 0.0, 0.75]),
        ([0.5, 1.25, 2.75, 2.0], [0.25, 0.25 + 0.1875, 0.0625 + 0.03125 + 0.125, 0.09375]),
        ([-0.5, -9.0, 3.25, 1e30], [0.75, 0.0, 0.0, 0.25]),
        ([-np.inf, -np.inf, np.inf, np.inf], [0.75, 0.0, 0.0, 0.25]),
        # After a termination all mass lies on the reward.
        ([1.5, 1.5, 1.5, 1.5], [0.0, 0.5, 0.5, 0.0]),
    ],
    ids=["on every atom", "on the ends", "between atoms", "outside", "infinite", "terminal"],
)
def test_a_projection_onto_four_atoms_is_as_worked_by_hand(support: list[float], projected: list[float]) -> None:
    probabilities, atoms = jnp.asarray([[0.5, 0.25, 0.125, 0.125]]), jnp.arange(4.0)
    actual = jax.jit(categorical_projection)(probabilities, jnp.asarray([support], jnp.float32), atoms)
    np.testing.assert_array_equal(actual[0], projected)


@pytest.mark.parametrize("optimized", [False, True])
def test_targets_on_atoms_that_floats_cannot_hold_lose_no_mass(optimized: bool, request: pytest.FixtureRequest) -> None:
    if optimized:
        request.getfixturevalue("optimized_programs")
    for low, high, num_atoms in ((-10.0, 10.0, 51), (0.0, 0.7, 11), (-0.1, 200.3, 101), (1e4, 1e4 + 7.0, 8)):
        atoms = jnp.linspace(low, high, num_atoms)
        project = jax.jit(lambda support, atoms: categorical_projection(jnp.eye(len(atoms)), support, atoms))
        every_atom = jnp.broadcast_to(atoms[:, None], (num_atoms, num_atoms))
        projected = project(every_atom, atoms)
        np.testing.assert_allclose(np.asarray(projected, np.float64).sum(axis=1), 1.0, atol=1e-6)
        np.testing.assert_allclose(projected, np.eye(num_atoms), atol=1e-3)
        np.testing.assert_array_equal(projected[0], np.eye(num_atoms)[0])


def test_a_nan_target_spoils_its_own_sample_alone() -> None:
    probabilities, support, atoms = as_float32(*random_distributions(51, scale=8.0))
    project, others = jax.jit(categorical_projection), np.arange(20) != 3
    spoiled = np.asarray(project(probabilities, support.at[3, 7].set(jnp.nan), atoms))
    np.testing.assert_array_equal(spoiled[others], np.asarray(project(probabilities, support, atoms))[others])
    assert np.all(np.isnan(spoiled[3]))


def test_gradients_of_the_projection_are_finite_on_atoms_and_outside() -> None:
    coefficients = jnp.asarray([[1.0, -2.0, 3.0]])

    def total(probabilities: jax.Array, support: jax.Array, atoms: jax.Array) -> jax.Array:
        return jnp.sum(coefficients * categorical_projection(probabilities, support, atoms))

    arguments = (jnp.full((1, 3), 1.0 / 3.0), jnp.asarray([[-5.0, 1.0, 2.0]]), jnp.arange(3.0))
    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*arguments)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    np.testing.assert_array_equal(gradients[0], coefficients)


def quantile_loss_in_float64(quantiles: np.ndarray, targets: np.ndarray, kappa: float) -> np.ndarray:
    losses = np.zeros(len(quantiles))
    num_quantiles, num_targets = quantiles.shape[1], targets.shape[1]
    for n in range(len(quantiles)):
        for i in range(num_quantiles):
            level = (2 * i + 1) / (2 * num_quantiles)
            for j in range(num_targets):
                error = targets[n, j] - quantiles[n, i]
                size = abs(error)
                loss = 0.5 * error**2 if size <= kappa else kappa * (size - 0.5 * kappa)
                losses[n] += abs(level - (error < 0)) * loss / num_targets
    return losses


@pytest.mark.parametrize(("num_quantiles", "num_targets", "kappa"), [(1, 1, 1.0), (7, 7, 1.0), (5, 8, 0.3)])
def test_the_quantile_loss_equals_its_definition(num_quantiles: int, num_targets: int, kappa: float) -> None:
    rng = np.random.default_rng(num_quantiles)
    quantiles, targets = rng.normal(size=(20, num_quantiles)), rng.normal(size=(20, num_targets))
    actual = jax.jit(quantile_huber_loss)(*as_float32(quantiles, targets), kappa)
    np.testing.assert_allclose(actual, quantile_loss_in_float64(quantiles, targets, kappa), rtol=1e-5)


def test_the_loss_of_two_quantiles_is_as_worked_by_hand() -> None:
    # Levels 1/4 and 3/4. Quantile 0 has errors 0.5 and 3: (1/8) / 4 and (5/2) / 4. Quantile 2 has errors -1.5 and 1,
    # of which the first is above: (1 - 3/4) * 1 and 3/4 * 1/2.
    loss = quantile_huber_loss(jnp.asarray([[0.0, 2.0]]), jnp.asarray([[0.5, 3.0]]))
    np.testing.assert_array_equal(loss, [(1.0 / 32.0 + 5.0 / 8.0) / 2.0 + (1.0 / 4.0 + 3.0 / 8.0) / 2.0])


def test_gradients_of_the_quantile_loss_are_finite_and_vanish_at_the_targets() -> None:
    gradient = jax.jit(jax.grad(lambda quantiles, targets: jnp.sum(quantile_huber_loss(quantiles, targets))))
    np.testing.assert_array_equal(gradient(jnp.ones((2, 3)), jnp.ones((2, 4))), jnp.zeros((2, 3)))
    far = gradient(jnp.asarray([[0.0, 0.0]]), jnp.asarray([[1e30, -1e30]]))
    np.testing.assert_allclose(far, [[(-0.25 + 0.75) / 2.0, (-0.75 + 0.25) / 2.0]])


def test_descent_on_the_quantile_loss_with_a_small_kappa_finds_the_quantiles() -> None:
    targets = jnp.arange(101.0)[None, :]
    descend = jax.grad(lambda quantiles: jnp.sum(quantile_huber_loss(quantiles, targets, 0.1)))
    quantiles = jax.lax.fori_loop(0, 4000, lambda _, q: q - 2.0 * descend(q), jnp.zeros((1, 4)))
    np.testing.assert_allclose(quantiles[0], np.quantile(np.arange(101.0), [0.125, 0.375, 0.625, 0.875]), atol=1.0)


SHAPES: dict[Callable[..., Any], dict[str, tuple[int, ...]]] = {
    n_step: {"rewards": (5, 3), "terminations": (5, 3), "dones": (5, 3), "discount": ()},
    huber: {"errors": (5, 3), "delta": ()},
    polyak: {"targets": (3,), "params": (3,), "rate": ()},
    categorical_projection: {"probabilities": (5, 3), "support_of_targets": (5, 3), "atoms": (3,)},
    quantile_huber_loss: {"quantiles": (5, 3), "targets": (5, 4), "kappa": ()},
}


@pytest.mark.parametrize(
    ("function", "name"),
    # Errors may have any shape.
    [(function, name) for function, shapes in SHAPES.items() for name in shapes if name != "errors"],
)
def test_a_wrong_shape_is_an_error_when_traced(
    function: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the tests add to every call is switched off: the function is on its own, as it is for users.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def trace(shapes: dict[str, tuple[int, ...]]) -> None:
        arguments = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
        static = {"num_steps": 2} if "num_steps" in inspect.signature(function).parameters else {}
        with jax.numpy_rank_promotion("allow"):
            jax.eval_shape(lambda arguments: function(**arguments, **static), arguments)

    shapes = SHAPES[function]
    trace(shapes)
    wrong = [(*shapes[name], 1), (3,) if shapes[name] == () else shapes[name][:-1]]
    for shape in wrong:
        with pytest.raises(ShapeError, match="shape"):
            trace(shapes | {name: shape})


def test_arrays_of_one_axis_are_no_windows_even_if_all_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    row = jnp.ones(4)
    with pytest.raises(ShapeError, match=r"rewards has shape \[4\]; expected 2 axes"):
        n_step(row, row, row, 0.9, 1)
    with pytest.raises(ShapeError, match=r"probabilities has shape \[4\]; expected 2 axes"):
        categorical_projection(row, row, row)
    with pytest.raises(ShapeError, match=r"quantiles has shape \[4\]; expected 2 axes"):
        quantile_huber_loss(row, row)


def test_the_targets_of_one_sample_do_not_serve_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ShapeError, match=r"targets has shape \[1, 3\]; expected \[5, M\]"):
        quantile_huber_loss(jnp.ones((5, 3)), jnp.ones((1, 3)))


def test_a_single_atom_is_an_error() -> None:
    with pytest.raises(ShapeError, match="at least 2"):
        categorical_projection(jnp.ones((5, 1)), jnp.ones((5, 1)), jnp.ones(1))


def test_a_window_shorter_than_the_number_of_steps_is_an_error() -> None:
    with pytest.raises(ShapeError, match=r"rewards has 4 rows, too few for num_steps=5"):
        n_step(NEVER, NEVER, NEVER, 0.9, 5)


@pytest.mark.parametrize("num_steps", [0, -1, True])
def test_a_number_of_steps_below_one_is_an_error(num_steps: int) -> None:
    with pytest.raises(InvalidInputError, match="num_steps"):
        n_step(NEVER, NEVER, NEVER, 0.9, num_steps)
