"""Every rule has an agent that breaks it, and no other, and is told so in the right words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import Agent, AgentState, RandomAgent, action_mask_of
from rookery.errors import InvalidInputError
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rookery.testing.check_agent import AGENT_RULES, check_agent
from rookery.testing.check_report import NAME_WIDTH, Outcome
from rookery.types import Array, Key, PyTreeDict

NUM_ACTIONS = 3
OBS_SPACE = Dict(features=Box(-1.0, 1.0, (2,)), action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
ACTION_SPACE = Discrete(NUM_ACTIONS)


class LinearAgent(Agent):
    """An agent that keeps every rule: a linear policy with a memory of two numbers and a mask."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=jax.random.normal(key, (2, NUM_ACTIONS)))

    def initial_carry(self, batch_shape: tuple[int, ...] = ()) -> Any:
        return jnp.zeros((*batch_shape, 2))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        logits, carry = self.logits(agent_state, sample_batch)
        actions = jax.random.categorical(key, logits)
        return actions, PyTreeDict(carry=carry, logits=logits)

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        logits, carry = self.logits(agent_state, sample_batch)
        return jnp.argmax(logits, axis=-1), PyTreeDict(carry=carry)

    def logits(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Array, Array]:
        carry = 0.5 * self.cleared(sample_batch) + sample_batch.obs["features"]
        return jnp.where(self.mask(sample_batch) == 1, carry @ agent_state.params, -jnp.inf), carry

    def cleared(self, sample_batch: SampleBatch) -> Array:
        inputs = sample_batch.extras.policy_extras
        return jnp.where(inputs.episode_start[..., None] == 1, 0.0, inputs.carry)

    def mask(self, sample_batch: SampleBatch) -> Array:
        mask = action_mask_of(sample_batch.obs)
        assert mask is not None
        return mask


def agent_with(
    change: Callable[[Any, PyTreeDict], Any] = lambda actions, extras: (actions, extras), **members: Any
) -> Agent:
    """Make a linear agent whose results are changed, or some of whose members are others."""

    class ChangedAgent(LinearAgent):
        def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> Any:
            return change(*super().compute_actions(agent_state, sample_batch, key))

        def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> Any:
            return change(*super().evaluate_actions(agent_state, sample_batch, key))

    return type("BrokenAgent", (ChangedAgent,), members)()


def init_with_numpy(self: LinearAgent, obs_space: Space, action_space: Space, key: Key) -> AgentState:
    return AgentState(params=jnp.asarray(np.random.normal(size=(2, NUM_ACTIONS)), jnp.float32))


def init_without_a_state(self: LinearAgent, obs_space: Space, action_space: Space, key: Key) -> Any:
    return LinearAgent.init(self, obs_space, action_space, key).params


def branch_on_a_traced_value(actions: Any, extras: PyTreeDict) -> Any:
    return (actions if jnp.all(actions == 0) else 1 - actions), extras


def drop_extras_of_batches(actions: Any, extras: PyTreeDict) -> Any:
    return actions, PyTreeDict(carry=extras.carry) if actions.ndim else extras.replace(logits=extras.carry)


def write_into_the_batch(self: LinearAgent, sample_batch: SampleBatch) -> Array:
    sample_batch.extras.policy_extras.carry = 2.0 * sample_batch.extras.policy_extras.carry
    return LinearAgent.cleared(self, sample_batch)


def shift_by_numpy(actions: Any, extras: PyTreeDict) -> Any:
    return actions, extras.replace(luck=jnp.full(actions.shape, np.random.normal(), jnp.float32))


def sum_over_states(self: LinearAgent, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Array, Array]:
    logits, carry = LinearAgent.logits(self, agent_state, sample_batch)
    return logits + jnp.where(logits > -jnp.inf, all_states_together(agent_state.params[0, 0]), 0.0), carry


@jax.custom_batching.custom_vmap
def all_states_together(value: Array) -> Array:
    return value


@all_states_together.def_vmap
def _(axis_size: int, in_batched: Any, value: Array) -> tuple[Array, bool]:
    return jnp.sum(value), False


def no_mask(self: LinearAgent, sample_batch: SampleBatch) -> Array:
    return jnp.ones_like(LinearAgent.mask(self, sample_batch))


def never_cleared(self: LinearAgent, sample_batch: SampleBatch) -> Array:
    return sample_batch.extras.policy_extras.carry


def always_cleared(self: LinearAgent, sample_batch: SampleBatch) -> Array:
    return jnp.zeros_like(sample_batch.extras.policy_extras.carry)


def carry_without_batch(self: LinearAgent, batch_shape: tuple[int, ...] = ()) -> Any:
    return jnp.zeros((2,))


@dataclass(frozen=True)
class Broken:
    """An agent that breaks a rule; `also` are the rules that it cannot keep then."""

    make: Callable[[], Agent]
    rule: str
    outcome: Outcome
    words: list[str]
    also: tuple[str, ...] = ()


BROKEN_AGENTS = {
    "parameters drawn by NumPy": Broken(
        lambda: agent_with(init=init_with_numpy),
        "init makes a state",
        Outcome.FAILED,
        ["two states made with one key differ: .params[0, 0] is", "all randomness from the key"],
    ),
    "no AgentState": Broken(
        lambda: agent_with(init=init_without_a_state),
        "init makes a state",
        Outcome.FAILED,
        ["init returned", "expected an AgentState"],
    ),
    "a Python branch": Broken(
        lambda: agent_with(branch_on_a_traced_value),
        "agent acts for any batch shape",
        Outcome.FAILED,
        ["compute_actions under jax.jit raised TracerBoolConversionError", "for [] envs"],
    ),
    "no extras": Broken(
        lambda: agent_with(lambda actions, extras: actions),
        "agent acts for any batch shape",
        Outcome.FAILED,
        ["compute_actions returned", "expected the actions and a PyTreeDict"],
    ),
    "a memory for one env only": Broken(
        lambda: agent_with(initial_carry=carry_without_batch),
        "agent acts for any batch shape",
        Outcome.FAILED,
        ["initial_carry((3,)) has a leaf float32[2]; expected the batch shape"],
    ),
    "an action too many": Broken(
        lambda: agent_with(lambda actions, extras: (actions + NUM_ACTIONS, extras)),
        "actions are in the space",
        Outcome.FAILED,
        ["the action of compute_actions is", "outside Discrete(3)"],
        also=("action mask is honored",),
    ),
    "an action with an axis": Broken(
        lambda: agent_with(lambda actions, extras: (actions[..., None], extras)),
        "actions are in the space",
        Outcome.FAILED,
        ["the action of compute_actions has shape [1]; expected [] for Discrete(3)"],
        also=("action mask is honored",),
    ),
    "extras without the batch": Broken(
        lambda: agent_with(lambda actions, extras: (actions, extras.replace(entropy=jnp.zeros(())))),
        "results keep their structure",
        Outcome.FAILED,
        ["compute_actions returned ['extras']['entropy'] float32[] for [3] envs"],
        also=("carry is cleared at starts",),
    ),
    "extras that depend on the batch": Broken(
        lambda: agent_with(drop_extras_of_batches),
        "results keep their structure",
        Outcome.FAILED,
        ["the result of compute_actions changes: [1]['logits'] is float32[2] for one env and missing for [3] envs"],
    ),
    "writing into the batch": Broken(
        lambda: agent_with(cleared=write_into_the_batch),
        "acting leaves input unchanged",
        Outcome.FAILED,
        ["compute_actions changed .extras['policy_extras']['carry'] of its arguments in place"],
    ),
    "luck drawn by NumPy": Broken(
        lambda: agent_with(shift_by_numpy),
        "same key, same actions",
        Outcome.FAILED,
        ["compute_actions differs for one key: [1]['luck'][0] is", "all randomness from the key"],
    ),
    "states that see each other": Broken(
        lambda: agent_with(logits=sum_over_states),
        "vmap over states",
        Outcome.FAILED,
        ["compute_actions of state 0 mapped by jax.vmap differs from a single one: [1]['logits']"],
    ),
    "no mask": Broken(
        lambda: agent_with(mask=no_mask),
        "action mask is honored",
        Outcome.FAILED,
        ["compute_actions took a forbidden action in", "of 6 observations", "the probability 0"],
    ),
    "a memory that is never cleared": Broken(
        lambda: agent_with(cleared=never_cleared),
        "carry is cleared at starts",
        Outcome.FAILED,
        ["compute_actions keeps its carry across the start of an episode", "reset it there"],
    ),
    "a memory that is always cleared": Broken(
        lambda: agent_with(cleared=always_cleared),
        "carry is cleared at starts",
        Outcome.WARNING,
        ["compute_actions does not use its carry", "only where episode_start is 1"],
    ),
    "a memory that is not handed back": Broken(
        lambda: agent_with(lambda actions, extras: (actions, PyTreeDict())),
        "carry is cleared at starts",
        Outcome.FAILED,
        ['compute_actions returned no carry; expected the next one as policy_extras["carry"]'],
    ),
    "a memory that changes its dtype": Broken(
        lambda: agent_with(lambda actions, extras: (actions, extras.replace(carry=extras.carry.astype(jnp.float16)))),
        "carry is cleared at starts",
        Outcome.FAILED,
        ["the carry of compute_actions is float32[2, 3, 2] at first and float16[2, 3, 2] after a step"],
    ),
}


def test_an_agent_that_keeps_every_rule_passes_every_check() -> None:
    report = check_agent(LinearAgent(), OBS_SPACE, ACTION_SPACE)
    assert [check.name for check in report.checks] == [rule.name for rule in AGENT_RULES]
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}, str(report)
    assert report.verdict == "LinearAgent: passed (9 checks, 0 warnings)"


@pytest.mark.parametrize("case", BROKEN_AGENTS)
def test_a_broken_rule_is_named_and_the_others_are_still_checked(case: str) -> None:
    broken = BROKEN_AGENTS[case]
    report = check_agent(broken.make(), OBS_SPACE, ACTION_SPACE)
    (check,) = [check for check in report.checks if check.name == broken.rule]
    assert check.outcome is broken.outcome, str(report)
    for word in broken.words:
        assert word in check.finding
    kept = (Outcome.PASSED, Outcome.SKIPPED)
    others = [other for other in report.checks if other.name != broken.rule]
    assert len(others) == len(AGENT_RULES) - 1
    assert tuple(other.name for other in others if other.outcome not in kept) == broken.also, str(report)


def test_every_rule_has_an_agent_that_breaks_it() -> None:
    assert {broken.rule for broken in BROKEN_AGENTS.values()} == {rule.name for rule in AGENT_RULES}


@pytest.mark.parametrize(
    "action_space",
    [
        Discrete(4, start=2),
        MultiDiscrete([3, 2]),
        Box(-2.0, 3.0, (2,)),
        Dict(move=Discrete(3), turn=Box(-1.0, 1.0, ())),
    ],
    ids=str,
)
def test_the_random_agent_passes_in_any_action_space(action_space: Space) -> None:
    report = check_agent(RandomAgent(), Box(-1.0, 1.0, (2,)), action_space)
    assert report.passed, str(report)
    assert not report.with_outcome(Outcome.WARNING)
    assert [check.name for check in report.with_outcome(Outcome.SKIPPED)] == [
        "action mask is honored",
        "carry is cleared at starts",
    ]


def test_a_mask_counts_from_the_first_action_of_the_space() -> None:
    obs_space = Dict(action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
    report = check_agent(RandomAgent(), obs_space, Discrete(NUM_ACTIONS, start=5))
    assert {check.name: check.outcome for check in report.checks}["action mask is honored"] is Outcome.PASSED


def test_only_agents_are_taken() -> None:
    with pytest.raises(InvalidInputError, match="expected an Agent, got int"):
        check_agent(3, OBS_SPACE, ACTION_SPACE)  # type: ignore[arg-type]


def test_all_names_fit_into_their_column() -> None:
    assert all(len(rule.name) <= NAME_WIDTH for rule in AGENT_RULES)
