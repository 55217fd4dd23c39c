"""Runs of strangers: `evaluate`, `report` and `resume` run no code of theirs, touch no file outside, and end.

python -m tests.campaigns.hostile_runs --count 50
"""

import base64
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rookery import cli
from tests.campaigns import run_campaign
from tests.checkpoint_files import read_manifest, seal, stated_files

COMMANDS = (["evaluate", "run", "--episodes", "2"], ["report", "run"], ["resume", "run"])
TRAINING = ["agent=a2c", "env=classic/cartpole", "agent.num_envs=2", "agent.rollout_length=4", "total_timesteps=16"]
TRAINING += [
    "agent.network.hidden_sizes=[4]",
    "evaluation.num_episodes=2",
    "checkpoint.interval=8",
    "record_interval=8",
]
STEP = "checkpoints/000000000016"
SECRET = "the secret of this machine " * 20
EVIL = "import os\nopen(os.environ['EXECUTED'], 'w').close()\n"
MAX_SECONDS, MAX_BYTES = 2.0, 500e6
"""Beyond what the same command takes on a run that is no threat; seconds of the processor, as others may use it."""
PATIENCE = 30.0
"""A command that has not ended after so many seconds waits for something."""
TEBIBYTE = 2**40


class Place(NamedTuple):
    """The folders of a case: the run, and a file outside that it must not reach."""

    run: Path
    outside: Path


Threat = Callable[[Place], None]


def edit_config(changes: dict[str, Any], place: Place) -> None:
    config = yaml.safe_load((place.run / "config.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    (place.run / "config.yaml").write_text(yaml.safe_dump(config))


def begin_with_another_run(place: Place) -> None:
    shutil.copytree(place.run, place.outside / "mine")
    edit_config({"init_from": "../outside/mine"}, place)
    clear(place.run / "checkpoints")


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link(name: str, place: Place) -> None:
    clear(place.run / name)
    (place.run / name).symlink_to(place.outside / "secret.txt")


def move_and_link(name: str, place: Place) -> None:
    """Move a part of the run outside, where it must not be used or changed, and link it."""
    (place.run / name).rename(place.outside / "moved")
    (place.run / name).symlink_to(place.outside / "moved")


def hard_link(name: str, place: Place) -> None:
    clear(place.run / name)
    os.link(place.outside / "secret.txt", place.run / name)


def device(name: str, place: Place) -> None:
    clear(place.run / name)
    (place.run / name).symlink_to("/dev/zero")


def pipe(name: str, place: Place) -> None:
    clear(place.run / name)
    os.mkfifo(place.run / name)


def write(name: str, content: str, place: Place) -> None:
    clear(place.run / name)
    (place.run / name).write_text(content)


def sparse(name: str, place: Place) -> None:
    with open(place.run / name, "ab") as file:
        file.truncate(TEBIBYTE)


def edit_checkpoint(changes: dict[str, Any], place: Place) -> None:
    seal(place.run / STEP, read_manifest(place.run / STEP) | changes)


STORE = """
import json, sys, tensorstore
for spec in json.loads(sys.argv[1]):
    tensorstore.open(spec, create=True, delete_existing=True).result()
"""


def large_orbax_arrays(place: Place, **metadata: Any) -> None:
    """Let the arrays of a checkpoint of format 3 claim to be huge, with right hashes."""
    path = place.run / STEP
    leaves = [leaf | {"array": f"{number:05d}"} for number, leaf in enumerate(read_manifest(path)["leaves"])]
    described = {"dtype": "<f4", "compressor": {"id": "zstd", "level": 1}} | metadata
    places = [{"driver": "file", "path": f"{path}/arrays/{leaf['array']}/"} for leaf in leaves]
    specs = [{"driver": "zarr", "kvstore": place, "metadata": described} for place in places]
    # In a process of its own: TensorStore has threads, which do not survive a fork.
    subprocess.run([sys.executable, "-c", STORE, json.dumps(specs)], check=True)
    edit_checkpoint({"format_version": 3, "leaves": leaves, "files": stated_files(path)}, place)


def large_arrays(place: Place) -> None:
    """Let the header of the arrays claim that they are huge, with right hashes."""
    path = place.run / STEP / "arrays.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    for tensor in header.values():
        tensor["shape"], tensor["data_offsets"] = [2_000_000_000], [0, 8_000_000_000]
    claimed = json.dumps(header).encode()
    path.write_bytes(len(claimed).to_bytes(8, "little") + claimed + content[end:])
    edit_checkpoint({"files": stated_files(path.parent)}, place)


def long_header(place: Place) -> None:
    path = place.run / STEP / "arrays.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    edit_checkpoint({"files": stated_files(path.parent)}, place)


ALIASES = "\n".join(["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40))])
MERGES = "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30))])
ROW = '{"seed": %d, "time/total_timesteps": %d, "train/loss": 1}\n'
TEMPORARY = "checkpoints/000000000024.aaaaaaaa.tmp"

THREATS: dict[str, Threat] = {
    "gymnasium module": partial(edit_config, {"env.name": "gymnasium/evil:X-v0"}),
    "gymnasium module in a package": partial(edit_config, {"env.name": "gymnasium/package.evil:X-v0"}),
    "pettingzoo module": partial(edit_config, {"env.name": "pettingzoo/evil"}),
    "module of the library": partial(edit_config, {"env.name": "pettingzoo/utils.conversions"}),
    "library of an entry point": partial(edit_config, {"env.name": "evil/X"}),
    "module as agent": partial(edit_config, {"agent.name": "evil:X"}),
    "module as recorder": partial(edit_config, {"recorders": ["evil:X"]}),
    "target": partial(edit_config, {"env.kwargs": {"_target_": "evil.X"}}),
    "interpolation": partial(edit_config, {"env.name": "${oc.env:HOME}"}),
    "file as option": partial(edit_config, {"env.name": "gymnasium/Ant-v5", "env.kwargs": {"xml_file": "./evil.xml"}}),
    "python object": partial(write, "config.yaml", "!!python/object/apply:os.system ['touch executed']"),
    "run_dir elsewhere": partial(edit_config, {"run_dir": "../outside"}),
    "parameters of another run": begin_with_another_run,
    **{f"link {name}": partial(link, name) for name in ("lock", "metrics.jsonl", "episode.gif", "config.yaml")},
    **{f"link {name}": partial(link, name) for name in ("manifest.json", "timing.json", "population.json")},
    **{f"link {name}": partial(link, name) for name in ("report.html", f"{STEP}/manifest.json", TEMPORARY)},
    **{f"moved {name}": partial(move_and_link, name) for name in ("tensorboard", "checkpoints", STEP)},
    **{f"moved {name}": partial(move_and_link, name) for name in (f"{STEP}/arrays.safetensors", f"{STEP}/policy")},
    **{f"hard link {name}": partial(hard_link, name) for name in ("lock", "metrics.jsonl")},
    **{f"device {name}": partial(device, name) for name in ("metrics.jsonl", "episode.gif", "config.yaml")},
    **{
        f"pipe {name}": partial(pipe, name) for name in ("config.yaml", "manifest.json", "metrics.jsonl", "timing.json")
    },
    **{f"pipe {name}": partial(pipe, name) for name in ("episode.gif", "population.json", "lock", "report.html")},
    **{f"pipe {name}": partial(pipe, name) for name in (f"{STEP}/manifest.json", f"{STEP}/arrays.safetensors")},
    "aliases": partial(write, "config.yaml", ALIASES),
    "merge keys": partial(write, "config.yaml", MERGES),
    "deep YAML": partial(write, "config.yaml", "[" * 60_000),
    "deep manifest": partial(write, "manifest.json", "[" * 10_000_000),
    "deep timing": partial(write, "timing.json", '{"a":' * 1_000_000),
    "deep record": partial(write, "metrics.jsonl", "[" * 1_000_000 + "\n"),
    "deep checkpoint": partial(write, f"{STEP}/manifest.json", "[" * 10_000_000),
    "long number": partial(write, "config.yaml", "seed: " + ":".join(["1"] * 30_000)),
    "seeds without end": partial(write, "metrics.jsonl", "".join(ROW % (i, i) for i in range(20_000))),
    **{f"sparse {name}": partial(sparse, name) for name in ("metrics.jsonl", "config.yaml", "episode.gif")},
    **{f"sparse {name}": partial(sparse, name) for name in (f"{STEP}/manifest.json", f"{STEP}/arrays.safetensors")},
    "checkpoint names a file outside": partial(edit_checkpoint, {"files": {"../../../outside/secret.txt": {}}}),
    "checkpoint names a device": partial(edit_checkpoint, {"files": {"/dev/zero": {"bytes": 0, "sha256": ""}}}),
    "large shape": large_arrays,
    "long header": long_header,
    "large shape of Orbax": partial(large_orbax_arrays, shape=[2_000_000_000], chunks=[1000]),
    "large chunks of Orbax": partial(large_orbax_arrays, shape=[1], chunks=[2_000_000_000]),
}


def cases(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Run each command on each hostile run, in a process; yield what was done and what went wrong."""
    names = random.Random(seed).sample(sorted(THREATS), min(count, len(THREATS)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        original = folder / "original"
        train = [sys.executable, "-m", "rookery", "train", *TRAINING, f"run_dir={original}"]
        subprocess.run(train, check=True, capture_output=True)
        importlib.import_module("rookery.cli.training")  # before the first fork, so that no child has to

        for _ in range(2):  # compiled the first time
            limits = [attack(folder, original, command, lambda place: None) for command in COMMANDS]
        for command, (_, failure) in zip(COMMANDS, limits, strict=True):
            if failure is not None:
                yield f"{command[0]} on a good run", failure
        for name in names:
            for command, (usage, _) in zip(COMMANDS, limits, strict=True):
                yield f"{command[0]}, {name}", attack(folder, original, command, THREATS[name], usage)[1]


class Usage(NamedTuple):
    seconds: float
    memory: float


Execute = Callable[[Path, list[str]], tuple[int | None, Usage, str]]
"""Runs a command in a folder: exit code, what it took, output."""


def attack(
    folder: Path,
    original: Path,
    command: list[str],
    threat: Threat,
    limit: Usage | None = None,
    execute_fn: Execute | None = None,
) -> tuple[Usage, str | None]:
    """Run a command in a fresh folder with a hostile run; return what it took and what went wrong."""
    here = folder / "here"
    place = Place(here / "run", folder / "outside")
    for path in (here, place.outside):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    shutil.copytree(original, place.run)
    (place.outside / "secret.txt").write_text(SECRET)
    _plant_code(here)
    threat(place)
    before = _contents(place.outside)
    code, usage, output = (execute_fn or _in_a_child)(here, command)
    checks = {
        "did not end": code is None,
        f"exit code {code}": code not in (0, 2) if limit else code != 0,
        "its code ran": (folder / "executed").exists() or (here / "executed").exists(),
        "a file outside changed": _contents(place.outside) != before,
        "a secret leaked": _leaks(place, output),
        f"took {usage.seconds:.1f} s": limit is not None and usage.seconds > limit.seconds + MAX_SECONDS,
        f"took {usage.memory / 1e6:.0f} MB": limit is not None and usage.memory > limit.memory + MAX_BYTES,
        f"unplanned error: {output.strip()[-300:]}": "--debug" in output or "Traceback" in output,
        "opened a file outside": "OPENED" in output,
    }
    return usage, "; ".join(what for what, is_so in checks.items() if is_so) or None


def _plant_code(here: Path) -> None:
    """Put modules and plugins into the current folder that leave a trace when they are imported."""
    for name in ("evil.py", "package/evil.py", "hydra_plugins/evil.py", "jax_plugins/evil.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(EVIL)
    (here / "evil-1.dist-info").mkdir()
    (here / "evil-1.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (here / "evil-1.dist-info" / "entry_points.txt").write_text("[jax_plugins]\nevil=evil\n[rookery.envs]\nevil=evil\n")
    (here / "evil.xml").write_text("<mujoco/>")


def _contents(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in folder.rglob("*")
    }


def _leaks(place: Place, output: str) -> bool:
    report = place.run / "report.html"
    page = report.read_text() if report.is_file() and not report.is_symlink() else ""
    encoded = base64.b64encode(SECRET.encode()).decode()[:60]
    return any(text in page + output for text in (SECRET[:40], encoded))


def _in_a_child(here: Path, command: list[str]) -> tuple[int | None, Usage, str]:
    """Fork, run the command, and kill it if it takes too long."""
    log = here.parent / "output.txt"
    start = time.monotonic()
    child = os.fork()
    if not child:
        _be_the_command(here, command, log)
    code, usage = None, resource.getrusage(resource.RUSAGE_SELF)
    while code is None and time.monotonic() - start < PATIENCE:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        time.sleep(0.005)
    if code is None:
        os.killpg(child, signal.SIGKILL)
        _, _, usage = os.wait4(child, 0)
    return code, Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1e3), log.read_text(errors="replace")


def _be_the_command(here: Path, command: list[str], log: Path) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(here)
        os.environ["EXECUTED"] = str(here.parent / "executed")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        outside = str(here.parent / "outside")

        def watch(event: str, arguments: tuple) -> None:
            if event == "open" and isinstance(arguments[0], str) and os.path.realpath(arguments[0]).startswith(outside):
                print("OPENED", arguments[0], flush=True)

        sys.addaudithook(watch)
        code = cli.main(command)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    run_campaign(__doc__, len(THREATS), cases)
