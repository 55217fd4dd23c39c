"""Re-evaluation: the elites of an archive play again, and what was luck is gone."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.map_elites import MAPElitesWorkflow
from rookery.errors import InvalidInputError
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.runs.directory import RunDirectory
from rookery.workflows.evolution.reevaluation import in_chunks


def workflow_of(env: dict[str, Any], train: dict[str, Any] | None = None, **agent: Any) -> Any:
    archive = {"descriptors": ["mean:obs.0", "last:obs.1"], "cells": [8, 8], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    config = {"population_size": 8, "network": {"hidden_sizes": [4]}, "qd_offset": 100.0, **archive, **agent}
    return MAPElitesWorkflow.build_from_config(
        {"agent": config, "env": env, "total_timesteps": 200, "recorders": [], **(train or {})}
    )


PENDULUM = {"name": "classic/pendulum", "episode_length": 5}


def test_the_corrected_score_is_that_of_an_archive_of_new_episodes(tmp_path: Path) -> None:
    train = {"run_dir": str(tmp_path / "run"), "recorders": ["jsonl"], "num_seeds": 2, "record_interval": 100}
    workflow = workflow_of(PENDULUM, train, reevaluate=3)
    workflow.learn(workflow.init(workflow.make_key()))
    rows = RunDirectory(tmp_path / "run").read_metrics()[-2:]
    entries = json.loads((tmp_path / "run" / "population.json").read_text())
    for row, entry in zip(rows, entries, strict=True):
        corrected = np.array(entry["corrected_fitness"], float)
        filled = corrected[~np.isnan(corrected)]
        assert 0 < len(filled) <= np.sum(np.array(entry["fitness"], float) < np.inf)
        assert row["eval/corrected_coverage"] == len(filled) / 64
        np.testing.assert_allclose(row["eval/corrected_qd_score"], np.sum(filled + 100.0), rtol=1e-6)
        assert row["eval/corrected_qd_score"] != row["evolution/qd_score"]


def test_without_chance_an_archive_stays_as_it_is_and_so_do_training_and_evaluation() -> None:
    env, descriptors = {"name": "probe/action_reward", "episode_length": 5}, ["last:action", "last:reward"]
    plain, replaying = (workflow_of(env, descriptors=descriptors, reevaluate=number) for number in (0, 2))
    _, state = plain.step(plain.init(plain.make_key()))
    (before, after_plain), (metrics, after) = plain.evaluate(state), replaying.evaluate(state)
    report = plain.training.optimizer.report(state.learner.evo_state)
    np.testing.assert_allclose(metrics["eval/corrected_qd_score"], report["qd_score"], rtol=1e-6)
    assert metrics["eval/corrected_coverage"] == report["coverage"] > 0.0
    assert {name: metrics[name] for name in before} == before
    np.testing.assert_array_equal(*(jax.random.key_data(of.eval_key) for of in (after_plain, after)))


@pytest.mark.parametrize("num_played", [0, 1, 64, 65, 130])
def test_only_chunks_with_an_elite_play(num_played: int) -> None:
    played = []

    def play(chunk: Any, first: Any) -> PopulationEpisodes:
        jax.debug.callback(lambda first: played.append(int(first)), first)
        zeros = jnp.zeros((64, 1))
        return PopulationEpisodes(
            episode_returns=chunk[:, None], episode_lengths=zeros, measures=zeros[..., None], obs_statistics=None
        )

    episodes = in_chunks(play, jnp.arange(130.0), jnp.int32(num_played))
    returns = np.asarray(episodes.episode_returns)[:, 0]
    np.testing.assert_array_equal(returns[:num_played], np.arange(num_played))
    assert np.all(np.isnan(returns[num_played:]))
    jax.effects_barrier()
    assert sorted(played) == [first for first in (0, 64, 128) if first < num_played]


def test_elites_of_host_environments_cannot_play_again_yet() -> None:
    env = {"name": "gymnasium/Pendulum-v1"}
    with pytest.raises(InvalidInputError, match="reevaluate=2 is for environments on the device"):
        workflow_of(env, reevaluate=2)
