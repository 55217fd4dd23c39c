"""Clients and a training that is killed or stopped."""

import os
import signal
import threading
from pathlib import Path

import pytest

import rookery
from rookery import cli
from rookery.serving.client import Client, RefusedError, ServerGoneError
from tests.campaigns.clients import kills, served_settings, url_of

PATIENCE = 60.0


def test_clients_go_on_with_a_training_that_was_killed_and_resumed() -> None:
    kills(count=1)


def test_a_training_that_is_stopped_saves_and_exits_as_a_process_that_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs, run_dir = served_settings(tmp_path, "CartPole-v1"), tmp_path / "run"
    errors: list[RefusedError | ServerGoneError] = []

    def play() -> None:
        client = Client(url_of(kwargs), token_file=kwargs["token_file"], patience=PATIENCE)
        obs, episode = [0.0] * 4, client.start()
        for _ in range(40):
            episode.act(obs)
            episode.reward(1.0)
        client.patience = 0.0
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            while True:
                episode.act(obs)
                episode.reward(1.0)
        except (RefusedError, ServerGoneError) as error:
            errors.append(error)

    player = threading.Thread(target=play, daemon=True)
    player.start()
    overrides = [f"env.kwargs.{name}={value}" for name, value in kwargs.items()]
    sizes = ["agent.num_envs=1", "agent.rollout_length=16", "agent.network.hidden_sizes=[4]"]
    never = ["total_timesteps=1e9", "checkpoint.interval=1e9", "recorders=[]"]
    arguments = ["train", "agent=a2c", "env=served", *overrides, *sizes, *never, f"run_dir={run_dir}"]
    assert cli.main(arguments) == 143
    player.join(PATIENCE)
    assert "stopped by SIGTERM: saved at" in capsys.readouterr().err
    assert rookery.load(run_dir).num_steps >= 32
    (error,) = errors
    assert isinstance(error, ServerGoneError) or (error.status, error.code) == (503, "closed")
