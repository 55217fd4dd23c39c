"""The Python client and servers with TLS."""

import ssl
from pathlib import Path

import pytest

from rookery.serving.client import Client
from tests.served import CERTIFICATES, Echo, served, tls_files


def test_a_client_trusts_the_certificate_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    with served(Echo(), tls=tls_files(tmp_path)) as server:
        assert Client(server.url, ca_file=str(CERTIFICATES / "certificate.pem")).request("POST", "/", {"a": 1}) == {
            "a": 1
        }
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(server.url, patience=60.0).request("POST", "/", {"a": 1})
