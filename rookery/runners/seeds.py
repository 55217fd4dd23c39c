"""Seeds of episodes: every one its own, whatever fails and is built anew."""

import hashlib
import struct


def episode_seed(run_seed: int, runner_index: int, env_index: int, incarnation: int, episode: int) -> int:
    """Return the seed of an episode, between 0 and 2^31 - 1; two alike are as rare as among random numbers.

    `incarnation` counts how often the env was built, `episode` the episodes of this slot.
    """
    parts = struct.pack("<5q", run_seed, runner_index, env_index, incarnation, episode)
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "little") & 0x7FFFFFFF
