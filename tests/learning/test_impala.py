"""What IMPALA is for: it learns from actors whose policy is older than the one that learns."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")


def test_impala_learns_cartpole_from_actors_that_lag_behind(train: Callable[..., Any]) -> None:
    trained = train("agent=impala", "env=classic/cartpole", "agent.actor_lag=4", "num_seeds=3")
    assert trained.returns.mean() >= 475.0, trained.returns
