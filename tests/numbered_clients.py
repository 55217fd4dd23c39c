"""Clients in processes of their own whose observations tell process, episode and step; they know the client file alone.

python tests/numbered_clients.py URL NUMBER
"""

import contextlib
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENT_FILE = Path(__file__).parents[1] / "rookery" / "serving" / "client.py"
LENGTH = 25
EPISODES = 100
"""The number of episodes after which the numbers of a client begin again."""


def start_client(url: str, number: int) -> subprocess.Popen:
    """Start a client that plays for ever. Observation t of its episode k is `1000 (EPISODES number + k) + t`."""
    return subprocess.Popen([sys.executable, "-S", __file__, url, str(number)], stderr=subprocess.DEVNULL)


def main(url: str, number: str) -> None:
    spec: Any = importlib.util.spec_from_file_location("client", CLIENT_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    client = module.Client(url, patience=60.0)
    for k in itertools.count():
        with contextlib.suppress(module.EpisodeLostError):
            play_episode(client, 1000 * (EPISODES * int(number) + k % EPISODES))


def play_episode(client: Any, offset: int) -> None:
    episode = client.start()
    for t in range(LENGTH):
        assert episode.act([offset + t]) == (offset + t) % 2
        episode.reward(t)
    episode.end([offset + LENGTH], truncated=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
