"""The report on a search."""

from pathlib import Path

from rookery.runs.search_directory import SearchDirectory


def write_search_report(search: SearchDirectory, path: Path) -> Path:
    return path
