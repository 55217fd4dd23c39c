"""Statistics over seeds, against SciPy."""

import numpy as np
import pytest
from scipy import stats

from rookery.report.statistics import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize("num_values", [*range(1, 14), 16, 33])
def test_interquartile_mean_is_the_mean_without_a_quarter_at_either_end(num_values: int) -> None:
    values = np.random.default_rng(num_values).normal(size=(num_values, 5, 3))
    np.testing.assert_allclose(interquartile_mean(values), stats.trim_mean(values, 0.25, axis=0), rtol=1e-12)
    turned = np.moveaxis(values, 0, 1)
    np.testing.assert_allclose(interquartile_mean(turned, axis=1), stats.trim_mean(values, 0.25, axis=0), rtol=1e-12)


def test_values_that_are_missing_are_left_out_before_the_quarters_are_cut_off() -> None:
    values = np.random.default_rng(0).normal(size=(9, 200))
    values[np.random.default_rng(1).random(values.shape) < 0.4] = np.nan
    values[:, 0] = np.nan
    expected = [stats.trim_mean(column[~np.isnan(column)], 0.25) for column in values.T[1:]]
    np.testing.assert_allclose(interquartile_mean(values)[1:], expected, rtol=1e-12)
    assert np.isnan(interquartile_mean(values)[0])


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("num_seeds", [5, 16])
def test_interval_agrees_with_scipy(num_seeds: int, confidence: float) -> None:
    values = np.random.default_rng(3).gamma(2.0, 10.0, size=num_seeds)

    def trim_mean(sample: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(sample, 0.25, axis=axis)

    expected = stats.bootstrap(
        (values,), trim_mean, confidence_level=confidence, method="percentile", n_resamples=20_000, rng=0
    ).confidence_interval
    low, high = bootstrap_interval(values, confidence=confidence, num_resamples=20_000)
    np.testing.assert_allclose([low, high], [expected.low, expected.high], atol=0.02 * np.ptp(values))


def test_interval_is_that_of_the_statistic_asked_for() -> None:
    values = np.random.default_rng(4).normal(size=16)
    expected = stats.bootstrap((values,), np.max, method="percentile", n_resamples=4000, rng=0).confidence_interval
    low, high = bootstrap_interval(values, statistic=np.max)
    np.testing.assert_allclose([low, high], [expected.low, expected.high], atol=0.02 * np.ptp(values))


def test_interval_of_a_curve_is_that_of_each_of_its_points() -> None:
    values = np.random.default_rng(5).normal(size=(8, 150))
    low, high = bootstrap_interval(values, num_resamples=200)
    for column in (0, 63, 64, 149):
        assert (low[column], high[column]) == bootstrap_interval(values[:, column], num_resamples=200)


def test_equal_arguments_give_equal_intervals_and_another_seed_gives_others() -> None:
    values = np.random.default_rng(6).normal(size=(8, 3))
    np.testing.assert_array_equal(bootstrap_interval(values), bootstrap_interval(values))
    assert np.any(np.asarray(bootstrap_interval(values)) != np.asarray(bootstrap_interval(values, seed=1)))


def test_fewer_than_two_values_have_no_interval() -> None:
    assert np.isnan(bootstrap_interval(np.array([3.0]))).all()
    with_gaps = np.array([[1.0, np.nan, 1.0], [2.0, 5.0, np.nan], [3.0, np.nan, 2.0]])
    low, high = bootstrap_interval(with_gaps)
    np.testing.assert_array_equal(np.isnan(low), [False, True, False])
    np.testing.assert_array_equal(np.isnan(high), [False, True, False])
    assert (low[2], high[2]) == (1.0, 2.0)
