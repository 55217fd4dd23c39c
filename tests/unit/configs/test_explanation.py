"""A config written out with the meaning of its keys."""

from pathlib import Path

import pytest
import yaml

from rookery.configs import compose, explain
from rookery.configs.explanation import comments_of
from rookery.registry import agent_names


@pytest.mark.parametrize("agent", agent_names())
def test_what_is_written_out_reads_back_as_the_same_config(agent: str) -> None:
    config = compose(
        [f"agent={agent}", "env.kwargs.a={b: [1, x]}", "run_dir='a: b # c'", "agent.discount={start: 0.9, end: 1.0}"]
    )
    assert yaml.safe_load(explain(config)) == config


def test_keys_are_written_with_the_comments_of_their_files() -> None:
    lines = explain(compose(["agent.num_envs=7", "agent.learning_rate={start: 1.0, end: 0.0}"])).splitlines()
    assert "  num_envs: 7  # environments side by side, over all devices" in lines
    assert "  learning_rate:  # * step size of the optimizer" in lines
    assert "  num_episodes: 32  # episodes played by the greedy policy" in lines


def test_comments_are_found_by_the_full_name_of_their_key(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("# about\na:\n  b:  # inner\n    c: '#x'  # innermost\n  d: 1\ne: 2  # outer\n")
    assert comments_of(file) == {"a.b": "inner", "a.b.c": "innermost", "e": "outer"}
