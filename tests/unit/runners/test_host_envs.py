"""Host environments as a config names them."""

import pytest

from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.runners.host_envs import make_envs
from rookery.runners.transports import subprocesses


class Made(Exception):  # noqa: N818
    """Stands for the processes of environments; its argument has their settings."""


def test_settings_of_processes_reach_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(make_env_fns: list, **settings: float) -> None:
        raise Made(settings)

    monkeypatch.setattr(subprocesses, "ProcessTransport", make)
    settings = {"envs_per_process": 2, "step_timeout": 5.0, "start_timeout": 7.0, "max_memory": 900.0}
    env = EnvConfig("gymnasium/CartPole-v1", runner=RunnerSettings(processes=True, **settings))
    with pytest.raises(Made) as made:
        make_envs(env, 4)
    assert made.value.args == (settings,)
