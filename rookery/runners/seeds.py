"""Seeds of episodes: no two are alike, also after faults and restarts."""

import functools
import hashlib
import struct

NUM_SEEDS = 2**31
"""Seeds are below this limit, as NumPy's `RandomState` and simulators written in C require."""


def episode_seed(run_seed: int, runner_index: int, number: int) -> int:
    """Return the seed of an episode, by its number in its runner: no two of a run are alike.

    Seeds repeat only if the number of runners, rounded up to a power of two, times the episodes of each exceeds 2^31.
    Another `run_seed` gives them another order.
    """
    offset, first, second, third = _offset_and_keys(run_seed, runner_index)
    # Adding a key, multiplying by an odd number and mixing the upper bits into the lower ones are all
    # invertible, so this is a permutation of the numbers below 2^31.
    seed = ((number ^ offset) + first) * 0x2C1B3C6D % NUM_SEEDS
    seed = ((seed ^ seed >> 15) + second) * 0x297A2D39 % NUM_SEEDS
    seed = ((seed ^ seed >> 15) + third) * 0x2C1B3C6D % NUM_SEEDS
    return seed ^ seed >> 15


@functools.lru_cache
def _offset_and_keys(run_seed: int, runner_index: int) -> tuple[int, int, int, int]:
    # Runners are counted from the highest bit down and episodes from the lowest up, until they meet.
    offset = int(f"{runner_index:031b}"[::-1], 2)
    return offset, *struct.unpack("<3I", hashlib.blake2b(str(run_seed).encode(), digest_size=12).digest())
