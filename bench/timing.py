"""Fair timing on a noisy machine: contenders take turns in one run, and only ratios are compared."""

import time
from collections.abc import Callable
from typing import Any

import jax

Contenders = dict[str, Callable[[], Any]]


def cpu_seconds(contenders: Contenders, num_rounds: int = 7) -> dict[str, float]:
    """Return the CPU seconds of one call of each contender without compilation: the best of several rounds."""
    return best_seconds(contenders, time.process_time, num_rounds)


def best_seconds(contenders: Contenders, clock: Callable[[], float], num_rounds: int) -> dict[str, float]:
    """Return the seconds by `clock` of one call of each contender without compilation: the best of several rounds.

    The contenders alternate; a short call is repeated for about 50 ms.
    """
    num_calls = {name: _calls_for_50_ms(run) for name, run in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(num_rounds):
        for name, run in contenders.items():
            start = clock()
            for _ in range(num_calls[name]):
                jax.block_until_ready(run())
            best[name] = min(best[name], (clock() - start) / num_calls[name])
    return best


def _calls_for_50_ms(run: Callable[[], Any]) -> int:
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    return max(1, int(0.05 / (time.perf_counter() - start)))
