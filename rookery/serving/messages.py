"""The messages of the protocol `/v1`: JSON requests to requests of the episode book, answers to JSON."""


class ApiError(Exception):
    """A request that is refused: an HTTP status, a code for programs, a message for people."""

    def __init__(
        self, status: int, code: str, message: str, where: str | None = None, expected: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.expected = status, code, message, where, expected
