"""Tokens: who may do what, and how often."""

from pathlib import Path

import pytest

from rookery.errors import InvalidInputError
from rookery.serving.limits import Limits
from rookery.serving.tokens import Grant, Scope, Tokens

READ, ACT = "r" * 40, "a" * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"monitor read {READ}\n\nrobot act {ACT}\n")
    return path


@pytest.mark.parametrize(
    ("header", "grant"),
    [
        (f"Bearer {ACT}", Grant("robot", Scope.ACT)),
        (f"bearer  {READ} ", Grant("monitor", Scope.READ)),
        (None, None),
        ("", None),
        ("Bearer ", None),
        ("Bearer", None),
        (ACT, None),
        (f"Basic {ACT}", None),
        (f"Bearer {ACT[:-1]}", None),
        (f"Bearer {ACT}a", None),
        (f"Bearer {ACT.upper()}", None),
        (f"Bearer {'a' * 1_000_000}", None),
        (f"Bearer {ACT} {ACT}", None),
        ("Bearer \xff", None),
    ],
)
def test_a_header_grants_what_its_whole_token_allows(path: Path, header: str | None, grant: Grant | None) -> None:
    assert Tokens.open(path).check(header and header.encode("latin1")) == grant


def test_without_tokens_everybody_may_act() -> None:
    assert Tokens.none().check(None) == Grant("anonymous", Scope.ACT)


def test_an_absent_file_is_written_with_a_token_that_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = Tokens.open(path)
    name, scope, token = path.read_text().split()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(token) >= 43
    assert tokens.check(f"Bearer {token}".encode()) == Grant(name, Scope(scope)) == Grant("default", Scope.ACT)
    assert Tokens.open(path).check(f"Bearer {token}".encode())
    assert Tokens.open(tmp_path / "other").check(f"Bearer {token}".encode()) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o602])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(InvalidInputError, match=f"mode 0{mode:o}.*chmod 600"):
        Tokens.open(path)


@pytest.mark.parametrize(
    "text", ["robot act short", f"robot {ACT}", f"robot write {ACT}", f"robot act {ACT} x", "\n", "", "\xff"]
)
def test_a_malformed_file_is_an_error_without_the_token(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InvalidInputError, match="token file: ") as error:
        Tokens.open(path)
    assert ACT not in str(error.value)


def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read"):
        Tokens.open(tmp_path)


@pytest.mark.parametrize(("name", "reason"), [("absent/token", "No such file"), ("dangling", "File exists")])
def test_a_file_that_cannot_be_made_is_one_clear_error(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InvalidInputError, match=f"token file: cannot make .*{name}: {reason}"):
        Tokens.open(tmp_path / name)


def test_a_name_has_its_burst_and_then_its_rate() -> None:
    tokens, limits = Tokens.none(), Limits(requests_per_second=10, burst=3)
    robot, other = Grant("robot", Scope.ACT), Grant("other", Scope.ACT)
    taken = [tokens.take(robot, now, limits) for now in (0.0, 0.0, 0.0, 0.0, 0.05, 0.11, 0.11, 9.0, 9.0, 9.0, 9.0)]
    assert taken == [True, True, True, False, False, True, False, True, True, True, False]
    assert tokens.take(other, 0.0, limits)
