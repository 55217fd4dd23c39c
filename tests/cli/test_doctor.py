"""`rookery doctor`."""

import sys
from pathlib import Path

import jax
import pytest

import rookery
from rookery import cli
from rookery.cli import doctor


def test_doctor_names_versions_devices_and_extras(capsys: pytest.CaptureFixture[str], missing_library: str) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (rookery.__version__, jax.__version__, sys.executable, "backend        cpu", str(jax.devices()[0])):
        assert part in text
    assert "absent   not installed: pip install 'rookery[absent]'" in text


@pytest.mark.parametrize(
    ("device", "platforms", "advice"),
    [
        (
            "/dev/nvidia0",
            None,
            "an NVIDIA GPU seems to be present, but JAX runs on the CPU: pip install -U 'jax[cuda13]'",
        ),
        (
            "/dev/kfd",
            None,
            "an AMD GPU seems to be present, but JAX runs on the CPU: pip install -U 'jax[rocm7-local]'",
        ),
        ("/dev/nvidia0", "cpu", "an NVIDIA GPU seems to be present, but JAX runs on the CPU: unset JAX_PLATFORMS=cpu."),
    ],
)
def test_doctor_tells_what_to_do_about_an_accelerator_that_is_not_used(
    device: str, platforms: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device or exists(path))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    if platforms is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert advice in doctor.backend_problems("cpu")
    assert doctor.backend_problems("gpu") == []


def test_doctor_reports_a_backend_that_cannot_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise RuntimeError("Unknown backend: 'cuda'")

    monkeypatch.setattr(jax, "default_backend", fail)
    assert cli.main(["doctor"]) == 1
    assert "problem: JAX finds no device: RuntimeError: Unknown backend: 'cuda'" in capsys.readouterr().out


@pytest.mark.usefixtures("cache")
def test_a_cache_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOKERY_CACHE_DIR", str(tmp_path / "file"))
    assert cli.main(["doctor"]) == 0
    assert "cannot be created: set ROOKERY_CACHE_DIR" in capsys.readouterr().out
