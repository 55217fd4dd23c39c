"""`rookery check-env`."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rookery import cli
from rookery.testing import probe_envs
from rookery.testing.probe_envs import ConstantRewardProbe, ProbeState


class OutsideProbe(ConstantRewardProbe):
    """An env whose observations leave their space."""

    def observe(self, state: ProbeState) -> Any:
        return super().observe(state) + 7.0


def test_check_env_prints_each_check_and_the_verdict_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-env", "probe/constant_reward"]) == 0
    captured = capsys.readouterr()
    *checks, verdict = captured.out.splitlines()
    assert verdict == "probe/constant_reward: passed (17 checks, 1 warning, 2 skipped)"
    assert [line.split()[0] for line in checks].count("passed") == 16
    assert captured.err == ""


def test_check_env_of_a_broken_environment_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(probe_envs.PROBES, "outside", OutsideProbe)
    assert cli.main(["check-env", "probe/outside"]) == 1
    captured = capsys.readouterr()
    assert "FAILED   observations are in the space    after reset obs[0] is 7.0, outside [-1.0, 1.0]" in captured.out
    assert captured.out.splitlines()[-1].startswith("probe/outside: FAILED (17 checks, 1 failed")


def test_check_env_takes_any_id_that_gymnasium_knows(
    run_in_a_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = run_in_a_process("check-env", "gymnasium/CartPole-v1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("gymnasium/CartPole-v1: passed (")


def test_check_env_plays_environments_of_host_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpe2")
    assert cli.main(["check-env", "pettingzoo/mpe2.simple_spread_v3"]) == 0
    *checks, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "pettingzoo/mpe2.simple_spread_v3: passed (8 checks, 0 warnings)"
    assert len(checks) == 8


UNKNOWN = {
    "CartPol-v1": "unknown environment 'CartPol-v1'. Did you mean 'gymnasium/CartPole-v1'",
    "brx/hopper": "unknown environment library 'brx'. Did you mean 'brax'",
    "gymnasium/CartPol-v1": "unknown environment 'gymnasium/CartPol-v1'. Did you mean 'gymnasium/CartPole-v1'",
}
if find_spec("pettingzoo") is not None:
    UNKNOWN["pettingzoo/classic.tictacto_v3"] = (
        "unknown environment 'pettingzoo/classic.tictacto_v3'. Did you mean 'pettingzoo/classic.tictactoe_v3'"
    )


def test_unknown_names_are_told_without_importing_optional_libraries(environment: dict[str, str]) -> None:
    program = (
        "import sys; from rookery import cli; codes = [cli.main(['check-env', name]) for name in sys.argv[1:]];"
        "print(codes, *sorted({'brax', 'gymnax', 'jumanji', 'envpool', 'ale_py'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, *UNKNOWN]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == f"{[2] * len(UNKNOWN)}\n"
    for line, answer in zip(result.stderr.splitlines(), UNKNOWN.values(), strict=True):
        assert answer in line


def test_check_env_is_colored_on_a_terminal_and_says_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["check-env", "gymnasium/Acrobot-v1"]) == 0
    text = capsys.readouterr().out
    assert "\x1b[32mpassed" in text
    assert "gymnasium/Acrobot-v1: passed (" in text.splitlines()[-1]


def test_modules_of_the_current_directory_are_found(tmp_path: Path, environment: dict[str, str]) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for directory in (here, elsewhere):
        directory.mkdir()
    (here / "corridors.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Corridor-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"
    )
    (here / "numpy.py").write_text("raise ImportError('a module of the current directory comes after all others')\n")
    script = elsewhere / "rookery_script.py"  # like the one that is installed, for which Python looks beside it
    script.write_text("import sys\nfrom rookery.cli import main\nsys.exit(main())\n")
    command = [sys.executable, str(script), "check-env", "gymnasium/corridors:Corridor-v0"]
    result = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("gymnasium/corridors:Corridor-v0: passed (")
