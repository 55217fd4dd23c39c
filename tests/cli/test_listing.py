"""`rookery list`."""

import pytest

from rookery import cli
from rookery.envs.libraries import LIBRARIES, Library
from rookery.registry import agent_names
from rookery.testing import probe_envs


def test_list_shows_libraries_with_their_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "envs", "probe", "classic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"probe  {len(probe_envs.PROBES)} environments"
    assert "  probe/counter" in lines
    assert "  classic/cartpole" in lines
    assert not any("brax" in line for line in lines)


def test_list_tells_how_to_install_what_is_missing(capsys: pytest.CaptureFixture[str], missing_library: str) -> None:
    assert cli.main(["list", "envs", "probe", missing_library]) == 0
    assert "absent  not installed: pip install 'rookery[absent]'\n" in capsys.readouterr().out


def test_list_goes_on_after_a_library_that_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIBRARIES, "damaged", Library("rookery.envs.no_such_module"))
    assert cli.main(["list", "envs", "damaged", "probe"]) == 0
    text = capsys.readouterr().out
    assert "damaged  cannot be imported: ModuleNotFoundError: No module named 'rookery.envs.no_such_module'" in text
    assert "probe/counter" in text


def test_list_shows_every_agent_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "agents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["agents", *agent_names()]
    assert lines[1].split(maxsplit=1)[1].startswith("Proximal policy optimization")
