"""Commands on a stranger's run, and in a stranger's folder, run no code of theirs."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rookery import cli
from rookery.runs.directory import RunDirectory
from tests.cli.conftest import FinishedRun

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


@pytest.fixture
def run_on(folder: Path, finished_run: FinishedRun) -> Callable[[str], None]:
    """Copy a run to `run` in the current folder, with another environment in its config."""

    def copy(env_name: str) -> None:
        shutil.copytree(finished_run.path, folder / "run")
        run = RunDirectory(folder / "run")
        run.config_path.write_text(yaml.safe_dump(run.config | {"env": {"name": env_name}}))

    return copy


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize("name", ["gymnasium/evil:X-v0", "pettingzoo/evil"])
def test_a_run_that_names_a_module_is_refused_in_one_line(
    run_on: Callable[[str], None], capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    run_on(name)
    assert cli.main([command, "run"]) == 2
    error = capsys.readouterr().err
    assert error == f"rookery: error: env.name={name} imports a module of its own. If you trust the run, add --trust.\n"
    assert not Path("executed").exists()


def test_a_run_that_names_a_module_is_read_with_trust(
    run_on: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_on("gymnasium/evil:X-v0")
    assert cli.main(["evaluate", "run", "--trust"]) == 2
    assert "unknown environment 'gymnasium/evil:X-v0'" in capsys.readouterr().err
    assert Path("executed").exists()


IMPORTS = """
import sys
sys.addaudithook(lambda event, arguments: event == "import" and print("imports", arguments[0], file=sys.stderr))

class Finder:  # sees `importlib.import_module`, which the hook does not
    def find_spec(self, name, path, target=None):
        print("imports", name, file=sys.stderr)

sys.meta_path.insert(0, Finder())
from rookery import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("argv", [["report", "run"], ["evaluate", "run", "env=classic/cartpole", "--episodes", "2"]])
def test_a_run_whose_environment_is_not_installed_is_used_without_importing_what_it_names(
    run_on: Callable[[str], None], environment: dict[str, str], argv: list[str]
) -> None:
    run_on("gymnasium/evil:X-v0")
    command = [sys.executable, "-P", "-c", IMPORTS, *argv]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    imported = {line.split()[1] for line in result.stderr.splitlines() if line.startswith("imports ")}
    assert "rookery.runs.directory" in imported
    assert not {"evil", "rookery.algorithms.a2c"} & imported
    assert not Path("executed").exists()


@pytest.mark.parametrize("argv", [["doctor"], ["train", "--show-config"]], ids=" ".join)
def test_a_command_imports_nothing_from_the_current_folder(
    folder: Path, run_in_a_process: Callable[..., subprocess.CompletedProcess[str]], argv: list[str]
) -> None:
    result = run_in_a_process(*argv)
    assert result.returncode == 0, result.stderr
    assert not Path("executed").exists()
