"""PPO: its loss against the formulas in float64, the ratio before the first update, and updates that end early."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from rookery.agent import AgentState
from rookery.algorithms.ppo import PPOAgent, PPOHyperparameters, PPOSamples, PPOWorkflow
from rookery.distributed import device_mesh
from rookery.envs import create_env
from rookery.errors import InvalidInputError, ShapeError
from rookery.networks import ActorCriticConfig
from rookery.rollout import RolloutSource
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

NUM_SAMPLES, NUM_ACTIONS = 12, 4
OBS_SPACE = Box(-3.0, 3.0, (3,))


def on_one_device(function: Callable) -> Callable:
    """Compile a function that needs the device axis."""
    everywhere = PartitionSpec()
    return jax.jit(
        jax.shard_map(function, mesh=device_mesh(1), in_specs=everywhere, out_specs=everywhere, check_vma=False)
    )


def linear_agent(**changes: Any) -> tuple[PPOAgent, AgentState]:
    """Make an agent whose logits and values are linear in the observation, so that NumPy can compute them."""
    agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=(), output_init_scale=1.0), **changes)
    return agent, agent.init(OBS_SPACE, Discrete(NUM_ACTIONS), jax.random.key(0))


def make_samples(num_samples: int = NUM_SAMPLES, with_weights: bool = False) -> PPOSamples:
    """Make samples of a policy that differs from the agent's, so that some ratios are clipped."""
    generator = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return jnp.asarray(generator.normal(size=shape), jnp.float32)

    policy_extras = PyTreeDict(
        raw_action=jnp.asarray(generator.integers(NUM_ACTIONS, size=num_samples), jnp.int32),
        log_prob=jnp.log(0.25) + 0.5 * normal(num_samples),
        value=normal(num_samples),
    )
    return PPOSamples(
        batch=SampleBatch(obs=normal(num_samples, 3), extras=PyTreeDict(policy_extras=policy_extras)),
        advantages=normal(num_samples),
        targets=normal(num_samples),
        weights=jnp.asarray(generator.integers(2, size=num_samples), jnp.float32) if with_weights else None,
    )


def hyperparameters_of(**changes: Any) -> PPOHyperparameters:
    return PPOHyperparameters(entropy_coefficient=0.1, **changes)


def reference_loss(
    params: Any, samples: PPOSamples, hyperparameters: PPOHyperparameters, standardized: bool
) -> dict[str, float]:
    """Compute the loss in float64, by the equations of the paper and nothing of ours."""

    def double(array: Any) -> np.ndarray:
        return np.asarray(array, np.float64)

    before = samples.batch.extras.policy_extras
    counted = np.ones(len(samples.advantages), bool) if samples.weights is None else np.asarray(samples.weights) > 0
    obs, actions = double(samples.batch.obs)[counted], np.asarray(before.raw_action)[counted]
    policy, value = params["policy"]["head"]["output"], params["value"]["head"]["output"]
    logits = obs @ policy["kernel"] + policy["bias"]
    log_probs = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
    values = (obs @ value["kernel"] + value["bias"])[:, 0]

    advantages, targets = double(samples.advantages)[counted], double(samples.targets)[counted]
    if standardized:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_ratio = log_probs[np.arange(len(actions)), actions] - double(before.log_prob)[counted]
    ratio, limit = np.exp(log_ratio), hyperparameters.clip_ratio
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 1 - limit, 1 + limit) * advantages)
    errors = (values - targets) ** 2
    if hyperparameters.value_clip_ratio is not None:
        old, limit = double(before.value)[counted], hyperparameters.value_clip_ratio
        errors = np.maximum(errors, (np.clip(values, old - limit, old + limit) - targets) ** 2)
    entropy = -np.sum(np.exp(log_probs) * log_probs, axis=1)
    parts = {
        "train/policy_gradient_loss": -surrogate.mean(),
        "train/value_loss": errors.mean(),
        "train/entropy_loss": -entropy.mean(),
        "train/approx_kl": ((ratio - 1) - log_ratio).mean(),  # k3 of Schulman's note "Approximating KL divergence"
        "train/clip_fraction": (np.abs(ratio - 1) > hyperparameters.clip_ratio).mean(),
    }
    parts["train/loss"] = (
        parts["train/policy_gradient_loss"]
        + hyperparameters.value_coefficient * parts["train/value_loss"]
        + hyperparameters.entropy_coefficient * parts["train/entropy_loss"]
    )
    return parts


def finite_differences(function: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
    steps = 1e-6 * np.eye(len(point))
    return np.array([(function(point + step) - function(point - step)) / 2e-6 for step in steps])


@pytest.mark.parametrize(
    ("value_clip_ratio", "standardized", "with_weights"),
    [(None, False, False), (0.3, True, False), (None, True, True), (0.3, False, True)],
)
def test_the_loss_and_its_gradient_equal_the_formulas_in_float64(
    value_clip_ratio: float | None, standardized: bool, with_weights: bool
) -> None:
    agent, state = linear_agent(standardize_advantages=standardized)
    samples = make_samples(with_weights=with_weights)
    hyperparameters = hyperparameters_of(value_clip_ratio=value_clip_ratio)

    def loss(params: Any) -> Any:
        return agent.loss(state.replace(params=params), samples, (), hyperparameters)

    (_, parts), gradients = on_one_device(jax.value_and_grad(loss, has_aux=True))(state.params)
    vector, as_tree = ravel_pytree(state.params)
    shapes = as_tree(vector)

    def reference(point: np.ndarray) -> dict[str, float]:
        leaves, start = [], 0
        for leaf in jax.tree.leaves(shapes):
            leaves.append(point[start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
        return reference_loss(
            jax.tree.unflatten(jax.tree.structure(shapes), leaves), samples, hyperparameters, standardized
        )

    point = np.asarray(vector, np.float64)
    expected = reference(point)
    assert set(parts) == set(expected)
    assert 0 < expected["train/clip_fraction"] < 1
    for name, value in parts.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=1e-6, err_msg=name)
    slopes = finite_differences(lambda moved: reference(moved)["train/loss"], point)
    np.testing.assert_allclose(ravel_pytree(gradients)[0], slopes, rtol=1e-4, atol=1e-5)


def loss_and_gradient(agent: PPOAgent, state: AgentState, samples: PPOSamples, **changes: Any) -> Any:
    def loss(params: Any) -> Any:
        return agent.loss(state.replace(params=params), samples, (), hyperparameters_of(**changes))

    return on_one_device(jax.value_and_grad(loss, has_aux=True))(state.params)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_one_sample_or_equal_advantages_leave_the_policy_loss_at_zero_and_all_numbers_finite(num_samples: int) -> None:
    agent, state = linear_agent()
    samples = make_samples(num_samples)
    samples = samples.replace(advantages=jnp.full_like(samples.advantages, 0.3))
    (_, parts), gradients = loss_and_gradient(agent, state, samples, value_clip_ratio=0.2)
    assert parts["train/policy_gradient_loss"] == 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((parts, gradients)))


def test_a_minibatch_in_which_nothing_counts_changes_nothing() -> None:
    agent, state = linear_agent()
    samples = make_samples(3)
    (_, parts), gradients = loss_and_gradient(agent, state, samples.replace(weights=jnp.zeros(3)))
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves((parts, gradients)))


@pytest.mark.parametrize("name", ["advantages", "targets", "log_prob", "value"])
def test_a_column_where_a_row_belongs_is_an_error_when_traced(name: str) -> None:
    agent, state = linear_agent()
    samples = make_samples()
    if name in ("log_prob", "value"):
        extras = samples.batch.extras
        policy_extras = extras.policy_extras.replace(**{name: extras.policy_extras[name][:, None]})
        samples = samples.replace(batch=samples.batch.replace(extras=extras.replace(policy_extras=policy_extras)))
    else:
        samples = samples.replace(**{name: getattr(samples, name)[:, None]})
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=name):
        jax.eval_shape(lambda: loss_and_gradient(agent, state, samples, value_clip_ratio=0.2))


def known_value_samples(num_steps: int, **env_kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Collect in the counter env with an agent whose value is the count; return the rewards and the targets."""
    env = create_env("probe/counter", parallel=2, record_ori_obs=True, **env_kwargs)
    agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=()))

    @jax.jit
    def collect() -> tuple[Any, Any]:
        state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
        head = PyTreeDict(output=PyTreeDict(kernel=jnp.array([[0.0], [1.0]]), bias=jnp.zeros(1)))
        state = state.replace(params=state.params.replace(value=state.params.value.replace(head=head)))
        source = RolloutSource(env=env, agent=agent, rollout_length=num_steps)
        experience, _ = source.collect(state, source.init(jax.random.split(jax.random.key(1), 2)), jax.random.key(2))
        samples = agent.samples(state, experience.trajectory, PPOHyperparameters(discount=0.9, gae_lambda=0.0))
        return experience.trajectory.rewards, samples.targets

    rewards, targets = jax.device_get(collect())
    return rewards, targets


@pytest.mark.parametrize("num_steps", [6, 7])
def test_truncation_bootstraps_from_the_true_successor(num_steps: int) -> None:
    # Episodes of 3 steps. The reward of a step is the count after it: at a truncation that is 3, while the next
    # episode begins at 0. The trajectory of 6 steps ends with a truncation.
    rewards, targets = known_value_samples(num_steps, episode_length=3)
    np.testing.assert_array_equal(rewards[:, 0], [1, 2, 3, 1, 2, 3, 1][:num_steps])
    np.testing.assert_allclose(targets, rewards + 0.9 * rewards, rtol=1e-6)


@pytest.mark.parametrize("episode_length", [3, 9], ids=["at_the_time_limit", "before_the_time_limit"])
def test_termination_does_not_bootstrap(episode_length: int) -> None:
    rewards, targets = known_value_samples(7, episode_length=episode_length, terminates_after=3)
    np.testing.assert_array_equal(rewards[:, 0], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_allclose(targets, rewards + 0.9 * np.where(rewards == 3, 0, rewards), rtol=1e-6)


def make_workflow(env_name: str = "probe/cue_reward", network: dict | None = None, **agent: Any) -> PPOWorkflow:
    network = {"hidden_sizes": [8], "core_size": 8, "output_init_scale": 1.0, **(network or {})}
    config = {
        "agent": {"num_envs": 4, "rollout_length": 8, "network": network, **agent},
        "env": {"name": env_name, "episode_length": 5},
        "evaluation": {"num_episodes": 2},
    }
    return PPOWorkflow.build_from_config(config)


@pytest.mark.parametrize(
    ("env_name", "network", "num_minibatches"),
    [("classic/cartpole", {}, 2), ("probe/mask", {"core": "gru"}, 4)],
    ids=["mlp", "gru"],
)
def test_the_ratio_stays_1_at_every_step_while_the_policy_does_not_change(
    env_name: str, network: dict, num_minibatches: int
) -> None:
    # A step counts as clipped if its ratio is more than 1e-5 away from 1. With a learning rate of 0 that must never
    # happen: not across episode borders, not in the shuffled minibatches of a second epoch, not after the statistics
    # of observations have changed.
    workflow = make_workflow(
        env_name,
        network,
        normalize_obs=True,
        num_epochs=2,
        num_minibatches=num_minibatches,
        clip_ratio=1e-5,
        learning_rate=0.0,
    )
    state = workflow.init(workflow.make_key())
    for _ in range(4):
        metrics, state = workflow.step(state)
        assert metrics["train/clip_fraction"] == 0.0
        assert abs(metrics["train/approx_kl"]) < 1e-6
    learning = state.replace(hyperparameters=state.hyperparameters.replace(learning_rate=jnp.float32(0.01)))
    metrics, _ = workflow.step(learning)
    assert metrics["train/clip_fraction"] > 0.3, "the measure sees a policy that changes"


def test_an_update_ends_when_the_policy_has_moved_too_far() -> None:
    # With the whole batch in each step, the first step sees no divergence and the second sees that of the first.
    settings = {"num_minibatches": 1, "learning_rate": 0.01, "standardize_advantages": False}
    stopping, single = make_workflow(num_epochs=6, target_kl=1e-5, **settings), make_workflow(num_epochs=1, **settings)
    state = stopping.init(stopping.make_key())
    metrics, stopped = stopping.step(state)
    _, stepped_once = single.step(single.init(single.make_key()))
    assert int(stopped.num_updates) == 1
    assert metrics["train/approx_kl"] > 0
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        stopped.agent_state.params,
        stepped_once.agent_state.params,
    )
    patient = state.replace(hyperparameters=state.hyperparameters.replace(target_kl=jnp.float32(100.0)))
    assert int(stopping.step(patient)[1].num_updates) == 6


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"num_minibatches": 3}, "num_minibatches=3 does not divide 32 samples: use 2 or 4"),
        ({"num_minibatches": 8, "network": {"core": "gru"}}, "num_minibatches=8 does not divide 4 samples: use 4"),
        ({"num_epochs": 0}, "agent.num_epochs=0 must be an integer of at least 1"),
        ({"gae_lambda": 1.5}, "agent.gae_lambda=1.5 must lie between 0 and 1"),
        ({"clip_ratio": -0.1}, "agent.clip_ratio=-0.1 must be at least 0"),
    ],
)
def test_impossible_settings_are_refused_when_the_workflow_is_built(agent: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_workflow(**agent)
