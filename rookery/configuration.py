"""Declares settings, checks them, and converts between mappings and dataclasses.

`setting` declares a field of a config once: its default, its range or choices, and its help. Checks, the command line
and the tables in the docs use the declaration.

A config is a tree of mappings, lists and scalars, from YAML, from Hydra or written in Python. `from_mapping` builds the
dataclass that a mapping describes. An invalid config raises one error that names the key. No other module uses
`DictConfig`.
"""

import dataclasses
import enum
import functools
import math
import numbers
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rookery.errors import InvalidInputError, RookeryError, UnknownNameError, nearest_names, shortened, unknown_name

Config = TypeVar("Config")
Value = TypeVar("Value")

KINDS = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
}
"""The scalar types of a config, with their singular and plural names in errors."""


@dataclass(frozen=True)
class Declaration:
    """Help, range and choices of a field of a config.

    `low` and `high` are inclusive. If `schedule` is set, the number may be a schedule.
    """

    help: str = ""
    low: float | None = None
    high: float | None = None
    choices: Collection[str] = ()
    schedule: bool = False

    def describe(self) -> str:
        """Return the help, with the choices that it does not explain."""
        if all(choice in self.help for choice in self.choices):
            return self.help
        *others, last = self.choices
        return ": ".join(filter(None, (self.help, f"{', '.join(others)} or {last}")))

    def expected_range(self, integer: bool = False) -> str:
        """Return the range as a phrase for errors."""
        if self.low is not None and self.high is not None:
            return f"must lie between {self.low:.10g} and {self.high:.10g}"
        if self.low is None:
            return "must be finite" if self.high is None else f"must be at most {self.high:g}"
        return f"must be {'an integer of ' if integer else ''}at least {self.low:g}"

    def contains(self, number: float) -> bool:
        """Return whether a number lies in the declared range."""
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)


def setting(
    default: Value,
    *,
    help: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Collection[str] = (),
) -> Value:
    """Declare a field of a config, or a static field of a `PyTreeNode`.

    Range and choices of a list apply to each entry. A subclass that only changes the default writes the field without
    `setting` and inherits range, choices and help.
    """
    metadata = declared(Declaration(help, low, high, choices), static=True)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)  # type: ignore[return-value]
    return dataclasses.field(default=default, metadata=metadata)


def declared(declaration: Declaration, static: bool) -> dict[str, Any]:
    """Return the metadata of a field with a declaration."""
    return {"declaration": declaration, "static": static}


def declarations(cls: type) -> dict[str, Declaration]:
    """Return the declarations of the fields of `cls` that have one, also where a subclass changed the default."""
    found: dict[str, Declaration] = {}
    for name in field_names(cls):
        for base in cls.__mro__:
            field = base.__dict__.get("__dataclass_fields__", {}).get(name)
            if field is not None and "declaration" in field.metadata:
                found[name] = field.metadata["declaration"]
                break
    return found


def check_settings(config: object) -> None:
    """Raise for the first field whose value is not in its declared range or choices."""
    for name, declaration, annotation in _declared_fields(type(config)):  # type: ignore[arg-type]
        value = getattr(config, name)
        if value is None and type(None) in get_args(annotation):
            continue
        if declaration.choices:
            _check_choices(name, value, declaration)
        if declaration.low is not None or declaration.high is not None:
            _check_range(name, value, annotation, declaration)


@functools.cache
def _declared_fields(cls: type) -> list[tuple[str, Declaration, Any]]:
    annotations = get_type_hints(cls)
    return [(name, declaration, annotations[name]) for name, declaration in declarations(cls).items()]


def _check_choices(name: str, value: Any, declaration: Declaration) -> None:
    is_list = isinstance(value, (tuple, list))
    for chosen in value if is_list else (value,):
        if chosen not in declaration.choices:
            raise unknown_name(name.removesuffix("s") if is_list else name, str(chosen), declaration.choices)


def _check_range(name: str, value: Any, annotation: Any, declaration: Declaration) -> None:
    is_list, kinds = isinstance(value, (tuple, list)), (annotation, *get_args(annotation))
    integer = int in kinds
    for number in value if is_list else (value,):
        is_number = isinstance(number, numbers.Integral if integer else numbers.Real) and not isinstance(number, bool)
        if not is_number or not declaration.contains(number):
            every = ": every entry" if is_list else ""
            raise InvalidInputError(f"{name}={_shown(value)}{every} {declaration.expected_range(integer)}.")


def from_mapping(cls: type[Config], mapping: Mapping[str, Any], path: str) -> Config:
    """Build the dataclass `cls` from `mapping`; missing keys keep their defaults.

    `path` is the key of the mapping in the whole config ("agent", or "" for the root); errors start with it. A field
    may be a bool, int, float, str, enum (given by value), `Literal`, `tuple[X, ...]`, `Mapping[str, Any]`, another
    dataclass, or a union of these. An integer may be written as 1e6. A number may be a string, because YAML reads 3e-4
    as one.
    """
    mapping = plain(mapping, path)
    names = field_names(cls)
    check_keys(mapping, names, path)
    missing = [name for name in _required_fields(cls) if name not in mapping]
    if missing:
        raise InvalidInputError(f"{_prefix(path)}missing key {missing[0]!r}.")
    annotations = get_type_hints(cls)
    values = {name: _convert(value, annotations[name], _join(path, name)) for name, value in mapping.items()}
    try:
        return cls(**values)
    except (InvalidInputError, UnknownNameError) as error:
        raise _placed(error, path, names) from error


def to_mapping(config: object) -> dict[str, Any]:
    """Convert a dataclass to plain containers: the inverse of `from_mapping`."""
    return {entry.name: _to_plain(getattr(config, entry.name)) for entry in dataclasses.fields(config)}  # type: ignore[arg-type]


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: _to_plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(entry) for entry in value]
    return value


def field_names(cls: type) -> list[str]:
    """Return the keys that `from_mapping` accepts for `cls`."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def check_keys(mapping: Mapping[str, Any], known: Collection[str], path: str) -> None:
    """Raise for the first unknown key of `mapping`; the error names the nearest known keys, or all."""
    for key in mapping:
        if key not in known:
            near = nearest_names(str(key), known)
            matches = " or ".join(repr(name) for name in near)
            advice = f"Did you mean {matches}?" if near else f"The keys are: {', '.join(known)}."
            raise UnknownNameError(f"{_prefix(path)}unknown key {key!r}. {advice}")


def plain(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a config as plain dicts and lists, with the interpolations of a `DictConfig` resolved.

    A `_target_` anywhere is an error: Hydra would import and call it.
    """
    if not isinstance(config, dict):
        from omegaconf import DictConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if isinstance(config, DictConfig):
            try:
                config = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
            except OmegaConfBaseException as error:
                raise InvalidInputError(
                    f"{_join(path, error.full_key or '')}: {str(error).splitlines()[0]}."
                ) from error
    if not isinstance(config, Mapping):
        raise _mismatch(config, "a mapping", path)
    for place in _targets(config, path):
        raise InvalidInputError(f"{place}: a config cannot name Python objects; use a registered name.")
    return dict(config)


def _targets(tree: Any, path: str) -> Iterator[str]:
    """Yield the paths of all keys `_target_`."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == "_target_":
                yield _join(path, key)
            yield from _targets(value, _join(path, str(key)))
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from _targets(item, f"{path}[{index}]")


def _required_fields(cls: type) -> list[str]:
    no_default = dataclasses.MISSING
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is no_default and field.default_factory is no_default
    ]


def _convert(value: Any, annotation: Any, path: str) -> Any:
    """Convert `value` to the type of the annotation, or raise an error that names the path."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_to_one_of(value, annotation, path)
    if origin is Literal:
        matches: list[Any] = [choice for choice in arguments if choice == value and type(choice) is type(value)]
    elif origin is tuple and isinstance(value, (list, tuple)) and arguments[1:] == (...,):
        matches = [tuple(_convert(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value))]
    elif annotation in KINDS:
        matches = _scalar(value, annotation)
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        matches = [member for member in annotation if value is member or value == member.value]
    elif dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        matches = [from_mapping(annotation, value, path)]  # type: ignore[arg-type]
    else:
        matches = [value] if isinstance(value, origin or annotation) else []
    if not matches:
        raise _mismatch(value, _describe(annotation), path)
    return matches[0]


def _convert_to_one_of(value: Any, union: Any, path: str) -> Any:
    for member in get_args(union):
        try:
            return _convert(value, member, path)
        except RookeryError:
            if dataclasses.is_dataclass(member) and isinstance(value, Mapping):
                raise
    raise _mismatch(value, _describe(union), path)


def _scalar(value: Any, kind: type) -> list[Any]:
    """Return a list with the value as a scalar of this kind, or an empty list if it cannot be converted."""
    if kind in (bool, str) or isinstance(value, bool):
        return [value] if type(value) is kind else []
    try:
        number = float(value) if isinstance(value, (numbers.Real, str)) else math.nan
    except (ValueError, OverflowError):
        return []
    if kind is float:
        return [] if math.isnan(number) else [number]
    if isinstance(value, numbers.Integral):
        return [int(value)]
    return [int(number)] if number.is_integer() else []


def _describe(annotation: Any) -> str:
    """Return a phrase for the values that an annotation accepts."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in KINDS:
        return KINDS[annotation][0]
    if annotation is type(None):
        return "null"
    if annotation is type:
        return "a class"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(member) for member in arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list of {KINDS[arguments[0]][1]}" if arguments[0] in KINDS else "a list"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in annotation)}"
    if dataclasses.is_dataclass(annotation):
        return f"a mapping with the keys {', '.join(field_names(annotation))}"  # type: ignore[arg-type]
    return "a mapping" if origin is not None else f"a value of type {annotation.__name__}"


def _mismatch(value: Any, expected: str, path: str) -> InvalidInputError:
    return InvalidInputError(f"{path or 'the config'}={_shown(value)}: expected {expected}.")


def _shown(value: Any) -> str:
    """Return a value for a message; Python does not print integers of thousands of digits."""
    try:
        return shortened(repr(value))
    except ValueError:
        return "an integer of thousands of digits"


def _placed(error: RookeryError, path: str, names: list[str]) -> RookeryError:
    """Prefix an error of a dataclass with the path of the dataclass."""
    message = str(error)
    is_about_a_field = path and any(message.startswith(f"{name}=") for name in names)
    return type(error)(f"{path}.{message}" if is_about_a_field else f"{_prefix(path)}{message}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _prefix(path: str) -> str:
    return f"{path}: " if path else ""
