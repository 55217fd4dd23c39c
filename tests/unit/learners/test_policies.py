"""Several policies: each learns from its own rows, and from nothing else."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.a2c import A2C, A2CConfig, A2CHyperparameters
from rookery.errors import InvalidInputError
from rookery.hyperparameters import LinearSchedule
from rookery.learners.policies import PolicyLearners, Snapshots
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Mean
from rookery.networks import ActorCriticConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete
from rookery.types import Key, PyTreeDict

OBS_SPACE = Dict({"left": Box(-1.0, 1.0, (2,)), "right": Box(-1.0, 1.0, (3,))})
ACTION_SPACE = Dict({"left": Box(-2.0, 2.0, (1,)), "right": Discrete(3)})
NUM_ROWS, ENV_STEPS, TOTAL_TIMESTEPS = 6, 18, 400
NUM_COLUMNS = {"left": 6, "right": 3}
"""Two agents have the policy on the left and one has the other, in each of 3 environments."""
HYPERPARAMETERS = A2CHyperparameters(learning_rate=LinearSchedule(start=0.01, end=0.0, steps=TOTAL_TIMESTEPS))

Learn = Callable[[Any, JointExperience], tuple[Any, Any]]


def make(
    policies: Sequence[str] = ("left", "right"),
    frozen: tuple[str, ...] = (),
    snapshots: Snapshots | None = None,
    **settings: Any,
) -> PolicyLearners:
    config = A2CConfig(
        num_envs=3, rollout_length=NUM_ROWS, network=ActorCriticConfig(hidden_sizes=(8,)), optimizer="adam", **settings
    )
    learners = {policy: A2C.of(dataclasses.replace(config, num_envs=NUM_COLUMNS[policy])) for policy in policies}
    return PolicyLearners(
        agent=A2C.make_agent(config),
        config=config,
        learners=PyTreeDict(learners),
        frozen=frozen,
        snapshots=snapshots,
    )


def init(learner: PolicyLearners) -> Any:
    return jax.jit(lambda key: learner.init(OBS_SPACE, ACTION_SPACE, HYPERPARAMETERS, key))(jax.random.key(0))


@pytest.fixture(scope="module")
def learner() -> PolicyLearners:
    return make()


@pytest.fixture(scope="module")
def state(learner: PolicyLearners) -> Any:
    return init(learner)


@pytest.fixture(scope="module")
def learn(learner: PolicyLearners) -> Learn:
    program = jax.jit(learner.learn)
    return lambda state, experience: program(state, experience, jax.random.key(1))


@pytest.fixture(scope="module")
def joint(learner: PolicyLearners, state: Any) -> JointExperience:
    """What the agents of both policies did; in the last two rows of its first column, the right one was absent."""
    experiences = PyTreeDict()
    for policy, key in zip(NUM_COLUMNS, jax.random.split(jax.random.key(2)), strict=True):
        experience = experience_of(learner, state, policy, key)
        if policy == "right":
            experience = with_dead_rows(experience, jnp.zeros((NUM_ROWS, 3)).at[-2:, 0].set(1.0))
        experiences[policy] = experience
    return JointExperience(
        experiences=experiences,
        metrics={"rollout/ep_len_mean": Mean.of(jnp.float32(4.0))},
        env_steps=jnp.int32(ENV_STEPS),
    )


def experience_of(learner: PolicyLearners, state: Any, policy: str, key: Key) -> Experience:
    obs_key, act_key, reward_key = jax.random.split(key, 3)
    shape = NUM_ROWS, NUM_COLUMNS[policy]
    obs, agent = OBS_SPACE[policy].sample(obs_key, shape), learner.learners[policy].agent
    batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=PyTreeDict()))
    actions, policy_extras = agent.compute_actions(state.agent_state[policy], batch, act_key)
    nothing = jnp.zeros(shape)
    env_extras = PyTreeDict(termination=nothing, truncation=nothing, autoreset=nothing, ori_obs=jnp.roll(obs, -1, 0))
    trajectory = SampleBatch(
        obs=obs,
        actions=actions,
        rewards=jax.random.normal(reward_key, shape),
        dones=nothing,
        extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
    )
    return Experience(trajectory=trajectory, first_carry=())


def with_dead_rows(experience: Experience, autoreset: Any) -> Experience:
    trajectory = experience.trajectory
    dones = jnp.maximum(trajectory.dones, jnp.roll(autoreset, -1, axis=0))  # the episode was cut off before them
    env_extras = trajectory.extras.env_extras.replace(autoreset=autoreset, truncation=dones)
    extras = trajectory.extras.replace(env_extras=env_extras)
    return experience.replace(trajectory=trajectory.replace(dones=dones, extras=extras))


def with_right(joint: JointExperience, right: Experience) -> JointExperience:
    return joint.replace(experiences=joint.experiences.replace(right=right))


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(mine, its) for mine, its in leaves)


def test_every_policy_has_its_own_networks_for_its_own_spaces(learner: PolicyLearners, state: Any) -> None:
    assert set(state.policies) == set(state.agent_state) == {"left", "right"}
    for policy, num_inputs in (("left", 2), ("right", 3)):
        shapes = {leaf.shape for leaf in jax.tree.leaves(state.agent_state[policy].params)}
        assert (num_inputs, 8) in shapes
    assert_same(learner.acting_state(state), state.agent_state)


def test_the_order_in_which_policies_are_declared_makes_no_difference(state: Any) -> None:
    other = init(make(("right", "left")))
    for policy in ("left", "right"):
        assert_same(other.agent_state[policy], state.agent_state[policy])


def test_all_policies_count_the_same_steps_and_iterations_and_each_its_own_updates(
    learner: PolicyLearners, learn: Learn, state: Any, joint: JointExperience
) -> None:
    metrics, after = learn(state, joint)
    assert int(after.env_steps) == ENV_STEPS
    assert int(after.iterations) == 1
    for own in after.policies.values():
        assert (int(own.env_steps), int(own.iterations), int(own.num_updates)) == (ENV_STEPS, 1, 1)
    assert set(learner.counters(after)) == {"left/train/n_updates", "right/train/n_updates"}
    assert {"left/train/loss", "right/train/loss", "rollout/ep_len_mean"} <= set(metrics)
    assert differ(after.agent_state.left, state.agent_state.left)
    assert differ(after.agent_state.right, state.agent_state.right)


def test_a_policy_with_a_learning_rate_of_zero_stays_as_it_is_while_the_other_learns(
    learn: Learn, state: Any, joint: JointExperience
) -> None:
    left = state.policies.left
    never = jax.tree.map(jnp.zeros_like, left.hyperparameters.learning_rate)
    frozen = left.replace(hyperparameters=left.hyperparameters.replace(learning_rate=never))
    _, after = learn(state.replace(policies=state.policies.replace(left=frozen)), joint)
    assert_same(after.agent_state.left, state.agent_state.left)
    assert differ(after.agent_state.right, state.agent_state.right)


def test_what_one_policy_experiences_makes_no_difference_to_another(
    learn: Learn, state: Any, joint: JointExperience
) -> None:
    _, after = learn(state, joint)
    right = joint.experiences.right
    other = right.replace(trajectory=right.trajectory.replace(rewards=right.trajectory.rewards + 5.0))
    _, changed = learn(state, with_right(joint, other))
    assert_same(changed.agent_state.left, after.agent_state.left)
    assert differ(changed.agent_state.right, after.agent_state.right)


def test_rows_that_hold_nothing_weigh_nothing(learn: Learn, state: Any, joint: JointExperience) -> None:
    _, after = learn(state, joint)
    right = joint.experiences.right
    live = np.asarray(right.trajectory.extras.env_extras.autoreset) == 0
    assert 0 < live.sum() < live.size

    def spoil(leaf: Any) -> Any:
        nonsense = leaf.dtype.type(np.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 1)
        return np.where(live.reshape(*live.shape, *(1,) * (leaf.ndim - 2)), leaf, nonsense)

    trajectory = right.trajectory
    spoilt = trajectory.replace(
        obs=spoil(trajectory.obs), actions=spoil(trajectory.actions), rewards=spoil(trajectory.rewards)
    )
    _, same = learn(state, with_right(joint, right.replace(trajectory=spoilt)))
    assert_same(same.agent_state, after.agent_state)


def test_a_policy_without_a_row_stays_as_it_is_and_counts_on(learn: Learn, state: Any, joint: JointExperience) -> None:
    _, state = learn(state, joint)  # so that the optimizer has momentum
    right = joint.experiences.right
    nothing = with_dead_rows(right, jnp.ones_like(right.trajectory.rewards))
    metrics, after = learn(state, with_right(joint, nothing))
    before, own = state.policies.right, after.policies.right
    assert_same((own.agent_state, own.optimizer_state), (before.agent_state, before.optimizer_state))
    assert (int(own.num_updates), int(own.env_steps), int(own.iterations)) == (1, 2 * ENV_STEPS, 2)
    assert metrics["right/train/loss"].weight == 0 < metrics["left/train/loss"].weight
    assert differ(after.agent_state.left, state.agent_state.left)


def test_schedules_count_the_steps_of_environments(learn: Learn, state: Any, joint: JointExperience) -> None:
    for _ in range(3):
        _, state = learn(state, joint)
    metrics, _ = learn(state, joint)
    for policy in ("left", "right"):
        rate = float(metrics[f"{policy}/train/learning_rate"].value)
        np.testing.assert_allclose(rate, 0.01 * (1 - 3 * ENV_STEPS / TOTAL_TIMESTEPS), rtol=1e-5)


def test_columns_that_do_not_divide_over_the_devices_are_an_error(learner: PolicyLearners) -> None:
    learner.check(num_devices=3)
    with pytest.raises(InvalidInputError, match="num_envs=3"):
        learner.check(num_devices=2)


def test_a_frozen_policy_acts_and_has_no_learner(state: Any, joint: JointExperience) -> None:
    learner = make(("left",), frozen=("right",))
    begun = init(learner)
    assert set(begun.policies) == {"left"}
    assert set(begun.agent_state) == set(learner.acting_state(begun)) == {"left", "right"}
    only_left = joint.replace(experiences=PyTreeDict(left=joint.experiences.left))
    metrics, after = jax.jit(learner.learn)(begun, only_left, jax.random.key(1))
    assert_same(after.agent_state.right, begun.agent_state.right)
    assert differ(after.agent_state.left, begun.agent_state.left)
    assert not [name for name in metrics if name.startswith("right/")]


POOL = ("past_0", "past_1", "past_2")


@pytest.fixture(scope="module")
def self_play() -> PolicyLearners:
    return make(("left",), frozen=POOL, snapshots=Snapshots("left", POOL, every=2))


def spaces_with_pool() -> tuple[Dict, Dict]:
    return tuple(Dict(dict.fromkeys(("left", *POOL), space["left"])) for space in (OBS_SPACE, ACTION_SPACE))


def test_a_pool_begins_with_copies_and_then_keeps_the_last_snapshots(
    self_play: PolicyLearners, joint: JointExperience
) -> None:
    state = self_play.init(*spaces_with_pool(), HYPERPARAMETERS, jax.random.key(0))
    learn = jax.jit(self_play.learn)
    only_left = joint.replace(experiences=PyTreeDict(left=joint.experiences.left))
    expected = [state.agent_state.left] * 3
    for iteration in range(1, 11):
        _, state = learn(state, only_left, jax.random.key(iteration))
        if iteration % 2 == 0:
            expected[(iteration // 2 - 1) % 3] = state.agent_state.left
        for member, snapshot in zip(POOL, expected, strict=True):
            assert_same(state.frozen[member], snapshot)
    assert all(differ(one, expected[0]) for one in expected[1:])


def test_a_pool_begins_with_the_agent_that_a_run_begins_with(self_play: PolicyLearners) -> None:
    first, other = (self_play.init(*spaces_with_pool(), HYPERPARAMETERS, jax.random.key(seed)) for seed in (0, 1))
    trained, old = other.agent_state.left, first.agent_state.left
    state = self_play.with_agent(first, {"left": trained, "past_1": old})
    for policy, agent_state in {"left": trained, "past_0": trained, "past_1": old, "past_2": trained}.items():
        assert_same(state.agent_state[policy], agent_state)
