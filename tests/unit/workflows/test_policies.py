"""Which policy each agent of an environment has."""

from typing import Any

import pytest

from rookery.envs.config import EnvConfig
from rookery.spaces import Box, Discrete
from rookery.workflows.policies import assign_policies

GAME = "pettingzoo/pettingzoo.classic.tictactoe_v3"
ONE, OTHER = (Box(0.0, 1.0, (2,)), Discrete(2)), (Box(0.0, 1.0, (2,)), Discrete(3))


@pytest.mark.parametrize(
    ("policies", "spaces", "expected"),
    [
        (None, {"a_0": ONE, "a_1": ONE}, {"a_0": "shared", "a_1": "shared"}),
        (None, {"a_0": ONE, "b_0": OTHER, "a_1": ONE}, {"a_0": "a", "b_0": "b", "a_1": "a"}),
        (None, {"a_0": ONE, "a_1": OTHER}, {"a_0": "a_0", "a_1": "a_1"}),
        ("per_agent", {"a_0": ONE, "a_1": ONE}, {"a_0": "a_0", "a_1": "a_1"}),
        ({"a_1": "x", "a_*": "y"}, {"a_0": ONE, "a_1": ONE, "a_2": ONE}, {"a_0": "y", "a_1": "x", "a_2": "y"}),
    ],
)
def test_the_first_rule_that_fits_an_agent_gives_it_its_policy(policies: Any, spaces: Any, expected: Any) -> None:
    assignment = assign_policies(EnvConfig(GAME, policies=policies), spaces)
    assert {agent: (policy,) for agent, policy in expected.items()} == assignment.choices
