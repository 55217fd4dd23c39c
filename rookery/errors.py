"""The errors that Rookery raises: what was given, what was expected, what to do."""

import difflib
import numbers
import re
import traceback
from collections.abc import Iterable


class RookeryError(Exception):
    """The base class of all errors that Rookery raises."""


class InvalidInputError(RookeryError, ValueError):
    """An argument is invalid; the message names valid values."""


class ShapeError(RookeryError, ValueError):
    """An array has the wrong shape or dtype; raised while tracing."""


class UnknownNameError(RookeryError, LookupError):
    """A name is unknown; the message suggests similar names."""


class MissingExtraError(RookeryError, ImportError):
    """An optional library is not installed; the message contains the command that installs it."""


class EnvironmentCheckError(RookeryError):
    """An environment violates its interface."""


def place_of(error: BaseException | str) -> str:
    """Return where an error was raised, of itself or of its traceback: `corridor.py, line 12: assert is_open`."""
    text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
    places = re.findall(r'File "(?:.*[/\\])?(.*?)", line (\d+), in .*\n +(.*)', text)
    return "{}, line {}: {}".format(*places[-1]) if places else "an unknown place"


def check_count(name: str, value: object) -> None:
    """Raise unless `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InvalidInputError(f"{name}={value!r} must be an integer of at least 1.")


def check_discount(discount: float) -> None:
    """Raise unless `discount` is between 0 and 1."""
    if not 0.0 <= discount <= 1.0:
        raise InvalidInputError(f"discount={discount} must lie between 0 and 1.")


MAX_NAME = 64
"""The length of the longest name that is compared with similar ones."""


def shortened(text: str, length: int = 80) -> str:
    """Return a text for a message, without its end if it is long."""
    return text if len(text) <= length else f"{text[:length]}..."


def unknown_name(kind: str, name: str, candidates: Iterable[str], hint: str = "") -> UnknownNameError:
    """Build the error for an unknown name, with similar names as suggestions."""
    candidates = sorted(candidates)
    near = nearest_names(name, candidates)
    if near:
        advice = f" Did you mean {' or '.join(repr(match) for match in near)}?"
    elif candidates and len(candidates) <= 12:
        advice = f" Known: {', '.join(candidates)}."
    else:
        advice = ""
    return UnknownNameError(f"unknown {kind} {shortened(name)!r}.{advice}{' ' + hint if hint else ''}")


def nearest_names(name: str, candidates: Iterable[str]) -> list[str]:
    """Return up to two candidates similar to `name`, ignoring case; none for one longer than MAX_NAME."""
    if len(name) > MAX_NAME:
        return []
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=2, cutoff=0.6)
    return [by_folded[match] for match in matches]


def missing_extra(library: str, extra: str) -> MissingExtraError:
    """Build the error for an optional library that is not installed."""
    return MissingExtraError(f"{library} is not installed: pip install 'rookery[{extra}]'")
