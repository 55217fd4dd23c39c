"""The run directory: paths of its files, and a lock so that one process at a time trains there."""

import contextlib
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rookery.errors import InvalidInputError, RookeryError, nearest_names, shortened
from rookery.runs.documents import read_json, read_yaml
from rookery.runs.files import CONFIG_NAME, TEMPORARY, is_there, open_inside, read_bytes, write_atomically
from rookery.runs.older_configs import with_present_keys
from rookery.runs.records import Records, Row, read_records

JsonObject = dict[str, Any]

FORMAT_VERSION = 1
RECORDED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium")
MAX_EPISODE_BYTES = 32 * 2**20
MAX_HOLDER_LENGTH = 200
MAX_RESUMPTIONS = 100
"""The number of resumptions that the manifest keeps."""


class RunInUseError(RookeryError):
    """Another process is training in this run directory."""


class RunDirectory:
    """One run on disk: `create` a new one, or `open` an existing one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        backend: str | None = None,
        devices: Sequence[str] = (),
    ) -> "RunDirectory":
        """Create a run directory with its resolved config and a manifest of versions and devices.

        `config` is plain data (mappings, lists, strings, numbers, None). An existing folder is used if it contains no
        run.
        """
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.lock():
                if is_there(run.path, run.config_path.name):
                    raise InvalidInputError(
                        f"{run.path} already contains a run: resume it with "
                        f"`rookery resume {shlex.quote(str(run.path))}`, or choose another run_dir."
                    )
                write_atomically(run.manifest_path, json.dumps(_manifest(backend, devices), indent=2) + "\n")
                run._write_config(config)  # last: a folder with a config is a run
        except OSError as error:
            raise InvalidInputError(
                f"cannot create the run directory {run.path}: {error.strerror}. Choose another run_dir."
            ) from error
        return run

    def note_resumption(self, config: Mapping[str, Any], step: int) -> None:
        """Write the config of a run that continues at `step`; the manifest keeps who resumed it with what."""
        before, manifest = self.config, self.manifest
        changed = {name: value for name, value in flat_config(before).items() if flat_config(config).get(name) != value}
        changed.pop("run_dir", None)
        entry = {"step": step, "time": _now(), "host": platform.node(), "command": sys.argv, "before": changed}
        entry |= {"versions": {name: now for name, (_, now) in self.changed_versions().items()}}
        earlier = _as_list(manifest.get("resumed"))
        manifest["resumed"] = [*earlier, entry][-MAX_RESUMPTIONS:]
        write_atomically(self.manifest_path, json.dumps(manifest, indent=2) + "\n")
        self._write_config(config)

    def changed_versions(self) -> dict[str, tuple[str, str]]:
        """Return the packages whose versions differ from those that last trained the run: before and now."""
        manifest = self.manifest
        entries = [manifest, *_as_list(manifest.get("resumed"))]
        before: JsonObject = {}
        for entry in entries:
            versions = entry.get("versions") if isinstance(entry, dict) else None
            before |= versions if isinstance(versions, dict) else {}
        now = _versions()
        return {
            name: (shortened(str(version), 30), now[name])
            for name, version in before.items()
            if name in now and now[name] != version
        }

    def _write_config(self, config: Mapping[str, Any]) -> None:
        import yaml  # type: ignore[import-untyped]

        write_atomically(self.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDirectory":
        """Return the run at `path`; raise if there is no run, or if a newer Rookery wrote it."""
        run = cls(path)
        if not is_there(run.path, run.config_path.name):
            raise InvalidInputError(
                f"{shortened(str(run.path), 300)} is not a run directory: {_describe_path(run.path)}"
            )
        version = run.manifest.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InvalidInputError(
                f"{run.path} has format version {version}, written by Rookery {run.version}; this version reads up to "
                f"{FORMAT_VERSION}: update with `pip install --upgrade rookery`."
            )
        return run

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG_NAME

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timing_path(self) -> Path:
        return self.path / "timing.json"

    @property
    def population_path(self) -> Path:
        return self.path / "population.json"

    @property
    def tensorboard_path(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def episode_path(self) -> Path:
        return self.path / "episode.gif"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    @property
    def config(self) -> JsonObject:
        """The resolved config of the run."""
        try:
            config = read_yaml(self.path, self.config_path.name)
        except FileNotFoundError:
            raise InvalidInputError(f"{self.config_path} is missing.") from None
        if not isinstance(config, dict):
            raise InvalidInputError(f"{self.config_path} is {config!r:.80}, expected a mapping.")
        return with_present_keys(config)

    @property
    def manifest(self) -> JsonObject:
        """Versions, platform, devices and command line at the start of the run."""
        return self._read_json_object(self.manifest_path)

    @property
    def version(self) -> str | None:
        """The version of Rookery that created the run."""
        versions = self.manifest.get("versions")
        return versions.get("rookery") if isinstance(versions, dict) else None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for training; raise `RunInUseError` if another process holds the lock.

        The kernel releases the lock when the process ends for any reason.
        """
        try:
            descriptor = open_inside(self.path, self.lock_path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise InvalidInputError(f"cannot train in {self.path}: {error.strerror}.") from error
        with open(descriptor, "a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(MAX_HOLDER_LENGTH) or "another process"
                raise RunInUseError(
                    f"run directory {self.path} is in use by {holder}: wait for it to finish, or stop it."
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()} (since {_now()})")
            file.flush()
            self._remove_leftovers()
            try:
                yield
            finally:
                file.truncate(0)

    def _remove_leftovers(self) -> None:
        """Delete the temporary files of killed processes, which wrote under the lock."""
        for path in (self.config_path, self.manifest_path, self.timing_path, self.population_path):
            for leftover in self.path.glob(f"{path.name}.*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)

    def read_records(self) -> Records:
        """Return the rows of `metrics.jsonl`, and what was left out because it is damaged."""
        return read_records(self.path, self.metrics_path.name)

    def read_metrics(self) -> list[Row]:
        """Return the rows of `metrics.jsonl`, without an incomplete last line and damaged ones."""
        return self.read_records().rows

    def read_timing(self) -> JsonObject | None:
        """Return the durations in `timing.json`; None until training is complete."""
        return self._read_json_object(self.timing_path) if is_there(self.path, self.timing_path.name) else None

    def read_populations(self) -> list[Any]:
        """Return the final population of each seed; empty for methods without one."""
        if not is_there(self.path, self.population_path.name):
            return []
        populations = read_json(self.path, self.population_path.name)
        if not isinstance(populations, list):
            raise InvalidInputError(f"{self.population_path} is {populations!r:.80}, expected a list.")
        return populations

    def read_episode(self) -> bytes | None:
        """Return the recorded episode, an animated GIF; None without one."""
        if not is_there(self.path, self.episode_path.name):
            return None
        episode = read_bytes(self.path, self.episode_path.name, MAX_EPISODE_BYTES)
        if not episode.startswith(b"GIF8"):
            raise InvalidInputError(f"{self.episode_path} is not a GIF.")
        return episode

    def _read_json_object(self, path: Path) -> JsonObject:
        try:
            content = read_json(self.path, path.name)
        except FileNotFoundError:
            raise InvalidInputError(f"{path} is missing.") from None
        if not isinstance(content, dict):
            raise InvalidInputError(f"{path} is {content!r:.80}, expected an object.")
        return content


def make_new_folder(path: Path) -> Path:
    """Make the folder `path`, or one with the next free number appended, which no other process gets."""
    for number in itertools.count(1):
        folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidInputError(f"cannot create the folder {folder}: {error.strerror}.") from error
        return folder
    raise AssertionError


def _manifest(backend: str | None, devices: Sequence[str]) -> JsonObject:
    return {
        "format_version": FORMAT_VERSION,
        "created": _now(),
        "command": sys.argv,
        "versions": _versions(),
        "platform": platform.platform(),
        "backend": backend,
        "devices": list(devices),
    }


def _versions() -> dict[str, str]:
    import rookery

    versions = {"rookery": rookery.__version__, "python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a config by their full keys."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flat_config(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _describe_path(path: Path) -> str:
    """Describe a path that is not a run directory, and suggest runs nearby."""
    if not os.path.exists(path):  # also False for a name that is too long
        finding = "it does not exist."
        siblings = {run.name: run for run in _runs_in(path.parent)}
        meant = [siblings[name] for name in nearest_names(path.name, siblings)]
    elif not path.is_dir():
        finding = "it is a file."
        meant = [path.parent] if _is_run(path.parent) else []
    else:
        names = sorted(entry.name for entry in path.iterdir())
        held = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        finding = f"it holds no config.yaml, only {held}." if names else "it is empty."
        meant = [path.parent] if _is_run(path.parent) else _runs_in(path)[:3]
    return finding + (f" Did you mean {' or '.join(map(str, meant))}?" if meant else "")


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs directly in `folder`, newest first."""
    if not folder.is_dir():
        return []
    runs = [entry for entry in folder.iterdir() if _is_run(entry)]
    return sorted(runs, key=lambda run: (run / CONFIG_NAME).stat().st_mtime, reverse=True)


def _is_run(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() and (path / "manifest.json").is_file()
