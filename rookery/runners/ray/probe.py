"""Checks a cluster before it is joined: somebody answers, strangers are refused, and our token is right.

Another process asks, because Ray reads the mode of tokens when it is imported, and tries for long to connect.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from rookery.errors import InvalidInputError, shortened

MODE_VARIABLE, TOKEN_VARIABLE, TOKEN_PATH_VARIABLE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
NO_TOKEN: Mapping[str, str | None] = {
    MODE_VARIABLE: "disabled",
    TOKEN_VARIABLE: None,
    TOKEN_PATH_VARIABLE: os.devnull,
}
PROBE_SECONDS = 60.0
ANSWERS, REFUSES = "answers", "refuses"
PROGRAM = f"""
import sys
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    ensure_token_if_auth_enabled(create_token_if_missing=False)
    GcsClient(address=canonicalize_bootstrap_address(sys.argv[1], None))
except AuthenticationError:
    sys.exit("{REFUSES}")
sys.exit("{ANSWERS}")
"""
"""Asks a cluster for its id."""


def check_cluster(given: str, address: str, insecure: bool) -> None:
    """Raise unless the cluster at `address` accepts us, and refuses those without a token unless `insecure`.

    Whoever can talk to a cluster can run code on it, and in the process that joins it.
    """
    if not insecure and os.environ.get(MODE_VARIABLE, "token") != "token":
        raise InvalidInputError(
            f"{given}: {MODE_VARIABLE}={os.environ[MODE_VARIABLE]} turns tokens off: unset it, or join a cluster "
            "without tokens with ray.insecure=true."
        )
    if not insecure and _ask(given, address, NO_TOKEN) == ANSWERS:
        raise InvalidInputError(
            f"{given}: this cluster accepts anybody, who can run code on it and in this process: start it with "
            f"{MODE_VARIABLE}=token, or join it with ray.insecure=true."
        )
    if _ask(given, address, {} if insecure else {MODE_VARIABLE: "token"}) == REFUSES:
        raise InvalidInputError(
            f"{given}: this cluster asks for its token, and there is none here, or another: copy it to the file "
            f"~/.ray/auth_token, or name its file by {TOKEN_PATH_VARIABLE}"
            f"{', and join without ray.insecure' if insecure else ''}."
        )


def _ask(given: str, address: str, variables: Mapping[str, str | None]) -> str:
    command = [sys.executable, "-c", PROGRAM, address]
    with environment(variables):
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            raise InvalidInputError(f"{given}: no Ray answers there within {PROBE_SECONDS:g} s.") from None
    answer = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
    if answer not in (ANSWERS, REFUSES):
        raise InvalidInputError(f"{given}: no Ray answers there: {first_sentence(answer)}")
    return answer


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, or unset those that are None, and restore them in the end.

    So is the mode of tokens, which Ray sets when it starts.
    """
    before = {name: os.environ.get(name) for name in (*variables, MODE_VARIABLE)}
    _change_environment(variables)
    try:
        yield
    finally:
        _change_environment(before)


def _change_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def first_sentence(error: object) -> str:
    """Return the first sentence of an error, in one line."""
    return shortened(" ".join(str(error).split()).partition(". ")[0].rstrip("."), 200) + "."
