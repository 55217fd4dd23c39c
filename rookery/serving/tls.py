"""Transport encryption: one context, which takes renewed files while the server runs."""

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from rookery.errors import InvalidInputError
from rookery.serving.private_files import read_private

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tls:
    """The files of a certificate (with its chain) and of its key."""

    cert_file: Path
    key_file: Path

    def new_context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer, HTTP/1.1."""
        read_private(self.key_file, "TLS key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"TLS: cannot use the certificate {self.cert_file} with the key {self.key_file}: {error}."
            ) from None
        return context

    def times(self) -> tuple[int, int] | None:
        """When the files changed; None while one is absent."""
        try:
            return os.stat(self.cert_file).st_mtime_ns, os.stat(self.key_file).st_mtime_ns
        except OSError:
            return None


class Renewal:
    """Loads renewed files into a context, for the connections to come."""

    def __init__(self, tls: Tls, context: ssl.SSLContext) -> None:
        self._tls = tls
        self._context = context
        self._times = tls.times()

    def check(self) -> None:
        """Load the files if they changed. Files that do not fit each other are named once; the present ones stay."""
        times = self._tls.times()
        if times is None or times == self._times:
            return
        self._times = times
        try:
            self._tls.new_context()  # a context that fails to load files is of no more use
            self._context.load_cert_chain(self._tls.cert_file, self._tls.key_file, password=_no_password)
        except (InvalidInputError, OSError) as error:
            logger.warning("the renewed TLS files are not used: %s", error)


def _no_password() -> str:
    """Refuse an encrypted key, for which OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; expected one without a password")
