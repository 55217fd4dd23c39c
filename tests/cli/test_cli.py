"""The command line: what it prints, where, and the exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import rookery
from rookery import cli
from rookery.envs.registration import BUILTIN_LIBRARIES, BuiltinLibrary
from rookery.testing import probe_envs
from rookery.testing.probe_envs import ConstantRewardProbe, ProbeState

ROOT = Path(rookery.__file__).parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the commands a compilation cache of their own, and the tests theirs back."""
    monkeypatch.setenv("ROOKERY_CACHE_DIR", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path / "cache"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def missing_library(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a library of environments whose package is not installed."""
    monkeypatch.setitem(BUILTIN_LIBRARIES, "absent", BuiltinLibrary("rookery.envs.absent", requires="absent_package"))
    return "absent"


class OutsideProbe(ConstantRewardProbe):
    """An env whose observations leave their space."""

    def observe(self, state: ProbeState) -> Any:
        return super().observe(state) + 7.0


def run_in_a_process(*argv: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "ROOKERY_CACHE_DIR": str(cache), **environment}
    return subprocess.run(
        [sys.executable, "-m", "rookery", *argv], env=variables, capture_output=True, text=True, check=False
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in ("list", "check-env", "bench", "doctor"))


def test_without_a_command_the_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: rookery")


def test_the_module_runs_as_the_command_and_imports_no_optional_library(cache: Path) -> None:
    result = run_in_a_process("--version", cache=cache, PYTHONPROFILEIMPORTTIME="1")
    assert (result.returncode, result.stdout) == (0, f"rookery {rookery.__version__}\n")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "rookery.cli" in imported
    assert imported.isdisjoint({"brax", "gymnax", "jumanji", "gymnasium", "flax", "rich", "rookery.envs"})


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
    monkeypatch.setitem(BUILTIN_LIBRARIES, "damaged", BuiltinLibrary("rookery.envs.no_such_module"))
    assert cli.main(["list", "envs", "damaged", "probe"]) == 0
    text = capsys.readouterr().out
    assert "damaged  cannot be imported: ModuleNotFoundError: No module named 'rookery.envs.no_such_module'" in text
    assert "probe/counter" in text


def test_list_shows_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "agents"]) == 0
    assert "  random  Acts uniformly at random" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.AGENTS)
def test_every_agent_that_is_listed_can_be_built(name: str) -> None:
    module, _, class_name = cli.AGENTS[name].partition(":")
    agent = getattr(__import__(module, fromlist=[class_name]), class_name)()
    assert isinstance(agent, rookery.Agent)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["list", "envs", "prob"], "unknown environment library 'prob'. Did you mean 'probe'"),
        (["list", "agents", "probe"], "only environments come from a library: rookery list envs probe"),
        (["check-env", "probe/conter"], "unknown environment 'probe/conter'. Did you mean 'probe/counter'"),
        (["check-env", "absent/thing"], "absent_package is not installed: pip install 'rookery[absent]'"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], missing_library: str
) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rookery: error: {message}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [["--debug", "check-env", "probe/conter"], ["check-env", "probe/conter", "--debug"]],
    ids=["before", "after"],
)
def test_debug_shows_the_traceback(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("Traceback")
    assert "UnknownNameError: unknown environment 'probe/conter'" in captured.err


def test_an_unexpected_error_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, str]:
        raise KeyError("some\nthing")

    monkeypatch.setattr(cli, "extras", fail)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "rookery: error: KeyError: 'some\\nthing' (--debug shows where)\n"


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> dict[str, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "extras", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "rookery: interrupted\n"


def test_a_reader_that_leaves_early_is_no_error(cache: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "ROOKERY_CACHE_DIR": str(cache)}
    command = [sys.executable, "-u", "-m", "rookery", "list", "envs", "probe"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


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


def test_check_env_takes_any_id_that_gymnasium_knows(cache: Path) -> None:
    result = run_in_a_process("check-env", "CartPole-v1", cache=cache)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("CartPole-v1: passed (")


def test_check_env_is_colored_on_a_terminal_and_says_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["check-env", "Acrobot-v1"]) == 0
    text = capsys.readouterr().out
    assert "\x1b[32mpassed" in text
    assert "Acrobot-v1: passed (" in text.splitlines()[-1]


def test_doctor_names_versions_devices_and_extras(capsys: pytest.CaptureFixture[str], missing_library: str) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (rookery.__version__, jax.__version__, sys.executable, "backend        cpu", str(jax.devices()[0])):
        assert part in text
    assert "absent   not installed: pip install 'rookery[absent]'" in text


@pytest.mark.parametrize(
    ("device", "platforms", "advice"),
    [
        ("/dev/nvidia0", None, "an NVIDIA GPU seems to be here, but JAX runs on the CPU: pip install -U 'jax[cuda13]'"),
        ("/dev/kfd", None, "an AMD GPU seems to be here, but JAX runs on the CPU: pip install -U 'jax[rocm7-local]'"),
        ("/dev/nvidia0", "cpu", "an NVIDIA GPU seems to be here, but JAX runs on the CPU: unset JAX_PLATFORMS=cpu."),
    ],
)
def test_doctor_tells_what_to_do_about_an_accelerator_that_is_not_used(
    device: str, platforms: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device or exists(path))
    monkeypatch.setattr(cli.shutil, "which", lambda name: None)
    if platforms is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert advice in cli.backend_problems("cpu")
    assert cli.backend_problems("gpu") == []


def test_doctor_reports_a_backend_that_cannot_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise RuntimeError("Unknown backend: 'cuda'")

    monkeypatch.setattr(jax, "default_backend", fail)
    assert cli.main(["doctor"]) == 1
    assert "problem: JAX finds no device: RuntimeError: Unknown backend: 'cuda'" in capsys.readouterr().out


def test_bench_runs_the_benchmarks_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__main__.py").write_text("import sys; print(sys.argv[1:]); sys.exit(5)")
    monkeypatch.setattr(cli, "SOURCE_ROOT", tmp_path)
    assert cli.main(["bench", "rollout", "evaluator"]) == 5
    assert capfd.readouterr().out == "['rollout', 'evaluator']\n"


def test_bench_without_a_source_tree_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "SOURCE_ROOT", tmp_path)
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err.startswith("rookery: error: the benchmarks are part of the source tree")


def test_compiled_programs_are_kept_in_the_cache_folder(cache: Path) -> None:
    result = run_in_a_process(
        "check-env", "probe/action_reward", cache=cache, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert any(path.name.startswith("jit_step") for path in (cache / "jax").iterdir())


def test_the_cache_is_in_the_users_cache_folder_unless_another_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.enable_compilation_cache() == tmp_path / "cache" / "jax"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "jax")

    monkeypatch.delenv("ROOKERY_CACHE_DIR")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "chosen_by_jax"))
    assert cli.enable_compilation_cache() == tmp_path / "chosen_by_jax"

    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cli.enable_compilation_cache() == tmp_path / "xdg" / "rookery" / "jax"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cli.cache_folder() == tmp_path / "home" / ".cache" / "rookery"


def test_a_cache_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOKERY_CACHE_DIR", str(tmp_path / "file"))
    assert cli.main(["doctor"]) == 0
    assert "cannot be made: set ROOKERY_CACHE_DIR" in capsys.readouterr().out
