"""The environment `served`: its settings, and mistakes in them."""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.configuration import from_mapping
from rookery.errors import InvalidInputError, RookeryError
from rookery.runners.envs.agent_spaces import agent_spaces_from_json, agent_spaces_to_json
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.libraries import make_host_env
from rookery.serving.client import Client
from rookery.serving.env import ServedEnv, ServedSettings
from rookery.spaces import Box, Discrete

PAIR = Box(-1.0, 1.0, (2,)), Discrete(3)


def write_spaces(folder: Path, *agents: str) -> str:
    spaces = dict.fromkeys(agents or [SINGLE_AGENT], PAIR)
    (folder / "spaces.json").write_text(json.dumps(agent_spaces_to_json(spaces)))
    return str(folder / "spaces.json")


@pytest.mark.parametrize("agents", [[SINGLE_AGENT], ["left", "right"]])
def test_spaces_come_back_from_json(agents: list[str]) -> None:
    spaces = dict.fromkeys(agents, PAIR)
    assert agent_spaces_from_json(json.loads(json.dumps(agent_spaces_to_json(spaces))), "here") == spaces


@pytest.mark.parametrize("data", [None, [], {}, {"observation": {}}, {"agents": {}}, {"agents": {"a": 1}}])
def test_what_describes_no_spaces_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"here.*describes no spaces"):
        agent_spaces_from_json(data, "here")


def test_a_served_environment_has_the_spaces_of_its_file(tmp_path: Path) -> None:
    base_env = make_host_env("served", 1, spaces=write_spaces(tmp_path), max_episodes=5)
    assert dict(base_env.spaces) == {SINGLE_AGENT: PAIR}
    assert (base_env.num_envs, base_env.is_external) == (5, True)
    team = make_host_env("served_agents", 1, spaces=write_spaces(tmp_path, "left", "right"))
    assert list(team.spaces) == ["left", "right"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "spaces is missing"),
        ({"spaces": "absent.json"}, "absent.json cannot be read"),
        ({"prot": 1}, "Did you mean 'port'"),
        ({"port": 70_000}, "port=70000"),
        ({"tls_key": "key.pem"}, "tls_cert and tls_key belong together"),
        ({"host": "0.0.0.0", "token_file": None}, "can be reached by other machines"),
        ({"max_age": -1}, "max_age=-1"),
        ({"limits": {"bodi": 1}}, "limits: unknown key 'bodi'. Did you mean 'body'"),
        ({"limits": {"body": 0}}, "body=0"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, kwargs: dict[str, Any], message: str) -> None:
    spaces = {"spaces": write_spaces(tmp_path)} if kwargs and "spaces" not in kwargs else {}
    with pytest.raises(RookeryError, match=message):
        make_host_env("served", 1, **spaces, **kwargs)


def test_several_agents_have_their_own_environment(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="env=served_agents, not of served"):
        make_host_env("served", 1, spaces=write_spaces(tmp_path, "left", "right"))


def test_a_taken_port_is_an_error_before_anything_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        kwargs = {"spaces": write_spaces(tmp_path), "port": taken.getsockname()[1], "token_file": None}
        with pytest.raises(InvalidInputError, match=f"port {kwargs['port']}"):
            rookery.train("ppo", "served", config={f"env.kwargs.{name}": value for name, value in kwargs.items()})
    assert "compil" not in capsys.readouterr().out


def test_an_environment_that_never_ran_is_closed(tmp_path: Path) -> None:
    base_env = make_host_env("served", 1, spaces=write_spaces(tmp_path), port=0, token_file=None)
    base_env.prepare()
    base_env.close()
    base_env.close()


def test_the_server_of_a_training_tells_its_limits() -> None:
    settings = {"spaces": "-", "port": 0, "token_file": None, "limits": {"body": 1000}}
    env = ServedEnv(from_mapping(ServedSettings, settings, "env.kwargs"), {SINGLE_AGENT: PAIR})
    base_env = ExternalBaseEnv([env])
    base_env.prepare()
    base_env.poll(0.0)
    assert Client(env.url).request("GET", "/v1")["limits"]["body"] == 1000
    base_env.close()


def make_env() -> ServedEnv:
    return ServedEnv(ServedSettings("-", port=0, token_file=None), {SINGLE_AGENT: PAIR})


def test_an_environment_that_is_closed_while_its_server_restarts_does_not_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = make_env()
    base_env = ExternalBaseEnv([env])
    starts, prepare_fn = [], env._prepare
    closing = threading.Thread(target=base_env.close)

    def prepare_while_closing() -> None:
        closing.start()
        assert wait_until(env._is_closed.is_set)
        prepare_fn()
        starts.append(env._server)

    monkeypatch.setattr(env, "_prepare", prepare_while_closing)
    env.run()  # as after a crash: there is no server
    closing.join()
    env.run()
    assert [server.is_serving for server in starts] == [False]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", starts[0].port))


def test_an_environment_serves_a_second_training() -> None:
    env = make_env()
    for _ in range(2):
        base_env = ExternalBaseEnv([env])
        base_env.prepare()
        port = env._server.port
        base_env.poll(0.0)
        assert wait_until(lambda: env._server.is_serving)
        env._thread.join(0.1)
        assert env._stopped is None, "it serves until it is closed"
        base_env.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def wait_until(is_true: Callable[[], bool]) -> bool:
    """Wait for another thread; return False after a long time."""
    deadline = time.monotonic() + 10.0
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()
