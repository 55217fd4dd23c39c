"""What the server accepts from a client before it refuses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bytes, counts and seconds that a client may use; the table is in SECURITY.md."""

    request_line: int = 2 * 2**10
    headers: int = 16 * 2**10
    num_headers: int = 64
    body: int = 8 * 2**20
    receive_seconds: float = 10.0
    """To receive a request as a whole, from connecting or from its first byte."""
    idle_seconds: float = 60.0
    """Of a connection between two requests."""
    unread_seconds: float = 10.0
    """To read an answer."""
    handshake_seconds: float = 10.0
    """To complete a TLS handshake."""
    connections: int = 1024
    requests_per_second: float = 20_000
    """Of one token."""
    burst: float = 2_000
    json_depth: int = 32
    num_arrays: int = 64
    """Binary arrays in a request."""
    num_steps: int = 4096
    """Steps in a request."""
    pending_seconds: float = 30.0
    """A step waits for its action before it is answered with 503."""
