"""Training through the public path: a composed config, the workflow that it describes, several seeds at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.configs import compose
from rookery.recorders import Position, Recorder, RunDescription
from rookery.registry import build_workflow
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict
from rookery.workflows.workflow import Workflow


class LastRecord(Recorder):
    """Keeps the last record of a run, which has the evaluation that every run ends with."""

    rows: Sequence[Mapping[str, float]]

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        pass

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.rows = rows

    def close(self) -> None:
        pass


class Trained(NamedTuple):
    """What came out of a run."""

    workflow: Workflow
    state: Any
    last_record: LastRecord

    def recorded(self, metric: str) -> np.ndarray:
        """Return the last value of a metric, one for each seed."""
        return np.array([row[metric] for row in self.last_record.rows])

    @property
    def returns(self) -> np.ndarray:
        """The mean of the greedy policy over its episodes, one for each seed."""
        return self.recorded("eval/mean_reward")

    def values_of(self, *observations: Sequence[float]) -> np.ndarray:
        """Return what each seed thinks that observations are worth, `[seed, observation]`."""
        extras = PyTreeDict(policy_extras=PyTreeDict())
        batch = SampleBatch(obs=jnp.array(observations, jnp.float32), extras=extras)

        def values(agent_state: Any) -> jax.Array:
            return self.workflow.agent.compute_actions(agent_state, batch, jax.random.key(0))[1].value

        return np.asarray(jax.vmap(values)(self.state.agent_state))


@pytest.fixture
def train() -> Callable[..., Trained]:
    """Train by overrides like those of the command line, with one record at the end."""

    def train(*overrides: str) -> Trained:
        config = compose([*overrides, "recorders=[]", "record_interval=${total_timesteps}"])
        workflow, last_record = build_workflow(config), LastRecord()
        workflow.recorders.append(last_record)
        state = workflow.learn(workflow.init(workflow.make_key()))
        workflow.close()
        return Trained(workflow, state, last_record)

    return train
