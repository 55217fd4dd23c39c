"""DQN: targets by hand and by loops in float64, exploration, masks, and updates of the target network."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.agent import AgentState
from rookery.agents.replay import LossInfo, ReplayBatch
from rookery.algorithms.dqn import DQN, DQNAgent, DQNHyperparameters, DQNWorkflow
from rookery.errors import InvalidInputError
from rookery.learning.targets import polyak
from rookery.networks.q_network import HEADS, QNetworkConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete
from rookery.types import PyTreeDict

OBS = Box(-3.0, 3.0, (3,))
NUM_ACTIONS, NUM_ATOMS = 4, 7


def linear_agent(obs_space: Any = OBS, num_actions: int = NUM_ACTIONS, **options: Any) -> tuple[DQNAgent, AgentState]:
    """Make an agent whose outputs are linear in the observation, so that NumPy can compute them."""
    names = {"head", "dueling", "num_atoms", "min_value", "max_value"} & options.keys()
    network = {name: options.pop(name) for name in names}
    config = QNetworkConfig(**{"hidden_sizes": (), "num_atoms": NUM_ATOMS, **network})
    agent = DQNAgent(config=config, **options)
    return agent, agent.init(obs_space, Discrete(num_actions, start=2), jax.random.key(0))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def moved(params: Any, seed: int) -> Any:
    """Return other parameters of the same shapes."""
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, [normal(*leaf.shape, seed=seed + i) for i, leaf in enumerate(leaves)])


def with_weights(agent_state: AgentState, kernel: list) -> Any:
    """Return the parameters of a linear network without bias: the value of an action is `kernel @ obs`."""
    output = PyTreeDict(kernel=jnp.asarray(kernel, jnp.float32), bias=jnp.zeros(len(kernel[0])))
    params = PyTreeDict(q=agent_state.params.q.replace(head=PyTreeDict(advantages=PyTreeDict(output=output))))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, agent_state.params)
    return params


def make_replayed(
    obs: Any, actions: Any, rewards: Any, next_obs: Any, terminations: Any, truncations: Any, importance: Any = None
) -> ReplayBatch:
    terminations, truncations = np.asarray(terminations, np.float32), np.asarray(truncations, np.float32)
    windows = SampleBatch(
        obs=obs,
        actions=jnp.asarray(actions, jnp.int32),
        rewards=jnp.asarray(rewards, jnp.float32),
        next_obs=next_obs,
        dones=jnp.asarray(np.maximum(terminations, truncations)),
        extras=PyTreeDict(policy_extras=PyTreeDict(), env_extras=PyTreeDict(termination=jnp.asarray(terminations))),
    )
    return ReplayBatch(windows=windows, importance=importance)


def random_replayed(importance: Any = None) -> ReplayBatch:
    """Make 16 windows of one row: running, terminated or truncated; the successor of a termination is NaN."""
    shape = (1, 16)
    kinds = np.arange(16).reshape(shape) % 3
    actions = 2 + np.random.default_rng(9).integers(NUM_ACTIONS, size=shape)
    next_obs = jnp.asarray(np.where((kinds == 1)[..., None], np.float32(np.nan), normal(*shape, 3, seed=11)))
    obs, rewards = normal(*shape, 3, seed=10), normal(*shape, seed=12)
    return make_replayed(obs, actions, rewards, next_obs, kinds == 1, kinds == 2, importance)


def outputs_at(params: Any, obs: Any) -> np.ndarray:
    """Compute the outputs `[n, K]` for one observation in float64."""
    output = params.q.head.advantages.output
    kernel, bias = np.asarray(output.kernel, np.float64), np.asarray(output.bias, np.float64)
    return (np.asarray(obs, np.float64) @ kernel + bias).reshape(NUM_ACTIONS, -1)


def transitions_and_targets(
    agent: DQNAgent, agent_state: AgentState, target_params: Any, replayed: ReplayBatch, discount: float
) -> tuple[Any, Any]:
    @jax.jit
    def program(agent_state: AgentState, target_params: Any, replayed: ReplayBatch) -> tuple[Any, Any]:
        transitions = agent.transitions(agent_state, replayed, jnp.float32(discount))
        return transitions, agent.targets(agent_state, target_params, transitions)

    return program(agent_state, target_params, replayed)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("double", "of_next"), [(False, [3.0, -1.0]), (True, [1.0, -3.0])], ids=["plain", "double"])
def test_targets_worked_by_hand_where_termination_ends_and_truncation_does_not(double: bool, of_next: list) -> None:
    agent, state = linear_agent(Box(-3.0, 3.0, (1,)), num_actions=2, double=double)
    state = state.replace(params=with_weights(state, [[1.0, 2.0]]))  # at 1 chooses the second action, at -1 the first
    target_params = with_weights(state, [[3.0, 1.0]])  # at 1 thinks of the two as 3 and 1, at -1 as -3 and -1
    # Running, running, terminated, truncated, both at once.
    next_obs = jnp.array([[[1.0], [-1.0], [1.0], [1.0], [1.0]]])
    replayed = make_replayed(
        next_obs, [[2] * 5], [[10.0, 20.0, 30.0, 40.0, 50.0]], next_obs, [[0, 0, 1, 0, 1]], [[0, 0, 0, 1, 1]]
    )
    _, targets = transitions_and_targets(agent, state, target_params, replayed, 0.5)
    at_plus, at_minus = of_next
    expected = [10 + at_plus / 2, 20 + at_minus / 2, 30.0, 40 + at_plus / 2, 50.0]
    np.testing.assert_array_equal(targets[..., 0], [expected])


def test_returns_over_three_steps_worked_by_hand() -> None:
    agent, state = linear_agent(Box(-9.0, 9.0, (1,)), num_actions=2, n_step=3)
    target_params = with_weights(state, [[1.0, 1.0]])  # the value is the observation
    next_obs = jnp.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0]])[..., None]
    rewards = [[8.0, 8.0, 8.0], [16.0, 16.0, 16.0], [32.0, 32.0, 32.0]]
    # One window runs on, one is truncated after two steps, one terminates after one.
    terminations, truncations = [[0, 0, 1], [0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    replayed = make_replayed(next_obs, [[2] * 3] * 3, rewards, next_obs, terminations, truncations)
    _, targets = transitions_and_targets(agent, state, target_params, replayed, 0.5)
    np.testing.assert_array_equal(targets[..., 0], [[8 + 8 + 8 + 4 / 8, 8 + 8 + 2 / 4, 8]])


def test_the_expected_loss_is_that_of_huber_and_its_errors_are_absolute() -> None:
    agent, state = linear_agent(Box(-3.0, 3.0, (1,)), num_actions=2)
    params = with_weights(state, [[1.0, -1.0]])
    obs = jnp.array([[[1.0], [1.0], [2.0]]])
    replayed = make_replayed(
        obs, [[2, 3, 2]], [[0.0] * 3], obs, [[1] * 3], [[0] * 3], importance=jnp.array([1.0, 0.5, 0.25])
    )
    transitions = agent.transitions(state, replayed, jnp.float32(0.5))
    targets = jnp.array([[1.5, 2.0, -2.0]])[..., None]  # the values are 1, -1 and 2
    (loss, report), gradients = jax.jit(jax.value_and_grad(agent.loss, argnums=1, has_aux=True))(
        state, params.q, transitions, targets
    )
    np.testing.assert_allclose(loss, (0.125 + 0.5 * 2.5 + 0.25 * 3.5) / 3, rtol=1e-6)
    np.testing.assert_allclose(report.errors, [[0.5, 3.0, 4.0]], rtol=1e-6)
    np.testing.assert_allclose(report.metrics["train/value"], 2 / 3, rtol=1e-6)
    kernel = gradients.head.advantages.output.kernel  # the errors, clipped to 1, times the observations
    np.testing.assert_allclose(kernel, [[(-0.5 + 0.25 * 2) / 3, -0.5 / 3]], atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
def test_categorical_targets_and_losses_equal_loops_in_float64(double: bool) -> None:
    low, high, discount = -1.0, 1.5, 0.9
    agent, state = linear_agent(head="categorical", min_value=low, max_value=high, double=double)
    target_params = moved(state.params, seed=30)
    replayed = random_replayed(importance=jnp.linspace(0.1, 1.0, 16))
    atoms = np.linspace(low, high, NUM_ATOMS)
    expected, divergences = np.zeros((16, NUM_ATOMS)), np.zeros(16)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf[0]), replayed.windows)
    for row in range(16):
        terminated = batch.extras.env_extras.termination[row]
        probabilities = np.full(NUM_ATOMS, 1 / NUM_ATOMS)
        if not terminated:
            candidates = softmax(outputs_at(target_params, batch.next_obs[row]))
            judged = softmax(outputs_at(state.params, batch.next_obs[row])) if double else candidates
            probabilities = candidates[np.argmax(judged @ atoms)]
        for atom, probability in zip(atoms, probabilities, strict=True):  # Bellemare et al., 2017, algorithm 1
            value = np.clip(batch.rewards[row] + discount * (1 - terminated) * atom, low, high)
            position = (value - low) / ((high - low) / (NUM_ATOMS - 1))
            below, above = int(np.floor(position)), int(np.ceil(position))
            if below == above:
                expected[row, below] += probability
            else:
                expected[row, below] += probability * (above - position)
                expected[row, above] += probability * (position - below)
        predicted = softmax(outputs_at(state.params, batch.obs[row])[batch.actions[row] - 2])
        for share, prediction in zip(expected[row], predicted, strict=True):
            divergences[row] += 0.0 if share == 0.0 else share * np.log(share / prediction)
    transitions, targets = transitions_and_targets(agent, state, target_params, replayed, discount)
    np.testing.assert_allclose(targets[0], expected, atol=1e-5)
    loss, report = jax.jit(agent.loss)(state, state.params.q, transitions, targets)
    np.testing.assert_allclose(report.errors[0], divergences, atol=1e-5)
    np.testing.assert_allclose(loss, np.mean(np.linspace(0.1, 1.0, 16) * divergences), rtol=1e-5)


def test_the_gradient_of_the_categorical_loss_is_that_of_the_cross_entropy() -> None:
    agent, state = linear_agent(head="categorical")
    params, replayed = moved(state.params, seed=2), random_replayed()
    transitions, targets = transitions_and_targets(agent, state, state.params, replayed, 0.9)
    gradients, _ = jax.jit(jax.grad(agent.loss, argnums=1, has_aux=True))(state, params.q, transitions, targets)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf[0]), replayed.windows)
    expected = np.zeros((NUM_ACTIONS, NUM_ATOMS))
    for row, action in enumerate(batch.actions - 2):
        expected[action] += (softmax(outputs_at(params, batch.obs[row]))[action] - np.asarray(targets[0, row])) / 16
    np.testing.assert_allclose(gradients.head.advantages.output.bias.reshape(expected.shape), expected, atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
def test_quantile_targets_and_losses_equal_loops_in_float64(double: bool) -> None:
    agent, state = linear_agent(head="quantile", double=double)
    target_params, replayed = moved(state.params, seed=30), random_replayed()
    expected, losses = np.zeros((16, NUM_ATOMS)), np.zeros(16)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf[0]), replayed.windows)
    for row in range(16):
        expected[row] = batch.rewards[row]
        if not batch.extras.env_extras.termination[row]:
            candidates = outputs_at(target_params, batch.next_obs[row])
            judged = outputs_at(state.params, batch.next_obs[row]) if double else candidates
            expected[row] += 0.9 * candidates[np.argmax(judged.mean(axis=1))]
        predicted = outputs_at(state.params, batch.obs[row])[batch.actions[row] - 2]
        for index, quantile in enumerate(predicted):  # Dabney et al., 2018, eq. 9 and 10
            for target in expected[row]:
                error = target - quantile
                penalty = 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
                losses[row] += abs((index + 0.5) / NUM_ATOMS - (error < 0)) * penalty / NUM_ATOMS
    transitions, targets = transitions_and_targets(agent, state, target_params, replayed, 0.9)
    np.testing.assert_allclose(targets[0], expected, atol=1e-5)
    loss, report = jax.jit(agent.loss)(state, state.params.q, transitions, targets)
    np.testing.assert_allclose(report.errors[0], losses, atol=1e-5)
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-5)


def test_double_takes_away_the_overestimation_of_noisy_values() -> None:
    num_windows = 2000
    obs_space = Box(-9.0, 9.0, (2 * NUM_ACTIONS,))
    # The observation is the noise: one half of it are the values of the trained network, the other the target's.
    noise = np.random.default_rng(0).normal(size=(1, num_windows, 2 * NUM_ACTIONS))
    own, other = noise[0, :, :NUM_ACTIONS], noise[0, :, NUM_ACTIONS:]
    obs, zeros = jnp.asarray(noise, jnp.float32), np.zeros((1, num_windows))
    means = {}
    for double in (False, True):
        agent, state = linear_agent(obs_space, double=double)
        eye, nothing = np.eye(NUM_ACTIONS), np.zeros((NUM_ACTIONS, NUM_ACTIONS))
        state = state.replace(params=with_weights(state, np.concatenate([eye, nothing]).tolist()))
        target_params = with_weights(state, np.concatenate([nothing, eye]).tolist())
        replayed = make_replayed(obs, zeros + 2, zeros, obs, zeros, zeros)
        _, targets = transitions_and_targets(agent, state, target_params, replayed, 1.0)
        targets = np.asarray(targets)[0, :, 0]
        expected = other[np.arange(num_windows), np.argmax(own, axis=1)] if double else other.max(axis=1)
        np.testing.assert_allclose(targets, expected, atol=1e-5)
        means[double] = targets.mean()
    assert abs(means[True]) < 0.1  # the truth is 0
    assert means[False] > 0.9  # the largest of four normal numbers is 1.03 on average


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("double", [False, True])
def test_a_target_never_counts_on_a_masked_action(double: bool, head: str) -> None:
    obs_space = Dict(seen=OBS, action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
    agent, state = linear_agent(obs_space, head=head, double=double, min_value=-5.0, max_value=5.0)
    target_params = moved(state.params, seed=30)
    seen, mask = normal(1, 64, 3, seed=1), np.random.default_rng(2).integers(2, size=(1, 64, NUM_ACTIONS))
    mask[mask.sum(axis=-1) == 0, 0] = 1
    obs = PyTreeDict(seen=seen, action_mask=jnp.asarray(mask, jnp.int8))
    zeros = np.zeros((1, 64))
    replayed = make_replayed(obs, zeros + 2, zeros, obs, zeros, zeros)
    _, targets = transitions_and_targets(agent, state, target_params, replayed, 1.0)
    network = state.extra_state.network
    values = np.asarray(targets) @ network.atoms if head == "categorical" else network.values(targets)
    values_of = jax.jit(lambda params: network(params.q, obs)[0])
    of_all = values_of(target_params)
    judged = values_of(state.params) if double else of_all
    chosen = np.argmax(np.where(mask == 1, judged, -np.inf), axis=-1)
    assert np.any(chosen != np.argmax(judged, axis=-1))
    expected = np.take_along_axis(np.asarray(of_all), chosen[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(values, expected, atol=1e-4)


def draw_obs(obs_space: Any) -> Any:
    return obs_space.sample(jax.random.key(5), (8,))


def act(agent: DQNAgent, agent_state: AgentState, obs: Any, epsilon: float, seed: int = 3) -> np.ndarray:
    agent_state = agent.explore_with(agent_state, DQNHyperparameters(epsilon=epsilon))
    batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=PyTreeDict()))
    return np.asarray(jax.jit(agent.compute_actions)(agent_state, batch, jax.random.key(seed))[0])


def greedy(agent: DQNAgent, agent_state: AgentState, obs: Any) -> np.ndarray:
    batch = SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=PyTreeDict()))
    return np.asarray(jax.jit(agent.evaluate_actions)(agent_state, batch, jax.random.key(0))[0])


def test_without_epsilon_the_best_action_is_taken_and_counts_from_the_first() -> None:
    agent, state = linear_agent()
    obs = normal(500, 3, seed=4)
    expected = [2 + np.argmax(outputs_at(state.params, row)[:, 0]) for row in obs]
    assert set(expected) == {2, 3, 4, 5}
    np.testing.assert_array_equal(act(agent, state, obs, epsilon=0.0), expected)
    np.testing.assert_array_equal(greedy(agent, state, obs), expected)


@pytest.mark.parametrize("epsilon", [1.0, 0.3])
def test_a_share_epsilon_of_the_actions_is_uniform(epsilon: float) -> None:
    agent, state = linear_agent()
    obs = jnp.broadcast_to(normal(3, seed=4), (20_000, 3))
    counts = np.bincount(act(agent, state, obs, epsilon) - 2, minlength=NUM_ACTIONS)
    shares = np.full(NUM_ACTIONS, epsilon / NUM_ACTIONS)
    shares[greedy(agent, state, obs[0]) - 2] += 1.0 - epsilon
    assert stats.chisquare(counts, shares * len(obs)).pvalue > 1e-3


def test_random_actions_are_drawn_uniformly_among_the_allowed() -> None:
    obs_space = Dict(seen=OBS, action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
    agent, state = linear_agent(obs_space)
    seen = jnp.broadcast_to(normal(3, seed=4), (20_000, 3))
    best = int(greedy(agent, state, PyTreeDict(seen=seen[0], action_mask=jnp.ones(4, jnp.int8)))) - 2
    allowed = [action for action in range(NUM_ACTIONS) if action != best]
    mask = jnp.ones((20_000, 4), jnp.int8).at[:, best].set(0)
    obs = PyTreeDict(seen=seen, action_mask=mask)
    assert set(greedy(agent, state, obs) - 2) < set(allowed)
    for epsilon in (1.0, 0.5):
        counts = np.bincount(act(agent, state, obs, epsilon) - 2, minlength=NUM_ACTIONS)
        shares = np.full(NUM_ACTIONS, epsilon / 3)
        shares[int(greedy(agent, state, obs)[0]) - 2] += 1.0 - epsilon
        assert counts[best] == 0
        assert stats.chisquare(counts[allowed], shares[allowed] * 20_000).pvalue > 1e-3


@pytest.mark.parametrize("is_masked", [False, True])
def test_no_random_key_is_used_twice(is_masked: bool) -> None:
    # Which actions are random and which they are would depend on each other, in a way that shares do not show.
    obs_space = Dict(seen=OBS, action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8)) if is_masked else OBS
    agent, state = linear_agent(obs_space)
    with jax.debug_key_reuse(True):
        act(agent, state, draw_obs(obs_space), epsilon=0.5)


def test_the_first_state_explores_fully_and_has_the_structure_of_later_ones() -> None:
    agent, state = linear_agent()
    assert state.action_postprocessor_state.epsilon == 1.0
    later = agent.explore_with(state, DQNHyperparameters(epsilon=0.25))
    assert later.action_postprocessor_state.epsilon == 0.25
    assert jax.tree.structure(later) == jax.tree.structure(state)
    epsilons = state.action_postprocessor_state.epsilon, later.action_postprocessor_state.epsilon
    assert {(epsilon.shape, epsilon.dtype) for epsilon in epsilons} == {((), np.dtype(np.float32))}


def make_workflow(env_name: str = "probe/cue_reward", network: dict | None = None, **agent: Any) -> DQNWorkflow:
    network = {"hidden_sizes": [8, 8], "core_size": 8, "num_atoms": 5, **(network or {})}
    sizes = {"num_envs": 2, "batch_size": 4, "buffer_capacity": 64, "warmup_steps": 16}
    return DQNWorkflow.build_from_config(
        {
            "agent": {**sizes, "network": network, **agent},
            "env": {"name": env_name, "episode_length": 5},
            "total_timesteps": 1000,
            "evaluation": {"num_episodes": 2},
        }
    )


class CountingUp(DQN):
    def gradient_step(self, state: Any, part: str, *_: Any) -> tuple[LossInfo, Any]:
        """Stand for a gradient step: every parameter grows by 1."""
        params = jax.tree.map(lambda leaf: leaf + 1.0, state.agent_state.params)
        return LossInfo(errors=jnp.zeros((1, 4))), state.replace(agent_state=state.agent_state.replace(params=params))


@pytest.mark.parametrize("interval", [1, 4, None])
def test_every_update_moves_the_target_network_also_with_several_updates_per_iteration(interval: int | None) -> None:
    workflow = make_workflow(num_envs=2, updates_per_step=1.5, target_update_interval=interval, target_update_rate=0.25)
    learner = workflow.training.learner
    workflow.training.learner = CountingUp(agent=learner.agent, config=learner.config, max_rows=learner.max_rows)
    state = workflow.init(workflow.make_key())
    zeros = jax.tree.map(jnp.zeros_like, state.agent_state.params)
    agent_state = state.agent_state.replace(params=zeros)
    state = state.replace_learner(agent_state=agent_state, target_params=zeros)
    followed = 0.0
    for num_updates in range(1, 16):
        if interval is None:
            followed += 0.25 * (num_updates - followed)
        elif num_updates % interval == 0:
            followed = num_updates
        if num_updates % 3 == 0:
            _, state = workflow.step(state)
            assert int(state.num_updates) == num_updates
            for leaf in jax.tree.leaves(state.agent_state.params):
                np.testing.assert_array_equal(leaf, num_updates)
            for leaf in jax.tree.leaves(state.learner.target_params):
                np.testing.assert_allclose(leaf, followed, rtol=0 if interval else 1e-6)


def test_a_copy_is_exact() -> None:
    params = linear_agent()[1].params
    copied = polyak(moved(params, seed=1), params, jnp.float32(1.0))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), copied, params)))


def assert_trains(workflow: DQNWorkflow) -> Any:
    """Train for two iterations: everything is finite, and everything that learns has changed."""
    first = workflow.init(workflow.make_key())
    metrics, state = workflow.step(workflow.step(first)[1])
    names = {"train/loss", "train/value", "train/learning_rate", "rollout/exploration_rate"}
    assert set(metrics) == names | {"rollout/ep_rew_mean", "rollout/ep_len_mean"}
    assert all(np.isfinite(metrics[name]) for name in names)
    for before, after in zip(
        jax.tree.leaves((first.agent_state.params, first.learner.target_params)),
        jax.tree.leaves((state.agent_state.params, state.learner.target_params)),
        strict=True,
    ):
        assert np.all(np.isfinite(after))
        assert np.any(before != after)
    return metrics


def test_all_options_at_once_train() -> None:
    workflow = make_workflow(
        "probe/mask",
        {"head": "categorical", "dueling": True, "layer_norm": True},
        prioritized=True,
        n_step=3,
        double=True,
        normalize_obs=True,
        max_grad_norm=10.0,
        learning_rate=0.01,
        epsilon={"start": 1.0, "end": 0.0, "steps": 100},
    )
    metrics = assert_trains(workflow)
    # The second iteration begins after 16 steps of warm-up and 2 of the first one.
    np.testing.assert_allclose(metrics["rollout/exploration_rate"], 0.82, rtol=1e-5)
    np.testing.assert_allclose(metrics["train/learning_rate"], 0.01, rtol=1e-6)


def test_a_recurrent_network_trains_on_windows_after_a_burn_in() -> None:
    network = {"core": "gru", "dueling": True, "head": "quantile"}
    assert_trains(make_workflow("probe/memory", network, sequence_length=3, burn_in=2, n_step=2, prioritized=True))


@pytest.mark.parametrize("env_name", ["classic/pendulum", "probe/multi_discrete"])
def test_actions_that_are_not_discrete_are_an_error_at_build(env_name: str) -> None:
    with pytest.raises(InvalidInputError, match="needs a Discrete action space"):
        make_workflow(env_name)


def test_no_network_is_made_for_other_action_spaces() -> None:
    with pytest.raises(InvalidInputError, match=r"MultiDiscrete\(\[2, 3\]\)"):
        DQNAgent().init(OBS, MultiDiscrete([2, 3]), jax.random.key(0))


@pytest.mark.parametrize("interval", [0, -3])
def test_an_interval_below_one_is_an_error(interval: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"agent.target_update_interval={interval}"):
        make_workflow(target_update_interval=interval)
