"""What the server accepts from a client before it refuses."""

from dataclasses import dataclass

from rookery.configuration import check_settings, setting


@dataclass(frozen=True)
class Limits:
    """Bytes, counts and seconds that a client may use; the table is in SECURITY.md."""

    request_line: int = setting(2 * 2**10, low=1, help="bytes of the request line")
    headers: int = setting(16 * 2**10, low=1, help="bytes of all headers")
    num_headers: int = setting(64, low=1, help="headers of a request")
    body: int = setting(8 * 2**20, low=1, help="bytes of a body")
    receive_seconds: float = setting(
        10.0, low=0.1, help="to receive a request as a whole, from connecting or from its first byte"
    )
    idle_seconds: float = setting(60.0, low=0.1, help="of a connection between two requests")
    unread_seconds: float = setting(10.0, low=0.1, help="to read an answer")
    handshake_seconds: float = setting(10.0, low=0.1, help="to complete a TLS handshake")
    connections: int = setting(1024, low=1, help="connections that are open at once")
    requests_per_second: float = setting(20_000.0, low=0.0, help="requests/s of one token")
    burst: float = setting(2_000.0, low=1.0, help="requests of one token at once")
    json_depth: int = setting(32, low=1, help="levels of nesting")
    num_arrays: int = setting(64, low=0, help="binary arrays in a request")
    num_steps: int = setting(4096, low=1, help="steps in a request")
    pending_seconds: float = setting(
        30.0, low=0.0, help="in which a step waits for its action before it is answered with 503"
    )

    def __post_init__(self) -> None:
        check_settings(self)
