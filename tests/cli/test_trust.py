"""Commands on a stranger's run, and in a stranger's folder, run no code of theirs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rookery import cli
from rookery.configs import compose
from rookery.runs.directory import RunDirectory

EVIL = "from pathlib import Path\n\nPath('executed').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder whose files leave a trace when they are imported."""
    (tmp_path / "evil.py").write_text(EVIL)
    plugin = tmp_path / "evil-1.0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[jax_plugins]\nevil = evil\n\n[rookery.envs]\nevil = evil\n")
    for package in ("hydra_plugins", "jax_plugins"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize("name", ["gymnasium/evil:X-v0", "pettingzoo/evil"])
def test_a_run_that_names_a_module_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    config = compose(["agent=a2c", "env=gymnasium/CartPole-v1"])
    config["env"]["name"] = name
    RunDirectory.create(folder / "run", config)
    assert cli.main([command, "run"]) == 2
    error = capsys.readouterr().err
    assert error == f"rookery: error: env.name={name} imports a module of its own. If you trust the run, add --trust.\n"
    assert not Path("executed").exists()


def test_a_run_that_names_a_module_is_read_with_trust(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose(["agent=a2c", "env=gymnasium/CartPole-v1"])
    config["env"]["name"] = "gymnasium/evil:X-v0"
    RunDirectory.create(folder / "run", config)
    assert cli.main(["evaluate", "run", "--trust"]) == 2
    assert "unknown environment 'gymnasium/evil:X-v0'" in capsys.readouterr().err
    assert Path("executed").exists()


@pytest.mark.parametrize("argv", [["doctor"], ["train", "--show-config"]], ids=" ".join)
def test_a_command_imports_nothing_from_the_current_folder(
    folder: Path, run_in_a_process: Callable[..., subprocess.CompletedProcess[str]], argv: list[str]
) -> None:
    result = run_in_a_process(*argv)
    assert result.returncode == 0, result.stderr
    assert not Path("executed").exists()
