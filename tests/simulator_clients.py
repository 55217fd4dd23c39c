"""Simulators in processes of their own, which know Rookery by its client file alone.

python tests/simulator_clients.py CLIENT_FILE URL ENV LOGS_EVERY [TOKEN_FILE]
"""

import contextlib
import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

CLIENT_FILE = Path(__file__).parents[1] / "rookery" / "serving" / "client.py"


@contextlib.contextmanager
def simulators(
    number: int, url: str, env: str, logs_every: int = 0, token_file: Path | None = None
) -> Iterator[list[subprocess.Popen]]:
    """Let some processes play an environment of Gymnasium for ever; kill them in the end.

    With `logs_every=3`, every third action is random and logged.
    """
    command = [sys.executable, __file__, str(CLIENT_FILE), url, env, str(logs_every)]
    command += [] if token_file is None else [str(token_file)]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(client_file: str, url: str, env_name: str, logs_every: str, token_file: str | None = None) -> None:
    spec: Any = importlib.util.spec_from_file_location("client", client_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    client = module.Client(url, token_file=token_file, patience=60.0)
    with contextlib.suppress(module.ServerGoneError, module.RefusedError):
        play(client, module.EpisodeLostError, gymnasium.make(env_name), int(logs_every))


def play(client: Any, lost_error: type[Exception], env: gymnasium.Env, logs_every: int) -> None:
    numbers = itertools.count(1)
    while True:
        with contextlib.suppress(lost_error):
            play_episode(client.start(), env, numbers, logs_every)


def play_episode(episode: Any, env: gymnasium.Env, numbers: Iterator[int], logs_every: int) -> None:
    (obs, _), is_over = env.reset(), False
    while not is_over:
        if logs_every and next(numbers) % logs_every == 0:
            action = env.action_space.sample()
            episode.log(obs, action)
        else:
            (action,) = env.action_space.from_jsonable([episode.act(obs)])
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.reward(reward)
        is_over = terminated or truncated
    episode.end(obs, truncated=not terminated)


if __name__ == "__main__":
    main(*sys.argv[1:])
