"""Replay on one core, against flashbax: add one row and sample 256, with a capacity of ten thousand and of a million.

The rows are those of Pendulum. A call is a thousand rounds in one program whose state is donated, by CPU time.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.processes import measure
from bench.table import Row

SMALL, LARGE = 10_000, 1_000_000
BATCH_SIZE = 256
NUM_ROUNDS = 1_000
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))[:1]
    for kind in ("uniform", "prioritized"):
        small, large = (measure("bench.replay", kind, capacity, cores=cores) for capacity in (SMALL, LARGE))
        yield Row(
            f"{kind} replay, {LARGE:,} rows",
            f"{large['rookery']:.0f} us a round",
            f"{SMALL:,} rows {small['rookery']:.0f} us",
            small["rookery"] / large["rookery"],
        )
        if "flashbax" in large:
            yield Row(
                f"{kind} replay, {LARGE:,} rows",
                f"{large['rookery']:.0f} us a round",
                f"flashbax {large['flashbax']:.0f} us",
                large["flashbax"] / large["rookery"],
            )
        else:
            yield Row(f"{kind} replay, {LARGE:,} rows", f"{large['rookery']:.0f} us a round", f"flashbax: {INSTALL}")


# Functions that run in the processes.


def transition() -> dict[str, Any]:
    import jax.numpy as jnp

    scalar = jnp.zeros(())
    return {"obs": jnp.zeros(3), "action": jnp.zeros(1), "reward": scalar, "next_obs": jnp.zeros(3), "done": scalar}


def uniform(capacity: int) -> dict[str, float]:
    """Return the microseconds of one round: add a row, sample a batch."""
    contenders = {"rookery": rookery_rounds(capacity, is_prioritized=False)}
    if importlib.util.find_spec("flashbax"):
        import flashbax

        buffer = flashbax.make_flat_buffer(capacity, BATCH_SIZE, BATCH_SIZE)

        def flashbax_round(state: Any, row: Any, key: Any) -> tuple[Any, Any]:
            state = buffer.add(state, row)
            return state, buffer.sample(state, key).experience.first["obs"]

        contenders["flashbax"] = rounds(capacity, buffer.init(transition()), flashbax_round, buffer.add)
    return microseconds_of(contenders)


def prioritized(capacity: int) -> dict[str, float]:
    """Return the microseconds of one round: add a row, sample a batch, update its priorities."""
    contenders = {"rookery": rookery_rounds(capacity, is_prioritized=True)}
    if importlib.util.find_spec("flashbax"):
        import flashbax

        buffer = flashbax.make_prioritised_flat_buffer(capacity, BATCH_SIZE, BATCH_SIZE)

        def flashbax_round(state: Any, row: Any, key: Any) -> tuple[Any, Any]:
            state = buffer.add(state, row)
            sample = buffer.sample(state, key)
            obs = sample.experience.first["obs"]
            return buffer.set_priorities(state, sample.indices, abs(obs[:, 0]) + 0.5), obs

        contenders["flashbax"] = rounds(capacity, buffer.init(transition()), flashbax_round, buffer.add)
    return microseconds_of(contenders)


def rookery_rounds(capacity: int, is_prioritized: bool) -> Callable[[], Any]:
    import jax

    from rookery.replay_buffers import PrioritizedBuffer, UniformBuffer

    buffer = (PrioritizedBuffer if is_prioritized else UniformBuffer)(capacity=capacity, num_envs=1)

    def add(state: Any, row: Any) -> Any:
        return buffer.add(state, jax.tree.map(lambda leaf: leaf[None, None], row))

    def one_round(state: Any, row: Any, key: Any) -> tuple[Any, Any]:
        state = add(state, row)
        sample = buffer.sample(state, key, BATCH_SIZE)
        obs = sample.sequence["obs"][0]
        if is_prioritized:
            state = buffer.update_priorities(state, sample.indexes, abs(obs[:, 0]) + 0.5)
        return state, obs

    return rounds(capacity, buffer.init(transition()), one_round, add)


def rounds(capacity: int, state: Any, one_round: Callable, add: Callable) -> Callable[[], Any]:
    """Rounds on a full buffer as one program; each call continues from the last."""
    import jax
    import jax.numpy as jnp

    def row(index: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.001) * index, transition())

    def fill(index: Any, state: Any) -> Any:
        return add(state, row(index.astype(jnp.float32)))

    state = jax.jit(lambda state: jax.lax.fori_loop(0, capacity, fill, state), donate_argnums=0)(state)

    def advance(state: Any, key: Any, total: Any) -> tuple[Any, Any, Any]:
        def body(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            state, key, total = carry
            key, sample_key = jax.random.split(key)
            state, obs = one_round(state, row(index.astype(jnp.float32)), sample_key)
            return state, key, total + jnp.sum(obs)

        return jax.lax.fori_loop(0, NUM_ROUNDS, body, (state, key, total))

    program = jax.jit(advance, donate_argnums=0)
    carried = state, jax.random.key(0), jnp.zeros(())

    def run() -> Any:
        nonlocal carried
        carried = program(*carried)
        return carried

    return run


def microseconds_of(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    from bench.timing import cpu_seconds

    return {name: 1e6 * seconds / NUM_ROUNDS for name, seconds in cpu_seconds(contenders, num_rounds=5).items()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
