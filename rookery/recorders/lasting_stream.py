"""A text stream whose reader may leave and whose disk may be full: errors are ignored, and the text is lost."""

import contextlib
import os
from typing import Any, TextIO


class LastingStream:
    """Passes text to `stream` and ignores errors: training outlasts its terminal, its pipe and a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed, or cannot encode the text
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard_output(stream: TextIO) -> None:
    """Send all further output of a stream to nowhere, also what Python writes when it closes the stream."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
