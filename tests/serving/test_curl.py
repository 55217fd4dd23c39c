"""The curl commands of the docs."""

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.serving.env import ServedEnv, ServedSettings
from rookery.serving.tokens import Tokens
from tests.runner_envs import make_runner
from tests.served_policy import SPACES, served_policy

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def answers_of(page: str, url: str, folder: Path) -> list[dict]:
    """Run the curl commands of a page one after the other; return their answers."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    text = "".join(block for block in blocks if "curl" in block).replace("\\\n", "")
    (folder / "token").write_text(f"default act {40 * 'x'}\n")
    (folder / "token").chmod(0o600)
    answers = []
    for command in re.findall(r"^curl .*$", text, re.MULTILINE):
        line = (
            f'TOKEN=$(head -1 token | cut -d" " -f3); {re.sub(r"(http://)?(localhost|127.0.0.1):8642", url, command)}'
        )
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=30, check=True)
        answers.append(json.loads(done.stdout))
    return answers


def test_actions_without_an_episode(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"default act {40 * 'x'}\n")
    (tmp_path / "token").chmod(0o600)
    with served_policy(Tokens.open(tmp_path / "token")) as server:
        (answer,) = answers_of("serve.md", server.url, tmp_path)
    assert answer["version"] == 20_480
    assert [action in (0, 1) for action in answer["actions"]] == [True, True]


def test_an_episode_in_three_requests(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"default act {40 * 'x'}\n")
    (tmp_path / "token").chmod(0o600)
    settings = ServedSettings(spaces="-", port=0, token_file=str(tmp_path / "token"))
    env = ServedEnv(settings, {SINGLE_AGENT: SPACES})
    base_env = ExternalBaseEnv([env])
    base_env.prepare()
    runner = make_runner(base_env, rollout_fragment_length=1, num_fragments=1)
    thread = threading.Thread(target=runner.sample)
    thread.start()
    answers = answers_of("simulators-over-http.md", env.url, tmp_path)
    thread.join()
    base_env.close()
    assert answers[0]["episode"] == "a7"
    assert answers[1]["action"] in (0, 1)
    assert answers[2] == {"seq": 1, "ended": True, "episode_return": 1.0, "episode_length": 1}
