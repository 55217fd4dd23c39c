"""Which code and files a config may name. The user may name any; a run directory, which may be a stranger's, none.

`gymnasium/my_module:MyEnv-v0`, `pettingzoo/my_module`, `agent=my_module:MyWorkflow`, an own network, the wrappers of an
environment and the mapping of its policies name modules. They are imported here, and nowhere else. Entry points of
installed packages need no trust.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rookery.errors import InvalidInputError, RookeryError, nearest_names

_named_by_user: ContextVar[Collection[str] | None] = ContextVar("names given by the user", default=None)
"""The names that the user gave; None outside of `strangers_config`, where all names are the user's."""

_need_trust: set[str] = set()
"""The names so far that contain a module, and the environments with options that name a file."""

_given: dict[str, Any] = {}
"""The classes and functions that a program passed, by their names; they are not imported."""


class UntrustedError(RookeryError):
    """A `setting` of a run directory names a module, or a file outside of it."""

    def __init__(self, setting: str, what: str, advice: str) -> None:
        super().__init__(f"{setting} {what}. If you trust the run, {advice}add --trust.")
        self.setting = setting


@contextlib.contextmanager
def strangers_config(named_by_user: Collection[str] = ()) -> Iterator[None]:
    """Import no module that a config names, except those that the names in `named_by_user` contain."""
    token = _named_by_user.set(named_by_user)
    try:
        yield
    finally:
        _named_by_user.reset(token)


def import_named(module: str, env_name: str) -> ModuleType:
    """Import the module that the name of an environment contains; it may be in the current folder."""
    return _import(module, env_name, f"env.name={env_name}")


def import_object(name: str, setting: str) -> Any:
    """Import what a config names as `module:Name`; what the program passed is not imported.

    `setting` is the override that names it, for errors.
    """
    if name in _given:
        return _given[name]
    module, _, path = name.partition(":")
    if not module or not path:
        raise InvalidInputError(f"{setting}: expected module:Name.")
    try:
        found: Any = _import(module, name, setting, f"name it again, {setting}, or ")
    except ImportError as error:
        raise InvalidInputError(f"{setting}: the module {module!r} cannot be imported: {error}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = " or ".join(map(repr, nearest_names(part, vars(found))))
            advice = f" Did you mean {near}?" if near else ""
            raise InvalidInputError(f"{setting}: {module} has no {part!r}.{advice}")
        found = getattr(found, part)
    return found


def name_of(given: type | FunctionType) -> str:
    """Return the name `module:Class` of a class or function that a program passes; `import_object` then finds it."""
    name = f"{given.__module__}:{given.__qualname__}"
    _given[name] = given
    return name


def passed_objects(names: Collection[str]) -> dict[str, Any]:
    """Return those of the named classes and functions that the program passed."""
    return {name: _given[name] for name in names if name in _given}


def pass_objects(objects: Mapping[str, Any]) -> None:
    """Make classes and functions that another process was passed known by their names."""
    _given.update(objects)


def names_given_by_user() -> Collection[str] | None:
    """Return the names that may be imported here; None: all."""
    return _named_by_user.get()


def check_kwargs(env_name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise if the options of an environment name files and come from a stranger's config."""
    for name, value in kwargs.items():
        if any(map(_looks_like_a_path, _texts(value))):
            _check(env_name, f"env.kwargs.{name}={value!r:.80}", "names a file")


def check_origin(setting: str) -> None:
    """Raise if a stranger's config begins with the parameters of a run in another folder."""
    if _named_by_user.get() is not None:
        raise UntrustedError(setting, "reads another run", "")


def needs_trust(config: Mapping[str, Any]) -> bool:
    """Return whether a run with this config, which was built before, is opened only with `--trust`."""
    return any(text in _need_trust for text in _texts(config))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _looks_like_a_path(text: str) -> bool:
    return text.startswith(("~", ".")) or any(separator in text for separator in ("/", "\\"))


def _import(module: str, name: str, setting: str, advice: str = "") -> ModuleType:
    _check(name, setting, "imports a module of its own", advice)
    with _current_folder_on_path():
        return importlib.import_module(module)


def _check(name: str, setting: str, what: str, advice: str = "") -> None:
    _need_trust.add(name)
    named_by_user = _named_by_user.get()
    if named_by_user is None or name in named_by_user:
        return
    module, colon, _ = name.partition(":")
    if not colon or not any(named.startswith(f"{module}:") for named in named_by_user):
        raise UntrustedError(setting, what, advice)


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
