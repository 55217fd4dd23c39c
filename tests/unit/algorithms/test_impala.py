"""IMPALA: its loss against the formulas in float64, and actors that lag behind the learner."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from rookery.agent import AgentState
from rookery.algorithms.impala import IMPALAAgent, IMPALAHyperparameters, IMPALAWorkflow
from rookery.distributed import device_mesh
from rookery.errors import InvalidInputError
from rookery.learning.experience import Experience, row_weights
from rookery.networks import ActorCriticConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

SHAPE, NUM_ACTIONS = (7, 3), 4
DISCOUNT, TRACE_LAMBDA, MAX_TARGET_RATIO, MAX_TRACE_RATIO = 0.9, 0.8, 1.2, 0.9
HYPERPARAMETERS = IMPALAHyperparameters(
    discount=DISCOUNT,
    trace_lambda=TRACE_LAMBDA,
    max_target_ratio=MAX_TARGET_RATIO,
    max_trace_ratio=MAX_TRACE_RATIO,
    entropy_coefficient=0.1,
)


def linear_agent() -> tuple[IMPALAAgent, AgentState]:
    """Make an agent whose logits and values are linear in the observation, so that NumPy can compute them."""
    agent = IMPALAAgent(config=ActorCriticConfig(hidden_sizes=(), output_init_scale=1.0))
    return agent, agent.init(Box(-3.0, 3.0, (3,)), Discrete(NUM_ACTIONS), jax.random.key(0))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def make_trajectory(with_dead_steps: bool) -> SampleBatch:
    """Make a trajectory of another policy, optionally with a dead step after each end of an episode."""
    generator = np.random.default_rng(1)
    kinds = generator.choice(3, size=SHAPE, p=[0.6, 0.2, 0.2])
    env_extras = PyTreeDict(ori_obs=normal(*SHAPE, 3, seed=2))
    if with_dead_steps:
        kinds[1::2] = 0
        env_extras.autoreset = jnp.asarray(np.roll(kinds > 0, 1, axis=0), jnp.float32)
    env_extras |= {
        name: jnp.asarray(kinds == kind, jnp.float32) for kind, name in ((1, "termination"), (2, "truncation"))
    }
    policy_extras = PyTreeDict(
        raw_action=jnp.asarray(generator.integers(NUM_ACTIONS, size=SHAPE), jnp.int32),
        log_prob=jnp.log(0.25) + 0.5 * normal(*SHAPE, seed=5),
    )
    return SampleBatch(
        obs=normal(*SHAPE, 3, seed=3),
        rewards=normal(*SHAPE, seed=4),
        dones=jnp.asarray(kinds > 0, jnp.float32),
        extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
    )


def double(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def outputs_of(params: Any, obs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities of all actions and values, in float64."""
    policy, value = params["policy"]["head"]["output"], params["value"]["head"]["output"]
    logits = double(obs) @ double(policy["kernel"]) + double(policy["bias"])
    log_probs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return log_probs, (double(obs) @ double(value["kernel"]) + double(value["bias"]))[..., 0]


def chosen_of(log_probs: np.ndarray, trajectory: SampleBatch) -> np.ndarray:
    actions = np.asarray(trajectory.extras.policy_extras.raw_action)
    return np.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]


def reference_targets(params: Any, trajectory: SampleBatch) -> tuple[np.ndarray, np.ndarray]:
    """Compute the targets of V-trace by the sum of Espeholt et al., 2018, eq. 1, and the advantages of section 4.2."""
    info, dones = trajectory.extras.env_extras, np.asarray(trajectory.dones)
    log_probs, values = outputs_of(params, trajectory.obs)
    _, after_a_cut = outputs_of(params, info.ori_obs)
    ratios = np.exp(chosen_of(log_probs, trajectory) - double(trajectory.extras.policy_extras.log_prob))
    is_last = np.arange(SHAPE[0])[:, None] == SHAPE[0] - 1
    is_cut = (dones > 0) | is_last
    bootstraps = np.where(is_cut, after_a_cut, np.roll(values, -1, axis=0))
    bootstraps[np.asarray(info.termination) == 1] = 0.0
    deltas = np.minimum(MAX_TARGET_RATIO, ratios) * (double(trajectory.rewards) + DISCOUNT * bootstraps - values)
    traces = TRACE_LAMBDA * np.minimum(MAX_TRACE_RATIO, ratios)
    targets = values.copy()
    for step, env in np.ndindex(*SHAPE):
        for later in range(step, SHAPE[0]):
            targets[step, env] += DISCOUNT ** (later - step) * np.prod(traces[step:later, env]) * deltas[later, env]
            if dones[later, env]:
                break
    next_targets = np.where(is_cut, bootstraps, np.roll(targets, -1, axis=0))
    errors = double(trajectory.rewards) + DISCOUNT * next_targets - values
    return targets, np.minimum(MAX_TARGET_RATIO, ratios) * errors


def reference_loss(
    params: Any, trajectory: SampleBatch, targets: np.ndarray, advantages: np.ndarray
) -> dict[str, float]:
    """Compute the loss in float64, with the estimates as constants."""
    log_probs, values = outputs_of(params, trajectory.obs)
    chosen, extras = chosen_of(log_probs, trajectory), trajectory.extras
    log_ratio = chosen - double(extras.policy_extras.log_prob)
    counted = np.ones(SHAPE, bool) if "autoreset" not in extras.env_extras else extras.env_extras.autoreset == 0
    parts = {
        "train/policy_loss": -np.mean((chosen * advantages)[counted]),
        "train/value_loss": np.mean((values - targets)[counted] ** 2),
        "train/entropy_loss": np.mean(np.sum(np.exp(log_probs) * log_probs, axis=-1)[counted]),
        "train/approx_kl": np.mean((np.exp(log_ratio) - 1 - log_ratio)[counted]),
    }
    loss = parts["train/policy_loss"] + 0.5 * parts["train/value_loss"] + 0.1 * parts["train/entropy_loss"]
    return parts | {"train/loss": loss}


@pytest.mark.parametrize("with_dead_steps", [False, True])
def test_the_loss_and_its_gradient_equal_the_formulas_in_float64(with_dead_steps: bool) -> None:
    trajectory = make_trajectory(with_dead_steps)
    agent, state = linear_agent()
    experience = Experience(trajectory=trajectory, first_carry=(), weights=row_weights(trajectory))

    def loss(params: Any) -> Any:
        return agent.loss(state.replace(params=params), experience, (), HYPERPARAMETERS)

    program = jax.shard_map(
        jax.value_and_grad(loss, has_aux=True),
        mesh=device_mesh(1),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    (_, parts), gradients = jax.jit(program)(state.params)

    targets, advantages = reference_targets(state.params, trajectory)
    leaves, structure = jax.tree.flatten(state.params)
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def at(point: np.ndarray) -> dict[str, float]:
        moved = [part.reshape(leaf.shape) for part, leaf in zip(np.split(point, borders), leaves, strict=True)]
        return reference_loss(jax.tree.unflatten(structure, moved), trajectory, targets, advantages)

    point = double(ravel_pytree(state.params)[0])
    expected = at(point)
    assert set(parts) == set(expected)
    for name, value in parts.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    steps = 1e-6 * np.eye(len(point))
    slopes = np.array([(at(point + step)["train/loss"] - at(point - step)["train/loss"]) / 2e-6 for step in steps])
    np.testing.assert_allclose(ravel_pytree(gradients)[0], slopes, rtol=1e-3, atol=1e-5)


def make_workflow(**agent: Any) -> IMPALAWorkflow:
    agent = {"num_envs": 4, "rollout_length": 4, "num_minibatches": 1, "network": {"hidden_sizes": [8]}, **agent}
    env = {"name": "probe/cue_reward", "episode_length": 5}
    return IMPALAWorkflow.build_from_config({"agent": agent, "env": env, "evaluation": {"num_episodes": 2}})


def test_actors_take_the_learners_parameters_every_actor_lag_iterations() -> None:
    workflow = make_workflow(actor_lag=2, normalize_obs=True, learning_rate=0.01)
    state = workflow.init(workflow.make_key())
    divergences, acting = [], [state.learner.actor_state]
    for _ in range(4):
        metrics, state = workflow.step(state)
        divergences.append(float(metrics["train/approx_kl"]))
        acting.append(state.learner.actor_state)
    assert_equal(acting[1], acting[0])
    assert_equal(acting[3], acting[2])
    assert_equal(acting[4], state.agent_state)
    # The first of every two trajectories is on-policy, the second is not.
    np.testing.assert_allclose(divergences[::2], 0.0, atol=1e-6)
    assert min(divergences[1::2]) > 1e-5


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"num_minibatches": 3}, "num_minibatches=3 does not divide 4 samples: use 2 or 4"),
        ({"actor_lag": 0}, "agent.actor_lag=0 must be an integer of at least 1"),
        ({"trace_lambda": 2}, "agent.trace_lambda=2 must lie between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused_when_the_workflow_is_built(agent: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_workflow(**agent)
