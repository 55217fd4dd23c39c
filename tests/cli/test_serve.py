"""`rookery serve`: the policies of a run over HTTP, and newer checkpoints as they appear."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import rookery
from rookery import cli
from rookery.cli.serve import serve
from rookery.offline.episode_log import read_log
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runs.interruption import StopSignals
from rookery.serving import reload
from rookery.serving.client import Client, RefusedError
from rookery.serving.policy_server import PolicyServer
from rookery.serving.server import Server
from tests.served import tls_files, trusting_context

PATIENCE = 20.0
ZEROS = [0.0] * 4


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """Run `rookery serve` in this process until the block ends."""
    parsed = cli.parse_arguments(cli.make_parser(), ["serve", "--port=0", "--max-batch=2", *arguments])
    with contextlib.ExitStack() as stack:
        server = serve(parsed, stack)
        stack.callback(server.stop, 0.0)
        yield server


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def run(finished_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run, with its last checkpoint put aside in `later`."""
    shutil.copytree(finished_run.path, tmp_path / "run")
    last = max((tmp_path / "run" / "checkpoints").iterdir())
    last.rename(tmp_path / "later")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_a_client_plays_with_the_policy_of_a_run_and_the_log_is_read_back(run: Path) -> None:
    policy = rookery.load(run)
    rng = np.random.default_rng(0)
    with serving(str(run), "--no-token", "--log=log") as server:
        client = Client(server.url)
        episode = client.start()
        for _ in range(5):
            obs = rng.uniform(-1, 1, 4).astype(np.float32)
            assert episode.act(obs.tolist()) == policy(obs)
            episode.reward(1.0)
        episode.end(ZEROS, truncated=True)
        assert client.act([ZEROS])[0] == policy(np.zeros(4, np.float32))
    (logged,) = read_log(Path("log")).episodes[SINGLE_AGENT]
    assert np.asarray(logged.rewards).tolist() == [1.0] * 5


def test_the_printed_command_asks_for_an_action(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(str(run)):
        command = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("curl "))
        output = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, check=True, timeout=PATIENCE).stdout
    assert json.loads(output)["actions"] == [rookery.load(run)(np.zeros(4, np.float32))]
    assert Path("token").stat().st_mode & 0o777 == 0o600


def test_newer_checkpoints_are_served_as_they_appear_and_damaged_ones_are_not(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "RELOAD_SECONDS", 0.02)
    later = run.parent / "later"
    step = json.loads((later / "manifest.json").read_text())["step"]
    with serving(str(run), "--no-token") as server:
        client = Client(server.url)
        damaged = run / "checkpoints" / f"{step - 8:012d}"
        shutil.copytree(later, damaged)
        wait_until(lambda: "is not served" in caplog.text)
        later.rename(run / "checkpoints" / f"{step:012d}")
        wait_until(lambda: client.request("GET", "/v1/policies/default")["version"] == step)
    assert caplog.text.count("is not served") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step=7"], "7"),
        (["--host=0.0.0.0", "--no-token"], "--insecure"),
        (["--tls-cert=cert.pem"], "--tls-key"),
        (["--max-batch=0"], "--max-batch"),
        (["--limit=bodi=7"], "--limit: unknown key 'bodi'. Did you mean 'body'?"),
        (["--limit=body"], "--limit.body"),
    ],
)
def test_a_mistake_is_one_clear_error(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", str(run), "--port=0", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_of_the_command_decide_who_may_ask_and_how_actions_are_chosen(run: Path) -> None:
    tls, site = tls_files(run.parent), "https://lab.example"
    files = f"--tls-cert={tls.cert_file}", f"--tls-key={tls.key_file}"
    with serving(str(run), "--no-token", "--explore", f"--allow-origin={site}", "--limit=body=1000", *files) as server:
        client = Client(server.url, ca_file=str(tls.cert_file))
        assert server.url.startswith("https://")
        assert client.request("POST", "/v1/episodes", {})["explore"] is True
        with pytest.raises(RefusedError) as caught:
            client.request("POST", "/v1/episodes", {"info": {"text": "a" * 1000}})
        assert caught.value.status == 413
        for origin, status in ((site, 200), ("https://other.example", 403)):
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusting_context())
            connection.request("GET", "/v1", headers={"Origin": origin})
            response = connection.getresponse()
            response.read()
            assert response.status == status
            assert response.headers["Access-Control-Allow-Origin"] == (site if status == 200 else None)


@pytest.mark.parametrize(("option", "reloads"), [(None, True), ("--step", False), ("--best", False)])
def test_a_server_of_one_checkpoint_looks_for_no_newer_one(run: Path, option: str | None, reloads: bool) -> None:
    steps = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal()]
    arguments = {None: [], "--step": [f"--step={min(steps)}"], "--best": ["--best"]}[option]
    with serving(str(run), "--no-token", *arguments) as server:
        version = Client(server.url).request("GET", "/v1/policies/default")["version"]
        assert ("rookery-reload" in [thread.name for thread in threading.enumerate()]) is reloads
    assert version in steps
    assert option != "--step" or version == min(steps)


def test_a_taken_port_is_said_before_anything_compiles(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_fn = Mock()
    monkeypatch.setattr(PolicyServer, "warm_up", compile_fn)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", str(run), "--no-token", f"--port={port}"]) == 2
    assert f"port {port}: Address already in use" in capsys.readouterr().err
    compile_fn.assert_not_called()


@pytest.mark.parametrize(("num_open", "said"), [(0, "all open steps were answered"), (3, "3 requests still waited")])
def test_a_server_that_ends_says_what_became_of_open_steps(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], num_open: int, said: str
) -> None:
    def stop(server: Server, signals: StopSignals, drain: float) -> int:
        assert drain == 2.5
        signals.requested = signal.SIGTERM
        return server.stop(0.0) + num_open

    monkeypatch.setattr(Server, "serve_until", stop)
    assert cli.main(["serve", str(run), "--port=0", "--no-token", "--max-batch=1", "--drain=2.5"]) == 143
    assert said in capsys.readouterr().err


def test_a_stopped_server_exits_as_a_process_that_was_stopped(run: Path) -> None:
    command = [sys.executable, "-m", "rookery", "serve", str(run), "--port=0", "--no-token", "--max-batch=1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
