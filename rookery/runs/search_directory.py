"""The directory of a search: its description, the results of its trials, and the run directories that trained them."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.errors import InvalidInputError, shortened
from rookery.runs.directory import RunDirectory
from rookery.runs.documents import parse_json, read_yaml
from rookery.runs.files import MAX_BYTES, is_there, make_folder, read_lines, write_atomically
from rookery.runs.trial_results import TrialResult

SEARCH_NAME = "search.yaml"
"""A folder with this file is a search."""
FORMAT_VERSION = 1


class SearchDirectory:
    """One search on disk: `create` a new one, or `open` an existing one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], description: Mapping[str, Any]) -> "SearchDirectory":
        """Create the directory of a search; `description` is plain data. An existing folder may hold no search."""
        search = cls(path)
        if is_search(search.path):
            raise InvalidInputError(
                f"{search.path} already contains a search: continue it with `{search.resume_command}`, or choose "
                "another search_dir."
            )
        try:
            search.path.mkdir(parents=True, exist_ok=True)
            write_atomically(search.path / SEARCH_NAME, _yaml({"format_version": FORMAT_VERSION, **description}))
        except OSError as error:
            raise InvalidInputError(
                f"cannot create the search in {search.path}: {error.strerror}. Choose another search_dir."
            ) from error
        return search

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "SearchDirectory":
        """Return the search at `path`; raise if there is none, or if a newer Rookery wrote it."""
        search = cls(path)
        if not is_search(search.path):
            raise InvalidInputError(
                f"{shortened(str(search.path), 300)} is not the directory of a search: it holds no {SEARCH_NAME}."
            )
        version = search.description.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InvalidInputError(
                f"{search.path} has format version {version}, and this version of Rookery reads up to "
                f"{FORMAT_VERSION}: update with `pip install --upgrade rookery`."
            )
        return search

    @property
    def description(self) -> dict[str, Any]:
        """What is searched, from which config, and how."""
        description = read_yaml(self.path, SEARCH_NAME)
        if not isinstance(description, dict):
            raise InvalidInputError(f"{self.path / SEARCH_NAME} is {description!r:.80}, expected a mapping.")
        return description

    @property
    def trials_path(self) -> Path:
        return self.path / "trials.jsonl"

    @property
    def best_path(self) -> Path:
        return self.path / "best.yaml"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def resume_command(self) -> str:
        """The command that continues the search."""
        return shlex.join(["rookery", "tune", "--resume", str(self.path)])

    @property
    def train_command(self) -> str:
        """The command that trains with the best setting."""
        return shlex.join(["rookery", "train", "--preset", str(self.best_path)])

    def run(self, name: str) -> RunDirectory:
        """Return the directory of one of the runs, empty if there was none; a link could lead to a run elsewhere."""
        return RunDirectory(make_folder(self.path, f"runs/{name}"))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory; raise `RunInUseError` if another process holds the lock."""
        with RunDirectory(self.path).lock():
            yield

    def read_results(self) -> list[TrialResult]:
        """Return the results so far, in the order in which they were added."""
        results = []
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate(read_lines(self.path, self.trials_path.name, MAX_BYTES), start=1):
                path = f"{self.trials_path}, line {number}"
                try:
                    row = parse_json(line)
                except ValueError as error:
                    raise InvalidInputError(f"{path} is not valid JSON: {' '.join(str(error).split())}.") from None
                results.append(TrialResult.from_row(row, path))
        return results

    def add(self, results: Sequence[TrialResult]) -> None:
        """Append results; a process that is killed meanwhile leaves all of them or none."""
        lines = [result.to_line() for result in [*self.read_results(), *results]]
        write_atomically(self.trials_path, "".join(lines))

    def write_best(self, preset: Mapping[str, Any], remark: str) -> None:
        """Write the best setting as a preset, under a remark."""
        write_atomically(self.best_path, f"# {remark}\n{_yaml(preset)}")


def is_search(path: Path) -> bool:
    """Return whether a folder is the directory of a search."""
    return is_there(path, SEARCH_NAME)


def _yaml(content: Mapping[str, Any]) -> str:
    import yaml  # type: ignore[import-untyped]

    text: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return text
