"""DDPG: a whole update against the formulas in float64, and targets without noise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rookery.agents.replay import ReplayBatch
from rookery.algorithms.ddpg import DDPGConfig, DDPGWorkflow
from rookery.algorithms.td3 import TD3, DeterministicHyperparameters, TD3Agent, TD3Hyperparameters
from rookery.errors import InvalidInputError
from rookery.learners.replay import OffPolicyState
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

OBS = Box(-3.0, 3.0, (3,))
UNEVEN = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
NUM_WINDOWS, DISCOUNT = 10, 0.9


def make_workflow(env: str = "probe/continuous", **agent: Any) -> DDPGWorkflow:
    network = {"hidden_sizes": [], "gaussian": {"bounds": "squash"}, "num_critics": 1, "output_init_scale": 1.0}
    sizes = {"num_envs": 2, "batch_size": 4, "buffer_capacity": 64, "warmup_steps": 16}
    return DDPGWorkflow.build_from_config(
        {
            "agent": {**sizes, "network": network, **agent},
            "env": {"name": env, "episode_length": 5},
            "total_timesteps": 1000,
            "evaluation": {"num_episodes": 2},
        }
    )


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def moved(params: Any, seed: int) -> Any:
    """Return other parameters of the same shapes."""
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, [normal(*leaf.shape, seed=seed + i) for i, leaf in enumerate(leaves)])


def make_replayed(with_dead_rows: bool) -> ReplayBatch:
    """Make windows of one row: running, terminated (the successor is NaN) or truncated, in turn."""
    shape = (1, NUM_WINDOWS)
    kinds = np.arange(NUM_WINDOWS)[None] % 3
    env_extras = PyTreeDict(termination=jnp.asarray(kinds == 1, jnp.float32))
    if with_dead_rows:
        env_extras.autoreset = jnp.asarray(np.arange(NUM_WINDOWS)[None] % 4 == 3, jnp.float32)
    windows = SampleBatch(
        obs=normal(*shape, 3, seed=1),
        actions=UNEVEN.sample(jax.random.key(3), shape),
        rewards=normal(*shape, seed=4),
        next_obs=jnp.where(jnp.asarray(kinds == 1)[..., None], jnp.nan, normal(*shape, 3, seed=2)),
        dones=jnp.asarray(kinds > 0, jnp.float32),
        extras=PyTreeDict(policy_extras=PyTreeDict(), env_extras=env_extras),
    )
    return ReplayBatch(windows=windows, importance=jnp.linspace(0.1, 1.0, NUM_WINDOWS))


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def value(critics: Any, obs: np.ndarray, squashed: np.ndarray) -> np.ndarray:
    """The values `[N]` of the one critic, of actions in [-1, 1]."""
    output = critics.head.output
    return (np.concatenate([obs, squashed], axis=-1) @ output.kernel[0] + output.bias[0])[:, 0]


def squashed_action(policy: Any, obs: np.ndarray) -> np.ndarray:
    return np.tanh(obs @ policy.head.output.kernel + policy.head.output.bias)


def adam_step(loss_of: Any, params: Any, learning_rate: float) -> Any:
    """Take the first step of Adam by the slopes of a loss in float64."""
    vector, as_tree = ravel_pytree(params)
    vector = np.asarray(vector, np.float64)
    leaves, structure = jax.tree.flatten(params)
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def at(point: np.ndarray) -> float:
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(point, borders), leaves, strict=True)]
        return loss_of(jax.tree.unflatten(structure, parts))

    steps = 1e-6 * np.eye(len(vector))
    slopes = np.array([(at(vector + step) - at(vector - step)) / 2e-6 for step in steps])
    stepped = vector - learning_rate * slopes / (np.abs(slopes) + 1e-5)  # both averages begin at the slopes
    return double(as_tree(jnp.asarray(stepped, jnp.float32)))


@pytest.mark.parametrize("with_dead_rows", [False, True])
def test_an_update_equals_the_steps_of_the_paper_in_float64(with_dead_rows: bool) -> None:
    workflow, replayed = make_workflow(), make_replayed(with_dead_rows)
    state = workflow.agent.init(OBS, UNEVEN, jax.random.key(0))
    params, target_params = state.params, moved(state.params, seed=30)
    learner = workflow.training.learner
    hyperparameters = jax.tree.map(
        jnp.float32,
        DeterministicHyperparameters(
            discount=DISCOUNT, critic_learning_rate=0.02, actor_learning_rate=0.01, target_update_rate=0.25
        ),
    )

    before = OffPolicyState.first(
        state,
        hyperparameters,
        target_params=target_params,
        optimizer_states=PyTreeDict({part: learner.optimizer.init(params[part]) for part in params}),
        buffer_state=None,
    )
    metrics, errors, after = jax.jit(learner.learn_batch)(before, replayed, hyperparameters, jax.random.key(6))

    rows = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), replayed.windows)
    target_params, importance = double(target_params), np.asarray(replayed.importance, np.float64)
    counted = np.ones(NUM_WINDOWS, bool) if not with_dead_rows else rows.extras.env_extras.autoreset == 0
    is_running = rows.extras.env_extras.termination == 0
    next_values = value(target_params.critics, rows.next_obs, squashed_action(target_params.policy, rows.next_obs))
    targets = np.where(is_running, rows.rewards + DISCOUNT * next_values, rows.rewards)
    taken = rows.actions / [2.0, 5.0] - [0.0, 1.0]

    def critic_loss(critics: Any) -> float:
        return np.mean((importance * 0.5 * (value(critics, rows.obs, taken) - targets) ** 2)[counted])

    critics = adam_step(critic_loss, params.critics, 0.02)

    def actor_loss(policy: Any) -> float:
        return -np.mean(value(critics, rows.obs, squashed_action(policy, rows.obs))[counted])

    policy = adam_step(actor_loss, params.policy, 0.01)
    np.testing.assert_allclose(metrics["train/critic_loss"].value, critic_loss(double(params.critics)), rtol=1e-4)
    np.testing.assert_allclose(metrics["train/actor_loss"].value, actor_loss(double(params.policy)), rtol=1e-4)
    expected_errors = np.abs(value(double(params.critics), rows.obs, taken) - targets)
    np.testing.assert_allclose(errors[0][counted], expected_errors[counted], rtol=1e-4, atol=1e-5)
    after_params = after.agent_state.params
    for part, expected in (("critics", critics), ("policy", policy)):
        change = jax.tree.map(lambda new, old: new - np.asarray(old), expected, params[part])
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(change)) > 5e-3
        jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, atol=1e-4), after_params[part], expected)
        expected_target = jax.tree.map(
            lambda old, new: 0.75 * old + 0.25 * np.asarray(new), target_params[part], after_params[part]
        )
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6),
            after.target_params[part],
            expected_target,
        )


def test_targets_have_no_noise() -> None:
    agent, batch = TD3.make_agent(DDPGConfig()), make_replayed(with_dead_rows=False)
    state = agent.init(OBS, UNEVEN, jax.random.key(0))
    transitions = agent.transitions(state, batch, jnp.float32(DISCOUNT))

    def targets(agent: Any, seed: int) -> np.ndarray:
        values = agent.targets(state, state.params, transitions, TD3Hyperparameters(), jax.random.key(seed))
        return np.asarray(values)

    np.testing.assert_array_equal(targets(agent, seed=0), targets(agent, seed=1))
    smoothing = agent.replace(smooth_targets=True)
    assert np.any(targets(smoothing, seed=0) != targets(smoothing, seed=1)), "as in TD3"


def test_by_default_there_is_one_critic_and_every_update_changes_the_policy() -> None:
    assert DDPGConfig().policy_delay == 1
    assert DDPGConfig().network.num_critics == 1
    assert DDPGConfig().network.num_critics == 1


def test_discrete_actions_are_an_error_at_build() -> None:
    with pytest.raises(InvalidInputError, match=r"DDPG and TD3 need actions in a Box with finite bounds: Discrete\(2"):
        make_workflow("probe/cue_reward")


def test_no_network_is_made_for_actions_without_finite_bounds() -> None:
    for space in (Discrete(3), Box(-np.inf, np.inf, (2,))):
        with pytest.raises(InvalidInputError, match="finite bounds"):
            TD3Agent().init(OBS, space, jax.random.key(0))


def test_network_settings_that_a_config_omits_keep_the_defaults_of_the_method() -> None:
    workflow = make_workflow(network={"hidden_sizes": [8], "gaussian": {"bounds": "squash"}})
    assert workflow.config.network.num_critics == 1
