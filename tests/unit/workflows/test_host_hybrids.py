"""Hybrids on host environments: what is stored, who explores, what faults cost, and how a run resumes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.recorders import RECORDERS
from rookery.registry import build_workflow
from rookery.runs.interruption import Interrupted
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict
from rookery.workflows.evolution import host_hybrids
from rookery.workflows.evolution.hybrids import hybrid_of
from tests.equivalence.interrupted_runs import StoppingRecorder, assert_equal, records_of

POPULATION_SIZE, TIME_LIMIT = 4, 6
Row = tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]


class Diary(gymnasium.Env):
    """Keeps the steps of every episode. By its start, one ends after 2 to 9 steps, and every step gives as much.

    `fault` may raise, given the observation that an action answers.
    """

    episodes: ClassVar[list[list[Row]]] = []
    fault: ClassVar[Callable[[np.ndarray], None] | None] = None

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.start, self.count = float(self.np_random.uniform(-1, 1)), 0
        self.rows: list[Row] = []
        Diary.episodes.append(self.rows)
        return self.obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        obs = self.obs()
        if Diary.fault is not None:
            Diary.fault(obs)
        self.count += 1
        is_over = self.count >= 2 + int(8 * abs(self.start))
        self.rows.append((obs, action.copy(), self.start, self.obs(), is_over))
        return self.obs(), self.start, is_over, False, {}

    def obs(self) -> np.ndarray:
        return np.array([self.start, self.count], np.float32)


@pytest.fixture(autouse=True)
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Diary, "episodes", [])
    monkeypatch.setattr(Diary, "fault", None)
    monkeypatch.setattr(host_hybrids, "BLOCK_ROWS", 8)  # a generation takes several
    monkeypatch.setitem(RECORDERS, "stopping", f"{StoppingRecorder.__module__}:StoppingRecorder")
    gymnasium.register("Diary-v0", entry_point=Diary)
    yield
    gymnasium.registry.pop("Diary-v0")


Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Build workflows, which are closed at the end."""
    workflows = []

    def make(name: str = "erl", train: dict | None = None, learner: dict | None = None, **agent: Any) -> Any:
        network = {"hidden_sizes": [8], **(learner or {}).pop("network", {})}
        config = {
            "agent": {
                "name": name,
                "population_size": POPULATION_SIZE,
                "warmup_steps": 20,
                "num_lanes": 3,
                "learner": {"batch_size": 8, "network": network, **(learner or {})},
                **agent,
            },
            "env": {"name": "gymnasium/Diary-v0", "episode_length": TIME_LIMIT},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": 200,
            "recorders": [],
            **(train or {}),
        }
        workflows.append(build_workflow(config))
        return workflows[-1]

    yield make
    for workflow in workflows:
        workflow.close()


def after(workflow: Any, num_generations: int) -> tuple[Any, Any]:
    """The metrics of the last of some generations, and the state."""
    state = workflow.init(workflow.make_key())
    for _ in range(num_generations):
        metrics, state = workflow.step(state)
    return metrics, state


def stored(state: Any) -> SampleBatch:
    """The rows of the replay buffer, `[N, ...]`."""
    buffer = hybrid_of(state).gradient.buffer_state
    assert len(buffer.num_rows) == 1
    rows = {dtype: ring[0, : int(buffer.num_rows[0])] for dtype, ring in buffer.storage.items()}
    return jax.tree.map(np.asarray, buffer.layout.unpack(rows))


def episodes_in(rows: SampleBatch) -> list[slice]:
    ends = np.flatnonzero(rows.dones) + 1
    return [slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def test_the_buffer_has_the_steps_of_all_whole_episodes_and_limits_are_no_ends(make: Make) -> None:
    metrics, state = after(make(normalize_obs=True), 2)
    rows = stored(state)
    assert len(rows.rewards) == int(state.env_steps) == int(metrics["buffer/size"])
    assert float(hybrid_of(state).gradient.agent_state.obs_preprocessor_state.count.value) == len(rows.rewards)
    parts = episodes_in(rows)
    assert len(parts) == 2 * (POPULATION_SIZE + 1)
    played = {float(episode[0][0][0]): episode for episode in Diary.episodes if episode}
    for part in parts:
        obs, actions, rewards, next_obs, terminations = map(np.array, zip(*played[rows.obs[part][0, 0]], strict=True))
        np.testing.assert_array_equal(rows.obs[part], obs)
        np.testing.assert_array_equal(rows.actions[part], actions)
        np.testing.assert_array_equal(rows.rewards[part], rewards.astype(np.float32))
        np.testing.assert_array_equal(rows.next_obs[part], next_obs)
        np.testing.assert_array_equal(rows.extras.env_extras.termination[part], terminations)
    lengths = [part.stop - part.start for part in parts]
    is_cut = [not rows.extras.env_extras.termination[part][-1] for part in parts]
    assert any(is_cut)
    assert not all(is_cut)
    assert {length for length, cut in zip(lengths, is_cut, strict=True) if cut} == {TIME_LIMIT}


def test_individuals_act_greedily_and_the_learner_explores_and_their_rows_are_in_order(make: Make) -> None:
    workflow = make()
    state = workflow.init(workflow.make_key())
    agent, hybrid = workflow.agent, hybrid_of(state)
    population, _ = workflow.training.optimizer.replace(axis_name=None).ask(hybrid.evo_state)
    actor = hybrid.gradient.agent_state.params.policy
    _, state = workflow.step(state)
    rows = stored(state)

    def greedy(params: Any, obs: np.ndarray) -> np.ndarray:
        acting = hybrid.gradient.agent_state.replace(params=PyTreeDict(policy=params))
        batch = SampleBatch(obs=jnp.asarray(obs), extras=PyTreeDict(policy_extras=PyTreeDict(carry=())))
        return np.asarray(agent.evaluate_actions(acting, batch, jax.random.key(0))[0])

    *of_population, of_actor = episodes_in(rows)
    for index, part in enumerate(of_population):
        individual = jax.tree.map(lambda leaf, index=index: leaf[index], population)
        np.testing.assert_allclose(rows.actions[part], greedy(individual, rows.obs[part]), atol=1e-6)
    noise = rows.actions[of_actor] - greedy(actor, rows.obs[of_actor])
    assert np.all(noise != 0.0)
    assert np.abs(noise).max() < 0.5


@pytest.mark.usefixtures("optimized_programs")  # alone, where rounding counts
def test_the_number_of_environments_makes_no_difference(make: Make) -> None:
    _, expected = after(make(), 3)
    assert int(expected.num_updates) > 0
    _, alone = after(make(num_lanes=1), 3)
    assert_equal(alone, expected)


def test_the_state_that_a_step_was_given_stays_as_it_was(make: Make) -> None:
    workflow = make()
    _, state = after(workflow, 1)
    before = jax.tree.map(np.asarray, hybrid_of(state).gradient.buffer_state)
    (_, once), (_, again) = workflow.step(state), workflow.step(state)
    assert_equal(once, again)
    assert_equal(hybrid_of(state).gradient.buffer_state, before)


def with_nan(state: Any) -> Any:
    """The state with NaN as the parameters of the third individual."""
    evo_state = state.learner.evo_state
    population = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), evo_state.population)
    return state.replace_learner(evo_state=evo_state.replace(population=population))


def test_an_environment_that_fails_costs_its_episode_and_no_step_of_it_is_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_faults = 0

    def fail_once(obs: np.ndarray) -> None:
        nonlocal num_faults
        if obs[1] == 1 and not num_faults:
            num_faults += 1
            raise ValueError("bad leg")

    monkeypatch.setattr(Diary, "fault", fail_once)
    metrics, state = after(make(), 2)
    rows = stored(state)
    whole = [episode for episode in Diary.episodes if len(episode) == TIME_LIMIT or (episode and episode[-1][-1])]
    starts = [rows.obs[part][0, 0] for part in episodes_in(rows)]
    assert num_faults == 1
    assert sorted(starts) == sorted(episode[0][0][0] for episode in whole)
    assert int(state.env_steps) == len(rows.rewards) == sum(map(len, whole))
    assert int(state.learner.evo_state.num_invalid) == 0
    assert np.isfinite(metrics["train/critic_loss"])


def test_an_individual_that_breaks_its_environment_is_invalid_and_spoils_no_learner(make: Make) -> None:
    workflow = make(train={"env": {"name": "gymnasium/Pendulum-v1", "episode_length": TIME_LIMIT}})
    metrics, state = workflow.step(with_nan(workflow.init(workflow.make_key())))
    assert int(state.learner.evo_state.num_invalid) == 1
    assert int(state.env_steps) == POPULATION_SIZE * TIME_LIMIT == int(metrics["buffer/size"])
    assert np.isfinite(workflow.step(state)[0]["train/critic_loss"])


def test_an_episode_with_actions_that_are_not_finite_counts_and_is_not_stored(make: Make) -> None:
    workflow = make()
    metrics, state = workflow.step(with_nan(workflow.init(workflow.make_key())))
    rows = stored(state)
    assert np.isfinite(rows.actions).all()
    assert len(episodes_in(rows)) == POPULATION_SIZE
    assert int(state.env_steps) == sum(map(len, Diary.episodes)) > len(rows.rewards)
    assert int(state.env_steps) == len(rows.rewards) + float(metrics["rollout/rows_not_finite"])


def test_of_an_episode_only_the_rows_that_are_not_finite_are_left_out_and_no_window_crosses_them(make: Make) -> None:
    workflow = make(learner={"n_step": 2})
    state = workflow.init(workflow.make_key())
    training, empty = workflow.training, hybrid_of(state).gradient.buffer_state
    steps = np.arange(5, dtype=np.float32)
    rows = SampleBatch(
        obs=np.stack([steps, steps], axis=1),
        actions=np.zeros((5, 1), np.float32),
        rewards=np.where(steps == 2, np.inf, steps).astype(np.float32),
        next_obs=np.stack([steps, steps], axis=1) + 1.0,
        dones=(steps == 4).astype(np.float32),
        extras=PyTreeDict(policy_extras=PyTreeDict(), env_extras=PyTreeDict(termination=np.zeros(5, np.float32))),
    )
    no_episodes = training.player.no_episodes(training.crew.size, 1)
    episodes = no_episodes.replace(episode_lengths=np.array([[5], [0], [0], [0], [0]]), recorded=rows)
    buffer_state, num_not_finite = training._store(empty, episodes)
    kept = stored(state.replace_learner(gradient=hybrid_of(state).gradient.replace(buffer_state=buffer_state)))
    assert kept.rewards.tolist() == [0.0, 1.0, 3.0, 4.0]
    assert kept.dones.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert num_not_finite == 1


def test_the_buffer_has_room_for_a_generation_that_is_longer_than_the_run(make: Make) -> None:
    workflow = make(train={"total_timesteps": 10}, warmup_steps=8)
    shapes = hybrid_of(workflow.training.state_shape(workflow.make_key())).gradient.buffer_state.storage
    assert all(ring.shape[1] >= (POPULATION_SIZE + 1) * TIME_LIMIT for ring in shapes.values())


@pytest.mark.parametrize("method", ["erl_es", "cem_rl"])
def test_a_run_that_was_stopped_ends_as_the_one_that_was_not(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def build(name: str) -> Any:
        run = {"run_dir": str(tmp_path / name), "recorders": ["jsonl", "stopping"], "record_interval": 60}
        return make(method, run, learner={"buffer_capacity": 120}, update_ratio=0.2)

    whole = build("whole")
    expected = whole.learn(whole.init(whole.make_key()))
    workflow = build("stopped")
    monkeypatch.setattr(StoppingRecorder, "stop_at", 1)
    with pytest.raises(Interrupted):
        workflow.learn(workflow.init(workflow.make_key()))
    monkeypatch.setattr(StoppingRecorder, "stop_at", 100)
    with pytest.raises(Interrupted):
        workflow.resume()
    monkeypatch.setattr(StoppingRecorder, "stop_at", None)
    assert_equal(build("stopped").resume(), expected)
    assert records_of(tmp_path / "stopped") == records_of(tmp_path / "whole")


def test_a_checkpoint_without_its_buffer_is_refilled(make: Make, tmp_path: Path) -> None:
    train = {"run_dir": str(tmp_path / "run"), "checkpoint": {"replay": False}, "total_timesteps": 40}
    workflow = make(train=train)
    state = workflow.learn(workflow.init(workflow.make_key()))
    restored = make(train=train).restore()
    assert int(restored.env_steps) == int(state.env_steps)
    assert len(episodes_in(stored(restored))) == POPULATION_SIZE + 1


def test_a_recurrent_learner_learns_from_sequences(make: Make) -> None:
    learner = {"sequence_length": 2, "burn_in": 1, "network": {"core": "gru", "core_size": 4}}
    metrics, state = after(make("erl_eda", learner=learner, update_ratio=0.1), 3)
    rows = stored(state)
    starts = rows.extras.policy_extras.episode_start
    np.testing.assert_array_equal(np.flatnonzero(starts), [part.start for part in episodes_in(rows)])
    assert np.isfinite(metrics["train/critic_loss"])


def test_the_actor_of_pga_map_elites_plays_among_the_children(make: Make) -> None:
    strategy = {"archive": "grid", "cells": [4, 4], "descriptors": ["mean:action", "last:obs.0"]}
    strategy |= {"low": [-1, -1], "high": [1, 1]}
    few = {"num_random": POPULATION_SIZE, "num_critic_steps": 2, "num_climbing_steps": 2}
    metrics, state = after(make("pga_me", strategy=strategy, **few), 3)
    assert int(state.num_updates) == 2 * 2
    returns = [sum(row[2] for row in rows) for rows in Diary.episodes]
    assert np.isclose(returns, metrics["qd/actor_fitness"]).any()


@pytest.mark.parametrize("method", ["pga_me", "map_elites"])
def test_a_measure_that_does_not_exist_is_refused_when_the_workflow_is_built(method: str) -> None:
    strategy = {"descriptors": ["mean:obs.2", "mean:action"]}
    agent = {"name": method, **({"strategy": strategy} if method == "pga_me" else strategy)}
    with pytest.raises(InvalidInputError, match=r"measure obs\.2: it has 2 numbers"):
        build_workflow({"agent": agent, "env": {"name": "gymnasium/Diary-v0", "episode_length": TIME_LIMIT}})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"env": {"name": "pettingzoo/mpe2.simple_spread_v3"}}, "has several agents, and erl trains one"),
        ({"max_staleness": 1}, "max_staleness=1 is for methods that learn from batches"),
        ({"num_seeds": 2}, "num_seeds=2: gymnasium/Diary-v0 is on the host"),
    ],
)
def test_what_hybrids_cannot_do_is_refused(make: Make, train: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make(train=train)
