"""`rookery doctor`."""

import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import rookery
from rookery import cli
from rookery.cli import doctor
from rookery.runners.ray import cluster

ROOT = Path(__file__).parents[2]


def test_doctor_names_versions_devices_and_extras(capsys: pytest.CaptureFixture[str], missing_library: str) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (rookery.__version__, jax.__version__, sys.executable, "backend        cpu", str(jax.devices()[0])):
        assert part in text
    assert "absent      not installed: pip install 'rookery[absent]'" in text


def test_doctor_lists_all_extras_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(doctor.extras()) == set(project["optional-dependencies"]) - {"dev"}


def test_doctor_finds_the_version_of_extras_whose_module_has_another_name() -> None:
    versions = {extra: doctor.extra_text(extra, package) for extra, package in doctor.extras().items()}
    assert versions["atari"] == importlib.metadata.version("ale-py")
    assert versions["box2d"] == importlib.metadata.version("Box2D")


def test_doctor_shows_how_ray_is_protected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    section = text.partition("\nRay  ")[2].partition("\nExtras")[0]
    assert section.startswith(importlib.metadata.version("ray"))
    assert "tokens    on, a new one for each run; to join a cluster: RAY_AUTH_MODE=disabled" in section
    assert "loopback  a Ray of our own listens on 127.0.0.1 only" in section
    assert "niceness  0 of runners" in section
    assert "address   10.0.0.1:6379 (RAY_ADDRESS): runs join this cluster" in section


def test_doctor_tells_what_is_wrong_with_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=64 * 2**20))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2.40.0")
    monkeypatch.setattr(cluster, "SHARED_MEMORY", tmp_path)
    old, small = doctor.ray_problems()
    assert old.startswith("ray 2.40.0 does not check tokens by default")
    assert small.startswith(f"{tmp_path} has only 0.1 GB free, and Ray falls back to slow files")


def test_doctor_has_no_section_for_a_ray_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "\nRay  " not in text
    assert "ray         not installed: pip install 'rookery[ray]'" in text


@pytest.mark.parametrize(
    ("device", "platforms", "advice"),
    [
        (
            "/dev/nvidia0",
            None,
            "an NVIDIA GPU is present, but JAX uses only the CPU: pip install 'rookery[cuda13]', or rookery[cuda12] if "
            "its driver is older than 580",
        ),
        ("/dev/kfd", None, "an AMD GPU is present, but JAX uses only the CPU: pip install -U 'jax[rocm7-local]'"),
        ("/dev/accel0", None, "a TPU is present, but JAX uses only the CPU: pip install 'rookery[tpu]'"),
        ("/dev/nvidia0", "cpu", "an NVIDIA GPU is present, but JAX uses only the CPU: unset JAX_PLATFORMS=cpu."),
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
