"""Statistics over seeds: the interquartile mean and its bootstrap interval (Agarwal et al., 2021).

The paper resamples within each task (a stratified bootstrap). A run is one task, so its one stratum is its seeds.
"""

from collections.abc import Callable

import numpy as np

Statistic = Callable[..., np.ndarray]
"""`statistic(values, axis=...)`: reduces one axis and ignores NaN, like `interquartile_mean`."""

COLUMNS_AT_ONCE = 64
"""The number of columns resampled together; affects memory, not results."""


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean of the middle half along `axis`: a quarter, rounded down, is dropped at each end.

    NaN values are ignored; the result is NaN if all values are.
    """
    ordered = np.sort(np.moveaxis(np.asarray(values, np.float64), axis, -1), axis=-1)  # NaN comes last
    num_values = np.count_nonzero(~np.isnan(ordered), axis=-1)[..., None]
    num_cut = num_values // 4
    rank = np.arange(ordered.shape[-1])
    kept = (rank >= num_cut) & (rank < num_values - num_cut)
    total = np.sum(ordered, axis=-1, where=kept)
    count = np.count_nonzero(kept, axis=-1)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def bootstrap_interval(
    values: np.ndarray,
    statistic: Statistic = interquartile_mean,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of `statistic` over the first axis of `values`.

    All columns use the same resamples, so the interval of a curve is as smooth as the curve. The interval of a column
    with fewer than two values is NaN. The result is deterministic.
    """
    values = np.asarray(values, np.float64)
    columns = values.reshape(len(values), -1)
    tail = (1.0 - confidence) / 2.0
    indices = np.random.default_rng(seed).integers(len(values), size=(num_resamples, len(values)))
    ends = np.full((2, columns.shape[1]), np.nan)
    (known,) = np.nonzero(np.count_nonzero(~np.isnan(columns), axis=0) >= 2)
    for start in range(0, len(known), COLUMNS_AT_ONCE):
        block = known[start : start + COLUMNS_AT_ONCE]
        resampled = statistic(columns[:, block][indices], axis=1)
        ends[:, block] = np.nanquantile(resampled, [tail, 1.0 - tail], axis=0)
    low, high = ends.reshape(2, *values.shape[1:])
    return low, high
