"""Every error Rookery raises on purpose: what was given, what was expected, what to do."""

import difflib
import numbers
from collections.abc import Iterable


class RookeryError(Exception):
    """The base of all errors that Rookery raises on purpose."""


class InvalidInputError(RookeryError, ValueError):
    """A value that was given cannot be used; the message names the values that can."""


class ShapeError(RookeryError, ValueError):
    """An array has another shape or dtype than its place requires; raised while tracing."""


class UnknownNameError(RookeryError, LookupError):
    """A name that nothing answers to; the message offers the nearest ones."""


class MissingExtraError(RookeryError, ImportError):
    """An optional library is not installed; the message holds the command that installs it."""


class EnvironmentCheckError(RookeryError):
    """An environment breaks the contract it claims to follow."""


def check_count(name: str, value: object) -> None:
    """Raise unless `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InvalidInputError(f"{name}={value!r} must be an integer of at least 1.")


def check_discount(discount: float) -> None:
    """Raise unless `discount` lies between 0 and 1."""
    if not 0.0 <= discount <= 1.0:
        raise InvalidInputError(f"discount={discount} must lie between 0 and 1.")


def unknown_name(kind: str, name: str, candidates: Iterable[str], hint: str = "") -> UnknownNameError:
    """Build the error for a name that does not exist, with the nearest ones that do."""
    candidates = sorted(candidates)
    near = nearest_names(name, candidates)
    if near:
        advice = f" Did you mean {' or '.join(repr(match) for match in near)}?"
    elif candidates and len(candidates) <= 12:
        advice = f" Known: {', '.join(candidates)}."
    else:
        advice = ""
    return UnknownNameError(f"unknown {kind} {name!r}.{advice}{' ' + hint if hint else ''}")


def nearest_names(name: str, candidates: Iterable[str]) -> list[str]:
    """Return up to two candidates that `name` may be a misspelling of, upper and lower case alike."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=2, cutoff=0.6)
    return [by_folded[match] for match in matches]


def missing_extra(library: str, extra: str) -> MissingExtraError:
    """Build the error for an optional library that is not installed."""
    return MissingExtraError(f"{library} is not installed: pip install 'rookery[{extra}]'")
