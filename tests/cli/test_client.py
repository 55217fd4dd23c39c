"""`rookery client`."""

import pytest

from rookery import cli


@pytest.mark.parametrize(("arguments", "first"), [([], "class Client:"), (["--lang", "js"], "export class Client {")])
def test_the_client_file_is_printed(capsys: pytest.CaptureFixture[str], arguments: list[str], first: str) -> None:
    assert cli.main(["client", *arguments]) == 0
    assert first in capsys.readouterr().out
