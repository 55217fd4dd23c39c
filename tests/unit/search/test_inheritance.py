"""Inheritance: what was learned moves; keys, environments, buffers and counters stay."""

import jax
import pytest
from jax.tree_util import keystr

from rookery.configs import compose
from rookery.learners.learner import LearnerState
from rookery.registry import AGENTS, build_workflow
from rookery.search import inherit, inheritance
from rookery.types import make_key

OWN = ("key", "num_invalid", "iterations", "env_steps", "num_updates", "buffer_state", "returns", "last_steps")
"""The names of the fields, at any depth of a learner's state, that stay with a member."""
CONTINUOUS = ("ddpg", "td3", "erl", "erl_es", "erl_eda", "cem_rl", "pga_me")
MEASURES = {"nsga2": ["agent.objectives=[sum:reward,mean:reward]"]}
MEASURES["map_elites"] = ["agent.descriptors=[sum:reward,last:reward]"]
SCALED = {method: ["agent.normalize_rewards=true"] for method in ("ppo", "a2c", "impala")}


def is_own(path: str) -> bool:
    return any(f".{name}" in path for name in OWN)


@pytest.mark.parametrize("method", sorted(set(AGENTS) - {"pbt"}))
def test_an_heir_keeps_its_own_key_counters_buffer_and_returns_and_takes_over_the_rest(method: str) -> None:
    env = "classic/pendulum" if method in CONTINUOUS else "classic/cartpole"
    overrides = [f"agent={method}", f"env={env}", *MEASURES.get(method, []), *SCALED.get(method, [])]
    workflow = build_workflow(compose([*overrides, "recorders=[]"]))
    shapes = jax.eval_shape(workflow.init, make_key(0)).learner
    owners = owners_in_heir(shapes)
    assert owners == {path: "own" if is_own(path) else "parent" for path in owners}


def owners_in_heir(shapes: LearnerState) -> dict[str, str]:
    """Return whose each leaf of an heir is, and check that an heir has the structure of a state."""
    owners: dict[str, str] = {}

    def look(own: LearnerState, parent: LearnerState) -> None:
        heir = inherit(own, inheritance(parent))
        assert jax.tree.structure(heir) == jax.tree.structure(own)
        of_parent = set(map(id, jax.tree.leaves(parent)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(heir):
            owners[keystr(path)] = "parent" if id(leaf) in of_parent else "own"

    jax.eval_shape(look, shapes, shapes)
    return owners
