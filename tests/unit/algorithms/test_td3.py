"""TD3: targets by hand, clipped noise, and delayed updates of the policy."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.agents.critics import critic_loss
from rookery.agents.replay import LossInfo, ReplayBatch, Transitions
from rookery.algorithms.td3 import TD3, TD3Agent, TD3Hyperparameters, TD3Workflow
from rookery.errors import InvalidInputError, ShapeError
from rookery.networks.critic import ActorCriticsConfig
from rookery.networks.distributions import GaussianConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete
from rookery.types import PyTreeDict

OBS = Box(-9.0, 9.0, (1,))
RANGE = Box(-2.0, 6.0, (1,))
"""The middle is 2, and half the range is 4."""
NO_NOISE = TD3Hyperparameters(target_noise=0.0)


def linear_agent(action_space: Any = RANGE) -> tuple[TD3Agent, AgentState]:
    """Make an agent whose networks are linear in the observation."""
    config = ActorCriticsConfig(hidden_sizes=(), gaussian=GaussianConfig(bounds="squash"), num_critics=2)
    agent = TD3Agent(config=config)
    return agent, agent.init(OBS, action_space, jax.random.key(0))


def with_weights(params: Any, policy: tuple[float, float], critics: list[tuple[float, float, float]]) -> Any:
    """Return parameters by slope and bias of the policy, and slopes by observation and action and bias of critics."""
    slope, bias = policy
    output = PyTreeDict(kernel=jnp.array([[slope]]), bias=jnp.array([bias]))
    kernels = jnp.array([[[of_obs], [of_action]] for of_obs, of_action, _ in critics])
    of_critics = PyTreeDict(kernel=kernels, bias=jnp.array([[critic[2]] for critic in critics]))
    changed = PyTreeDict(
        policy=params.policy.replace(head=params.policy.head.replace(output=output)),
        critics=params.critics.replace(head=PyTreeDict(output=of_critics)),
    )
    assert jax.tree.map(jnp.shape, changed) == jax.tree.map(jnp.shape, params)
    return changed


def make_transitions(
    agent: TD3Agent, state: AgentState, next_obs: list, terminations: list, dones: list
) -> Transitions:
    shape = (1, len(next_obs))
    windows = SampleBatch(
        obs=jnp.zeros((*shape, 1)),
        actions=jnp.zeros((*shape, 1)),
        rewards=10.0 + jnp.arange(len(next_obs), dtype=jnp.float32)[None],
        next_obs=jnp.array(next_obs)[None, :, None],
        dones=jnp.asarray(dones, jnp.float32)[None],
        extras=PyTreeDict(
            policy_extras=PyTreeDict(), env_extras=PyTreeDict(termination=jnp.asarray(terminations, jnp.float32)[None])
        ),
    )
    return agent.transitions(state, ReplayBatch(windows=windows, importance=None), jnp.float32(0.5))


def test_targets_take_the_minimum_of_two_target_critics_at_the_action_of_the_target_policy() -> None:
    agent, state = linear_agent()
    state = state.replace(params=with_weights(state.params, (7.0, 7.0), [(7.0, 7.0, 7.0), (7.0, 7.0, 7.0)]))
    # The target policy takes 6 at large observations and -2 at small ones, which critics see as 1 and -1.
    target_params = with_weights(state.params, (100.0, 0.0), [(1.0, 4.0, 0.0), (0.0, 1.0, 1.0)])
    # Running, running, terminated, truncated, both at once.
    transitions = make_transitions(agent, state, [2.0, -2.0, 2.0, 2.0, 2.0], [0, 0, 1, 0, 1], [0, 0, 1, 1, 1])
    targets = agent.targets(state, target_params, transitions, NO_NOISE, jax.random.key(0))
    at_plus, at_minus = min(2.0 + 4.0, 1.0 + 1.0), min(-2.0 - 4.0, -1.0 + 1.0)
    expected = [10 + at_plus / 2, 11 + at_minus / 2, 12.0, 13 + at_plus / 2, 14.0]
    np.testing.assert_allclose(targets, [expected], rtol=1e-6)


@pytest.mark.parametrize(("target_noise", "limit"), [(0.2, 0.5), (0.5, 0.1)])
def test_targets_are_smoothed_by_clipped_noise_that_stays_within_bounds(target_noise: float, limit: float) -> None:
    agent, state = linear_agent()
    # In the middle at 0 and near the upper bound at 1; the value is the action as the critics see it.
    target_params = with_weights(state.params, (2.0, 0.0), [(0.0, 1.0, 0.0), (0.0, 1.0, 100.0)])
    next_obs = [0.0, 1.0] * 500
    transitions = make_transitions(agent, state, next_obs, [0] * 1000, [0] * 1000)
    hyperparameters = TD3Hyperparameters(target_noise=target_noise, max_target_noise=limit)
    key = jax.random.key(3)
    targets = agent.targets(state, target_params, transitions, hyperparameters, key)
    noise = target_noise * np.asarray(jax.random.normal(key, (1, 1000, 1)), np.float64)[0, :, 0]
    assert np.any(noise > limit)
    assert np.any(noise < -limit)
    seen = np.clip(np.tanh(2.0 * np.array(next_obs)) + np.clip(noise, -limit, limit), -1.0, 1.0)
    assert np.any(seen == 1.0)
    np.testing.assert_allclose(targets[0], 10 + np.arange(1000) + 0.5 * seen, rtol=1e-6, atol=1e-3)


def test_the_policy_climbs_the_first_critic_alone() -> None:
    agent, state = linear_agent()
    params = with_weights(state.params, (0.0, 0.5), [(0.0, 3.0, 1.0), (0.0, -50.0, 0.0)])
    state = state.replace(params=params)
    transitions = make_transitions(agent, state, [0.0, 0.0], [0, 0], [0, 0])
    (loss, _), gradients = jax.value_and_grad(agent.actor_loss, argnums=1, has_aux=True)(
        state, params.policy, transitions
    )
    np.testing.assert_allclose(loss, -(3.0 * np.tanh(0.5) + 1.0), rtol=1e-5)
    np.testing.assert_allclose(gradients.head.output.bias, [-3.0 * (1 - np.tanh(0.5) ** 2)], rtol=1e-5)


def test_targets_in_a_column_are_an_error_when_traced() -> None:
    agent, state = linear_agent()
    transitions = make_transitions(agent, state, [0.0, 0.0], [0, 0], [0, 0])
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=r"targets has shape \[1, 2, 1\]"):
        critic_loss(agent, state, state.params.critics, transitions, jnp.zeros((1, 2, 1)))


def test_exploration_adds_noise_as_a_share_of_half_the_range_and_keeps_the_bounds() -> None:
    agent, state = linear_agent()
    state = state.replace(params=with_weights(state.params, (2.0, 0.0), [(0.0, 1.0, 0.0), (0.0, 1.0, 0.0)]))
    in_the_middle, at_the_border = SampleBatch(obs=jnp.zeros((4000, 1))), SampleBatch(obs=jnp.ones((4000, 1)))
    key = jax.random.key(2)
    np.testing.assert_array_equal(agent.evaluate_actions(state, in_the_middle, key)[0], 2.0)
    exploring = agent.explore_with(state, TD3Hyperparameters(exploration_noise=0.1))
    actions = np.asarray(agent.compute_actions(exploring, in_the_middle, key)[0])
    assert abs(actions.mean() - 2.0) < 0.05
    assert abs(actions.std() - 0.1 * 4.0) < 0.03
    np.testing.assert_array_equal(agent.evaluate_actions(exploring, in_the_middle, key)[0], 2.0)
    actions = np.asarray(agent.compute_actions(exploring, at_the_border, key)[0])
    assert actions.max() == 6.0
    assert actions.min() > 2.0
    quiet = agent.explore_with(state, TD3Hyperparameters(exploration_noise=0.0))
    np.testing.assert_array_equal(agent.compute_actions(quiet, in_the_middle, key)[0], 2.0)


def make_workflow(env: str = "probe/continuous", **agent: Any) -> TD3Workflow:
    network = {"hidden_sizes": [8], "gaussian": {"bounds": "squash"}}
    sizes = {"num_envs": 2, "batch_size": 4, "buffer_capacity": 64, "warmup_steps": 16, "updates_per_step": 1.5}
    return TD3Workflow.build_from_config(
        {
            "agent": {**sizes, "network": network, **agent},
            "env": {"name": env, "episode_length": 5},
            "total_timesteps": 1000,
            "evaluation": {"num_episodes": 2},
        }
    )


class CountingUp(TD3):
    def gradient_step(self, state: Any, part: str, *_: Any) -> tuple[LossInfo, Any]:
        """Stand for a gradient step: every parameter of the part grows by 1."""
        params = state.agent_state.params
        params = params.replace(**{part: jax.tree.map(lambda leaf: leaf + 1.0, params[part])})
        report = LossInfo(metrics={"train/actor_loss": jnp.zeros(())}, errors=jnp.zeros((1, 4)))
        return report, state.replace(agent_state=state.agent_state.replace(params=params))


@pytest.mark.parametrize("policy_delay", [2, 4])
def test_policy_and_target_networks_are_delayed_also_with_several_updates_per_iteration(policy_delay: int) -> None:
    workflow = make_workflow(policy_delay=policy_delay, target_update_rate=0.25)
    learner = workflow.training.learner
    workflow.training.learner = CountingUp(agent=learner.agent, config=learner.config, max_rows=learner.max_rows)
    state = workflow.init(workflow.make_key())
    zeros = jax.tree.map(jnp.zeros_like, state.agent_state.params)
    agent_state = state.agent_state.replace(params=zeros)
    state = state.replace_learner(agent_state=agent_state, target_params=zeros)
    followed = {"policy": 0.0, "critics": 0.0}
    for num_updates in range(1, 16):
        if num_updates % policy_delay == 0:
            followed["policy"] += 0.25 * (num_updates // policy_delay - followed["policy"])
            followed["critics"] += 0.25 * (num_updates - followed["critics"])
        if num_updates % 3 == 0:
            _, state = workflow.step(state)
            assert int(state.num_updates) == num_updates
            expected = {"policy": num_updates // policy_delay, "critics": num_updates}
            for part in ("policy", "critics"):
                for leaf in jax.tree.leaves(state.agent_state.params[part]):
                    np.testing.assert_array_equal(leaf, expected[part])
                for leaf in jax.tree.leaves(state.learner.target_params[part]):
                    np.testing.assert_allclose(leaf, followed[part], rtol=1e-6)


def differs(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(np.any(left != right) for left, right in pairs)


def test_with_one_update_per_iteration_every_second_one_changes_the_policy() -> None:
    workflow = make_workflow(updates_per_step=0.5, actor_learning_rate=0.01)
    state = workflow.init(workflow.make_key())
    for number in range(1, 5):
        metrics, after = workflow.step(state)
        is_due = number % 2 == 0
        assert differs(after.agent_state.params.critics, state.agent_state.params.critics)
        assert differs(after.agent_state.params.policy, state.agent_state.params.policy) == is_due
        assert differs(after.learner.target_params.policy, state.learner.target_params.policy) == is_due
        assert differs(after.learner.target_params.critics, state.learner.target_params.critics) == is_due
        assert int(after.learner.optimizer_states.policy.count) == number // 2
        assert bool(np.isfinite(metrics["train/actor_loss"])) == is_due  # an average of nothing is NaN
        assert np.isfinite(metrics["train/critic_loss"])
        state = after


def test_discrete_actions_are_an_error_at_build() -> None:
    with pytest.raises(InvalidInputError, match=r"DDPG and TD3 need actions in a Box with finite bounds: Discrete\(2"):
        make_workflow("probe/cue_reward")


@pytest.mark.parametrize("space", [Discrete(3), Box(-np.inf, np.inf, (2,)), Box(0.0, np.inf, (2,))])
def test_no_network_is_made_for_actions_without_finite_bounds(space: Any) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(f"finite bounds: {space}")):
        linear_agent(space)


def test_a_policy_that_is_not_squashed_and_no_delay_at_all_are_errors() -> None:
    with pytest.raises(InvalidInputError, match=r"gaussian\.bounds='clip' must be 'squash'"):
        make_workflow(network={"gaussian": {"bounds": "clip"}})
    with pytest.raises(InvalidInputError, match=r"agent\.policy_delay=0"):
        make_workflow(policy_delay=0)
