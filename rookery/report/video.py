"""Videos as animated images, which every browser plays."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.runs.files import write_output

if TYPE_CHECKING:  # imported when a video is written: it takes long
    from PIL import Image

FORMATS: dict[str, dict[str, Any]] = {
    ".gif": {"format": "GIF", "optimize": False},
    ".webp": {"format": "WEBP", "lossless": True, "method": 0},
    ".apng": {"format": "PNG"},
    ".png": {"format": "PNG"},
}
"""Pillow options by file suffix."""
MAX_FRAMES = 600
"""Of longer episodes, every second, fourth, ... frame is kept; an even number keeps them evenly spaced."""
NUM_PALETTE_FRAMES = 8
MAX_BYTES_IN_REPORT = 1_500_000
"""The maximum size of a recorded episode in a report."""


def write_video(
    path: Path, frames: Iterable[np.ndarray], frames_per_second: float = 30.0, max_bytes: int | None = None
) -> Path:
    """Write frames `uint8[height, width, 3]` as an endless .gif, .webp, .apng or .png; return the path.

    If there are more than `MAX_FRAMES` frames, or if the file would exceed `max_bytes`, frames are dropped and the
    others shown longer. `frames` is consumed lazily.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"cannot write a video to {path.name!r}: the name must end in {', '.join(FORMATS)}.")
    if frames_per_second <= 0:
        raise InvalidInputError(f"frames_per_second={frames_per_second} must be positive.")
    images, stride = _thinned_images(frames)
    if not images:
        raise InvalidInputError(f"no frames to write to {path}.")
    if path.suffix.lower() == ".gif":
        images = _with_common_palette(images)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _encode(path.suffix, images, stride / frames_per_second)
    while max_bytes is not None and len(content) > max_bytes and len(images) > 1:
        images, stride = images[::2], 2 * stride
        content = _encode(path.suffix, images, stride / frames_per_second)
    write_output(path, content)
    return path


def _thinned_images(frames: Iterable[np.ndarray]) -> tuple[list["Image.Image"], int]:
    """Keep every `stride`-th frame such that at most `MAX_FRAMES` are kept; return them and the stride."""
    from PIL import Image

    images: list[Image.Image] = []
    stride = 1
    for number, frame in enumerate(frames):
        if number % stride:
            continue
        if len(images) == MAX_FRAMES:
            images, stride = images[::2], 2 * stride
        images.append(Image.fromarray(np.asarray(frame)))
    return images, stride


def _with_common_palette(images: list["Image.Image"]) -> list["Image.Image"]:
    """Quantize all frames to one palette of 256 colors: faster than one per frame, and without flicker."""
    from PIL import Image

    samples = images[:: -(-len(images) // NUM_PALETTE_FRAMES)]
    strip = Image.fromarray(np.concatenate([np.asarray(image) for image in samples]))
    palette = strip.quantize(256, Image.Quantize.MEDIANCUT)
    return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]


def _encode(suffix: str, images: list["Image.Image"], seconds_per_frame: float) -> bytes:
    file = io.BytesIO()
    first, *rest = images
    first.save(
        file,
        save_all=True,
        append_images=rest,
        duration=round(1000 * seconds_per_frame),
        loop=0,
        **FORMATS[suffix.lower()],
    )
    return file.getvalue()
