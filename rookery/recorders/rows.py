"""Rows of metrics: the columns that identify a row, and its values as Python numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError

SEED = "seed"
ENV_STEPS = "time/total_timesteps"


def as_number(name: str, value: Any) -> int | float:
    """Return the value of a metric as a Python number."""
    array = np.asarray(value)
    if array.shape == () and isinstance(number := array.item(), (int, float)):
        return number
    raise InvalidInputError(f"metric {name!r} must be one number, got {value!r}.")


def plotted_metrics(row: Mapping[str, float]) -> dict[str, int | float]:
    """Return the metrics of a row that are plotted over env steps: all except the seed and the env steps."""
    return {name: as_number(name, value) for name, value in row.items() if name not in (SEED, ENV_STEPS)}


def by_policy(row: Mapping[str, float], metric: str) -> dict[str, float]:
    """Return a metric of each policy, `POLICY/metric`, by the name of the policy."""
    return {
        name.removesuffix(f"/{metric}"): as_number(name, value)
        for name, value in row.items()
        if name.endswith(f"/{metric}")
    }
