"""Checkpoints: exact, complete or absent, and never read when damaged."""

import gc
import inspect
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

from rookery.errors import InvalidInputError
from rookery.runs import checkpoint
from rookery.runs.checkpoint import CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.types import Key, PyTreeDict, State, pytree_field
from tests.checkpoint_files import write_by_orbax


class TrainState(State):
    """A state with every kind of leaf that a workflow may have."""

    params: Any
    optimizer_state: Any
    env_keys: Key
    extras: PyTreeDict
    num_updates: int
    learning_rate: float
    finished: bool
    name: str = pytree_field(static=True, default="ppo")


def train_state(seed: int = 0) -> TrainState:
    params = {"policy": {"kernel": jax.random.normal(jax.random.key(seed), (4, 3)), "a/b": jnp.full(3, seed / 7)}}
    return TrainState(
        key=jax.random.key(seed, impl="rbg"),
        params=params,
        optimizer_state=optax.adam(1e-3).init(params),
        env_keys=jax.random.split(jax.random.key(seed), (2, 3)),
        extras=PyTreeDict(
            half=jnp.arange(3, dtype=jnp.bfloat16) / 3,
            pixels=np.arange(256, dtype=np.uint8).reshape(16, 16),
            mask=jnp.asarray([True, False]),
            large=np.int64(2**62 + 1),
            double=np.asarray([0.1, 1 / 3]),
            columns=np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
            no_rows=np.zeros((0, 4), np.float16),
            no_keys=jax.random.split(jax.random.key(seed), 2)[:0],
            special=np.asarray([0x7FC12345, 0xFFC00001, 0x80000000, 0x00000001, 0x7F800000], np.uint32).view(
                np.float32
            ),
            negative_zeros=-np.zeros(5, np.float32),
        ),
        num_updates=2**40 + seed,
        learning_rate=0.1,
        finished=False,
    )


def bits(leaf: Any) -> tuple:
    """All that makes up a leaf: its type, its generator if it is a key, shape, dtype and bytes."""
    if not hasattr(leaf, "dtype"):
        return type(leaf), leaf
    generator = None
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        generator, leaf = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
    return isinstance(leaf, jax.Array), generator, leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes()


def assert_same(restored: Any, saved: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    for (path, left), right in zip(jax.tree.leaves_with_path(restored), jax.tree.leaves(saved), strict=True):
        assert bits(left) == bits(right), jax.tree_util.keystr(path)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints")


def test_every_kind_of_leaf_comes_back_to_the_bit(checkpoints: Checkpoints) -> None:
    checkpoints.save(train_state(1), 4096, {"records": 3, "config": {"agent": "ppo"}})
    restored, metadata = checkpoints.restore(train_state(2))
    assert_same(restored, train_state(1))
    assert metadata == {"records": 3, "config": {"agent": "ppo"}}


def test_shapes_and_dtypes_suffice_as_a_template(checkpoints: Checkpoints) -> None:
    tree = {"params": jnp.arange(3.0), "key": jax.random.key(5), "count": jnp.int32(7)}
    checkpoints.save(tree, 0, {})
    restored, _ = checkpoints.restore(jax.eval_shape(lambda: tree))
    assert isinstance(restored["params"], np.ndarray)
    np.testing.assert_array_equal(restored["params"], tree["params"])
    np.testing.assert_array_equal(jax.random.key_data(restored["key"]), jax.random.key_data(tree["key"]))


@pytest.mark.parametrize("tree", [jnp.arange(3.0), {}, {"a": np.zeros((0, 2), np.float32)}, [1, (2.5, None, [True])]])
def test_trees_of_unusual_form_come_back(checkpoints: Checkpoints, tree: Any) -> None:
    checkpoints.save(tree, 0, {})
    assert_same(checkpoints.restore(tree)[0], tree)


def test_names_that_look_alike_are_kept_apart(checkpoints: Checkpoints) -> None:
    tree = {"a/b": 1.0, "a": {"b": 2.0}, "a.b": 3.0, "['a']": {"b": 4.0}, "": 5.0, "ä\n'\"": 6.0}
    checkpoints.save(tree, 0, {})
    assert checkpoints.restore(tree)[0] == tree


def test_safetensors_alone_can_read_the_arrays(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(train_state(), 0, {})
    arrays = safetensors.numpy.load_file(path / "arrays.safetensors")
    saved = {f"state{jax.tree_util.keystr(at)}": leaf for at, leaf in jax.tree.leaves_with_path(train_state())}
    assert arrays.keys() == saved.keys()
    np.testing.assert_array_equal(arrays["state.key"], jax.random.key_data(saved["state.key"]))
    for name in ("params['policy']['kernel']", "extras['half']", "extras['large']", "extras['columns']"):
        np.testing.assert_array_equal(arrays[f"state.{name}"], saved[f"state.{name}"])
        assert arrays[f"state.{name}"].dtype == saved[f"state.{name}"].dtype


def test_every_array_begins_at_a_multiple_of_its_entries(checkpoints: Checkpoints) -> None:
    content = (checkpoints.save(train_state(), 0, {}) / "arrays.safetensors").read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    for name, tensor in json.loads(content[8 : 8 + header_bytes]).items():
        bits = int(re.sub(r"\D", "", tensor["dtype"]) or 8)
        assert (8 + header_bytes + tensor["data_offsets"][0]) % (bits // 8) == 0, name


SAVE_AND_SHOW_MEMORY = """
import resource, sys
import numpy as np
from rookery.runs.checkpoint import Checkpoints

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

checkpoints, small, large = Checkpoints(sys.argv[1]), {"a": np.ones(1)}, {"a": np.ones(25_000_000)}
checkpoints.save(small, 0, {})
before = peak()
checkpoints.save(large, 1, {})
saved = peak()
checkpoints.restore(large)
print(saved - before, peak() - saved)
"""


def test_a_large_state_is_saved_without_a_copy_and_restored_with_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVE_AND_SHOW_MEMORY, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    kilobytes_to_save, kilobytes_to_restore = map(int, result.stdout.split())
    assert kilobytes_to_save < 20_000
    assert kilobytes_to_restore < 220_000


def test_no_file_is_a_pickle(checkpoints: Checkpoints) -> None:
    files = files_of(checkpoints.save(train_state(), 0, {}))
    assert files
    for file in files:
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError, AttributeError)):
            pickle.loads(file.read_bytes())


@pytest.mark.parametrize(
    "leaf", ["text", np.asarray([object()]), np.datetime64("2026-01-01"), np.zeros(2, [("a", "f4"), ("b", "i4")])]
)
def test_what_is_no_array_is_refused_by_name(checkpoints: Checkpoints, leaf: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"state\['odd'\] is .*arrays, random keys and numbers"):
        checkpoints.save({"odd": leaf}, 0, {})
    assert not checkpoints.folder.exists()


def test_the_newest_are_kept_and_the_last_is_restored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (0, 999, 1000, 10**12):
        checkpoints.save({"step": step}, step, {"at": step})
    assert checkpoints.steps() == [1000, 10**12]
    assert checkpoints.restore({"step": 0}) == ({"step": 10**12}, {"at": 10**12})
    assert checkpoints.restore({"step": 0}, step=1000) == ({"step": 1000}, {"at": 1000})
    assert len(list(tmp_path.iterdir())) == 2


def test_all_are_kept_on_request(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=None)
    for step in range(5):
        checkpoints.save({"step": step}, step, {})
    assert checkpoints.steps() == [0, 1, 2, 3, 4]


def test_to_keep_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


def test_a_step_saved_again_is_replaced(checkpoints: Checkpoints) -> None:
    for version in (1, 2):
        checkpoints.save({"version": version}, 5, {"version": version})
    assert checkpoints.restore({"version": 0}) == ({"version": 2}, {"version": 2})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000000000005"]


def test_a_run_that_goes_on_from_an_earlier_step_leaves_the_later_ones_behind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20):
        checkpoints.save({"step": step}, step, {})
    checkpoints.save({"step": 15}, 15, {})
    assert checkpoints.steps() == [10, 15]
    checkpoints.discard_after(10)
    assert checkpoints.steps() == [10]


def test_a_folder_without_checkpoints_says_so(checkpoints: Checkpoints) -> None:
    assert checkpoints.steps() == []
    assert checkpoints.last_good_step() is None
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*run/checkpoints"):
        checkpoints.restore({})


def test_a_step_that_is_not_there_is_answered_with_those_that_are(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save({}, step, {})
    with pytest.raises(CheckpointError, match=r"no checkpoint 3 in .*: choose one of 1, 2"):
        checkpoints.restore({}, step=3)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, Path.unlink])
def test_damage_to_any_file_is_named_and_the_last_good_step_offered(checkpoints: Checkpoints, damage: Any) -> None:
    checkpoints.save(train_state(1), 40960, {})
    intact = checkpoints.save(train_state(2), 81920, {})
    copy = checkpoints.folder.parent / "copy"
    shutil.copytree(intact, copy)
    for file in files_of(copy):
        if file.stat().st_size == 0 and damage is not Path.unlink:
            continue
        shutil.rmtree(intact)
        shutil.copytree(copy, intact)
        damaged = intact / file.relative_to(copy)
        damage(damaged)
        with pytest.raises(CheckpointError) as raised:
            checkpoints.restore(train_state())
        assert re.fullmatch(
            rf"checkpoint 81920 is damaged: .*{damaged.name}.*; the last intact checkpoint is 40960: "
            rf"`rookery resume {checkpoints.folder.parent} --step 40960 --yes`\.",
            str(raised.value),
        )
        assert checkpoints.last_good_step() == 40960
    assert_same(checkpoints.restore(train_state(), step=40960)[0], train_state(1))


def test_a_damaged_hash_says_what_was_found_and_expected(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(train_state(), 7, {})
    flip_a_bit(path / "arrays.safetensors")
    with pytest.raises(
        CheckpointError, match=r"has sha256 \w{16}\.\.\., expected \w{16}\.\.\.; no checkpoint is intact"
    ):
        checkpoints.restore(train_state())


def test_a_changed_manifest_is_damage(checkpoints: Checkpoints) -> None:
    manifest_path = checkpoints.save({}, 7, {"records": 3}) / "manifest.json"
    manifest_path.write_text(manifest_path.read_text().replace('"records": 3', '"records": 4'))
    with pytest.raises(CheckpointError, match=r"checkpoint 7 is damaged: the hash of manifest\.json does not match"):
        checkpoints.restore({})


def test_metadata_by_seed_is_intact_with_more_than_ten_seeds(checkpoints: Checkpoints) -> None:
    checkpoints.save(train_state(), 1, {"evaluations": dict.fromkeys(range(16), 0)})
    assert checkpoints.metadata()["evaluations"].keys() == {str(seed) for seed in range(16)}


def test_a_checkpoint_of_a_newer_rookery_asks_for_an_update(checkpoints: Checkpoints) -> None:
    manifest_path = checkpoints.save({}, 7, {}) / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest_path.write_text(json.dumps({**manifest, "format_version": checkpoint.FORMAT_VERSION + 1}))
    with pytest.raises(CheckpointError, match=r"checkpoint 7 was written by a newer Rookery .*: update Rookery"):
        checkpoints.restore({})


def test_a_checkpoint_of_an_older_format_names_the_version_that_wrote_it(
    checkpoints: Checkpoints,
) -> None:
    run = RunDirectory.create(checkpoints.folder.parent, {})
    write_by_orbax(checkpoints.save({"a": 1.0}, 7, {}), version=2)
    writer = re.escape(f"Rookery {run.version} in format 2")
    with pytest.raises(CheckpointError, match=f"^checkpoint 7 was written by {writer}, .* still be evaluated and rep"):
        checkpoints.restore({"a": 1.0})


@pytest.mark.parametrize("by_path", [False, True])
def test_a_checkpoint_written_by_orbax_comes_back_to_the_bit(checkpoints: Checkpoints, by_path: bool) -> None:
    write_by_orbax(checkpoints.save(train_state(1), 7, {"records": 3}), by_path=by_path)
    restored, metadata = checkpoints.restore(train_state(2))
    assert_same(restored, train_state(1))
    assert metadata == {"records": 3}


@pytest.mark.parametrize(
    ("template", "difference"),
    [
        ({"a": np.zeros(3), "b": 1, "c": 0.0}, r"it has no state\['c'\]"),
        ({"a": np.zeros(3)}, r"it has state\['b'\], which is not expected"),
        ({"a": np.zeros((3, 1)), "b": 1}, r"state\['a'\] is float64\[3\], expected float64\[3, 1\]"),
        ({"a": np.zeros(3, np.float32), "b": 1}, r"state\['a'\] is float64\[3\], expected float32\[3\]"),
        ({"a": np.zeros(3), "b": jax.random.key(0)}, r"state\['b'\] is int64\[\], expected key<fry>\[\]"),
        ([np.zeros(3), 1], r"it has no state\[0\]; it has no state\[1\]; it has state\['a'\].*; and 1 more"),
    ],
)
def test_a_template_that_does_not_fit_is_told_the_first_differences(
    checkpoints: Checkpoints, template: Any, difference: str
) -> None:
    checkpoints.save({"a": np.zeros(3), "b": 1}, 7, {})
    with pytest.raises(CheckpointError, match=f"checkpoint 7 belongs to another config or version: {difference}"):
        checkpoints.restore(template)


def test_keys_of_another_generator_do_not_fit(checkpoints: Checkpoints) -> None:
    checkpoints.save(jax.random.key(0, impl="rbg"), 7, {})
    with pytest.raises(CheckpointError, match=r"state is key<rbg>\[\], expected key<urbg>\[\]"):
        checkpoints.restore(jax.random.key(0, impl="unsafe_rbg"))


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """The operating system refuses to write more than 64 kB into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_leaves_the_former_checkpoints_and_nothing_else(
    checkpoints: Checkpoints, small_files_only: None
) -> None:
    checkpoints.save({"zeros": np.zeros(2**10, np.uint8)}, 1, {})
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint 2 could not be written to .*run/checkpoints: File too large \(it needs 1\.0 MB, \d+\.\d MB "
        r"free\); the last intact checkpoint is 1: `rookery resume .*run --step 1`\.",
    ):
        checkpoints.save({"zeros": np.zeros(2**20, np.uint8)}, 2, {})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000000000001"]
    np.testing.assert_array_equal(checkpoints.restore({"zeros": np.ones(2**10, np.uint8)})[0]["zeros"], 0)


def test_a_state_larger_than_the_free_space_is_not_even_begun(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save({"small": 1}, 1, {})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9 - 999, 999))
    monkeypatch.setattr(checkpoint, "_write", pytest.fail)
    with pytest.raises(CheckpointError, match=r"the disk is full \(it needs 4\.0 MB, 0\.0 MB free\).* checkpoint is 1"):
        checkpoints.save({"large": np.zeros(10**6, np.float32)}, 2, {})
    assert checkpoints.steps() == [1]


class Killed(BaseException):
    """Stands for a SIGKILL at a chosen point: nothing that the program does afterwards has any effect."""


def die_at(point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program die at its n-th change of the names on the disk, counted from zero."""
    num_changes = 0

    def mortal(function: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_changes
            num_changes += 1
            if num_changes > point:
                raise Killed
            return function(*args, **kwargs)

        return change

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))


def versioned(step: int, version: int) -> dict[str, Any]:
    """A state from which can be told when it was saved."""
    values = np.random.default_rng([step, version]).normal(size=(64, 64)).astype(np.float32)
    return {"values": values, "step": step, "version": version}


def assert_every_listed_step_is_good(checkpoints: Checkpoints) -> None:
    for step in checkpoints.steps():
        restored, metadata = checkpoints.restore(versioned(0, 0), step)
        assert_same(restored, versioned(step, metadata["version"]))


def test_death_at_any_point_of_a_save_leaves_only_good_checkpoints_and_the_next_save_works(tmp_path: Path) -> None:
    for point in range(1000):
        checkpoints = Checkpoints(tmp_path / str(point), keep=1)
        checkpoints.save(versioned(1, 0), 1, {"version": 0})
        try:
            with pytest.MonkeyPatch.context() as monkeypatch:
                die_at(point, monkeypatch)
                checkpoints.save(versioned(1, 1), 1, {"version": 1})
                checkpoints.save(versioned(2, 0), 2, {"version": 0})
        except Killed:
            steps = checkpoints.steps()
            assert steps
            assert_every_listed_step_is_good(checkpoints)
            with pytest.MonkeyPatch.context() as monkeypatch:
                monkeypatch.setattr(checkpoint, "write_arrays", raise_killed)
                with pytest.raises(Killed):
                    checkpoints.save(versioned(3, 0), 3, {"version": 0})
            assert checkpoints.steps() == steps
            assert_every_listed_step_is_good(checkpoints)
            checkpoints.save(versioned(3, 0), 3, {"version": 0})
            assert [path.name for path in checkpoints.folder.iterdir()] == ["000000000003"]
        else:
            assert point > 12
            return
    pytest.fail("a save never ends")


def raise_killed(*args: Any) -> None:
    raise Killed


SAVE_UNTIL_KILLED = (
    f"""
from typing import Any
import numpy as np

{inspect.getsource(versioned)}
"""
    """
import os
import sys
from rookery.runs.checkpoint import Checkpoints

def save_until_killed():
    print(os.getpid(), flush=True)
    checkpoints = Checkpoints(sys.argv[1], keep=2)
    step = max(checkpoints.steps(), default=-1) + 1
    while True:
        for version in (0, 1):
            checkpoints.save(versioned(step, version), step, {"version": version})
            print("saved", flush=True)
        step += 1

# Each process is forked from this one, because importing the libraries takes longer than all the rest.
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        save_until_killed()
    os.waitpid(child, 0)
    print("dead", flush=True)
"""
)


def test_processes_killed_at_random_moments_leave_only_good_checkpoints(tmp_path: Path) -> None:
    moments = random.Random(0)
    checkpoints = Checkpoints(tmp_path)
    last_step = -1
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_UNTIL_KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as saver:
        assert saver.stdin is not None
        assert saver.stdout is not None
        for num_saves in [0, 1, 2, 3] * 5:
            print("start", file=saver.stdin, flush=True)
            process_id = int(saver.stdout.readline())
            for _ in range(num_saves):
                assert saver.stdout.readline() == "saved\n"
            time.sleep(moments.uniform(0.0, 0.05))
            os.kill(process_id, signal.SIGKILL)
            while saver.stdout.readline() != "dead\n":
                pass
            assert_every_listed_step_is_good(checkpoints)
            steps = checkpoints.steps()
            assert max(steps, default=-1) >= last_step + (num_saves + 1) // 2
            last_step = max(steps, default=-1)


FOUR_DEVICES_PROGRAM = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rookery.runs.checkpoint import Checkpoints

mesh = jax.make_mesh((4,), ("dp",))
split, copied = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("dp",), ()))
template = {
    "envs": jax.device_put(jnp.zeros(8), split),
    "keys": jax.device_put(jax.random.split(jax.random.key(0), 4), split),
    "params": jax.device_put(jnp.zeros(3), copied),
    "count": jnp.zeros(()),
}
state, _ = Checkpoints(Path(sys.argv[1]) / "one").restore(template)
assert state["envs"].sharding == split and state["keys"].sharding == split and state["params"].sharding == copied
# An array that may go to any device still may.
assert not state["count"].committed
state = jax.jit(lambda tree: tree | {"envs": tree["envs"] + tree["count"]})(state)
assert len(state["envs"].sharding.device_set) == 4
Checkpoints(Path(sys.argv[1]) / "four").save(state, 1, {})
"""


def test_saved_on_one_device_it_loads_on_four_and_back(tmp_path: Path) -> None:
    state = {
        "envs": jnp.arange(8.0),
        "keys": jax.random.split(jax.random.key(1), 4),
        "params": jnp.arange(3.0),
        "count": jnp.asarray(2.0),
    }
    Checkpoints(tmp_path / "one").save(state, 1, {})
    subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES_PROGRAM, str(tmp_path)],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "4"},
        check=True,
        timeout=100,
    )
    restored, _ = Checkpoints(tmp_path / "four").restore(jax.tree.map(jnp.zeros_like, state))
    assert_same(restored, state | {"envs": state["envs"] + 2.0})


def test_a_folder_may_have_a_backslash_in_its_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "a\\b" / "checkpoints")
    path = checkpoints.save({"a": np.arange(3)}, 1, {})
    np.testing.assert_array_equal(checkpoints.restore({"a": np.zeros(3, int)})[0]["a"], np.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a\\b"]
    write_by_orbax(path)
    np.testing.assert_array_equal(checkpoints.restore({"a": np.zeros(3, int)})[0]["a"], np.arange(3))


def test_memory_does_not_grow_with_the_number_of_checkpoints(checkpoints: Checkpoints) -> None:
    tree = {str(number): np.zeros(3) for number in range(40)}

    def save(steps: range) -> int:
        for step in steps:
            checkpoints.save(tree, step, {})
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    save(range(5))
    tracemalloc.start()
    try:
        before = save(range(5, 10))
        assert save(range(10, 30)) - before < 20 * 6_000
    finally:
        tracemalloc.stop()
