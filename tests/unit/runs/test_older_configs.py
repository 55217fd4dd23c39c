"""Run directories of before: keys that have another name now are read as what they are today."""

import re
from pathlib import Path
from typing import Any

import pytest

from rookery.configs import compose
from rookery.errors import UnknownNameError
from rookery.registry import workflow_class
from rookery.runs.directory import RunDirectory
from rookery.runs.older_configs import with_present_keys

NEW_KEYS = ("num_env_runners", "max_staleness", "min_ready")


def older_config(env: str, overlap: bool) -> dict[str, Any]:
    """Compose a config as it was written when runners had the key `overlap`."""
    config = compose(["agent=a2c", f"env={env}"])
    config["env"]["runner"]["overlap"] = overlap
    return {name: value for name, value in config.items() if name not in NEW_KEYS}


@pytest.mark.parametrize(("overlap", "max_staleness"), [(True, 1), (False, 0)])
def test_a_run_of_before_with_overlap_opens_with_its_staleness(
    tmp_path: Path, overlap: bool, max_staleness: int
) -> None:
    RunDirectory.create(tmp_path / "run", older_config("gymnasium/CartPole-v1", overlap))
    config = RunDirectory.open(tmp_path / "run").config
    assert config["max_staleness"] == max_staleness
    assert "overlap" not in config["env"]["runner"]
    train = workflow_class("a2c").check_config(config, agent_name="a2c").train
    assert train.max_staleness == max_staleness
    assert (train.num_env_runners, train.min_ready) == (0, 1.0)


def test_a_run_of_before_on_the_device_opens_as_well(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", older_config("classic/cartpole", overlap=False))
    config = RunDirectory.open(tmp_path / "run").config
    assert workflow_class("a2c").check_config(config, agent_name="a2c").train.max_staleness == 0


def test_a_config_of_this_version_stays_as_it_is() -> None:
    config = compose(["env=gymnasium/CartPole-v1", "max_staleness=1"])
    assert with_present_keys(config) == config


@pytest.mark.parametrize("config", [{}, {"env": "a name"}, {"env": {"runner": None}}, {"env": {"runner": ["overlap"]}}])
def test_a_config_with_other_parts_than_expected_is_left_to_later_checks(config: dict) -> None:
    assert with_present_keys(config) == config


def test_reading_does_not_change_the_given_config() -> None:
    config = older_config("gymnasium/CartPole-v1", overlap=True)
    with_present_keys(config)
    assert config["env"]["runner"]["overlap"] is True


@pytest.mark.parametrize("value", ["true", "false"])
def test_the_older_key_on_the_command_line_is_an_error_that_names_the_present_one(value: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape("env.runner.overlap: set max_staleness, 1 to collect")):
        compose(["env=gymnasium/CartPole-v1", f"env.runner.overlap={value}"])
