"""From records to curves: nothing is mixed up between seeds, and thinning out loses no extreme."""

import numpy as np
import pytest

from rookery.report.curves import diverged_seeds, make_curve, read_series, thin_out


def test_each_value_lands_at_its_seed_and_step_whatever_the_order_of_the_rows() -> None:
    rows = [
        {"seed": seed, "time/total_timesteps": steps, "train/loss": 10.0 * seed + steps}
        for seed in (7, 3)
        for steps in (200, 100)
    ]
    series = read_series(rows)["train/loss"]
    np.testing.assert_array_equal(series.steps, [[100, 200]] * 2)
    np.testing.assert_array_equal(series.values, [[130.0, 230.0], [170.0, 270.0]])
    np.testing.assert_array_equal(series.grid, [100, 200])


def test_each_seed_is_at_its_own_steps_and_the_mean_on_a_grid_up_to_the_smallest_last_step() -> None:
    rows = [
        {"seed": 0, "time/total_timesteps": 90, "time/iterations": 1, "a": 1.0},
        {"seed": 1, "time/total_timesteps": 100, "time/iterations": 1, "a": 2.0},
        {"seed": 0, "time/total_timesteps": 110, "time/iterations": 2, "a": 3.0},
        {"seed": 0, "time/total_timesteps": 210, "time/iterations": 3, "a": 5.0},
        {"seed": 1, "time/total_timesteps": 300, "time/iterations": 2, "a": 4.0, "b": 5.0},
    ]
    series = read_series(rows)["a"]
    assert [steps.tolist() for steps in series.steps] == [[90, 110, 210], [100, 300]]
    np.testing.assert_array_equal(series.grid, [100, 110, 210])
    np.testing.assert_allclose(series.on_grid, [[2.0, 3.0, 5.0], [2.0, 2.1, 3.1]])
    np.testing.assert_array_equal(series.last_values, [5.0, 4.0])
    curve = make_curve(series, max_points=100, max_seed_points=100)
    assert [steps.tolist() for steps, _ in curve.seeds] == [[90, 110, 210], [100, 300]]
    assert [steps.tolist() for steps in read_series(rows)["b"].steps] == [[], [300]]


def test_a_diverged_seed_ends_there_and_the_others_go_on() -> None:
    rows = [
        {"seed": seed, "time/total_timesteps": steps, "a": float(seed), "time/fps": 1.0}
        | ({"train/diverged": 1.0} if seed == 1 and steps >= 20 else {})
        for steps in (10, 20, 30)
        for seed in range(3)
    ]
    assert diverged_seeds(rows) == {1: 20}
    found = read_series(rows)
    assert "train/diverged" not in found
    series = found["a"]
    assert [steps.tolist() for steps in series.steps] == [[10, 20, 30], [10], [10, 20, 30]]
    np.testing.assert_array_equal(series.grid, [10, 20, 30])
    np.testing.assert_array_equal(series.last_values, [0.0, np.nan, 2.0])
    assert make_curve(series, max_points=100, max_seed_points=100).ends == ((10, 1.0),)
    np.testing.assert_array_equal(found["time/fps"].last_values, [1.0, 1.0, 1.0])


def test_seeds_without_common_steps_have_no_mean() -> None:
    rows = [{"seed": seed, "time/total_timesteps": 10 * seed, "a": 1.0} for seed in range(2)]
    curve = make_curve(read_series(rows)["a"], max_points=100, max_seed_points=100)
    assert len(curve.center) == 0
    assert len(curve.seeds) == 2


def test_values_that_are_not_finite_are_gaps_and_counted() -> None:
    rows = [
        {"seed": 0, "time/total_timesteps": 1, "a": 1.0},
        {"seed": 1, "time/total_timesteps": 1},
        {"seed": 0, "time/total_timesteps": 2, "a": float("nan")},
        {"seed": 1, "time/total_timesteps": 2, "a": float("-inf")},
        {"seed": 0, "time/total_timesteps": 3, "b": 1},
    ]
    series = read_series(rows)["a"]
    assert [steps.tolist() for steps in series.steps] == [[1, 2], [2]]
    np.testing.assert_array_equal(series.values[0], [1.0, np.nan])
    np.testing.assert_array_equal(series.values[1], [np.nan])
    assert series.num_not_finite == 2


@pytest.mark.parametrize("max_points", [10, 160, 500])
def test_thinning_keeps_the_ends_and_every_spike(max_points: int) -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    values[[31_415, 92_653]] = [50.0, -50.0]
    kept = thin_out(values, max_points)
    assert len(kept) <= max_points
    assert {0, 31_415, 92_653, 99_999} <= set(kept.tolist())
    assert np.all(np.diff(kept) > 0)


def test_a_short_curve_is_kept_whole_and_one_without_values_can_be_thinned() -> None:
    np.testing.assert_array_equal(thin_out(np.arange(20.0), 20), np.arange(20))
    assert len(thin_out(np.full(1000, np.nan), 100)) <= 100


def test_a_single_seed_has_no_interval_and_no_thin_lines() -> None:
    rows = [{"seed": 5, "time/total_timesteps": step, "a": float(step)} for step in range(30)]
    curve = make_curve(read_series(rows)["a"], max_points=100, max_seed_points=100)
    assert curve.low is None
    assert curve.high is None
    assert curve.seeds == ()
    np.testing.assert_array_equal(curve.center, np.arange(30.0))


def test_the_interval_encloses_the_center_and_every_seed_has_its_line() -> None:
    noise = np.random.default_rng(1)
    rows = [
        {"seed": seed, "time/total_timesteps": step, "a": noise.normal()} for step in range(400) for seed in range(6)
    ]
    curve = make_curve(read_series(rows)["a"], max_points=100, max_seed_points=50)
    assert len(curve.center) <= 100
    assert np.all(curve.low <= curve.center)
    assert np.all(curve.center <= curve.high)
    assert len(curve.seeds) == 6
    assert all(len(steps) == len(values) <= 50 for steps, values in curve.seeds)
