"""The keys `ray.*`: they reach Ray from the command line and from Python, and from nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rookery
from rookery import cli
from rookery.cli import multirun
from rookery.runners.groups.group import LocalRunners
from rookery.runners.ray import group as ray_group
from rookery.runners.ray.cluster import Cluster
from rookery.runners.ray.settings import RaySettings
from rookery.workflows import workflow

ON_HOST = ["env=gymnasium/CartPole-v1", "num_env_runners=2", "recorders=[jsonl]"]


class Connections:
    """Notes with which settings Ray is connected, and starts none."""

    def __init__(self) -> None:
        self.made: list[tuple[RaySettings, int]] = []
        self.num_closed = 0

    def connect(self, settings: RaySettings, num_env_runners: int) -> Cluster:
        self.made.append((settings, num_env_runners))
        return self  # type: ignore[return-value]

    def log_to(self, folder: Path) -> None:
        assert folder.is_dir()

    def close(self) -> None:
        self.num_closed += 1

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    connections = Connections()
    monkeypatch.setattr(workflow, "connect", connections.connect)
    monkeypatch.setattr(ray_group, "RayRunners", lambda spec, num_runners, settings: LocalRunners(spec, num_runners))
    return connections


def test_the_command_line_says_where_runners_work_and_the_run_does_not_keep_it(
    connections: Connections, tmp_path: Path, small: list[str]
) -> None:
    run = tmp_path / "run"
    command = ["train", *small, *ON_HOST, f"run_dir={run}"]
    assert cli.main([*command, "ray.address=10.0.0.1:6379", "ray.min_env_runners=2"]) == 0
    assert connections.made == [(RaySettings(address="10.0.0.1:6379", min_env_runners=2), 2)]
    assert connections.num_closed > 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert "ray" not in config
    assert "10.0.0.1" not in (run / "config.yaml").read_text()

    assert cli.main(["resume", str(run), "total_timesteps=80"]) == 0
    assert connections.made[1:] == [(RaySettings(), 2)]
    assert cli.main([*command, "--or-resume", "total_timesteps=96", "ray.address=auto"]) == 0
    assert connections.made[2:] == [(RaySettings(address="auto"), 2)]
    assert cli.main(["resume", str(run), "total_timesteps=112", "ray.address=head:1", "ray.insecure=true"]) == 0
    assert connections.made[3:] == [(RaySettings(address="head:1", insecure=True), 2)]


def test_an_address_in_a_run_directory_is_not_followed(
    connections: Connections, tmp_path: Path, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", *small, *ON_HOST, f"run_dir={run}"]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"ray": {"address": "stranger:6379"}}))
    capsys.readouterr()
    connections.made.clear()
    assert cli.main(["resume", str(run), "total_timesteps=80"]) == 2
    assert "unknown key 'ray'" in capsys.readouterr().err
    assert connections.made == []


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("ray.adress=auto", "ray: unknown key 'adress'. Did you mean 'address'?"),
        ("ray.address=head", "ray.address=head: expected auto, local or HOST:PORT, such as 10.0.0.1:6379."),
        ("ray=auto", "ray='auto': single settings are written as ray.KEY=VALUE."),
        ("ray.wait_timeout=soon", "ray.wait_timeout='soon': expected a number."),
        ("ray.min_env_runners=1,2", "ray.min_env_runners=1,2: all runs of a command use the same Ray: give one value."),
    ],
)
def test_mistakes_in_the_keys_are_errors_that_say_what_to_do(
    override: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *ON_HOST, override]) == 2
    assert error in capsys.readouterr().err


def test_keys_of_ray_without_runners_are_an_error(connections: Connections, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "ray.address=auto"]) == 2
    expected = "ray.address=auto is for runners on Ray: set num_env_runners to at least 1, or leave it out."
    assert expected in capsys.readouterr().err
    assert cli.main(["train", "ray.insecure=false"]) == 2
    assert "ray.* is for runners on Ray" in capsys.readouterr().err
    assert connections.made == []


def test_show_config_explains_the_keys_of_runners_on_ray(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *ON_HOST, "ray.address=auto", "--show-config"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["ray"]["address"] == "auto"
    assert "min_env_runners: 1  # training begins and goes on with this many runners" in text
    assert cli.main(["train", "--show-config"]) == 0
    assert "min_env_runners" not in capsys.readouterr().out


def test_python_says_where_runners_work(connections: Connections) -> None:
    options = {"num_env_runners": 2, "num_envs": 2, "rollout_length": 4, "recorders": ["jsonl"]}
    run = rookery.train(
        "a2c",
        "gymnasium/CartPole-v1",
        total_timesteps=8,
        config={"ray.address": "auto", "evaluation.num_episodes": 1},
        **options,
    )
    assert connections.made == [(RaySettings(address="auto"), 2)]
    assert "ray" not in run.config
    run.resume(total_timesteps=16, ray={"address": "head:1"})
    assert connections.made[1:] == [(RaySettings(address="head:1"), 2)]
    assert connections.num_closed == 2


def test_a_run_that_cannot_be_built_closes_ray(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(workflow, "device_mesh", fail)
    assert cli.main(["train", *ON_HOST, f"run_dir={tmp_path / 'run'}"]) == 2
    assert (len(connections.made), connections.num_closed) == (1, 1)


def test_ray_starts_before_jax_has_devices(environment: dict[str, str], tmp_path: Path) -> None:
    """A fork of a process in which JAX runs may hang, and JAX warns of it."""
    code = f"""
from jax._src import xla_bridge
from rookery import cli
from rookery.workflows import workflow

def connect(settings, num_env_runners):
    raise SystemExit(f"backends {{list(xla_bridge._backends)}}")

workflow.connect = connect
cli.main(["train", *{ON_HOST!r}, "agent.num_envs=2", "run_dir={tmp_path / "run"}"])
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert result.stderr.splitlines()[-1] == "backends []"


def test_all_runs_of_a_command_share_one_ray(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: list[str]
) -> None:
    shared = Connections()
    monkeypatch.setattr(multirun, "connect", shared.connect)
    monkeypatch.chdir(tmp_path)
    overrides = [text for text in ON_HOST if not text.startswith("num_env_runners")]
    assert cli.main(["train", *small, *overrides, "-m", "num_env_runners=1,2", "ray.wait_timeout=9"]) == 0
    assert shared.made == [(RaySettings(wait_timeout=9.0), 2)]
    assert shared.num_closed == 1
    assert [num_env_runners for _, num_env_runners in connections.made] == [1, 2]


def test_runs_without_runners_on_ray_start_none(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: list[str]
) -> None:
    monkeypatch.setattr(multirun, "connect", connections.connect)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *small, "-m", "seed=1,2"]) == 0
    assert connections.made == []
