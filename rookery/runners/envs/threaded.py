"""The common part of vector envs that a library steps in its own threads: seeds, and the layout of images."""

from typing import Any

import gymnasium
import numpy as np

MAX_SEED = 2**31 - 1


def channels_last(images: np.ndarray) -> np.ndarray:
    """Turn `[N, C, H, W]`, or `[N, C, H, W, 3]` for frames in color, into `[N, H, W, channels]`."""
    images = np.moveaxis(images, 1, 3)
    return images if images.ndim == 4 else images.reshape(*images.shape[:3], -1)


def images_channels_last(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    """Return the space of one such image."""
    shape = channels_last(space.low[None]).shape[1:]
    return gymnasium.spaces.Box(0, 255, shape, np.uint8)


def seeds_of(seed: Any, num_envs: int) -> np.ndarray:
    """Return one seed for each env, from one seed or several."""
    if np.ndim(seed) == 1:
        return np.asarray(seed)
    return np.random.SeedSequence(seed).generate_state(num_envs).astype(np.int64) % MAX_SEED
