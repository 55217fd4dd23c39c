"""Which code and files a config may name. The user may name any; a run directory, which may be a stranger's, none.

`gymnasium/my_module:MyEnv-v0` and `pettingzoo/my_module` name modules. They are imported here, and nowhere else.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rookery.errors import RookeryError

_named_by_user: Collection[str] | None = None
"""The environments that the user named; None outside of `strangers_config`, where all names are the user's."""

_need_trust: set[str] = set()
"""The environments so far that name a module or a file."""


class UntrustedError(RookeryError):
    """A run directory names a module or a file outside of it."""


@contextlib.contextmanager
def strangers_config(named_by_user: Collection[str] = ()) -> Iterator[None]:
    """Import no module that a config names, except those of the environments `named_by_user`."""
    global _named_by_user
    before, _named_by_user = _named_by_user, named_by_user
    try:
        yield
    finally:
        _named_by_user = before


def import_named(module: str, env_name: str) -> ModuleType:
    """Import the module that the name of an environment contains; it may be in the current folder."""
    _check(env_name, f"env.name={env_name} imports a module of its own")
    with _current_folder_on_path():
        return importlib.import_module(module)


def check_kwargs(env_name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise if the options of an environment name files and come from a stranger's config."""
    for name, value in kwargs.items():
        if any(map(_looks_like_a_path, _texts(value))):
            _check(env_name, f"env.kwargs.{name}={value!r:.80} names a file")


def needs_trust(env_name: str) -> bool:
    """Return whether a run on this environment, which was made before, is opened only with `--trust`."""
    return env_name in _need_trust


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _looks_like_a_path(text: str) -> bool:
    return text.startswith("~") or any(separator in text for separator in ("/", "\\"))


def _check(env_name: str, what: str) -> None:
    _need_trust.add(env_name)
    if _named_by_user is not None and env_name not in _named_by_user:
        raise UntrustedError(f"{what}. If you trust the run, add --trust.")


@contextlib.contextmanager
def _current_folder_on_path() -> Iterator[None]:
    """Append the current folder to the import path; it stays there if something was imported from it.

    Environments may import more later, and other processes import the module again.
    """
    here = os.getcwd()
    if sys.flags.safe_path or {"", here} & set(sys.path):
        yield
        return
    known = set(sys.modules)
    sys.path.append(here)
    try:
        yield
    finally:
        if not any(_is_in(here, sys.modules[name]) for name in set(sys.modules) - known):
            sys.path.remove(here)


def _is_in(folder: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(folder) in Path(file).parents
