"""Logs of episodes: what is written comes back, and what is torn, doubled or missing is told."""

import errno
import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.offline.episode_log import EpisodeLog, ReadLog, read_log
from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.runners.recording.episode import Episode
from rookery.spaces import Box, Dict, Discrete, Tuple

BOX = {SINGLE_AGENT: (Box(-np.inf, np.inf, (2,)), Discrete(3))}


def write_episode(log: EpisodeLog, name: str, length: int, end: End = End.TERMINATED, agent: str | None = None) -> None:
    for t in range(length):
        is_over = t == length - 1
        obs = np.array([t, 0.1], np.float32)
        terminated, truncated = is_over and end is End.TERMINATED, is_over and end is End.TRUNCATED
        log.write(name, t, agent, obs, t % 3, 0.5 * t, terminated, truncated, -0.1 * t, "default@4")
    log.write(name, length, agent, np.array([length, 0.1], np.float32), None, 0.0, False, False, None, None)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def the_episodes(read: ReadLog) -> list[Episode]:
    return list(read.episodes[SINGLE_AGENT])


def lines_of(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("end", [End.TERMINATED, End.TRUNCATED, End.RUNNING])
def test_an_episode_comes_back_as_it_was_written(tmp_path: Path, end: End) -> None:
    log = EpisodeLog(tmp_path, BOX)
    write_episode(log, "a", 4, end)
    log.close()
    (episode,) = the_episodes(read_log(tmp_path))
    np.testing.assert_array_equal(episode.observations, [[t, np.float32(0.1)] for t in range(5)])
    assert episode.observations.dtype == np.float32
    np.testing.assert_array_equal(episode.actions, [0, 1, 2, 0])
    np.testing.assert_array_equal(episode.rewards, [0.0, 0.5, 1.0, 1.5])
    np.testing.assert_array_equal(episode.extras["log_prob"], np.float32([0.0, -0.1, -0.2, -0.1 * 3]))
    assert episode.end is (End.TERMINATED if end is End.TERMINATED else End.TRUNCATED)


def test_images_and_nested_spaces_come_back_bit_for_bit(tmp_path: Path) -> None:
    obs_space = Dict({"image": Box(0, 255, (9, 9, 2), np.uint8), "more": Tuple((Discrete(4), Box(-1, 1, (3,))))})
    draw = np.random.default_rng(0)
    shown: list[Any] = [
        {
            "image": draw.integers(0, 256, (9, 9, 2)).astype(np.uint8),
            "more": (draw.integers(4), draw.normal(size=3).astype(np.float32)),
        }
        for _ in range(3)
    ]
    log = EpisodeLog(tmp_path, {SINGLE_AGENT: (obs_space, Box(-1, 1, (1,)))})
    for t, obs in enumerate(shown):
        action = None if t == 2 else np.array([0.3], np.float32)
        log.write("a", t, None, obs, action, 1.0, False, False, None, None)
    log.close()
    (episode,) = the_episodes(read_log(tmp_path))
    for t, obs in enumerate(shown):
        np.testing.assert_array_equal(episode.observations["image"][t], obs["image"])
        np.testing.assert_array_equal(episode.observations["more"][0][t], obs["more"][0])
        np.testing.assert_array_equal(episode.observations["more"][1][t], obs["more"][1])
    assert "log_prob" not in episode.extras


def test_a_log_that_was_cut_anywhere_keeps_all_complete_lines_and_nothing_else(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, BOX)
    write_episode(log, "a", 6, End.TRUNCATED)
    log.close()
    (path,) = tmp_path.glob("*.jsonl")
    content = path.read_bytes()
    for size in range(len(content) - 1, 0, -17):
        path.write_bytes(content[:size])
        num_lines = content[:size].count(b"\n")
        read = read_log(tmp_path)
        assert sum(map(len, the_episodes(read))) == max(0, num_lines - 1)
        assert read.counts["torn"] == int(content[size - 1 : size] != b"\n")


def test_lines_in_any_order_and_doubled_lines_count_once(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, BOX, max_bytes=300)
    for name in "ab":
        write_episode(log, name, 5)
    log.close()
    assert len(list(tmp_path.glob("*.jsonl"))) > 3, "files are rotated"
    lines = lines_of(tmp_path)
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    shuffled = lines * 2
    random.Random(0).shuffle(shuffled)
    (tmp_path / "x-00001.jsonl").write_text("\n".join(shuffled[:9]) + "\n")
    (tmp_path / "y-00001.jsonl").write_text("\n".join(shuffled[9:]) + "\n")
    read = read_log(tmp_path)
    assert [len(episode) for episode in the_episodes(read)] == [5, 5]
    assert read.counts == {"doubled": len(lines), "torn": 0}


def test_a_gap_splits_an_episode_which_is_truncated_there(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, BOX)
    write_episode(log, "a", 6)
    log.close()
    (path,) = tmp_path.glob("*.jsonl")
    lines = lines_of(tmp_path)
    path.write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    read = read_log(tmp_path)
    first, second = the_episodes(read)
    assert (len(first), first.end, first.t_started) == (2, End.TRUNCATED, 0)
    assert (len(second), second.end, second.t_started) == (2, End.TERMINATED, 4)
    assert (read.counts["gaps"], read.counts["open"]) == (1, 1)


def test_agents_have_their_own_episodes(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, {"left": BOX[SINGLE_AGENT], "right": BOX[SINGLE_AGENT]})
    write_episode(log, "a", 2, agent="left")
    write_episode(log, "a", 3, agent="right")
    log.close()
    read = read_log(tmp_path)
    assert {agent: [len(episode) for episode in found] for agent, found in read.episodes.items()} == {
        "left": [2],
        "right": [3],
    }


def test_a_new_log_in_the_same_folder_begins_a_new_file(tmp_path: Path) -> None:
    for name in "ab":
        log = EpisodeLog(tmp_path, BOX)
        write_episode(log, name, 2)
        log.close()
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["served-00001.jsonl", "served-00002.jsonl"]
    assert len(the_episodes(read_log(tmp_path))) == 2
    with pytest.raises(InvalidInputError, match="other spaces"):
        EpisodeLog(tmp_path, {SINGLE_AGENT: (Discrete(3), Discrete(3))})


def test_the_header_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "header.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: full())
        with pytest.raises(OSError, match="No space left"):
            EpisodeLog(tmp_path, BOX)
    assert not header.exists()
    EpisodeLog(tmp_path, BOX).close()
    before = header.stat()
    EpisodeLog(tmp_path, BOX).close()
    assert (header.stat().st_ino, header.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_line_for_which_there_is_no_space_leaves_nothing(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, BOX)
    write_episode(log, "a", 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    (path,) = tmp_path.glob("*.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_episode(log, "b", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write_episode(log, "c", 3)
    log.close()
    assert [len(episode) for episode in the_episodes(read_log(tmp_path))] == [2, 3]


def test_a_log_that_cannot_begin_its_next_file_keeps_what_it_has_and_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EpisodeLog(tmp_path, BOX, max_bytes=500)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda *arguments, **options: full())
        with pytest.raises(OSError, match="No space left"):
            write_episode(log, "a", 9)
    log.close()
    log.close()
    (episode,) = the_episodes(read_log(tmp_path))
    assert 0 < len(episode) < 9
    assert read_log(tmp_path).counts["torn"] == 0


def test_the_info_of_an_episode_stands_in_its_first_line(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, BOX)
    log.write("a", 0, None, np.zeros(2), 1, 1.0, True, False, None, None, {"level": 3})
    log.close()
    assert [json.loads(line).get("info") for line in lines_of(tmp_path)] == [{"level": 3}]
    assert len(the_episodes(read_log(tmp_path))) == 1


STEP = {"episode": "a", "t": 3, "obs": [0.0, 1.0], "action": 1, "reward": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": [0.0]}, r"t=3: obs: .*shape"),
        ({"obs": [0.0, None]}, "t=3: obs"),
        ({"action": 3}, "t=3: action"),
        ({"action": 1.0}, "t=3: action"),
        ({"reward": "1"}, "reward='1' must be a finite number"),
        ({"reward": None}, "an action without its reward"),
        ({"log_prob": True}, "log_prob=True"),
        ({"t": -1}, "integer `t`"),
        ({"episode": 7}, "string `episode`"),
        ({"agent": "left"}, "no agent 'left'"),
        ({"agent": []}, r"no agent \[\]"),
        ({"t": 10**400}, "integer `t`"),
        ({"reward": 10**400}, "must be a finite number"),
        ({"terminated": 1}, "terminated=1 must be true or false"),
    ],
)
def test_a_wrong_line_is_an_error_that_names_file_episode_and_step(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    EpisodeLog(tmp_path, BOX).close()
    (tmp_path / "x-00001.jsonl").write_text(json.dumps(STEP | change) + "\n")
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_log(tmp_path)
    assert "x-00001.jsonl line 1" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", '{"episode": "a", "t": 0, "obs": [NaN, 0]}', "[" * 100_000])
def test_a_line_that_is_no_step_is_an_error(tmp_path: Path, text: str) -> None:
    EpisodeLog(tmp_path, BOX).close()
    (tmp_path / "x-00001.jsonl").write_text(text + "\n")
    with pytest.raises(InvalidInputError, match=r"x-00001\.jsonl line 1"):
        read_log(tmp_path)


def test_two_versions_of_a_step_are_an_error_that_names_both(tmp_path: Path) -> None:
    EpisodeLog(tmp_path, BOX).close()
    lines = [json.dumps(STEP), json.dumps(STEP | {"reward": 2.0})]
    (tmp_path / "x-00001.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInputError, match=r"line 2.*with other content: the first is in .*line 1"):
        read_log(tmp_path)


def test_an_episode_that_goes_on_after_its_end_is_an_error(tmp_path: Path) -> None:
    EpisodeLog(tmp_path, BOX).close()
    lines = [json.dumps(STEP | {"t": t, "terminated": t == 0}) for t in range(4)]
    (tmp_path / "x-00001.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInputError, match="goes on after its end"):
        read_log(tmp_path)
