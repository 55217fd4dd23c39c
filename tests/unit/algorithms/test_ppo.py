"""PPO: loss and update against the formulas in float64, the ratio while nothing changes, and updates that end early."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from rookery.agent import AgentState
from rookery.agents.actor_critic import AdvantageSamples
from rookery.algorithms.ppo import PPOAgent, PPOHyperparameters, PPOWorkflow
from rookery.distributed import device_mesh
from rookery.envs import create_env
from rookery.errors import InvalidInputError, ShapeError
from rookery.learners.on_policy import OnPolicyState
from rookery.learning import updates
from rookery.learning.experience import row_weights
from rookery.networks import ActorCriticConfig
from rookery.rollout import Experience, RolloutSource
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


def linear_agent() -> tuple[PPOAgent, AgentState]:
    """Make an agent whose logits and values are linear in the observation, so that NumPy can compute them."""
    agent = PPOAgent(config=ActorCriticConfig(hidden_sizes=(), output_init_scale=1.0))
    return agent, agent.init(OBS_SPACE, Discrete(NUM_ACTIONS), jax.random.key(0))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def policy_extras_of(*shape: int) -> PyTreeDict:
    """Make the extras of a policy that differs from the agent's, so that some ratios are clipped."""
    actions = np.random.default_rng(1).integers(NUM_ACTIONS, size=shape)
    return PyTreeDict(
        raw_action=jnp.asarray(actions, jnp.int32),
        log_prob=jnp.log(0.25) + 0.5 * normal(*shape, seed=2),
        value=normal(*shape, seed=3),
    )


def make_samples(num_samples: int = NUM_SAMPLES, with_weights: bool = False) -> AdvantageSamples:
    extras = PyTreeDict(policy_extras=policy_extras_of(num_samples))
    return AdvantageSamples(
        batch=SampleBatch(obs=normal(num_samples, 3, seed=4), extras=extras),
        advantages=normal(num_samples, seed=5),
        targets=normal(num_samples, seed=6),
        weights=(normal(num_samples, seed=7) > 0).astype(jnp.float32) if with_weights else None,
    )


def double(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def reference_loss(params: Any, samples: AdvantageSamples, hyperparameters: PPOHyperparameters) -> dict[str, float]:
    """Compute the loss in float64, by the equations of the paper and nothing of ours."""
    before = samples.batch.extras.policy_extras
    counted = np.ones(len(samples.advantages), bool) if samples.weights is None else np.asarray(samples.weights) > 0
    obs, actions = double(samples.batch.obs)[counted], np.asarray(before.raw_action)[counted]
    policy, value = params["policy"]["head"]["output"], params["value"]["head"]["output"]
    logits = obs @ policy["kernel"] + policy["bias"]
    log_probs = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
    values = (obs @ value["kernel"] + value["bias"])[:, 0]

    advantages, targets = double(samples.advantages)[counted], double(samples.targets)[counted]
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


def reference_of(
    params: Any, samples: AdvantageSamples, hyperparameters: PPOHyperparameters
) -> tuple[dict, np.ndarray]:
    """Return the parts of the reference loss, and its gradient by finite differences as one vector."""
    leaves, structure = jax.tree.flatten(params)
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def at(point: np.ndarray) -> dict[str, float]:
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(point, borders), leaves, strict=True)]
        return reference_loss(jax.tree.unflatten(structure, parts), samples, hyperparameters)

    point = double(ravel_pytree(params)[0])
    steps = 1e-6 * np.eye(len(point))
    slopes = [(at(point + step)["train/loss"] - at(point - step)["train/loss"]) / 2e-6 for step in steps]
    return at(point), np.array(slopes)


def loss_and_gradient(samples: AdvantageSamples, hyperparameters: PPOHyperparameters) -> tuple[dict, Any]:
    agent, state = linear_agent()

    def loss(params: Any) -> Any:
        return agent.loss(state.replace(params=params), samples, (), hyperparameters)

    (_, parts), gradients = on_one_device(jax.value_and_grad(loss, has_aux=True))(state.params)
    return parts, gradients


@pytest.mark.parametrize(("value_clip_ratio", "with_weights"), [(None, False), (0.3, True)])
def test_the_loss_and_its_gradient_equal_the_formulas_in_float64(
    value_clip_ratio: float | None, with_weights: bool
) -> None:
    samples = make_samples(with_weights=with_weights)
    hyperparameters = PPOHyperparameters(entropy_coefficient=0.1, value_clip_ratio=value_clip_ratio)
    parts, gradients = loss_and_gradient(samples, hyperparameters)
    expected, slopes = reference_of(linear_agent()[1].params, samples, hyperparameters)
    assert set(parts) == set(expected)
    assert 0 < expected["train/clip_fraction"] < 1
    for name, value in parts.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(ravel_pytree(gradients)[0], slopes, rtol=1e-4, atol=1e-5)


def test_a_minibatch_in_which_nothing_counts_changes_nothing() -> None:
    samples = make_samples(3).replace(weights=jnp.zeros(3))
    results = loss_and_gradient(samples, PPOHyperparameters(value_clip_ratio=0.2))
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(results))


@pytest.mark.parametrize("name", ["advantages", "targets", "log_prob", "value"])
def test_a_column_where_a_row_belongs_is_an_error_when_traced(name: str) -> None:
    samples = make_samples()
    if name in ("log_prob", "value"):
        extras = samples.batch.extras
        policy_extras = extras.policy_extras.replace(**{name: extras.policy_extras[name][:, None]})
        samples = samples.replace(batch=samples.batch.replace(extras=extras.replace(policy_extras=policy_extras)))
    else:
        samples = samples.replace(**{name: getattr(samples, name)[:, None]})
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=name):
        jax.eval_shape(lambda: loss_and_gradient(samples, PPOHyperparameters(value_clip_ratio=0.2)))


def make_workflow(env_name: str = "probe/cue_reward", network: dict | None = None, **agent: Any) -> PPOWorkflow:
    network = {"hidden_sizes": [8], "core_size": 8, "output_init_scale": 1.0, **(network or {})}
    config = {
        "agent": {"num_envs": 4, "rollout_length": 8, "network": network, **agent},
        "env": {"name": env_name, "episode_length": 5},
        "evaluation": {"num_episodes": 2},
    }
    return PPOWorkflow.build_from_config(config)


def make_experience(num_steps: int, num_envs: int) -> Experience:
    """Make a trajectory with ends of both kinds."""
    shape = (num_steps, num_envs)
    kinds = np.random.default_rng(8).choice(3, size=shape, p=[0.6, 0.2, 0.2])
    terminations, truncations = (jnp.asarray(kinds == kind, jnp.float32) for kind in (1, 2))
    trajectory = SampleBatch(
        obs=normal(*shape, 3, seed=9),
        rewards=normal(*shape, seed=10),
        dones=terminations + truncations,
        extras=PyTreeDict(
            policy_extras=policy_extras_of(*shape),
            env_extras=PyTreeDict(termination=terminations, truncation=truncations, ori_obs=normal(*shape, 3, seed=11)),
        ),
    )
    return Experience(trajectory=trajectory, first_carry=())


def run_update(workflow: PPOWorkflow, experience: Experience, hyperparameters: Any) -> tuple[dict, Any]:
    """Take one update; return its metrics and the parameters."""
    _, agent_state = linear_agent()
    learner = workflow.training.learner
    before = OnPolicyState.first(
        agent_state,
        hyperparameters,
        optimizer_state=learner.optimizer.init(agent_state.params),
        reward_scaling=None,
        actor_state=None,
    )
    experience = experience.replace(weights=row_weights(experience.trajectory))
    update = on_one_device(lambda *arguments: learner.update(*arguments, key=jax.random.key(0)))
    metrics, after = update(before, experience, jax.tree.map(jnp.float32, hyperparameters))
    return {name: float(mean.value) for name, mean in metrics.items()}, after.agent_state.params


def reference_samples(params: Any, experience: Experience, hyperparameters: PPOHyperparameters) -> AdvantageSamples:
    """Estimate advantages in float64 by the sum of Schulman et al., 2016, eq. 16, and flatten everything."""
    trajectory = experience.trajectory
    extras, head = trajectory.extras, jax.tree.map(double, params["value"]["head"]["output"])
    values, rewards, dones = double(extras.policy_extras.value), double(trajectory.rewards), double(trajectory.dones)
    true_successors = (double(extras.env_extras.ori_obs) @ head["kernel"] + head["bias"])[..., 0]
    num_steps = len(rewards)
    is_shown = (dones == 0) & (np.arange(num_steps)[:, None] < num_steps - 1)
    next_values = np.where(is_shown, np.roll(values, -1, axis=0), true_successors)
    next_values[double(extras.env_extras.termination) == 1] = 0.0
    deltas = rewards + hyperparameters.discount * next_values - values
    decay = hyperparameters.discount * hyperparameters.gae_lambda
    advantages = np.zeros_like(deltas)
    for step, env in np.ndindex(*deltas.shape):
        for later in range(step, num_steps):
            advantages[step, env] += decay ** (later - step) * deltas[later, env]
            if dones[later, env]:
                break
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (trajectory.obs, extras.policy_extras))
    return AdvantageSamples(
        batch=SampleBatch(obs=flat[0], extras=PyTreeDict(policy_extras=flat[1])),
        advantages=advantages.ravel(),
        targets=(advantages + values).ravel(),
        weights=None,
    )


@pytest.mark.parametrize(("standardized", "rows_per_chunk"), [(False, 2048), (True, 2048), (True, 4)])
def test_an_update_equals_one_step_of_adam_on_the_formulas_in_float64(
    standardized: bool, rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "ROWS_PER_CHUNK", rows_per_chunk)
    workflow = make_workflow(num_epochs=1, num_minibatches=1, standardize_advantages=standardized)
    hyperparameters = PPOHyperparameters(entropy_coefficient=0.1, learning_rate=0.1, max_grad_norm=0.05)
    experience = make_experience(num_steps=8, num_envs=3)
    metrics, params = run_update(workflow, experience, hyperparameters)

    before = linear_agent()[1].params
    samples = reference_samples(before, experience, hyperparameters)
    errors = samples.targets - double(samples.batch.extras.policy_extras.value)
    explained_variance = 1 - np.var(errors) / np.var(samples.targets)
    if standardized:
        advantages = samples.advantages
        samples = samples.replace(advantages=(advantages - advantages.mean()) / (advantages.std() + 1e-8))
    expected, slopes = reference_of(before, samples, hyperparameters)
    expected |= {
        "train/explained_variance": explained_variance,
        "train/grad_norm": np.linalg.norm(slopes),
        "train/learning_rate": hyperparameters.learning_rate,
        "train/clip_range": hyperparameters.clip_ratio,
    }
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    gradient = slopes * 0.05 / np.linalg.norm(slopes)
    change = -0.1 * gradient / (np.abs(gradient) + 1e-5)  # Adam, the first step: both of its means are those of one
    np.testing.assert_allclose(ravel_pytree(params)[0] - ravel_pytree(before)[0], change, atol=1e-4)


def test_one_sample_and_equal_advantages_train_without_nan() -> None:
    workflow = make_workflow(num_epochs=2, num_minibatches=1)
    experience = make_experience(num_steps=1, num_envs=1)
    metrics, params = run_update(workflow, experience, PPOHyperparameters(value_clip_ratio=0.2))
    assert metrics["train/policy_gradient_loss"] == 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))

    # Without discount and value the advantage is the reward, here the same for all.
    extras = experience.trajectory.extras
    policy_extras = extras.policy_extras.replace(value=jnp.zeros((1, 1)))
    trajectory = experience.trajectory.replace(
        rewards=jnp.full((1, 1), 0.3), extras=extras.replace(policy_extras=policy_extras)
    )
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, 5, axis=1), trajectory)
    metrics, params = run_update(workflow, experience.replace(trajectory=repeated), PPOHyperparameters(discount=0.0))
    assert metrics["train/policy_gradient_loss"] == 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))


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
        samples = agent.samples(state, experience, discount=0.9, gae_lambda=0.0)
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
    learning = state.replace_learner(hyperparameters=state.hyperparameters.replace(learning_rate=jnp.float32(0.01)))
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
    patient = state.replace_learner(hyperparameters=state.hyperparameters.replace(target_kl=jnp.float32(100.0)))
    assert int(stopping.step(patient)[1].num_updates) == 6


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"num_minibatches": 3}, "num_minibatches=3 does not divide 32 samples: use 2 or 4"),
        ({"num_minibatches": 8, "network": {"core": "gru"}}, "num_minibatches=8 does not divide 4 samples: use 4"),
        ({"num_minibatches": 32}, "num_minibatches=32 leaves one sample per minibatch"),
        ({"rollout_length": 1, "num_minibatches": 4, "network": {"core": "gru"}}, "leaves one sample per minibatch"),
        ({"num_epochs": 0}, "agent.num_epochs=0 must be an integer of at least 1"),
        ({"gae_lambda": 1.5}, "agent.gae_lambda=1.5 must lie between 0 and 1"),
        ({"clip_ratio": -0.1}, "agent.clip_ratio=-0.1 must be at least 0"),
    ],
)
def test_impossible_settings_are_refused_when_the_workflow_is_built(agent: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_workflow(**agent)
