"""Addresses of this machine."""

import pytest

from rookery.addresses import is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("[::1]", True),
        ("::1", True),
        ("localhost", True),
        ("127.example.org", False),
        ("10.0.0.1", False),
        ("head", False),
    ],
)
def test_a_network_is_everything_but_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
