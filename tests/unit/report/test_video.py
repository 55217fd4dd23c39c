"""Videos are read back by Pillow: the right frames, shown for the right time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from rookery.errors import InvalidInputError
from rookery.report import video
from rookery.report.video import write_video

SIZE = (40, 64, 3)


def frame(number: int) -> np.ndarray:
    """A picture in which a bright bar stands at the place of its number."""
    pixels = np.full(SIZE, 30, np.uint8)
    pixels[:, number % SIZE[1]] = (250, 120, 10)
    return pixels


def shown_numbers(path: Path) -> list[int]:
    with Image.open(path) as animation:
        pictures = [np.asarray(picture.convert("RGB")) for picture in ImageSequence.Iterator(animation)]
    return [int(np.argmax(picture[0, :, 0])) for picture in pictures]


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".apng", ".png", ".GIF"])
def test_every_format_plays_the_frames_in_order_at_the_speed_asked_for(suffix: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "new" / f"episode{suffix}", map(frame, range(10)), frames_per_second=20)
    assert shown_numbers(path) == list(range(10))
    with Image.open(path) as animation:
        animation.seek(3)
        animation.load()
        assert animation.info["duration"] == 50
        assert animation.info["loop"] == 0
        np.testing.assert_array_equal(np.asarray(animation.convert("RGB")), frame(3))


def test_a_gif_keeps_colors_that_appear_late(tmp_path: Path) -> None:
    frames = [frame(number) for number in range(40)]
    for late in frames[34:]:
        late[20:] = (20, 200, 60)
    with Image.open(write_video(tmp_path / "a.gif", frames)) as animation:
        animation.seek(39)
        np.testing.assert_array_equal(np.asarray(animation.convert("RGB")), frames[39])


def test_a_long_episode_is_shown_at_the_same_pace_with_fewer_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 10)
    path = write_video(tmp_path / "a.gif", map(frame, range(35)), frames_per_second=50)
    assert shown_numbers(path) == list(range(0, 35, 4))
    with Image.open(path) as animation:
        assert animation.info["duration"] == 80


def test_frames_are_dropped_until_the_file_is_small_enough(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, *SIZE), np.uint8)
    whole = write_video(tmp_path / "whole.gif", noise).stat().st_size
    path = write_video(tmp_path / "a.gif", noise, frames_per_second=50, max_bytes=whole // 3)
    assert path.stat().st_size <= whole // 3
    with Image.open(path) as animation:
        assert animation.n_frames == 8
        assert animation.info["duration"] == 80


def test_only_the_frames_that_are_kept_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 4)

    def frames() -> Iterator[np.ndarray]:
        for number in range(64):
            yield frame(number)

    assert shown_numbers(write_video(tmp_path / "a.webp", frames())) == [0, 16, 32, 48]


def test_what_cannot_be_written_is_refused_with_the_names_that_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"'episode.mp4'.*\.gif, \.webp, \.apng, \.png"):
        write_video(tmp_path / "episode.mp4", [frame(0)])
    with pytest.raises(InvalidInputError, match="no frame"):
        write_video(tmp_path / "a.gif", [])
    with pytest.raises(InvalidInputError, match="frames_per_second=0"):
        write_video(tmp_path / "a.gif", [frame(0)], frames_per_second=0)
    assert list(tmp_path.iterdir()) == []
