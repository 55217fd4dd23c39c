"""The JavaScript client, where Node is found."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import rookery.serving
from tests.fake_server import HANG_UP, serving

CLIENT = Path(rookery.serving.__path__[0]) / "client.js"
PROGRAM = """
import {Client, EpisodeLostError, RefusedError} from %s;
const client = new Client(%s, {token: "secret"});
const episode = await client.start({mode: "learn"});
const actions = [await episode.act([0.5])];
episode.reward(1);
episode.reward(0.5);
actions.push(await episode.act([1.5]));
const errors = [];
try { await episode.act([9]); } catch (error) { errors.push([error instanceof RefusedError, error.code, error.where]); }
await episode.log([2.5], 1, -0.7);
episode.reward(2);
try { await episode.act([3.0]); } catch (error) { errors.push([error instanceof RefusedError, error.code]); }
await episode.end([3.5], {truncated: true});
try { await episode.act([4.5]); } catch (error) { errors.push([error instanceof EpisodeLostError, error.code]); }
const batch = await client.act([[1], [2]], {explore: true});
await episode.leave({keep: false});
console.log(JSON.stringify({actions, errors, batch}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_javascript_client_speaks_the_protocol(tmp_path: Path) -> None:
    refused = 422, {"error": {"code": "shape", "message": "why", "where": "obs"}}
    pending = 503, {"error": {"code": "pending", "message": "later"}}
    over = 410, {"error": {"code": "over", "message": "it has ended"}}
    answers = [(201, {"episode": "a"}), (200, {"action": 1}), HANG_UP, pending, (200, {"action": 0}), refused]
    fault = 500, {"error": {"code": "policy_fault", "message": "why"}}
    answers += [(200, {"action": 1}), fault, (200, {"ended": True}), over, (200, {"actions": [0, 1]})]
    program = tmp_path / "program.mjs"
    (tmp_path / "client.mjs").write_text(CLIENT.read_text())
    with serving(*answers) as server:
        program.write_text(PROGRAM % (json.dumps("./client.mjs"), json.dumps(server.url)))
        done = subprocess.run(["node", str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "actions": [1, 0],
        "errors": [[True, "shape", "obs"], [True, "policy_fault"], [True, "over"]],
        "batch": {"actions": [0, 1]},
    }
    bodies = [body for _, _, body in server.requests]
    assert bodies[1:5] == [{"seq": 0, "obs": [0.5]}] + 3 * [{"seq": 1, "obs": [1.5], "reward": 1.5}]
    assert bodies[6] == {"seq": 2, "obs": [2.5], "action": 1, "log_prob": -0.7}
    assert bodies[7] == {"seq": 3, "obs": [3.0], "reward": 2}
    assert bodies[8] == {"seq": 4, "obs": [3.5], "truncated": True}, "the step before it counts"
    assert server.requests[-1][:2] == ("DELETE", "/v1/episodes/a?keep=false")
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_the_javascript_client_is_short() -> None:
    assert len(CLIENT.read_text().splitlines()) <= 100
