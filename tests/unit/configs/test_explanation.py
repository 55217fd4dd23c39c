"""A config written out with the meaning of its keys."""

import pytest
import yaml

from rookery.configs import compose, explain
from rookery.configuration import field_names
from rookery.registry import agent_names, workflow_class


@pytest.mark.parametrize("agent", agent_names())
def test_what_is_written_out_reads_back_as_the_same_config(agent: str) -> None:
    config = compose(
        [f"agent={agent}", "env.kwargs.a={b: [1, x]}", "run_dir='a: b # c'", "agent.discount={start: 0.9, end: 1.0}"]
    )
    assert yaml.safe_load(explain(config)) == config


def test_keys_are_written_with_their_help() -> None:
    lines = explain(compose(["agent.num_envs=7", "agent.learning_rate={start: 1.0, end: 0.0}"])).splitlines()
    assert "  num_envs: 7  # environments in parallel, over all devices" in lines
    assert "  learning_rate:  # * step size of the optimizer" in lines
    assert "  num_episodes: null  # episodes played by the greedy policy; null: 32, on host environments 8" in lines


@pytest.mark.parametrize("agent", agent_names())
def test_every_key_has_a_help_and_names_a_schedule_by_a_star(agent: str) -> None:
    config = compose([f"agent={agent}", "~preset@_global_"])
    workflow = workflow_class(agent)
    written = explain(config).splitlines()
    unexplained = [line.strip() for line in written[1:] if "#" not in line]
    network = ["network"] if "network" in config["agent"] else []  # a hybrid has that of its learner
    blocks = [f"{key}:" for key in ("agent", *network, "env", "evaluation", "checkpoint")]
    # The values of a schedule have no help of their own.
    schedules = [line for line in unexplained if line.partition(":")[0] in ("start", "end", "steps")]
    assert set(unexplained) - set(schedules) == {*blocks, f"name: {agent}", "seed: 0"}
    starred = [line.partition(":")[0].strip() for line in written[1:] if "  # * " in line]
    once = {"initial_std"}
    assert starred == [name for name in field_names(workflow.hyperparameters_class) if name not in once]
