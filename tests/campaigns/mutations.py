"""Damaged checkpoints: each is refused, with the last intact step, or comes back to the bit.

python -m tests.campaigns.mutations --count 1000
"""

import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery.runs.checkpoint import CheckpointError, Checkpoints
from tests.campaigns import run_campaign
from tests.checkpoint_files import read_manifest, seal, stated_files, write_by_orbax

GOOD, DAMAGED = 8, 16
MAX_SECONDS = 2.0
ODD = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**62,
    10**300,
    0.5,
    "",
    "..",
    "../../x",
    "/dev/zero",
    "key<fry>",
    [],
    {},
    [[]],
    [-1],
]

Mutation = Callable[[Path, random.Random], str]
"""Changes the files of a checkpoint; returns what it did."""


def tree(offset: int = 0) -> Any:
    """A state with arrays, numbers and random keys."""
    return {
        "params": {"kernel": np.arange(32.0, dtype=np.float32).reshape(8, 4) + offset, "bias": np.ones(4, np.float32)},
        "key": jax.random.key(offset),
        "pixels": np.random.default_rng(offset).integers(256, size=(64, 32), dtype=np.uint8),
        "count": 3 + offset,
    }


def leaves(state: Any) -> list[Any]:
    return [
        np.asarray(jax.random.key_data(leaf) if isinstance(leaf, jax.Array) else leaf).tobytes()
        for leaf in jax.tree.leaves(state)
    ]


def some_file(path: Path, rng: random.Random) -> Path:
    """Choose a file of a folder, or take the file itself."""
    files = [path, *path.rglob("*")]
    return rng.choice(sorted(file for file in files if file.is_file() and file.stat().st_size))


def arrays_of(path: Path) -> Path:
    """Return the file of the arrays of a checkpoint, or their folder if Orbax wrote it."""
    return next(path.glob("arrays*"))


def flip_bits(path: Path, rng: random.Random) -> str:
    file = some_file(path, rng)
    content, number = bytearray(file.read_bytes()), rng.choice([1, 1, 8, 100])
    for _ in range(number):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return f"{number} bits of {file.name}"


def cut(path: Path, rng: random.Random) -> str:
    file = some_file(path, rng)
    os.truncate(file, rng.randrange(file.stat().st_size))
    return f"cut {file.name}"


def insert(path: Path, rng: random.Random) -> str:
    file = some_file(path, rng)
    content, place = file.read_bytes(), rng.randrange(file.stat().st_size + 1)
    file.write_bytes(content[:place] + rng.randbytes(rng.choice([1, 16, 4096])) + content[place:])
    return f"bytes inserted into {file.name}"


def overwrite(path: Path, rng: random.Random) -> str:
    file = some_file(path, rng)
    file.write_bytes(rng.choice([bytes, rng.randbytes])(file.stat().st_size))
    return f"overwrote {file.name}"


def remove(path: Path, rng: random.Random) -> str:
    file = some_file(path, rng)
    file.unlink()
    return f"removed {file.name}"


def swap(path: Path, rng: random.Random) -> str:
    first, second = some_file(path, rng), some_file(path, rng)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return f"swapped {first.name} and {second.name}"


def take_from_other_step(path: Path, rng: random.Random) -> str:
    """Copy a file, or all, from the good checkpoint."""
    good = path.with_name(f"{GOOD:012d}")
    if rng.random() < 0.5:
        shutil.rmtree(path)
        shutil.copytree(good, path)
        return "all files of another step"
    file = some_file(path, rng)
    shutil.copy(some_file(good, rng), file)
    return f"{file.name} of another step"


def replace_by_special_file(path: Path, rng: random.Random) -> str:
    entry, kind = rng.choice(sorted(path.rglob("*"))), rng.choice(["link", "device", "pipe", "folder"])
    moved = path.parents[1] / "moved"
    entry.rename(moved)
    match kind:
        case "link":
            entry.symlink_to(moved)
        case "device":
            entry.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(entry)
        case "folder":
            entry.mkdir()
    return f"{entry.name} is a {kind}"


def add_file(path: Path, rng: random.Random) -> str:
    name = rng.choice(["more", "manifest.json.tmp", "model.safetensors"])
    (rng.choice([path, arrays_of(path).parent]) / name).write_bytes(rng.randbytes(9))
    return "one more file"


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over all containers and keys of a JSON tree."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


def edit_manifest(path: Path, rng: random.Random) -> str:
    """Change or remove an entry of the manifest, mostly with a right hash afterwards."""
    manifest = read_manifest(path)
    container, key = rng.choice(list(places(manifest)))
    if rng.random() < 0.3:
        del container[key]
        what = f"without {key!r:.40}"
    else:
        container[key] = rng.choice(ODD)
        what = f"{key!r:.40}={container[key]!r:.40}"
    if rng.random() < 0.8:
        seal(path, manifest)
        return f"sealed manifest {what}"
    (path / "manifest.json").write_text(json.dumps(manifest, indent=rng.choice([None, 2])))
    return f"manifest {what}"


def seal_damage(path: Path, rng: random.Random) -> str:
    """Damage a file of the arrays, and write a manifest with right hashes."""
    what = rng.choice([flip_bits, cut, overwrite, insert])(arrays_of(path), rng)
    seal(path, read_manifest(path) | {"files": stated_files(path)})
    return f"sealed {what}"


SEALED = (edit_manifest, seal_damage)
"""Whoever can write right hashes can also write other values: these must not crash, but may be read."""
MUTATIONS: list[Mutation] = [flip_bits, flip_bits, cut, insert, overwrite, remove, swap, take_from_other_step]
MUTATIONS += [replace_by_special_file, replace_by_special_file, add_file, edit_manifest, edit_manifest, seal_damage]


def cases(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Mutate the newer of two checkpoints `count` times; yield what was done and what went wrong.

    Orbax wrote the checkpoints of every fourth case.
    """
    with tempfile.TemporaryDirectory() as folder:
        original, older = Path(folder) / "original", Path(folder) / "older"
        for step in (GOOD, DAMAGED):
            Checkpoints(original / "checkpoints").save(tree(step), step, {"records": 1})
        shutil.copytree(original, older)
        for path in (older / "checkpoints").iterdir():
            write_by_orbax(path)
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            run = Path(folder) / "run"
            shutil.copytree(original if number % 4 else older, run)
            mutation = rng.choice(MUTATIONS)
            what = mutation(run / "checkpoints" / f"{DAMAGED:012d}", rng)
            start = time.monotonic()
            failure = _failure(Checkpoints(run / "checkpoints"), may_be_read=mutation in SEALED)
            seconds = time.monotonic() - start
            yield f"case {number} ({what})", failure or (f"took {seconds:.1f} s" if seconds > MAX_SECONDS else None)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(run)


def _failure(checkpoints: Checkpoints, may_be_read: bool) -> str | None:
    try:
        state, _ = checkpoints.restore(tree())
    except CheckpointError as error:
        if f"--step {GOOD} --yes`" not in str(error) and not may_be_read:
            return f"does not name the intact step: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}"
    else:
        if leaves(state) != leaves(tree(DAMAGED)) and not may_be_read:
            return "read, with other values"
    try:
        good, _ = checkpoints.restore(tree(), GOOD)
    except CheckpointError as error:
        return f"the intact step cannot be read: {error}"
    return None if leaves(good) == leaves(tree(GOOD)) else "the intact step has other values"


if __name__ == "__main__":
    run_campaign(__doc__, 1000, cases)
