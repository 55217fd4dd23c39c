"""Agents that act in batches of any size, with their memories, and the map of policies."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import Agent, AgentState, RandomAgent
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.runners.acting.actor import Actor
from rookery.runners.acting.policy_map import PolicyMap
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete, Space
from rookery.types import Key, PyTreeDict
from tests.runner_envs import ParityAgent, SummingAgent

SPACES = (Box(-np.inf, np.inf, (1,)), Discrete(2))


def make_actor(agent: Agent, explore: bool = True, num_columns: int = 16) -> Actor:
    actor = Actor(agent, jax.random.key(0), explore)
    actor.set_state(agent.init(*SPACES, jax.random.key(1)))
    actor.reserve(num_columns)
    return actor


def numbers(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


def unpacked(acts: Any) -> Any:
    """The actions and the extras."""
    return acts.packing.unpack(acts.arrays)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8])
def test_any_number_of_columns_acts_as_each_would_alone(num_rows: int) -> None:
    actor = make_actor(ParityAgent())
    values = np.arange(num_rows) * 3 + 1
    for columns in (None, np.arange(num_rows)):
        acts = actor.act(numbers(values), num_rows, columns, None)
        np.testing.assert_array_equal(acts.actions, values % 2)
        np.testing.assert_array_equal(unpacked(acts)[1].seen, values)


def test_few_programs_serve_all_numbers_of_columns() -> None:
    traced = []

    class TracedAgent(ParityAgent):
        def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> Any:
            traced.append(sample_batch.obs.shape)
            return super().compute_actions(agent_state, sample_batch, key)

    actor = make_actor(TracedAgent())
    for num_rows in range(1, 17):
        actor.act(numbers(np.zeros(num_rows)), num_rows, np.arange(num_rows), None)
    actor.set_state(AgentState(params=jnp.ones(())))
    actor.act(numbers(np.zeros(16)), 16, np.arange(16), None)
    assert len(traced) == 2


def test_only_the_columns_that_act_remember_it() -> None:
    actor = make_actor(SummingAgent(), num_columns=4)
    everyone, ones, zeros = np.arange(4), np.ones(4), np.zeros(3)
    actor.act(numbers([1, 2, 3, 4]), 4, everyone, ones)
    acts = actor.act(numbers([10, 20, 30]), 3, np.array([3, 0, 2]), zeros)
    np.testing.assert_array_equal(unpacked(acts)[1].memory, [4.0, 1.0, 3.0])
    np.testing.assert_array_equal(unpacked(acts)[1].next_carry, [14.0, 21.0, 33.0])
    acts = actor.act(numbers(np.zeros(4)), 4, None, np.array([0, 0, 1, 0]))
    np.testing.assert_array_equal(unpacked(acts)[1].memory, [21.0, 2.0, 0.0, 14.0])
    np.testing.assert_array_equal(unpacked(acts)[1].episode_start, [0, 0, 1, 0])


def test_more_columns_do_not_disturb_the_memories_that_are_there() -> None:
    actor = make_actor(SummingAgent(), num_columns=2)
    actor.act(numbers([5, 6]), 2, None, np.ones(2))
    actor.reserve(5)
    acts = actor.act(numbers(np.zeros(5)), 5, None, np.array([0, 0, 1, 1, 1]))
    np.testing.assert_array_equal(unpacked(acts)[1].memory, [5.0, 6.0, 0.0, 0.0, 0.0])


class BitAgent(ParityAgent):
    """Acts with numbers of 8 bits and tells what takes 32."""

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        actions, extras = super().compute_actions(agent_state, sample_batch, key)
        return {"bits": actions.astype(jnp.int8), "both": actions}, extras | {"mask": actions == 1}


class OnlyBitAgent(BitAgent):
    """Acts with numbers of 8 bits alone."""

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        actions, extras = super().compute_actions(agent_state, sample_batch, key)
        return actions["bits"], extras


@pytest.mark.parametrize("agent_type", [BitAgent, OnlyBitAgent])
def test_actions_and_extras_of_any_type_come_out_as_they_went_in(agent_type: type[Agent]) -> None:
    agent = agent_type()
    acts = make_actor(agent).act(numbers([3, 4, 5]), 3, np.arange(3), None)
    expected = agent.compute_actions(AgentState(), SampleBatch(obs=jnp.asarray(numbers([3, 4, 5]))), jax.random.key(0))
    for tree in (acts.actions, unpacked(acts)[0]):
        jax.tree.map(np.testing.assert_array_equal, tree, expected[0])
        assert jax.tree.map(lambda leaf: leaf.dtype, tree) == jax.tree.map(lambda leaf: leaf.dtype, expected[0])
    jax.tree.map(np.testing.assert_array_equal, unpacked(acts)[1], expected[1])


def test_actions_cannot_be_written_to() -> None:
    acts = make_actor(ParityAgent()).act(numbers([1, 2]), 2, None, None)
    assert not acts.actions.flags.writeable


def test_without_exploring_the_agent_acts_as_well_as_it_knows() -> None:
    class TwoFaced(ParityAgent):
        def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> Any:
            return jnp.full(sample_batch.obs.shape[:1], 7, jnp.int32), PyTreeDict()

    assert make_actor(TwoFaced(), explore=False).act(numbers([1]), 1, None, None).actions.tolist() == [7]
    assert make_actor(TwoFaced(), explore=True).act(numbers([1]), 1, None, None).actions.tolist() == [1]


def test_one_actor_answers_greedy_and_exploring_rows_without_touching_its_columns() -> None:
    class TwoFaced(NoisyAgent):
        def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> Any:
            return jnp.full(sample_batch.obs.shape[:1], 7, jnp.int32), PyTreeDict()

    actor, alone, obs = make_actor(TwoFaced()), make_actor(TwoFaced()), numbers([1, 2, 3])
    starts = np.ones(3, np.float32)
    assert actor.answer(obs, 3, (), starts, explore=False)[0].tolist() == [7, 7, 7]
    draws = [actor.answer(obs, 3, (), starts, explore=True)[0].tolist() for _ in range(2)]
    assert draws[0] != draws[1]
    for _ in range(2):
        acts = [some.act(obs, 3, np.arange(3), None).actions.tolist() for some in (actor, alone)]
        assert acts[0] == acts[1]


def test_recurrent_states_are_passed_in_and_handed_back() -> None:
    actor = make_actor(SummingAgent())
    starts, none = np.ones(5, np.float32), np.zeros(5, np.float32)
    _, carry = actor.answer(numbers([1, 2, 3, 4, 5]), 5, np.full(5, 9.0, np.float32), starts, explore=False)
    assert carry.tolist() == [1, 2, 3, 4, 5], "an episode that begins has no past"
    _, carry = actor.answer(numbers([10, 20]), 2, carry[[4, 0]], none[:2], explore=False)
    assert carry.tolist() == [15, 21]


def random_draws(actor: Actor, num_calls: int = 3) -> list[list[int]]:
    actor.reserve(32)
    return [actor.act(numbers(np.zeros(32)), 32, None, None).actions.tolist() for _ in range(num_calls)]


def make_map(**agents: Agent) -> PolicyMap:
    policies = PolicyMap(agents, jax.random.key(0), explore=True)
    policies.set_states({name: agent.init(*SPACES, jax.random.key(0)) for name, agent in agents.items()})
    return policies


def test_every_call_and_every_policy_draws_its_own_numbers() -> None:
    policies = make_map(a=RandomAgent(), b=RandomAgent())
    draws = [tuple(row) for name in policies for row in random_draws(policies[name])]
    assert len(set(draws)) == 6


def test_a_policy_goes_on_drawing_where_it_was() -> None:
    first = random_draws(make_map(a=RandomAgent())["a"], num_calls=4)
    resumed = make_map(a=RandomAgent())["a"]
    resumed.count_from(np.full(32, 2))
    assert random_draws(resumed, num_calls=2) == first[2:]


class NoisyAgent(ParityAgent):
    """Acts with a network of its parameters on the observation, and with noise."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        widths = (1, 64, 64, 1)
        return AgentState(params=[jax.random.normal(key, shape) for shape in itertools.pairwise(widths)])

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        features = sample_batch.obs
        for weights in agent_state.params:
            features = jnp.tanh(features @ weights)
        noise = jax.random.normal(key, features.shape)
        return features + noise, PyTreeDict(noise=noise)


@pytest.mark.parametrize("num_columns", [2, 7, 8, 9, 64])
def test_the_action_in_a_column_does_not_depend_on_who_else_acts(num_columns: int) -> None:
    random = np.random.default_rng(num_columns)
    obs = random.normal(size=(num_columns, 5)).astype(np.float32)

    def acts_in_groups(size: int) -> np.ndarray:
        actor = make_actor(NoisyAgent(), num_columns=num_columns)
        actions = np.zeros_like(obs)
        for time in range(obs.shape[1]):
            order = random.permutation(num_columns)
            for begin in range(0, num_columns, size):
                columns = np.sort(order[begin : begin + size])
                acts = actor.act(obs[columns, time, None], len(columns), columns, None)
                actions[columns, time] = acts.actions[:, 0]
        return actions

    together = make_actor(NoisyAgent(), num_columns=num_columns)
    expected = np.stack(
        [together.act(obs[:, time, None], num_columns, None, None).actions[:, 0] for time in range(obs.shape[1])], 1
    )
    assert len(np.unique(expected)) == expected.size
    for size in (1, 3, num_columns - 1):
        np.testing.assert_array_equal(acts_in_groups(size), expected)


class WideAgent(NoisyAgent):
    """Acts by sums of 17 and 16 products, which XLA may pass to a library in large batches."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=[jax.random.normal(key, shape) / 4.0 for shape in ((17, 16), (16, 16))])


@pytest.mark.usefixtures("optimized_programs")
def test_an_action_has_the_same_bits_in_a_batch_of_any_size() -> None:
    obs = np.random.default_rng(0).normal(size=(64, 17)).astype(np.float32)
    expected = make_actor(WideAgent(), num_columns=64).act(obs, 64, None, None).actions
    for size in (1, 5, 32):
        columns = np.arange(size)
        acts = make_actor(WideAgent(), num_columns=64).act(obs[:size], size, columns, None)
        np.testing.assert_array_equal(acts.actions, expected[:size])


def test_a_policy_without_parameters_says_so() -> None:
    with pytest.raises(InvalidInputError, match="set_agent_states"):
        Actor(ParityAgent(), jax.random.key(0)).act(numbers([1]), 1, None, None)


def test_unknown_policies_are_named_with_the_nearest() -> None:
    policies = make_map(walker=ParityAgent(), runner=ParityAgent())
    for call in (
        lambda: policies["wlaker"],
        lambda: policies.check_may_begin("wlaker", ()),
        lambda: policies.remove("wlaker"),
        lambda: policies.set_states({"wlaker": AgentState()}),
    ):
        with pytest.raises(UnknownNameError, match=r"unknown policy 'wlaker'\. Did you mean 'walker'"):
            call()


def test_a_removed_policy_acts_on_but_is_not_given_out() -> None:
    policies = make_map(a=ParityAgent(), b=ParityAgent())
    actor = policies["a"]
    policies.remove("a")
    assert list(policies) == ["b"]
    assert policies["a"] is actor
    policies.set_states({"a": AgentState(params=jnp.ones(()))})
    with pytest.raises(UnknownNameError):
        policies.check_may_begin("a", used=["b"])
    policies.check_may_begin("a", used=["a"])
    assert policies.forget_unused({"a"}) == []
    assert policies.forget_unused(set()) == ["a"]
    with pytest.raises(UnknownNameError):
        policies["a"]


def test_a_name_cannot_be_taken_twice_nor_the_last_policy_removed() -> None:
    policies = make_map(a=ParityAgent(), b=ParityAgent())
    with pytest.raises(InvalidInputError, match="policy 'a' exists already"):
        policies.add("a", ParityAgent())
    policies.remove("a")
    with pytest.raises(InvalidInputError, match="still in use"):
        policies.add("a", ParityAgent())
    with pytest.raises(InvalidInputError, match="'b' is the only policy"):
        policies.remove("b")
    assert list(policies) == ["b"]
    with pytest.raises(InvalidInputError, match="at least one policy"):
        PolicyMap({}, jax.random.key(0), explore=True)


def test_other_spaces_make_another_program() -> None:
    agent = RandomAgent()
    actor = Actor(agent, jax.random.key(0))
    for space, num_values in ((Discrete(2), 2), (Discrete(5), 5)):
        actor.set_state(agent.init(SPACES[0], space, jax.random.key(0)))
        drawn = {action for row in random_draws(actor, num_calls=8) for action in row}
        assert drawn == set(range(num_values))
