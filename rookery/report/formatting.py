"""Formatting of numbers, durations and ticks for the report."""

import math
from collections.abc import Sequence

SI_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_number(value: float) -> str:
    """Format a value with four significant digits: 0.01234, 496.3, 1,234,568."""
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if 0 < abs(value) < 1e-3:
        return f"{value:.3g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: 0.4 s, 12 s, 3 min 20 s, 1 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format evenly spaced ticks uniformly, with as few digits as distinguish them: 0, 100k, 200k."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else largest or 1.0
    scale, suffix = next(((scale, suffix) for scale, suffix in SI_PREFIXES if largest >= scale), (1.0, ""))
    if 0.0 < largest < 1e-2 or largest >= 1e15:
        exponent = math.floor(math.log10(largest))
        scale, suffix = 10.0**exponent, f"e{exponent}"
    decimals = min(max(0, -math.floor(math.log10(step / scale) + 1e-9)), 6)
    return ["0" if tick == 0 else f"{tick / scale:.{decimals}f}{suffix}" for tick in ticks]
