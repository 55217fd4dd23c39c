"""SAC: targets and losses against float64, the temperature, and what each step of an update changes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rookery.agent import AgentState
from rookery.agents.critics import critic_loss
from rookery.agents.replay import LossInfo, ReplayBatch, Transitions
from rookery.algorithms.sac import SAC, SACAgent, SACConfig, SACHyperparameters, SACWorkflow, soft_values
from rookery.distributed import DEVICE_AXIS
from rookery.errors import InvalidInputError, ShapeError
from rookery.learners.replay import OffPolicyState
from rookery.networks.critic import ActorCriticsConfig
from rookery.networks.distributions import GaussianConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete
from rookery.types import PyTreeDict

OBS = Box(-3.0, 3.0, (3,))
UNEVEN = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
NUM_WINDOWS, NUM_ACTIONS, DISCOUNT, TEMPERATURE = 12, 4, 0.9, 0.3
KEY = jax.random.key(11)


def linear_agent(action_space: Any = UNEVEN, obs_space: Any = OBS) -> tuple[SACAgent, AgentState]:
    """Make an agent whose networks are linear in the observation, so that NumPy can compute them."""
    gaussian = GaussianConfig(bounds="squash", state_dependent_std=True, min_log_std=-1.0)
    agent = SACAgent(config=ActorCriticsConfig(hidden_sizes=(), output_init_scale=1.0, gaussian=gaussian))
    return agent, agent.init(obs_space, action_space, jax.random.key(0))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def moved(params: Any, seed: int) -> Any:
    """Return other parameters of the same shapes."""
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, [normal(*leaf.shape, seed=seed + i) for i, leaf in enumerate(leaves)])


def make_replayed(action_space: Any) -> ReplayBatch:
    """Make windows of one row: running, terminated (the successor is NaN) or truncated, in turn."""
    shape = (1, NUM_WINDOWS)
    kinds = np.arange(NUM_WINDOWS)[None] % 3
    next_obs = jnp.where(jnp.asarray(kinds == 1)[..., None], jnp.nan, normal(*shape, 3, seed=2))
    windows = SampleBatch(
        obs=normal(*shape, 3, seed=1),
        actions=action_space.sample(jax.random.key(3), shape),
        rewards=normal(*shape, seed=4),
        next_obs=next_obs,
        dones=jnp.asarray(kinds > 0, jnp.float32),
        extras=PyTreeDict(
            policy_extras=PyTreeDict(), env_extras=PyTreeDict(termination=jnp.asarray(kinds == 1, jnp.float32))
        ),
    )
    return ReplayBatch(windows=windows, importance=None)


def make_transitions(agent: SACAgent, state: AgentState, action_space: Any) -> Transitions:
    return agent.transitions(state, make_replayed(action_space), jnp.float32(DISCOUNT))


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def reference_soft_values(policy: Any, critics: Any, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """Compute the soft values of observations `[N, 3]` in float64; `noise` is that of a continuous policy."""
    policy, critics = double(policy.head.output), double(critics.head.output)
    outputs = obs @ policy.kernel + policy.bias
    values = np.zeros(len(obs))
    for row, output in enumerate(outputs):
        if noise is None:
            log_probs = output - np.log(np.sum(np.exp(output)))
            of_all = [obs[row] @ critics.kernel[critic] + critics.bias[critic] for critic in range(2)]
            for action, log_prob in enumerate(log_probs):
                value = min(of_all[0][action], of_all[1][action])
                values[row] += np.exp(log_prob) * (value - TEMPERATURE * log_prob)
        else:
            mean, log_std = output[:2], np.clip(output[2:], -1.0, 2.0)
            squashed = np.tanh(mean + np.exp(log_std) * noise[row])
            log_prob = np.sum(-0.5 * noise[row] ** 2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - squashed**2))
            inputs = np.concatenate([obs[row], squashed])  # the critics see the actions in [-1, 1]
            of_both = [(inputs @ critics.kernel[critic] + critics.bias[critic])[0] for critic in range(2)]
            values[row] = min(of_both) - TEMPERATURE * log_prob
    return values


def noise_of(action_space: Any) -> np.ndarray | None:
    if isinstance(action_space, Discrete):
        return None
    return np.asarray(jax.random.normal(KEY, (1, NUM_WINDOWS, 2)), np.float64)[0]


SPACES = [UNEVEN, Discrete(NUM_ACTIONS, start=2)]
both_kinds = pytest.mark.parametrize("action_space", SPACES, ids=["continuous", "discrete"])


@both_kinds
def test_targets_are_rewards_plus_soft_values_of_the_successor_unless_it_is_terminal(action_space: Any) -> None:
    agent, state = linear_agent(action_space)
    state = state.replace(params=state.params.replace(policy=moved(state.params.policy, seed=20)))
    target_params = PyTreeDict(critics=moved(state.params.critics, seed=30))
    transitions = make_transitions(agent, state, action_space)
    targets = jax.jit(agent.targets)(state, target_params, transitions, jnp.float32(TEMPERATURE), KEY)
    rows = double(make_replayed(action_space).windows)
    expected = rows.rewards[0].copy()
    next_values = reference_soft_values(
        state.params.policy, target_params.critics, rows.next_obs[0], noise_of(action_space)
    )
    for row in range(NUM_WINDOWS):
        if not rows.extras.env_extras.termination[0, row]:
            expected[row] += DISCOUNT * next_values[row]
    np.testing.assert_allclose(targets[0], expected, rtol=1e-4, atol=1e-4)


@both_kinds
def test_the_actor_loss_and_its_gradient_are_those_of_the_formula_in_float64(action_space: Any) -> None:
    agent, state = linear_agent(action_space)
    params = state.params.replace(policy=moved(state.params.policy, seed=20), critics=moved(state.params.critics, 40))
    state = state.replace(params=params)
    transitions = make_transitions(agent, state, action_space)

    def actor_loss(policy: Any) -> Any:
        return agent.actor_loss(state, policy, transitions, jnp.float32(TEMPERATURE), KEY)

    (loss, report), gradients = jax.jit(jax.value_and_grad(actor_loss, has_aux=True))(params.policy)
    point = np.asarray(ravel_pytree(params.policy)[0], np.float64)
    obs, noise = double(transitions.obs)[0], noise_of(action_space)
    leaves, structure = jax.tree.flatten(params.policy)
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def at(point: np.ndarray) -> float:
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(point, borders), leaves, strict=True)]
        policy = jax.tree.unflatten(structure, parts)
        return -np.mean(reference_soft_values(policy, params.critics, obs, noise))

    np.testing.assert_allclose(loss, at(point), rtol=1e-4)
    steps = 1e-6 * np.eye(len(point))
    slopes = [(at(point + step) - at(point - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(ravel_pytree(gradients)[0], slopes, rtol=1e-3, atol=1e-4)
    assert set(report.metrics) == {"train/actor_loss", "train/entropy"}


def test_the_critic_loss_is_that_of_the_actions_that_were_taken() -> None:
    agent, state = linear_agent()
    critics = moved(state.params.critics, seed=40)
    transitions, targets = make_transitions(agent, state, UNEVEN), normal(1, NUM_WINDOWS, seed=9)
    loss, report = jax.jit(partial(critic_loss, agent))(state, critics, transitions, targets)
    layers, rows = double(critics.head.output), double(make_replayed(UNEVEN).windows)
    inputs = np.concatenate([rows.obs[0], rows.actions[0] / [2.0, 5.0] - [0.0, 1.0]], axis=-1)
    errors = np.stack([(inputs @ layers.kernel[i] + layers.bias[i])[:, 0] for i in range(2)]) - np.asarray(targets)
    np.testing.assert_allclose(loss, np.mean(0.5 * np.sum(errors**2, axis=0)), rtol=1e-5)
    np.testing.assert_allclose(report.errors[0], np.mean(np.abs(errors), axis=0), rtol=1e-4)


def test_a_column_where_a_row_belongs_is_an_error_when_traced() -> None:
    agent, state = linear_agent()
    transitions, column = make_transitions(agent, state, UNEVEN), jnp.zeros((1, NUM_WINDOWS, 1))
    with jax.numpy_rank_promotion("allow"):
        for targets in (column, transitions.with_discounted(column)):
            with pytest.raises(ShapeError, match=r"targets has shape \[1, 12, \d+\]"):
                critic_loss(agent, state, state.params.critics, transitions, targets)


def test_a_masked_action_has_no_share_in_the_value() -> None:
    obs_space = Dict(seen=OBS, action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
    _, state = linear_agent(Discrete(NUM_ACTIONS), obs_space)
    network, params = state.extra_state.network, state.params
    allowed = np.array([0, 1, 2, 3, 3])
    obs = PyTreeDict(seen=normal(5, 3, seed=1), action_mask=jnp.asarray(np.eye(NUM_ACTIONS)[allowed], jnp.int8))
    first = jax.tree.map(lambda leaf: leaf[0], params.critics)
    features, _ = network.critic.trunk(first.trunk, obs)

    def values_of(policy: Any) -> Any:
        trunk_features, _ = network.policy.trunk(policy.trunk, obs)
        distribution = network.policy.distribution(policy, trunk_features, obs)
        return soft_values(network, params.critics, lambda _: features, distribution, jnp.float32(0.3), KEY)

    values, entropies = values_of(params.policy)
    of_all = jax.vmap(lambda critic: network.critic.of_all_actions(critic, features))(params.critics)
    np.testing.assert_allclose(values, np.min(of_all, axis=0)[np.arange(5), allowed], rtol=1e-5)
    np.testing.assert_allclose(entropies, 0.0, atol=1e-6)
    gradients = jax.grad(lambda policy: jnp.sum(values_of(policy)[0]))(params.policy)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def act(agent: SACAgent, state: AgentState, obs: Any, method: str) -> np.ndarray:
    return np.asarray(getattr(agent, method)(state, SampleBatch(obs=obs), jax.random.key(5))[0])


def test_actions_stay_within_bounds_and_greedy_ones_are_the_squashed_means() -> None:
    agent, state = linear_agent()
    obs = normal(500, 3, seed=1)
    output = double(state.params.policy.head.output)
    means = (np.asarray(obs, np.float64) @ output.kernel + output.bias)[:, :2]
    expected = np.array([0.0, 5.0]) + np.array([2.0, 5.0]) * np.tanh(means)
    np.testing.assert_allclose(act(agent, state, obs, "evaluate_actions"), expected, atol=1e-4)
    assert np.any(act(agent, state, obs, "compute_actions") != act(agent, state, obs, "evaluate_actions"))
    wild = state.replace(params=jax.tree.map(lambda leaf: 1e4 * leaf, state.params))
    for method in ("compute_actions", "evaluate_actions"):
        actions = act(agent, wild, obs, method)
        assert np.all(actions >= UNEVEN.low)
        assert np.all(actions <= UNEVEN.high)
        np.testing.assert_array_equal(actions.min(axis=0), UNEVEN.low)
        np.testing.assert_array_equal(actions.max(axis=0), UNEVEN.high)


@pytest.mark.parametrize(
    ("action_space", "given", "expected"),
    [
        (UNEVEN, None, -2.0),
        (Box(-1.0, 1.0, (2, 3)), None, -6.0),
        (Discrete(NUM_ACTIONS), None, 0.5 * np.log(NUM_ACTIONS)),
        (UNEVEN, -7.5, -7.5),
    ],
)
def test_the_default_target_entropy_depends_on_the_action_space(
    action_space: Any, given: float | None, expected: float
) -> None:
    agent, state = linear_agent(action_space)
    seen = SampleBatch(obs=jnp.zeros((1, 4, 3)))
    assert agent.target_entropy(state, seen, SACHyperparameters(target_entropy=given)) == pytest.approx(expected)


def test_actions_that_are_not_allowed_make_the_target_entropy_lower() -> None:
    agent, state = linear_agent(Discrete(NUM_ACTIONS))
    hyperparameters = jax.tree.map(jnp.float32, SACHyperparameters())
    mask = jnp.array([[[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]])
    transitions = make_transitions(agent, state, Discrete(NUM_ACTIONS)).replace(
        obs=PyTreeDict(action_mask=mask), weights=jnp.array([[1.0, 1.0, 1.0, 0.0]])
    )
    expected = 0.5 * (np.log(2.0) + np.log(1.0) + np.log(4.0)) / 3.0  # a row that allows nothing allows everything

    def target_of(transitions: Transitions) -> Any:
        return agent.target_entropy(state, transitions, hyperparameters)

    on_one_device = jax.vmap(target_of, in_axes=None, out_axes=None, axis_size=1, axis_name=DEVICE_AXIS)
    assert on_one_device(transitions) == pytest.approx(expected, rel=1e-6)


def make_workflow(env: Any = "classic/pendulum", network: dict | None = None, **agent: Any) -> SACWorkflow:
    gaussian = {"bounds": "squash", "state_dependent_std": True}
    network = {"hidden_sizes": [8], "core_size": 4, "gaussian": gaussian, **(network or {})}
    sizes = {"num_envs": 2, "batch_size": 4, "buffer_capacity": 64, "warmup_steps": 16}
    return SACWorkflow.build_from_config(
        {
            "agent": {**sizes, "network": network, **agent},
            "env": {"name": env, "episode_length": 5} if isinstance(env, str) else env,
            "total_timesteps": 1000,
            "evaluation": {"num_episodes": 2},
        }
    )


class Updates:
    """Updates of a SAC workflow on the same batch, with other hyper-parameters each time."""

    def __init__(self) -> None:
        workflow = make_workflow(network={"hidden_sizes": []})
        self.agent = workflow.agent
        state = self.agent.init(OBS, UNEVEN, jax.random.key(0))
        learner = workflow.training.learner
        optimizer_states = {part: learner.optimizer.init(state.params[part]) for part in state.params}
        self.before = OffPolicyState.first(
            state,
            SACHyperparameters(),
            target_params=PyTreeDict(critics=moved(state.params.critics, seed=30)),
            optimizer_states=PyTreeDict(optimizer_states),
            buffer_state=None,
        )
        replayed = make_replayed(UNEVEN)

        def update(state: OffPolicyState, hyperparameters: SACHyperparameters) -> Any:
            return learner.learn_batch(state, replayed, hyperparameters, jax.random.key(6))

        self._update = jax.jit(update)

    def __call__(self, **hyperparameters: Any) -> tuple[Any, OffPolicyState]:
        given = jax.tree.map(jnp.float32, SACHyperparameters(**hyperparameters))
        metrics, _, after = self._update(self.before, given)
        return metrics, after


@pytest.fixture(scope="module")
def updates() -> Updates:
    return Updates()


def differs(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(np.any(left != right) for left, right in pairs)


@pytest.mark.parametrize("trained", ["policy", "critics", "log_temperature"])
def test_the_loss_of_one_part_changes_no_other(updates: Updates, trained: str) -> None:
    names = {"policy": "actor", "critics": "critic", "log_temperature": "temperature"}
    rates = {f"{name}_learning_rate": 0.01 if part == trained else 0.0 for part, name in names.items()}
    _, after = updates(**rates)
    for part in names:
        changed = differs(after.agent_state.params[part], updates.before.agent_state.params[part])
        assert changed == (part == trained), part


@pytest.mark.parametrize(("target_entropy", "sign"), [(50.0, 1.0), (-50.0, -1.0)])
def test_the_temperature_rises_while_the_entropy_is_too_low_and_falls_while_it_is_too_high(
    updates: Updates, target_entropy: float, sign: float
) -> None:
    metrics, after = updates(target_entropy=target_entropy, temperature_learning_rate=0.01)
    assert -50.0 < metrics["train/entropy"].value < 50.0
    np.testing.assert_allclose(after.agent_state.params.log_temperature, sign * 0.01, rtol=1e-3)
    assert metrics["train/ent_coef"].value == 1.0  # what the update was made with


def test_a_fixed_temperature_stays_and_counts_in_targets_and_policy(updates: Updates) -> None:
    of_two = [updates(temperature=temperature) for temperature in (0.2, 5.0)]
    for (metrics, after), temperature in zip(of_two, (0.2, 5.0), strict=True):
        assert metrics["train/ent_coef"].value == np.float32(temperature)
        assert after.agent_state.params.log_temperature == 0.0
    for part in ("policy", "critics"):
        assert differs(of_two[0][1].agent_state.params[part], of_two[1][1].agent_state.params[part])


def test_the_target_critics_move_towards_the_new_ones_by_the_update_rate(updates: Updates) -> None:
    _, after = updates(target_update_rate=0.25, critic_learning_rate=0.1)

    def check(target: Any, new: Any, moved: Any) -> None:
        np.testing.assert_allclose(moved, 0.75 * np.asarray(target) + 0.25 * np.asarray(new), rtol=1e-5, atol=1e-6)

    jax.tree.map(
        check,
        updates.before.target_params.critics,
        after.agent_state.params.critics,
        after.target_params.critics,
    )


class CountingUp(SAC):
    def gradient_step(self, state: Any, part: str, *_: Any) -> tuple[LossInfo, Any]:
        """Stand for a gradient step: every parameter of the part grows by 1."""
        params = state.agent_state.params
        params = params.replace(**{part: jax.tree.map(lambda leaf: leaf + 1.0, params[part])})
        report = LossInfo(metrics={"train/entropy": jnp.zeros(())}, errors=jnp.zeros((1, 4)))
        return report, state.replace(agent_state=state.agent_state.replace(params=params))


def test_every_update_moves_the_target_critics_also_with_several_updates_per_iteration() -> None:
    workflow = make_workflow(updates_per_step=1.5, target_update_rate=0.25)
    learner = workflow.training.learner
    workflow.training.learner = CountingUp(agent=learner.agent, config=learner.config, max_rows=learner.max_rows)
    state = workflow.init(workflow.make_key())
    zeros = jax.tree.map(jnp.zeros_like, state.agent_state.params)
    agent_state = state.agent_state.replace(params=zeros)
    learner_state = state.learner.replace(agent_state=agent_state, target_params=PyTreeDict(critics=zeros.critics))
    state = state.replace(learner=learner_state)
    followed = 0.0
    for num_updates in range(1, 10):
        followed += 0.25 * (num_updates - followed)
        if num_updates % 3 == 0:
            _, state = workflow.step(state)
            for leaf in jax.tree.leaves(state.agent_state.params):
                np.testing.assert_array_equal(leaf, num_updates)
            for leaf in jax.tree.leaves(state.learner.target_params):
                np.testing.assert_allclose(leaf, followed, rtol=1e-6)


@pytest.mark.parametrize(
    ("env", "network", "agent"),
    [
        (
            {"name": "probe/mask", "episode_length": 5, "autoreset_mode": "envpool"},
            {"core": "gru"},
            {"prioritized": True, "n_step": 2, "sequence_length": 3, "burn_in": 2, "normalize_obs": True},
        ),
        ("classic/pendulum", {"core": "lstm", "num_critics": 3}, {"sequence_length": 2, "temperature": 0.1}),
    ],
    ids=["discrete, masked, everything on", "continuous"],
)
def test_a_recurrent_agent_trains(env: Any, network: dict, agent: dict) -> None:
    workflow = make_workflow(env, network, **agent)
    first = workflow.init(workflow.make_key())
    metrics, state = workflow.step(workflow.step(first)[1])
    names = {"train/critic_loss", "train/value", "train/actor_loss", "train/entropy", "train/ent_coef"}
    assert set(metrics) == names | {"rollout/ep_rew_mean", "rollout/ep_len_mean"}
    assert all(np.isfinite(metrics[name]) for name in names)
    for part in ("policy", "critics"):
        before, after = first.agent_state.params[part], state.agent_state.params[part]
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert np.all(np.isfinite(new))
            assert np.any(old != new)
    assert differs(first.learner.target_params, state.learner.target_params)


def test_an_action_space_without_a_critic_is_an_error_at_build() -> None:
    with pytest.raises(InvalidInputError, match=r"no critic for actions of MultiDiscrete"):
        make_workflow("probe/multi_discrete")


@pytest.mark.parametrize(
    ("action_space", "message"),
    [(Box(-np.inf, np.inf, (2,)), "infinite bound"), (MultiDiscrete([2, 3]), r"MultiDiscrete\(\[2, 3\]\)")],
)
def test_no_network_is_made_for_other_action_spaces(action_space: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        linear_agent(action_space)


@pytest.mark.parametrize("name", ["actor_learning_rate", "temperature", "target_update_rate"])
def test_a_number_out_of_range_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"agent.{name}=-0.5"):
        make_workflow(**{name: -0.5})


def test_network_settings_that_a_config_omits_keep_the_defaults_of_the_method() -> None:
    workflow = SACWorkflow.build_from_config({"agent": {"network": {"hidden_sizes": [8]}}})
    default = SACConfig().network
    assert workflow.config.network.gaussian == default.gaussian
    assert workflow.config.network.activation == default.activation
