"""The connectors of each policy."""

from typing import Any

import numpy as np
import pytest

from rookery.runners.acting.connectors import NormalizeObs, Rows
from rookery.runners.acting.pipelines import PipelineMap
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.spaces import Box, Discrete

SPACES = {SINGLE_AGENT: (Box(-9.0, 9.0, (1,)), Discrete(2))}


def make_pipelines() -> PipelineMap:
    return PipelineMap(SPACES, lambda policy: [NormalizeObs()] if policy == "filtered" else [], None)


def num_seen(pipelines: PipelineMap) -> float:
    (state,) = pipelines.get_state()["filtered"]
    return float(state["count"])


def see(pipelines: PipelineMap, num_rows: int) -> None:
    pipeline: Any = pipelines.of("filtered", SINGLE_AGENT)
    pipeline.reserve(num_rows)
    rows = Rows(np.arange(num_rows), np.ones(num_rows, bool), None, np.zeros(num_rows))
    pipeline.to_policy(np.ones((num_rows, 1), np.float32), rows)


def test_a_policy_without_connectors_has_no_pipeline_and_others_keep_theirs() -> None:
    pipelines = make_pipelines()
    assert pipelines.of("plain", SINGLE_AGENT) is None
    assert pipelines.of("filtered", SINGLE_AGENT) is pipelines.of("filtered", SINGLE_AGENT)


@pytest.mark.parametrize("is_built", [False, True])
def test_states_are_taken_by_pipelines_that_are_there_and_by_those_that_come_later(is_built: bool) -> None:
    pipelines, others = make_pipelines(), make_pipelines()
    see(pipelines, 5)
    if is_built:
        others.of("filtered", SINGLE_AGENT)
    others.set_state(pipelines.get_state())
    assert num_seen(others) == num_seen(pipelines)
    see(others, 2)
    assert num_seen(others) == num_seen(pipelines) + 2


def test_a_policy_that_was_forgotten_starts_again() -> None:
    pipelines = make_pipelines()
    see(pipelines, 5)
    pipelines.forget("filtered")
    see(pipelines, 2)
    see(fresh := make_pipelines(), 2)
    assert num_seen(pipelines) == num_seen(fresh)
