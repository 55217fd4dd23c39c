"""The arguments that connect several hosts."""

import socket
import subprocess
import sys

import pytest

from rookery import cli
from rookery.cli.multi_host import check_address
from rookery.errors import InvalidInputError

LISTEN = """
import socket, sys
from argparse import Namespace
from rookery.cli.multi_host import join_hosts

address = sys.argv[1]
assert join_hosts(Namespace(coordinator=address, num_processes=1, process_id=0))
for host in ("127.0.0.1", "127.0.0.2"):
    with socket.socket() as probe:
        print(host, probe.connect_ex((host, int(address.rpartition(":")[2]))) == 0)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_the_coordinator_listens_at_the_given_address_only() -> None:
    command = [sys.executable, "-c", LISTEN, f"127.0.0.1:{free_port()}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "127.0.0.1 True\n127.0.0.2 False\n", result.stderr


@pytest.mark.parametrize("address", ["nowhere", ":1234", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInputError, match="expected HOST:PORT"):
        check_address(address, must_listen=False)


def test_an_address_of_another_host_is_refused_where_the_coordinator_would_listen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = ["--coordinator", "192.0.2.1:1234", "--num-processes", "2", "--process-id", "0"]
    assert cli.main(["train", *several]) == 2
    assert "--coordinator 192.0.2.1:1234: this host cannot listen there" in capsys.readouterr().err
    check_address("192.0.2.1:1234", must_listen=False)
