"""CEM-RL: who climbs, what climbing does, and the rules that other implementations break."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.replay import ReplayBatch
from rookery.algorithms.evolution.open_es import OpenES, OpenESHyperparameters
from rookery.algorithms.hybrid.cem_rl import CEMRLConfig, CEMRLWorkflow
from rookery.algorithms.hybrid.joint_updates import climb
from rookery.errors import InvalidInputError
from rookery.types import index_tree
from rookery.workflows.evolution.exchange import Generation
from rookery.workflows.evolution.hybrids import DeviceHybrids
from tests.equivalence.interrupted_runs import assert_resumes

EPISODE_LENGTH, POPULATION_SIZE, NUM_EPISODES = 10, 4, 2
STEPS = EPISODE_LENGTH * POPULATION_SIZE * NUM_EPISODES


def make_workflow(env: str = "classic/pendulum", learner: dict | None = None, **agent: Any) -> CEMRLWorkflow:
    learner = {"batch_size": 8, "network": {"hidden_sizes": [8]}} | (learner or {})
    agent = {"population_size": POPULATION_SIZE, "num_episodes": NUM_EPISODES, "warmup_steps": STEPS} | agent
    return CEMRLWorkflow.build_from_config(
        {
            "agent": {"num_lanes": 3, "learner": learner, **agent},
            "env": {"name": env, "episode_length": EPISODE_LENGTH},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": 4 * STEPS,
            "record_interval": STEPS,
            "recorders": [],
        }
    )


@pytest.fixture(scope="module")
def pendulum() -> CEMRLWorkflow:
    """One workflow for several tests, because it takes long to compile."""
    return make_workflow()


@pytest.fixture(scope="module")
def played(pendulum: CEMRLWorkflow) -> Any:
    """The state after a generation."""
    _, state = pendulum.step(pendulum.init(pendulum.make_key()))
    return state


@pytest.mark.parametrize("options", [{}, {"gradient": "sac"}, {"gradient": "ddpg", "evolution": "openes"}])
def test_after_the_warm_up_half_of_the_individuals_climb(options: dict, pendulum: CEMRLWorkflow) -> None:
    workflow = make_workflow(**options) if options else pendulum
    state, injections = workflow.init(workflow.make_key()), []
    for _ in range(2):
        metrics, state = workflow.step(state)
        injections.append(float(metrics["hybrid/injections"]))
    assert injections == [0.0, POPULATION_SIZE / 2]
    assert int(state.num_updates) == STEPS
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent_state.params))


def test_limits_bootstrap_in_every_episode_of_an_individual(pendulum: CEMRLWorkflow, played: Any) -> None:
    gradient = played.learner.gradient
    rows = gradient.buffer_state.layout.unpack(gradient.buffer_state.storage)
    is_last = np.asarray(rows.dones) > 0
    assert is_last.sum() == POPULATION_SIZE * NUM_EPISODES
    windows = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), rows)
    batch = ReplayBatch(windows=windows, importance=None)
    transitions = pendulum.training.exchange.learner.agent.transitions(  # type: ignore[attr-defined]
        gradient.agent_state, batch, jnp.float32(0.99)
    )
    np.testing.assert_allclose(np.asarray(transitions.discounts)[0][is_last.ravel()], 0.99)
    np.testing.assert_array_equal(transitions.next_obs[0][is_last.ravel()], rows.next_obs[is_last])


def test_a_run_resumes_bit_for_bit(pendulum: CEMRLWorkflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceHybrids, "collect_seconds", lambda self, state: 0.0)
    assert_resumes(pendulum, tmp_path, num_steps=4 * STEPS)


@pytest.mark.parametrize(
    ("size", "num_improved", "group_size", "places"),
    [(10, None, 1, [0, 2, 4, 6, 8]), (8, 2, 1, [0, 4]), (8, None, 2, [0, 1, 4, 5]), (3, 1, 1, [0])],
)
def test_improved_individuals_are_spread_evenly_in_whole_pairs(
    size: int, num_improved: int | None, group_size: int, places: list[int]
) -> None:
    config = CEMRLConfig(population_size=size, num_improved=num_improved)
    assert config.improved(group_size).tolist() == places


def test_improved_individuals_of_a_mirrored_population_have_both_signs() -> None:
    optimizer = OpenES(population_size=8, hyperparameters=OpenESHyperparameters())
    _, state = optimizer.ask(optimizer.init(jnp.zeros(16), jax.random.key(0)))
    noise = state.asked[CEMRLConfig(population_size=8).improved(optimizer.group_size)]
    assert noise.shape == (4, 16)
    np.testing.assert_allclose(noise[0::2], -noise[1::2], atol=1e-6)


Climbing = Callable[[int], tuple[Any, Any, Any]]


@pytest.fixture(scope="module")
def before(played: Any) -> tuple[Any, Any]:
    """A learner with a filled buffer, and three different actors."""
    gradient = played.learner.gradient
    actors = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf, 0.9 * leaf]), gradient.agent_state.params.policy)
    return gradient, actors


@pytest.fixture(scope="module")
def climbing(pendulum: CEMRLWorkflow, before: tuple[Any, Any]) -> Climbing:
    """Lets the three actors climb for a number of steps."""
    learner = pendulum.training.exchange.learner  # type: ignore[attr-defined]
    program = jax.jit(lambda *args: climb(learner, *args))
    return lambda num_steps: program(*before, jnp.int32(num_steps), jax.random.key(0))


def test_actors_climb_the_critic_that_they_share_each_by_itself(before: tuple[Any, Any], climbing: Climbing) -> None:
    gradient, actors = before
    metrics, climbed, after = climbing(5)
    assert int(after.num_updates) == 5
    assert float(metrics["train/critic_loss"].weight) == 5.0
    moves = [np.asarray(new - old) for new, old in zip(jax.tree.leaves(climbed), jax.tree.leaves(actors), strict=True)]
    assert (np.max([np.abs(move).reshape(3, -1).max(axis=1) for move in moves], axis=0) > 0.0).all()
    assert any(np.abs(move[0] - move[1]).max() > 0.0 for move in moves)
    params, critics = gradient.agent_state.params, after.agent_state.params.critics
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(critics), jax.tree.leaves(params.critics), strict=True))
    jax.tree.map(np.testing.assert_array_equal, after.agent_state.params.policy, params.policy)


def test_no_steps_change_nothing(before: tuple[Any, Any], climbing: Climbing) -> None:
    gradient, actors = before
    _, climbed, after = climbing(0)
    jax.tree.map(np.testing.assert_array_equal, climbed, actors)
    jax.tree.map(np.testing.assert_array_equal, after.agent_state.params, gradient.agent_state.params)


def test_an_outlier_counts_as_max_deviation_at_most_in_the_estimate_of_openes() -> None:
    def step_to(distance: float, max_deviation: float | None) -> np.ndarray:
        numbers = OpenESHyperparameters(noise_std=0.1, learning_rate=1.0, max_deviation=max_deviation)
        optimizer = OpenES(population_size=4, mirrored=False, optimizer="sgd", hyperparameters=numbers)
        _, state = optimizer.ask(optimizer.init(jnp.zeros(16), jax.random.key(0)))
        outlier = jnp.full((1, 16), distance / 4.0)
        state = optimizer.inject(state, outlier, jnp.array([2]))
        return np.asarray(optimizer.tell(state, jnp.array([0.0, 0.0, 1.0, 0.0])).mean)

    # The expected norm of the noise is 0.1 * sqrt(16) = 0.4: the limit is at 1.2.
    np.testing.assert_allclose(step_to(1.0, 3.0), step_to(1.0, None), rtol=1e-5)
    np.testing.assert_allclose(step_to(50.0, 3.0), step_to(1.2, None), rtol=1e-5)
    assert np.linalg.norm(step_to(50.0, None)) > 10.0 * np.linalg.norm(step_to(50.0, 3.0))


def test_the_learner_shows_the_fittest_of_those_that_climbed(pendulum: CEMRLWorkflow) -> None:
    workflow = pendulum
    exchange = workflow.training.exchange  # type: ignore[attr-defined]
    state = workflow.init(workflow.make_key())
    _, evo_state = exchange.optimizer.replace(axis_name=None).ask(state.learner.evo_state)
    alone = exchange.replace(optimizer=exchange.optimizer.replace(axis_name=None))
    fitness = jnp.array([1.0, 9.0, 3.0, 8.0])
    _, _, _, learner = alone.join(
        evo_state,
        fitness[:, None],
        state.learner.gradient,
        Generation(key=jax.random.key(0), hyperparameters={}, num_updates=jnp.int32(1), fitness=fitness),
    )
    jax.tree.map(np.testing.assert_array_equal, learner.agent_state.params.policy, index_tree(evo_state.asked, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "dqn", "env": "classic/cartpole"}, "agent.gradient=dqn has no actor"),
        ({"evolution": "nsga2"}, "agent.evolution=nsga2 has several objectives"),
        ({"num_improved": 5}, "agent.num_improved=5 must be a multiple of 1"),
        ({"learner": {"prioritized": True}}, r"agent\.learner\.prioritized=true"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_workflow(**options)
