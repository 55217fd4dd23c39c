"""Odd records: for any content of the files of a run, the report is made and says what it left out.

python -m tests.campaigns.records --count 300
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rookery.report import write_report
from rookery.runs.directory import RunDirectory
from tests.campaigns import run_campaign
from tests.report_runs import TIMING, learning_rows, write_run

MAX_SECONDS = 2.0
"""The time for a report beyond that for a good run."""
ODD = [
    *(None, True, False, "", "text", "NaN", "Infinity", "1", "\ud800", "\0", "<script>alert(1)</script>", "x" * 10_000),
    *([], [1], [[]], {}, {"a": 1}, {"mean": [1, 2]}),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        -1,
        0,
        1,
        -0.0,
        0.5,
        5e-324,
        1e-308,
        1e38,
        3.4e38,
        1e39,
        1e308,
        -1e308,
    ),
    *(2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, -(10**400)),
]
ODD_LINES = [
    *("", " ", "{", "}", "[", "null", "1", '"a"', "{}", "[]", '{"seed": 0', "NaN", "\0\0", "\\", "{'a': 1}", '{"a":}'),
    *("[" * 100_000, '{"a":' * 2_000 + "1" + "}" * 2_000, "x" * 2_000_000, '{"a": ' + "9" * 5_000 + "}", "\ufeff{}"),
]
NAMES = ["seed", "time/total_timesteps", "time/iterations", "eval/mean_reward", "rollout/ep_rew_mean", "time/fps"]
NAMES += ["time/time_elapsed", "train/loss", "faults/total", "evolution/center_0", "evolution/fitness_median"]
ODD_NAMES = ["", "/", "train/", "a/train/loss", "evolution/", "faults/", "x" * 5_000, "\n", "<b>", "train/\ud800", "é"]
FRONT = {"kind": "front", "axes": ["a", "b"], "points": [[1, 2], [2, 1]], "is_front": [True, True]}
ARCHIVE = {
    "kind": "archive",
    "axes": ["a", "b"],
    "low": [0, 0],
    "high": [1, 1],
    "cells": [2, 2],
    "fitness": [1, 2, 3, 4],
}

Change = Callable[[RunDirectory, random.Random], str]
"""Changes the files of a run; returns what it did."""


def rows(run: RunDirectory) -> list[Any]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def write_rows(run: RunDirectory, content: list[Any]) -> None:
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in content))


def odd_value(run: RunDirectory, rng: random.Random) -> str:
    """Put an odd value into one, some or all rows."""
    name, value, share = rng.choice(NAMES), rng.choice(ODD), rng.choice([0.02, 0.3, 1.0])
    changed = rows(run)
    for row in changed:
        if rng.random() < share:
            row[name] = value
    write_rows(run, changed)
    return f"{name}={value!r:.30} in {share:.0%} of rows"


def missing_value(run: RunDirectory, rng: random.Random) -> str:
    names = rng.sample(NAMES, rng.randint(1, 4))
    write_rows(run, [{name: row[name] for name in row if name not in names} for row in rows(run)])
    return f"without {names}"


def odd_line(run: RunDirectory, rng: random.Random) -> str:
    line = rng.choice(ODD_LINES)
    lines = run.metrics_path.read_text().splitlines()
    lines.insert(rng.randrange(len(lines) + 1), line)
    run.metrics_path.write_text("".join(f"{text}\n" for text in lines))
    return f"line {line!r:.30}"


def damaged_bytes(run: RunDirectory, rng: random.Random) -> str:
    content = bytearray(run.metrics_path.read_bytes())
    for _ in range(rng.choice([1, 10, 1000])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    run.metrics_path.write_bytes(content[: rng.choice([len(content), len(content) // 2, 1, 0])])
    return "damaged bytes"


def odd_names(run: RunDirectory, rng: random.Random) -> str:
    name, number = rng.choice(ODD_NAMES), rng.choice([1, 1, 2_000])
    odd = {f"{name}{index or ''}": 1.0 for index in range(number)}
    write_rows(run, [row | odd for row in rows(run)])
    return f"{number} metrics {name!r:.30}"


def odd_order(run: RunDirectory, rng: random.Random) -> str:
    """Shuffle, double or cut the rows, or give each its own seed."""
    changed, kind = rows(run), rng.choice(["shuffled", "doubled", "one row", "own seeds", "far seeds"])
    match kind:
        case "shuffled":
            rng.shuffle(changed)
        case "doubled":
            changed += changed
        case "one row":
            changed = changed[:1]
        case _:
            for number, row in enumerate(changed):
                row["seed"] = number if kind == "own seeds" else number * 2**40
    write_rows(run, changed)
    return kind


def odd_timing(run: RunDirectory, rng: random.Random) -> str:
    timing: Any = dict(TIMING)
    name = rng.choice([*TIMING])
    timing[name] = rng.choice(ODD)
    if rng.random() < 0.2:
        del timing[name]
    run.timing_path.write_text(json.dumps(rng.choice([timing, timing, timing, *ODD])))
    return f"timing {name}={timing.get(name)!r:.30}"


def odd_population(run: RunDirectory, rng: random.Random) -> str:
    entry: Any = dict(rng.choice([FRONT, ARCHIVE]))
    name, value = rng.choice([*entry]), rng.choice([*ODD, [[1, 2], [3]], [1e300, 2], ["a", "b"], [None, None]])
    entry[name] = value
    run.population_path.write_text(json.dumps(rng.choice([[entry], [entry, FRONT], entry, value])))
    return f"population {name}={value!r:.30}"


def odd_config(run: RunDirectory, rng: random.Random) -> str:
    config = dict(run.config)
    name, value = rng.choice([*config, "extra"]), rng.choice(ODD[:-2])
    config[name] = value
    run.config_path.write_text(yaml.safe_dump(config).encode("utf-8", "replace").decode())
    return f"config {name}={value!r:.30}"


def odd_manifest(run: RunDirectory, rng: random.Random) -> str:
    manifest = dict(run.manifest)
    name, value = rng.choice([key for key in manifest if key != "format_version"]), rng.choice(ODD[:-2])
    manifest[name] = value
    run.manifest_path.write_text(json.dumps(manifest))
    return f"manifest {name}={value!r:.30}"


def odd_episode(run: RunDirectory, rng: random.Random) -> str:
    content = rng.choice([b"", b"GIF89a", b"<svg onload=alert(1)>", b"GIF8" + bytes(1000)])
    run.episode_path.write_bytes(content)
    return f"episode {content!r:.30}"


CHANGES: list[Change] = [odd_value, odd_value, odd_value, missing_value, odd_names, odd_order, odd_timing]
CHANGES += [odd_population, odd_config, odd_manifest, odd_episode, odd_line, odd_line, damaged_bytes]
"""The last ones make lines that are no rows any more."""


def cases(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Make odd runs with one to three changes each; yield what was done and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        limit = MAX_SECONDS
        for number in range(count + 1):  # the first has no change, and shows how long a report takes
            rng = random.Random(f"{seed} {number}")
            num_seeds = rng.choice([1, 1, 3])
            run = write_run(Path(folder) / str(number), learning_rows(num_seeds, num_records=20), num_seeds=num_seeds)
            chosen = rng.sample(CHANGES, rng.choice([1, 1, 2, 3])) if number else []
            done = [change(run, rng) for change in sorted(chosen, key=CHANGES.index)]
            start = time.monotonic()
            failure = _report_failure(run)
            seconds = time.monotonic() - start
            if not number:
                limit += seconds
            elif seconds > limit:
                failure = failure or f"took {seconds:.1f} s"
            if number or failure:
                yield f"case {number} ({'; '.join(done)})", failure


def _report_failure(run: RunDirectory) -> str | None:
    try:
        page = write_report([run], run.report_path).read_text()
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    if not page.startswith("<!doctype html>") or not page.endswith("</html>\n"):
        return "the page is not complete"
    return "a script of the run is in the page" if "<script>alert" in page or "<svg onload" in page else None


if __name__ == "__main__":
    run_campaign(__doc__, 300, cases)
