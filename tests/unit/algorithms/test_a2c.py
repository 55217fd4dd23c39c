"""A2C: its update against the formulas in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rookery.agent import AgentState
from rookery.agents.actor_critic import AdvantageSamples
from rookery.algorithms.a2c import A2C, A2CAgent, A2CConfig, A2CHyperparameters, A2CWorkflow
from rookery.errors import InvalidInputError, ShapeError
from rookery.learners.on_policy import OnPolicyState
from rookery.learning.experience import Experience, row_weights
from rookery.networks import ActorCriticConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

SHAPE, NUM_ACTIONS = (7, 3), 4
HYPERPARAMETERS = A2CHyperparameters(
    learning_rate=0.01, discount=0.9, gae_lambda=0.8, entropy_coefficient=0.1, max_grad_norm=0.05
)


def linear_agent() -> tuple[A2CAgent, AgentState]:
    """Make an agent whose logits and values are linear in the observation, so that NumPy can compute them."""
    agent = A2CAgent(config=ActorCriticConfig(hidden_sizes=(), output_init_scale=1.0))
    return agent, agent.init(Box(-3.0, 3.0, (3,)), Discrete(NUM_ACTIONS), jax.random.key(0))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def make_trajectory(with_dead_steps: bool) -> SampleBatch:
    """Make a trajectory with terminations and truncations, optionally with a dead step after each."""
    generator = np.random.default_rng(1)
    kinds = generator.choice(3, size=SHAPE, p=[0.6, 0.2, 0.2])
    env_extras = PyTreeDict(ori_obs=normal(*SHAPE, 3, seed=2))
    if with_dead_steps:
        kinds[1::2] = 0
        env_extras.autoreset = jnp.asarray(np.roll(kinds > 0, 1, axis=0), jnp.float32)
    env_extras |= {
        name: jnp.asarray(kinds == kind, jnp.float32) for kind, name in ((1, "termination"), (2, "truncation"))
    }
    _, state = linear_agent()
    obs, head = normal(*SHAPE, 3, seed=3), state.params.value.head.output
    policy_extras = PyTreeDict(
        raw_action=jnp.asarray(generator.integers(NUM_ACTIONS, size=SHAPE), jnp.int32),
        value=(obs @ head.kernel)[..., 0],  # the bias begins at 0
    )
    return SampleBatch(
        obs=obs,
        rewards=normal(*SHAPE, seed=4),
        dones=jnp.asarray(kinds > 0, jnp.float32),
        extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
    )


def double(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def reference_advantages(trajectory: SampleBatch, head: Any) -> np.ndarray:
    """Add up the discounted deltas of every step until its episode or the trajectory ends, in float64."""
    info, values, dones = trajectory.extras.env_extras, double(trajectory.extras.policy_extras.value), trajectory.dones
    after_a_cut = (double(info.ori_obs) @ double(head.kernel))[..., 0] + double(head.bias)
    advantages = np.zeros(SHAPE)
    for step, env in np.ndindex(*SHAPE):
        for later in range(step, SHAPE[0]):
            is_shown = later + 1 < SHAPE[0] and not dones[later, env]
            next_value = values[later + 1, env] if is_shown else after_a_cut[later, env]
            if info.termination[later, env]:
                next_value = 0.0
            delta = float(trajectory.rewards[later, env]) + 0.9 * next_value - values[later, env]
            advantages[step, env] += (0.9 * 0.8) ** (later - step) * delta
            if dones[later, env]:
                break
    return advantages


def reference_loss(params: Any, trajectory: SampleBatch, advantages: np.ndarray) -> dict[str, float]:
    """Compute the loss in float64 by the equations of the paper."""
    policy, value = params["policy"]["head"]["output"], params["value"]["head"]["output"]
    extras, obs = trajectory.extras, double(trajectory.obs)
    logits = obs @ policy["kernel"] + policy["bias"]
    log_probs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, np.asarray(extras.policy_extras.raw_action)[..., None], axis=-1)[..., 0]
    values = (obs @ value["kernel"] + value["bias"])[..., 0]
    targets = advantages + double(extras.policy_extras.value)
    counted = np.ones(SHAPE, bool) if "autoreset" not in extras.env_extras else extras.env_extras.autoreset == 0
    parts = {
        "train/policy_loss": -np.mean((chosen * advantages)[counted]),
        "train/value_loss": np.mean((values - targets)[counted] ** 2),
        "train/entropy_loss": np.mean(np.sum(np.exp(log_probs) * log_probs, axis=-1)[counted]),
    }
    loss = parts["train/policy_loss"] + 0.5 * parts["train/value_loss"] + 0.1 * parts["train/entropy_loss"]
    return parts | {"train/loss": loss}


@pytest.mark.parametrize("with_dead_steps", [False, True])
def test_an_update_equals_one_step_of_rmsprop_on_the_formulas_in_float64(with_dead_steps: bool) -> None:
    trajectory = make_trajectory(with_dead_steps)
    _, state = linear_agent()
    learner = A2C.of(A2CConfig())
    before = OnPolicyState.first(
        state,
        HYPERPARAMETERS,
        optimizer_state=learner.optimizer.init(state.params),
        reward_scaling=None,
        actor_state=None,
    )
    experience = Experience(trajectory=trajectory, first_carry=(), weights=row_weights(trajectory))
    hyperparameters = jax.tree.map(jnp.float32, HYPERPARAMETERS)
    metrics, after = jax.jit(learner.update)(before, experience, hyperparameters, jax.random.key(0))
    assert int(after.num_updates) == 1

    leaves, structure = jax.tree.flatten(state.params)
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]
    advantages = reference_advantages(trajectory, state.params.value.head.output)

    def at(point: np.ndarray) -> dict[str, float]:
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(point, borders), leaves, strict=True)]
        return reference_loss(jax.tree.unflatten(structure, parts), trajectory, advantages)

    before = double(ravel_pytree(state.params)[0])
    for name, expected in at(before).items():
        np.testing.assert_allclose(metrics[name].value, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    steps = 1e-6 * np.eye(len(before))
    slopes = np.array([(at(before + step)["train/loss"] - at(before - step)["train/loss"]) / 2e-6 for step in steps])
    np.testing.assert_allclose(metrics["train/grad_norm"].value, np.linalg.norm(slopes), rtol=1e-4)
    gradient = slopes * 0.05 / np.linalg.norm(slopes)
    change = -0.01 * gradient / (0.1 * np.abs(gradient) + 1e-5)  # the mean square begins at 0 and decays by 0.99
    np.testing.assert_allclose(ravel_pytree(after.agent_state.params)[0] - before, change, atol=1e-4)


@pytest.mark.parametrize("name", ["advantages", "targets"])
def test_a_column_where_a_row_belongs_is_an_error_when_traced(name: str) -> None:
    agent, state = linear_agent()
    trajectory = make_trajectory(with_dead_steps=False)
    given = {"advantages": jnp.zeros(SHAPE), "targets": jnp.zeros(SHAPE)}
    given[name] = given[name][..., None]
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=name):
        agent.loss(state, AdvantageSamples(batch=trajectory, **given), carry=(), hyperparameters=HYPERPARAMETERS)


def test_a_hyperparameter_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"agent.discount=99 must lie between 0 and 1"):
        A2CWorkflow.build_from_config({"agent": {"discount": 99}})
