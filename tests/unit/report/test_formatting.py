"""Numbers as people write them."""

import pytest

from rookery.report.formatting import format_duration, format_number, tick_labels


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (500.0, "500"),
        (496.28, "496.3"),
        (-0.012344, "-0.01234"),
        (9.99996, "10"),
        (1_234_567.8, "1,234,568"),
        (0.0003, "0.0003"),
        (1.5e-7, "1.5e-07"),
        (float("nan"), "NaN"),
    ],
)
def test_measured_values_have_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (12.4, "12 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3_900, "1 h 5 min"),
        (360_000, "100 h 0 min"),
    ],
)
def test_times_are_written_with_their_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0.0, 100_000.0, 200_000.0], ["0", "100k", "200k"]),
        ([0.0, 5e5, 1e6, 1.5e6], ["0", "0.5M", "1.0M", "1.5M"]),
        ([-0.2, 0.0, 0.2], ["-0.2", "0", "0.2"]),
        ([0.0, 1e-4, 2e-4], ["0", "1e-4", "2e-4"]),
        ([1e18, 2e18], ["1e18", "2e18"]),
        ([-200.0, -150.0], ["-200", "-150"]),
        ([0.0], ["0"]),
    ],
)
def test_the_labels_of_an_axis_are_alike_and_short(ticks: list[float], labels: list[str]) -> None:
    assert tick_labels(ticks) == labels
