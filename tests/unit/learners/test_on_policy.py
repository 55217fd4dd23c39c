"""On-policy iterations: dead rows, hyper-parameters in the state, and vmap over states."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.a2c import A2C, A2CConfig, A2CHyperparameters, A2CWorkflow
from rookery.errors import InvalidInputError
from rookery.learning.experience import Experience
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

NUM_ENVS, ROLLOUT_LENGTH = 2, 6
LIVE_STEPS = 8
"""Live rows of both envs: episodes of 2 steps and a dead row, so 4 of 6 rows are live."""
TOTAL_TIMESTEPS = 100


def make_workflow(network: dict | None = None, **agent: Any) -> A2CWorkflow:
    agent = {
        "num_envs": NUM_ENVS,
        "rollout_length": ROLLOUT_LENGTH,
        "network": {"hidden_sizes": [8], "core_size": 4, **(network or {})},
        **agent,
    }
    return A2CWorkflow.build_from_config(
        {
            "agent": agent,
            "env": {"name": "probe/delayed_reward", "episode_length": 5, "autoreset_mode": "envpool"},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": TOTAL_TIMESTEPS,
        }
    )


@pytest.fixture(scope="module")
def workflow() -> A2CWorkflow:
    return make_workflow(
        normalize_obs=True, normalize_rewards=True, learning_rate={"start": 0.01, "end": 0.002}, entropy_coefficient=0.1
    )


@pytest.fixture(scope="module")
def states(workflow: A2CWorkflow) -> list[Any]:
    """The states before, between and after three iterations."""
    states = [workflow.init(workflow.make_key())]
    for _ in range(3):
        states.append(workflow.step(states[-1])[1])
    return states


def with_learning_rate(state: Any, start: float, end: float) -> Any:
    schedule = state.hyperparameters.learning_rate.replace(start=jnp.float32(start), end=jnp.float32(end))
    hyperparameters = state.hyperparameters.replace(learning_rate=schedule)
    return state.replace_learner(hyperparameters=hyperparameters)


def assert_close(one: Any, other: Any, **tolerance: float) -> None:
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, **tolerance), one, other)


def differs(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(np.any(left != right) for left, right in pairs)


def test_steps_of_the_envs_are_counted_and_dead_ones_are_not(states: list[Any]) -> None:
    assert [int(state.env_steps) for state in states] == [LIVE_STEPS * number for number in range(4)]
    assert [int(state.iterations) for state in states] == [0, 1, 2, 3]
    assert [int(state.num_updates) for state in states] == [0, 1, 2, 3]


def test_dead_steps_are_no_part_of_the_statistics(states: list[Any]) -> None:
    # Live steps see 0 and 1 in turn, dead ones 2; the discounted return after them is 0 and 1.
    observations, returns = states[2].agent_state.obs_preprocessor_state, states[2].learner.reward_scaling.statistics
    for statistics in (observations, returns):
        assert statistics.count.value == 2 * LIVE_STEPS
        assert jax.tree.leaves(statistics.mean) == [0.5]
        assert jax.tree.leaves(statistics.std) == [0.5]


def test_episodes_are_reported_with_the_rewards_of_the_env(workflow: A2CWorkflow, states: list[Any]) -> None:
    metrics, _ = workflow.step(states[1])
    assert metrics["rollout/ep_len_mean"] == 2.0
    assert metrics["rollout/ep_rew_mean"] == 1.0


class CorruptingSource:
    """Gives the same trajectories as another source, with other contents in the dead rows."""

    def __init__(self, source: Any, garbage: float) -> None:
        self.source, self.garbage = source, garbage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def collect(self, *args: Any) -> tuple[Experience, Any]:
        experience, state = self.source.collect(*args)
        return experience.replace(trajectory=self.corrupt(experience.trajectory)), state

    def corrupt(self, trajectory: SampleBatch) -> SampleBatch:
        extras, dead = trajectory.extras, trajectory.extras.env_extras.autoreset > 0

        def spoil(leaf: Any) -> Any:
            return jnp.where(dead.reshape(dead.shape + (1,) * (leaf.ndim - 2)), self.garbage, leaf)

        names = ("value", "log_prob")
        policy_extras = extras.policy_extras.replace(
            **{name: spoil(extras.policy_extras[name]) for name in names},
            raw_action=jnp.where(dead, 1 - extras.policy_extras.raw_action, extras.policy_extras.raw_action),
        )
        return trajectory.replace(
            obs=jax.tree.map(spoil, trajectory.obs),
            rewards=spoil(trajectory.rewards),
            extras=extras.replace(policy_extras=policy_extras),
        )


@pytest.mark.parametrize("garbage", [17.0, np.nan])
@pytest.mark.parametrize("core", [None, "gru"])
def test_what_dead_rows_hold_makes_no_difference(core: str | None, garbage: float) -> None:
    workflow = make_workflow({"core": core}, learning_rate=0.01, normalize_obs=True, normalize_rewards=True)
    state = workflow.init(workflow.make_key())
    metrics, after = workflow.step(state)
    assert differs(after.agent_state.params, state.agent_state.params)
    corrupted = make_workflow({"core": core}, learning_rate=0.01, normalize_obs=True, normalize_rewards=True)
    corrupted.training.source = CorruptingSource(workflow.training.source, garbage)
    other_metrics, other_after = corrupted.step(state)
    assert_close(other_after.agent_state, after.agent_state, atol=1e-6)
    assert_close(other_metrics, metrics, rtol=1e-5, atol=1e-6)


def test_schedules_go_by_env_steps(workflow: A2CWorkflow, states: list[Any]) -> None:
    for number, state in enumerate(states):
        metrics, _ = workflow.step(state)
        expected = 0.01 + (0.002 - 0.01) * number * LIVE_STEPS / TOTAL_TIMESTEPS
        np.testing.assert_allclose(metrics["train/learning_rate"], expected, rtol=1e-5)


def test_a_learning_rate_of_0_changes_no_parameter(workflow: A2CWorkflow, states: list[Any]) -> None:
    frozen = with_learning_rate(states[1], 0.0, 0.0)
    metrics, after = workflow.step(frozen)
    assert metrics["train/learning_rate"] == 0.0
    assert not differs(after.agent_state.params, states[1].agent_state.params)
    assert int(after.num_updates) == 2


def test_a_population_with_different_learning_rates_is_a_vmap_over_the_same_step(
    workflow: A2CWorkflow, states: list[Any]
) -> None:
    members = [with_learning_rate(states[1], 0.0, 0.0), with_learning_rate(states[1], 0.01, 0.01), states[2]]
    population = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    all_metrics, after = jax.vmap(workflow.step)(population)
    for index, member in enumerate(members):
        metrics, expected = workflow.step(member)
        own_metrics, own = jax.tree.map(lambda leaf, index=index: leaf[index], (all_metrics, after))
        assert_close(own_metrics, metrics, rtol=1e-4, atol=1e-5)
        assert_close(own.agent_state, expected.agent_state, rtol=1e-4, atol=1e-5)
        assert_close(own.source_state.env_state.obs, expected.source_state.env_state.obs)
        assert int(own.env_steps) == int(expected.env_steps)
    first, second, _ = (jax.tree.map(lambda leaf, index=index: leaf[index], after.agent_state) for index in range(3))
    assert differs(first.params, second.params)


def test_a_step_leaves_the_state_it_was_given_usable(workflow: A2CWorkflow, states: list[Any]) -> None:
    _, once = workflow.step(states[0])
    _, again = workflow.step(states[0])
    assert not differs(once.agent_state.params, again.agent_state.params)


def test_an_iteration_changes_the_parameters_and_the_training_key_alone(states: list[Any]) -> None:
    before, after = states[0], states[1]
    assert differs(before.agent_state.params, after.agent_state.params)
    assert jax.random.key_data(before.key).tolist() != jax.random.key_data(after.key).tolist()
    assert not differs(jax.random.key_data(before.eval_key), jax.random.key_data(after.eval_key))


def marked_experience() -> Experience:
    """Make experience whose rows are 10 * step + env and whose carries are the index of the env."""
    rows = 10 * jnp.arange(3)[:, None] + jnp.arange(4)[None, :]
    return Experience(
        trajectory=SampleBatch(obs=rows[..., None].astype(jnp.float32), rewards=rows),
        first_carry=(jnp.arange(4.0)[:, None],),
        weights=rows.astype(jnp.float32),
    )


def test_envs_are_taken_with_their_own_carry_and_weights() -> None:
    taken = marked_experience().take_envs(jnp.array([3, 1]))
    np.testing.assert_array_equal(taken.trajectory.rewards, [[3, 1], [13, 11], [23, 21]])
    np.testing.assert_array_equal(taken.weights, taken.trajectory.rewards)
    np.testing.assert_array_equal(taken.first_carry[0][:, 0], [3, 1])


def written_down(num_steps: int = 3, num_envs: int = 2) -> Experience:
    """Make experience with observations in a Box, without an environment."""
    shape = (num_steps, num_envs)
    env_extras = PyTreeDict(termination=jnp.zeros(shape), truncation=jnp.zeros(shape), ori_obs=jnp.ones((*shape, 1)))
    policy_extras = PyTreeDict(raw_action=jnp.zeros(shape, jnp.int32), value=jnp.zeros(shape))
    trajectory = SampleBatch(
        obs=jnp.ones((*shape, 1)),
        rewards=jnp.ones(shape),
        dones=jnp.zeros(shape),
        extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
    )
    return Experience(trajectory=trajectory, first_carry=())


def test_a_learner_needs_two_spaces_and_experience_and_neither_an_environment_nor_a_mesh() -> None:
    learner = A2C.of(A2CConfig(num_envs=2, normalize_rewards=True, normalize_obs=True))
    state = learner.init(Box(-1.0, 1.0, (1,)), Discrete(2), A2CHyperparameters(), jax.random.key(0))
    metrics, after = jax.jit(learner.learn)(state, written_down(), jax.random.key(1))
    assert metrics["train/policy_loss"].value != 0.0
    assert int(after.env_steps) == 6
    assert int(after.iterations) == int(after.num_updates) == 1
    assert after.agent_state.obs_preprocessor_state.count.value == 6
    assert differs(after.agent_state.params, state.agent_state.params)


def test_learners_with_different_hyperparameters_are_vmapped_over_their_states() -> None:
    learner = A2C.of(A2CConfig(num_envs=2))
    spaces = Box(-1.0, 1.0, (1,)), Discrete(2)
    states = [
        learner.init(*spaces, A2CHyperparameters(learning_rate=rate), jax.random.key(0)) for rate in (0.0, 0.01, 0.02)
    ]
    population = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    _, after = jax.vmap(learner.learn, in_axes=(0, None, None))(population, written_down(), jax.random.key(1))
    for index, state in enumerate(states):
        _, expected = learner.learn(state, written_down(), jax.random.key(1))
        own = jax.tree.map(lambda leaf, index=index: leaf[index], after.agent_state.params)
        assert_close(own, expected.agent_state.params, rtol=1e-5, atol=1e-6)
        assert differs(own, state.agent_state.params) == (index > 0)


def test_a_workflow_that_still_defines_update_is_an_error_that_names_the_learner() -> None:
    with pytest.raises(InvalidInputError, match=r"Old\.update belongs to the learner.*OnPolicyLearner.*learner_class"):

        class Old(A2CWorkflow):
            def update(self, learner: Any, experience: Any, hyperparameters: Any, key: Any) -> Any:
                raise NotImplementedError
