"""The JavaScript client and a server."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import rookery.serving
from tests.served_policy import served_policy

CLIENT = Path(rookery.serving.__path__[0]) / "client.js"
PROGRAM = """
import {Client, EpisodeLostError, RefusedError} from "./client.mjs";
const client = new Client(process.argv[2]);
const episode = await client.start({mode: "watch", explore: true});
const actions = [];
for (let t = 0; t < 3; t++) {
  actions.push(await episode.act([0, t, 0.1, 0]));
  episode.reward(1);
}
const ended = await episode.end([0, 3, 0.1, 0]);
const errors = [];
try { await episode.act([0, 4, 0.1, 0]); } catch (error) { errors.push(error instanceof EpisodeLostError, error.code); }
try { await client.act([[0, 4]]); } catch (error) { errors.push(error instanceof RefusedError, error.code); }
const batch = await client.act([[0, 1, 0, 0], [0, 2, 0, 0]]);
console.log(JSON.stringify({actions, ended, errors, batch}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_javascript_client_plays_on_a_server(tmp_path: Path) -> None:
    (tmp_path / "client.mjs").write_text(CLIENT.read_text())
    (tmp_path / "program.mjs").write_text(PROGRAM)
    with served_policy() as server:
        command = ["node", str(tmp_path / "program.mjs"), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["actions"]) == 3
    assert set(said["actions"]) <= {0, 1}
    assert said["ended"] == {"seq": 3, "ended": True, "episode_return": 3.0, "episode_length": 3}
    assert said["errors"] == [True, "over", True, "shape"]
    assert said["batch"]["version"] == 20_480
    assert len(said["batch"]["actions"]) == 2
