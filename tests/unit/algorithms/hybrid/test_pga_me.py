"""PGA-MAP-Elites: who climbs, who plays, what is stored, and which keys are used."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.replay import ReplayBatch, Transitions
from rookery.algorithms.evolution.map_elites import MAPElites
from rookery.algorithms.hybrid.pga_me import Climb, PGAMEWorkflow
from rookery.distributed import SAME
from rookery.errors import RookeryError
from rookery.evolution.emitters import IsoLine
from rookery.hyperparameters import values_at
from rookery.learners.replay import ReplayLearner
from rookery.sample_batch import SampleBatch
from rookery.types import index_tree
from rookery.workflows.evolution.exchange import Generation
from rookery.workflows.evolution.hybrids import DeviceHybrids, hybrid_of
from tests.equivalence.interrupted_runs import assert_resumes

EPISODE_LENGTH, POPULATION_SIZE, NUM_LANES = 10, 8, 4
VARIED, CLIMBING, ACTOR = slice(0, 4), slice(4, 7), slice(7, 8)
"""The places of the emitters."""
ARCHIVE = {"descriptors": ["mean:obs.0", "mean:action"], "low": [-1, -2], "high": [1, 2]}
ARCHIVE |= {"archive": "grid", "cells": [4, 4]}


def make_workflow(env: str = "classic/pendulum", **agent: Any) -> PGAMEWorkflow:
    learner = {"batch_size": 8, "network": {"hidden_sizes": [8]}, **agent.pop("learner", {})}
    strategy = {**ARCHIVE, **agent.pop("strategy", {})}
    sizes = {"population_size": POPULATION_SIZE, "num_lanes": NUM_LANES, "num_random": 1, "warmup_steps": 4}
    sizes |= {"num_critic_steps": 5, "num_climbing_steps": 4, **agent}
    return PGAMEWorkflow.build_from_config(
        {
            "agent": {"strategy": strategy, "learner": learner, **sizes},
            "env": {"name": env, "episode_length": EPISODE_LENGTH},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": 4 * EPISODE_LENGTH * POPULATION_SIZE,
            "record_interval": EPISODE_LENGTH * POPULATION_SIZE,
            "recorders": [],
        }
    )


class Watched(NamedTuple):
    """A workflow, and what certain methods were called with: keys, and the returns of a generation."""

    workflow: PGAMEWorkflow
    calls: list[tuple[str, np.ndarray]]


@pytest.fixture(scope="module")
def pendulum() -> Iterator[Watched]:
    """One workflow for several tests, because it takes long to compile."""
    calls: list[tuple[str, np.ndarray]] = []

    def watch(patch: pytest.MonkeyPatch, owner: type, method: str, of_call: Callable[[tuple], jax.Array]) -> None:
        original = getattr(owner, method)

        def watched(*args: Any) -> Any:
            jax.debug.callback(lambda value: calls.append((method, np.array(value))), of_call(args))
            return original(*args)

        patch.setattr(owner, method, watched)

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, IsoLine, "emit", lambda args: jax.random.key_data(args[4]))
        watch(patch, Climb, "climb", lambda args: jax.random.key_data(args[3].key))
        watch(patch, ReplayLearner, "update_times", lambda args: jax.random.key_data(args[3]))
        watch(patch, MAPElites, "tell_episodes", lambda args: args[2])
        yield Watched(make_workflow(), calls)


def after_generations(workflow: PGAMEWorkflow, number: int) -> tuple[Any, Any]:
    """Return the metrics of the last generation, and the state after it."""
    metrics, state = {}, workflow.init(workflow.make_key())
    for _ in range(number):
        metrics, state = workflow.step(state)
    return metrics, state


def improved(workflow: PGAMEWorkflow, state: Any) -> tuple[Any, Any]:
    """Return the next population before and after it is improved."""
    training = workflow.training
    assert isinstance(training.exchange, Climb)

    def improve(state: Any) -> tuple[Any, Any]:
        hybrid = hybrid_of(state)
        values = values_at(hybrid.hyperparameters, 0.0)
        generation = Generation(key=jax.random.key(0), hyperparameters=values, num_updates=jnp.int32(1))
        asked, evo_state = training.optimizer.ask(hybrid.evo_state)
        _, after, _ = training.exchange.improve(evo_state, hybrid.gradient, generation)
        return training.optimizer.gathered((asked, after.asked))

    return workflow.layout.program(improve, (training.specs(),), (SAME, SAME))(state)


def is_changed(before: Any, after: Any) -> np.ndarray:
    """Tell of each individual whether any of its genes differs."""
    changes = jax.tree.map(lambda one, other: jnp.any(one != other, axis=tuple(range(1, one.ndim))), before, after)
    return np.any(np.stack(jax.tree.leaves(changes)), axis=0)


def rows_of(state: Any) -> SampleBatch:
    """Return the stored rows, lane by lane."""
    buffer = hybrid_of(state).gradient.buffer_state
    numbers = [(lane, row) for lane, count in enumerate(np.asarray(buffer.num_rows)) for row in range(count)]
    lanes, rows = np.array(numbers).T
    return buffer.layout.unpack({dtype: ring[lanes, rows] for dtype, ring in buffer.storage.items()})


def values_of(state: Any, policies: Any) -> np.ndarray:
    """Return the mean value that the first critic gives to each policy on the stored rows."""
    gradient = hybrid_of(state).gradient
    network, obs = gradient.agent_state.extra_state.network, rows_of(state).obs
    critic = index_tree(gradient.agent_state.params.critics, 0)

    def value_of(policy: Any) -> jax.Array:
        features, _ = network.policy.trunk(policy["trunk"], obs)
        distribution = network.policy.distribution(policy, features, obs)
        actions = distribution.action(distribution.mode())
        return jnp.mean(network.critic(critic, network.critic.trunk(critic["trunk"], obs)[0], actions))

    return np.asarray(jax.vmap(value_of)(policies))


def test_elites_climb_the_critic_the_actor_plays_as_it_is_and_the_others_only_vary(pendulum: Watched) -> None:
    _, state = after_generations(pendulum.workflow, 2)
    before, after = improved(pendulum.workflow, state)
    assert is_changed(before, after).tolist() == [False] * 4 + [True] * 4
    gains = values_of(state, after) - values_of(state, before)
    assert np.all(gains[CLIMBING] > 0.0), gains
    actor = hybrid_of(state).gradient.agent_state.params.policy
    jax.tree.map(np.testing.assert_array_equal, index_tree(after, 7), actor)
    elites = hybrid_of(state).evo_state.archive.params
    for climber in range(4, 7):
        unlike = [is_changed(elites, jax.tree.map(lambda leaf, at=climber: leaf[at][None], before))]
        assert not np.all(unlike), "it climbs from an elite"


def test_random_individuals_play_as_they_are_and_are_nobodys_children() -> None:
    workflow = make_workflow(num_random=2 * POPULATION_SIZE)
    metrics, state = after_generations(workflow, 1)
    before, after = improved(workflow, state)
    assert not np.any(is_changed(before, after))
    assert int(state.num_updates) == 5, "the critic learns from them"
    for generation in (2, 3):
        metrics, state = workflow.step(state)
        children = sum(float(metrics[f"qd/added_{name}"]) for name in ("by_variation", "by_gradient", "actor"))
        assert (children > 0.0) == np.isfinite(metrics["qd/actor_fitness"]) == (generation == 3)


def test_the_fitness_of_the_actor_is_that_of_the_last_place(pendulum: Watched) -> None:
    metrics, state = after_generations(pendulum.workflow, 2)
    jax.effects_barrier()
    returns = [value for method, value in pendulum.calls if method == "tell_episodes"]
    assert float(metrics["qd/actor_fitness"]) == returns[-1][-1, 0]
    assert int(state.num_updates) == 2 * 5
    assert int(state.env_steps) == 2 * POPULATION_SIZE * EPISODE_LENGTH == float(metrics["buffer/size"])


def test_a_run_resumes_bit_for_bit(pendulum: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceHybrids, "collect_seconds", lambda self, state: 0.0)
    assert_resumes(pendulum.workflow, tmp_path, num_steps=4 * EPISODE_LENGTH * POPULATION_SIZE)


def test_variation_climbing_and_critic_training_use_different_keys(pendulum: Watched) -> None:
    """QDax gives variation and the training of the critics the same key."""
    jax.effects_barrier()
    pendulum.calls.clear()
    after_generations(pendulum.workflow, 3)
    jax.effects_barrier()
    keys = [(method, key.tobytes()) for method, key in pendulum.calls if method != "tell_episodes"]
    assert {method for method, _ in keys} == {"emit", "climb", "update_times"}
    assert len({key for _, key in keys}) == len(keys) == 3 + 2 + 3


def test_truncated_rows_are_stored_and_bootstrap(pendulum: Watched) -> None:
    """QDax drops them."""
    _, state = after_generations(pendulum.workflow, 1)
    rows = rows_of(state)
    is_last = np.asarray(rows.dones) > 0
    assert is_last.sum() == POPULATION_SIZE
    assert not np.any(rows.extras.env_extras.termination)
    discounts = transitions_of(pendulum.workflow, state, rows).discounts
    np.testing.assert_allclose(np.asarray(discounts)[0][is_last], 0.99)


def transitions_of(workflow: PGAMEWorkflow, state: Any, rows: SampleBatch) -> Transitions:
    windows = jax.tree.map(lambda leaf: leaf[None], rows)
    batch = ReplayBatch(windows=windows, importance=None)
    agent = workflow.training.exchange.learner.agent
    return agent.transitions(hybrid_of(state).gradient.agent_state, batch, jnp.float32(0.99))


def test_rows_after_the_first_done_are_not_stored() -> None:
    """QDax stores the whole unroll, here ten rows for each episode of one step."""
    workflow = make_workflow("probe/continuous", strategy={"descriptors": ["last:action", "last:reward"]})
    metrics, state = after_generations(workflow, 2)
    rows = rows_of(state)
    assert len(rows.dones) == 2 * POPULATION_SIZE == int(state.env_steps) == float(metrics["buffer/size"])
    np.testing.assert_array_equal(rows.dones, 1.0)
    np.testing.assert_array_equal(rows.extras.env_extras.termination, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evolution": "ga"}, r"agent\.evolution=ga has no archive"),
        ({"gradient": "dqn"}, r"agent\.gradient=dqn has no actor that climbs a critic"),
        ({"variation_share": 0.99}, "leaves no children that vary, or none that climb"),
        ({"update_ratio": 1.0}, "unknown key 'update_ratio'"),
        ({"strategy": ARCHIVE | {"descriptors": ["mean:obs.9", "mean:action"]}}, r"measure obs\.9: it has 3 numbers"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    strategy = {} if options.get("evolution") else ARCHIVE
    with pytest.raises(RookeryError, match=message):
        PGAMEWorkflow.build_from_config(
            {"agent": {"strategy": strategy, **options}, "env": {"name": "classic/pendulum"}}
        )
