"""Who may do what: a file of tokens, and the rate of each."""

import enum
import hmac
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rookery.errors import InvalidInputError
from rookery.serving.limits import Limits
from rookery.serving.private_files import read_private, write_private

SCHEME = b"bearer "
MIN_LENGTH = 32
"""Of a token, in characters. Ours have 43: 256 bits."""


class Scope(enum.StrEnum):
    """What a token allows; `act` includes `read`."""

    READ = "read"
    ACT = "act"


@dataclass(frozen=True)
class Grant:
    """Whose request it is, and what it may do. Episodes belong to the name."""

    name: str
    scope: Scope


ANYBODY = Grant("anonymous", Scope.ACT)


class Tokens:
    """The tokens of a server. Without any, everybody may act."""

    def __init__(self, grants: Mapping[bytes, Grant]) -> None:
        self._grants = dict(grants)
        self._buckets: dict[str, tuple[float, float]] = {}

    @classmethod
    def open(cls, path: Path) -> "Tokens":
        """Read a file of lines `name scope token`. If it is absent, make one with a random token: `default act ...`."""
        if not path.exists():
            write_private(path, "token file", f"default {Scope.ACT} {secrets.token_urlsafe(32)}\n")
        grants = dict(_parsed(path, read_private(path, "token file")))
        if not grants:
            raise InvalidInputError(f"token file: {path} is empty: delete it, and the next start writes a token.")
        return cls(grants)

    @classmethod
    def none(cls) -> "Tokens":
        """Everybody may act, in the name `anonymous`."""
        return cls({})

    def check(self, authorization: bytes | None) -> Grant | None:
        """Return what the header `Authorization` allows, in a time that does not depend on the secrets."""
        if not self._grants:
            return ANYBODY
        if authorization is None or authorization[: len(SCHEME)].lower() != SCHEME:
            return None
        given = authorization[len(SCHEME) :].strip()
        found = [grant for token, grant in self._grants.items() if hmac.compare_digest(token, given)]
        return found[0] if found else None

    def take(self, grant: Grant, now: float, limits: Limits) -> bool:
        """Count a request; False if the name sends more than its rate allows."""
        level, then = self._buckets.get(grant.name, (limits.burst, now))
        level = min(limits.burst, level + (now - then) * limits.requests_per_second)
        is_allowed = level >= 1
        self._buckets[grant.name] = level - is_allowed, now
        return is_allowed


def _parsed(path: Path, text: str) -> Iterator[tuple[bytes, Grant]]:
    """The tokens of a file, with what they allow. Errors name the line, never what is in it."""
    for number, line in enumerate(text.splitlines(), 1):
        match line.split():
            case []:
                continue
            case [name, Scope.READ | Scope.ACT as scope, token] if len(token) >= MIN_LENGTH:
                yield token.encode(), Grant(name, Scope(scope))
            case _:
                raise InvalidInputError(
                    f"token file: line {number} of {path} must be `name scope token`: a scope is read or act, a token "
                    f"has at least {MIN_LENGTH} characters."
                )
