"""Axes: round labels inside their range, and room for every value."""

import numpy as np
import pytest

from rookery.report.axes import Axis, axis_of_values, range_of, round_values


@pytest.mark.parametrize(
    ("low", "high", "num_values", "expected"),
    [
        (0, 500_000, 5, [0, 100_000, 200_000, 300_000, 400_000, 500_000]),
        (-212, -90, 5, [-200, -180, -160, -140, -120, -100]),
        (0, 1, 3, [0, 0.5, 1.0]),
        (2e-4, 1e-3, 4, [2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
    ],
)
def test_axes_are_labeled_at_round_values(low: float, high: float, num_values: int, expected: list[float]) -> None:
    np.testing.assert_allclose(round_values(low, high, num_values), expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 37.0, 1e7])
def test_every_axis_has_a_few_labels_inside_it(scale: float) -> None:
    axis = axis_of_values(np.random.default_rng(0).normal(size=20) * scale)
    assert 3 <= len(axis.ticks) <= 10
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


def test_an_axis_maps_its_ends_to_0_and_1() -> None:
    np.testing.assert_array_equal(Axis(-5.0, 15.0, ()).fraction(np.array([-5.0, 5.0, 15.0])), [0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("values", "expected"), [([3.0, 3.0], (1.5, 4.5)), ([0.0], (-0.5, 0.5)), ([1.0, 2.0], (1.0, 2.0))]
)
def test_a_constant_is_in_the_middle_of_its_range(values: list[float], expected: tuple[float, float]) -> None:
    assert range_of(np.array(values)) == expected
