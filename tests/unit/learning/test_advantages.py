"""Estimators against their definitions: sums of products over an episode, in float64, without a recursion."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.learning.advantages import gae, lambda_returns, n_step_returns, vtrace

NUM_CASES = 100
BATCH_SHAPES = [(), (1,), (3,), (2, 2)]


class Cases:
    """Random trajectories of one length, `[T, num_cases, *B]`; each case has hyper-parameters of its own.

    The arguments of the estimators are attributes of the same names. At a termination the value of the successor is
    NaN for the estimator, which may not read it.
    """

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(length)
        self.length = length
        batch_shape = BATCH_SHAPES[length % len(BATCH_SHAPES)]
        self.shape = (length, NUM_CASES, *batch_shape)
        self.rewards, self.values, next_values, self.log_ratios = rng.normal(size=(4, *self.shape))

        def per_case(numbers: np.ndarray) -> np.ndarray:
            return numbers.reshape(NUM_CASES, *(1,) * len(batch_shape)).astype(np.float32).astype(np.float64)

        terminated, truncated = (
            rng.random(self.shape) < per_case(rng.choice([0.0, 0.1, 0.5, 1.0], NUM_CASES)) for _ in range(2)
        )
        self.terminations, self.dones = terminated.astype(float), (terminated | truncated).astype(float)
        self.next_values = np.where(terminated, np.nan, next_values)
        self.bootstraps = np.where(terminated, 0.0, next_values)
        self.discount, self.trace_lambda = (
            per_case(np.where(rng.random(NUM_CASES) < 0.3, rng.integers(0, 2, NUM_CASES), rng.random(NUM_CASES)))
            for _ in range(2)
        )
        self.gae_lambda = self.trace_lambda
        self.max_target_ratio, self.max_trace_ratio, self.max_policy_ratio = (
            per_case(rng.uniform(0.3, 1.5, NUM_CASES)) for _ in range(3)
        )

    def estimate(self, estimator: Callable[..., Any]) -> Any:
        """Run a compiled estimator on every case."""
        names = [name for name in inspect.signature(estimator).parameters if hasattr(self, name)]
        arguments = {name: jnp.asarray(getattr(self, name), jnp.float32) for name in names}
        arrays = {name: array for name, array in arguments.items() if array.shape == self.shape}
        scalars = {name: array.reshape(NUM_CASES) for name, array in arguments.items() if name not in arrays}
        over_cases = jax.vmap(lambda arrays, scalars: estimator(**arrays, **scalars), in_axes=(1, 0), out_axes=1)
        return jax.jit(over_cases)(arrays, scalars)

    def reaches(self, first: int, last: int) -> np.ndarray:
        """1 where rows `first` to `last` belong to one episode: no row before the last one ends it."""
        return np.prod(1.0 - self.dones[first:last], axis=0)

    def gae(self) -> np.ndarray:
        deltas = self.rewards + self.discount * self.bootstraps - self.values
        decay = self.discount * self.gae_lambda
        return self.each_row(
            lambda t: sum(decay ** (k - t) * self.reaches(t, k) * deltas[k] for k in range(t, self.length))
        )

    def return_over(self, t: int, num_steps: int) -> np.ndarray:
        """Rewards from row t while the episode lasts, at most `num_steps` of them, then the value of the successor."""
        last = min(t + num_steps, self.length) - 1
        total = np.zeros(self.shape[1:])
        for k in range(t, last + 1):
            total += self.reaches(t, k) * self.discount ** (k - t) * self.rewards[k]
            is_final = 1.0 if k == last else self.dones[k]
            total += self.reaches(t, k) * is_final * self.discount ** (k - t + 1) * self.bootstraps[k]
        return total

    def n_step_returns(self, num_steps: int) -> np.ndarray:
        return self.each_row(lambda t: self.return_over(t, num_steps))

    def lambda_returns(self) -> np.ndarray:
        def lambda_return(t: int) -> np.ndarray:
            # From the end of the trajectory on, all returns are the same: the last one has the remaining weight.
            horizon = self.length - t
            weights = [(1.0 - self.trace_lambda) * self.trace_lambda ** (n - 1) for n in range(1, horizon)]
            weights.append(self.trace_lambda ** (horizon - 1))
            return sum(weight * self.return_over(t, n) for n, weight in enumerate(weights, start=1))

        return self.each_row(lambda_return)

    def vtrace(self) -> tuple[np.ndarray, np.ndarray]:
        ratios = np.exp(self.log_ratios)
        errors = self.rewards + self.discount * self.bootstraps - self.values
        deltas = np.minimum(self.max_target_ratio, ratios) * errors
        traces = self.trace_lambda * np.minimum(self.max_trace_ratio, ratios)

        def target(t: int) -> np.ndarray:
            return self.values[t] + sum(
                self.discount ** (k - t) * np.prod(traces[t:k], axis=0) * self.reaches(t, k) * deltas[k]
                for k in range(t, self.length)
            )

        targets = self.each_row(target)

        def advantage(t: int) -> np.ndarray:
            successor = self.bootstraps[t]
            if t + 1 < self.length:
                successor = np.where(self.dones[t] == 1.0, successor, targets[t + 1])
            policy_ratio = np.minimum(self.max_policy_ratio, ratios[t])
            return policy_ratio * (self.rewards[t] + self.discount * successor - self.values[t])

        return targets, self.each_row(advantage)

    def each_row(self, estimate: Callable[[int], Any]) -> np.ndarray:
        return np.stack([estimate(t) for t in range(self.length)])


@pytest.fixture(params=[1, 2, 3, 4, 5, 7, 10, 13, 16, 20], ids="T={}".format)
def cases(request: pytest.FixtureRequest) -> Cases:
    """1,000 cases in all."""
    return Cases(request.param)


def assert_close(actual: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


def test_gae_equals_its_definition(cases: Cases) -> None:
    assert_close(cases.estimate(gae), cases.gae())


def test_lambda_returns_equal_the_mixture_of_n_step_returns(cases: Cases) -> None:
    assert_close(cases.estimate(lambda_returns), cases.lambda_returns())


def test_n_step_returns_equal_their_definition(cases: Cases) -> None:
    for num_steps in {1, 1 + cases.length // 3, cases.length + 2}:
        returns = cases.estimate(functools.partial(n_step_returns, num_steps=num_steps))
        assert_close(returns, cases.n_step_returns(num_steps))


def test_vtrace_equals_its_definition(cases: Cases) -> None:
    estimate = cases.estimate(vtrace)
    targets, advantages = cases.vtrace()
    assert_close(estimate.targets, targets)
    assert_close(estimate.advantages, advantages)


def column(*numbers: float) -> jax.Array:
    return jnp.asarray(numbers, jnp.float32)[:, None]  # [T, 1]


REWARDS, VALUES, NEXT_VALUES = column(1.0, 2.0, 3.0), column(10.0, 20.0, 30.0), column(20.0, 30.0, 40.0)
NEVER, MIDDLE, LAST = column(0.0, 0.0, 0.0), column(0.0, 1.0, 0.0), column(0.0, 0.0, 1.0)
"""With discount 1/2, worked by hand: no episode ends, one ends at the second row, one at the third."""


@pytest.mark.parametrize(
    ("terminations", "dones", "advantages"),
    [
        # deltas 1, -3, -7
        (NEVER, NEVER, [1.0 + (-3.0 - 7.0 / 4.0) / 4.0, -3.0 - 7.0 / 4.0, -7.0]),
        (NEVER, MIDDLE, [1.0 - 3.0 / 4.0, -3.0, -7.0]),
        # deltas 1, -18, -7
        (MIDDLE, MIDDLE, [1.0 - 18.0 / 4.0, -18.0, -7.0]),
        # deltas 1, -3, -27
        (LAST, LAST, [1.0 + (-3.0 - 27.0 / 4.0) / 4.0, -3.0 - 27.0 / 4.0, -27.0]),
    ],
)
def test_gae_of_three_steps_is_as_worked_by_hand(
    terminations: jax.Array, dones: jax.Array, advantages: list[float]
) -> None:
    actual = gae(REWARDS, VALUES, NEXT_VALUES, terminations, dones, discount=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(actual[:, 0], advantages)


@pytest.mark.parametrize(
    ("terminations", "dones", "returns"),
    [
        # G_2 = 3 + 40/2, G_1 = 2 + (30 + G_2)/4, G_0 = 1 + (20 + G_1)/4
        (NEVER, NEVER, [1.0 + (20.0 + 15.25) / 4.0, 15.25, 23.0]),
        (NEVER, MIDDLE, [1.0 + (20.0 + 17.0) / 4.0, 17.0, 23.0]),
        (MIDDLE, MIDDLE, [1.0 + (20.0 + 2.0) / 4.0, 2.0, 23.0]),
        (LAST, LAST, [1.0 + (20.0 + 10.25) / 4.0, 10.25, 3.0]),
    ],
)
def test_lambda_returns_of_three_steps_are_as_worked_by_hand(
    terminations: jax.Array, dones: jax.Array, returns: list[float]
) -> None:
    actual = lambda_returns(REWARDS, NEXT_VALUES, terminations, dones, discount=0.5, trace_lambda=0.5)
    np.testing.assert_array_equal(actual[:, 0], returns)


@pytest.mark.parametrize(
    ("terminations", "dones", "returns"),
    [
        (NEVER, NEVER, [1.0 + 2.0 / 2.0 + 30.0 / 4.0, 2.0 + 3.0 / 2.0 + 40.0 / 4.0, 3.0 + 40.0 / 2.0]),
        (NEVER, MIDDLE, [1.0 + 2.0 / 2.0 + 30.0 / 4.0, 2.0 + 30.0 / 2.0, 3.0 + 40.0 / 2.0]),
        (MIDDLE, MIDDLE, [1.0 + 2.0 / 2.0, 2.0, 3.0 + 40.0 / 2.0]),
        (LAST, LAST, [1.0 + 2.0 / 2.0 + 30.0 / 4.0, 2.0 + 3.0 / 2.0, 3.0]),
    ],
)
def test_two_step_returns_of_three_steps_are_as_worked_by_hand(
    terminations: jax.Array, dones: jax.Array, returns: list[float]
) -> None:
    actual = n_step_returns(REWARDS, NEXT_VALUES, terminations, dones, discount=0.5, num_steps=2)
    np.testing.assert_array_equal(actual[:, 0], returns)


def test_vtrace_of_three_steps_is_as_worked_by_hand() -> None:
    # Ratios 2, 1/2, 1 are cut to rho = 1.5, 1/2, 1 in the targets, to c = 1, 1/2, 1 in the traces and stay in the
    # policy gradient. Errors 1, -3, -7 give deltas 1.5, -1.5, -7 and corrections -0.125, -3.25, -7: the discounted
    # trace is 1/2 at the first row and 1/4 at the second. Targets are 10 + 1.5 - 3.25 / 2, 20 - 3.25, 30 - 7.
    estimate = vtrace(
        jnp.log(column(2.0, 0.5, 1.0)),
        REWARDS,
        VALUES,
        NEXT_VALUES,
        NEVER,
        NEVER,
        discount=0.5,
        max_target_ratio=1.5,
        max_trace_ratio=1.0,
        max_policy_ratio=3.0,
    )
    np.testing.assert_allclose(estimate.targets[:, 0], [9.875, 16.75, 23.0], rtol=1e-6)
    advantages = [2.0 * (1.0 + 16.75 / 2.0 - 10.0), 0.5 * (2.0 + 23.0 / 2.0 - 20.0), 3.0 + 40.0 / 2.0 - 30.0]
    np.testing.assert_allclose(estimate.advantages[:, 0], advantages, rtol=1e-6)


def all_estimates(
    rewards: jax.Array, values: jax.Array, next_values: jax.Array, terminations: jax.Array, dones: jax.Array
) -> dict[str, jax.Array]:
    """Every estimate as a return: the values are added to the advantages."""
    trajectory = (next_values, terminations, dones)
    corrected = vtrace(jnp.zeros_like(rewards), rewards, values, *trajectory, 0.9, 0.8)
    return {
        "gae": gae(rewards, values, *trajectory, 0.9, 0.8) + values,
        "lambda_returns": lambda_returns(rewards, *trajectory, 0.9, 0.8),
        "n_step_returns": n_step_returns(rewards, *trajectory, 0.9, 2),
        "vtrace targets": corrected.targets,
        "vtrace advantages": corrected.advantages + values,
    }


def test_termination_does_not_bootstrap_even_from_nan_and_infinity() -> None:
    for poison in (np.nan, np.inf, 1e9):
        poisoned = NEXT_VALUES.at[1].set(poison)
        for name, estimate in all_estimates(REWARDS, VALUES, poisoned, MIDDLE, MIDDLE).items():
            assert np.all(np.isfinite(estimate)), name
            np.testing.assert_array_equal(estimate[1], REWARDS[1], err_msg=name)


def test_truncation_bootstraps_from_the_true_successor() -> None:
    # The value of the row that follows belongs to the next episode: 30 there, 7 for the last observation of this one.
    next_values = NEXT_VALUES.at[1].set(7.0)
    for name, estimate in all_estimates(REWARDS, VALUES, next_values, NEVER, MIDDLE).items():
        np.testing.assert_allclose(estimate[1], REWARDS[1] + 0.9 * 7.0, rtol=1e-6, err_msg=name)


def test_nothing_is_carried_over_an_episode_border_not_even_nan() -> None:
    for terminations in (NEVER, MIDDLE):
        before = all_estimates(REWARDS, VALUES, NEXT_VALUES, terminations, MIDDLE)
        later = [array.at[2].set(np.nan) for array in (REWARDS, VALUES, NEXT_VALUES)]
        after = all_estimates(*later, terminations, MIDDLE)
        for name in before:
            np.testing.assert_array_equal(before[name][:2], after[name][:2], err_msg=name)


def test_the_last_row_bootstraps_although_no_episode_ends_there() -> None:
    for name, estimate in all_estimates(REWARDS, VALUES, NEXT_VALUES, NEVER, NEVER).items():
        np.testing.assert_allclose(estimate[2], REWARDS[2] + 0.9 * NEXT_VALUES[2], rtol=1e-6, err_msg=name)


def test_gradients_are_finite_where_a_terminal_value_is_nan() -> None:
    def total(rewards: jax.Array, values: jax.Array, next_values: jax.Array, mask: jax.Array) -> jax.Array:
        estimates = all_estimates(rewards, values, next_values, mask, mask)
        return sum(jnp.sum(estimate) for estimate in estimates.values())

    for row, mask in ((1, MIDDLE), (2, LAST)):
        gradients = jax.grad(total, argnums=(0, 1, 2))(REWARDS, VALUES, NEXT_VALUES.at[row].set(np.nan), mask)
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
        assert gradients[2][row] == 0.0


def test_the_gradient_of_lambda_is_finite_where_a_terminal_value_is_nan() -> None:
    def total(trace_lambda: jax.Array) -> jax.Array:
        return jnp.sum(lambda_returns(REWARDS, NEXT_VALUES.at[2].set(np.nan), LAST, LAST, 0.9, trace_lambda))

    assert np.isfinite(jax.grad(total)(jnp.asarray(0.8)))


@pytest.fixture
def trajectory() -> tuple[jax.Array, ...]:
    """Arguments of `gae`, `[40, 6]`; within an episode, the next value is the value of the next row."""
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 40, 6))
    terminated, truncated = rng.random((2, 40, 6)) < 0.1
    dones = terminated | truncated
    next_values[:-1] = np.where(dones[:-1], next_values[:-1], values[1:])
    arrays = (rewards, values, next_values, terminated, dones)
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


def test_lambda_zero_looks_one_step_ahead_and_lambda_one_to_the_end_of_the_episode(trajectory: Any) -> None:
    rewards, values, next_values, terminations, dones = trajectory
    rest = (next_values, terminations, dones)
    for trace_lambda, num_steps in ((0.0, 1), (1.0, len(rewards))):
        expected = n_step_returns(rewards, *rest, 0.9, num_steps)
        np.testing.assert_allclose(lambda_returns(rewards, *rest, 0.9, trace_lambda), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            gae(rewards, values, *rest, 0.9, trace_lambda) + values, expected, rtol=1e-4, atol=1e-5
        )


def test_gae_plus_values_is_the_lambda_return(trajectory: Any) -> None:
    rewards, values, *rest = trajectory
    np.testing.assert_allclose(
        gae(rewards, values, *rest, 0.9, 0.7) + values, lambda_returns(rewards, *rest, 0.9, 0.7), rtol=1e-4, atol=1e-5
    )


def test_vtrace_of_the_acting_policy_gives_lambda_returns(trajectory: Any) -> None:
    rewards, values, *rest = trajectory
    estimate = vtrace(jnp.zeros_like(rewards), rewards, values, *rest, 0.9, 0.7)
    np.testing.assert_allclose(estimate.targets, lambda_returns(rewards, *rest, 0.9, 0.7), rtol=1e-4, atol=1e-5)


def test_vtrace_learns_nothing_from_actions_that_the_policy_never_takes(trajectory: Any) -> None:
    rewards, values, *rest = trajectory
    estimate = vtrace(jnp.full_like(rewards, -jnp.inf), rewards, values, *rest, 0.9)
    np.testing.assert_array_equal(estimate.targets, values)
    np.testing.assert_array_equal(estimate.advantages, jnp.zeros_like(values))


def test_an_overflowing_ratio_is_truncated_and_has_a_finite_gradient(trajectory: Any) -> None:
    rewards, values, *rest = trajectory
    overflowing = vtrace(jnp.full_like(rewards, 200.0), rewards, values, *rest, 0.9)
    same_policy = vtrace(jnp.zeros_like(rewards), rewards, values, *rest, 0.9)
    jax.tree.map(np.testing.assert_array_equal, overflowing, same_policy)
    gradient = jax.grad(lambda log_ratios: jnp.sum(vtrace(log_ratios, rewards, values, *rest, 0.9).targets))
    np.testing.assert_array_equal(gradient(jnp.full_like(rewards, 200.0)), jnp.zeros_like(rewards))


def test_masks_may_be_boolean(trajectory: Any) -> None:
    rewards, values, next_values, terminations, dones = trajectory
    floats = all_estimates(rewards, values, next_values, terminations, dones)
    booleans = all_estimates(rewards, values, next_values, terminations.astype(bool), dones.astype(bool))
    jax.tree.map(np.testing.assert_array_equal, floats, booleans)


ARRAYS = {"log_ratios", "rewards", "values", "next_values", "terminations", "dones"}


@pytest.mark.parametrize("estimator", [gae, lambda_returns, functools.partial(n_step_returns, num_steps=2), vtrace])
def test_a_wrong_shape_is_an_error_when_traced(estimator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # What the tests add to every call is switched off: the function is on its own, as it is for users.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    names = [name for name in inspect.signature(estimator).parameters if name != "num_steps"]
    shapes = {name: (5, 3) if name in ARRAYS else () for name in names}

    def trace(**wrong_shapes: tuple[int, ...]) -> None:
        arguments = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in (shapes | wrong_shapes).items()}
        with jax.numpy_rank_promotion("allow"):
            jax.eval_shape(lambda arguments: estimator(**arguments), arguments)

    trace()
    for name in names[1:]:
        if name in ARRAYS:
            with pytest.raises(
                ShapeError, match=rf"{name} has shape \[5, 3, 1\]; expected that of {names[0]}, \[5, 3\]"
            ):
                trace(**{name: (5, 3, 1)})
        else:
            with pytest.raises(ShapeError, match=rf"{name} has shape \[3\]; expected one number"):
                trace(**{name: (3,)})


@pytest.mark.parametrize("num_steps", [0, -1, True])
def test_a_number_of_steps_below_one_is_an_error(num_steps: int) -> None:
    with pytest.raises(InvalidInputError, match="num_steps"):
        n_step_returns(REWARDS, NEXT_VALUES, NEVER, NEVER, 0.9, num_steps)
