"""Training through the public path: a composed config, the workflow that it describes, several seeds at once."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.configs import compose
from rookery.registry import build_workflow
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict
from rookery.workflows.workflow import Workflow


class Trained(NamedTuple):
    """What came out of a run: the returns are the mean of the greedy policy over its episodes, one for each seed."""

    workflow: Workflow
    state: Any
    returns: np.ndarray

    def values_of(self, *observations: Sequence[float]) -> np.ndarray:
        """Return what each seed thinks that observations are worth, `[seed, observation]`."""
        extras = PyTreeDict(policy_extras=PyTreeDict())
        batch = SampleBatch(obs=jnp.array(observations, jnp.float32), extras=extras)

        def values(agent_state: Any) -> jax.Array:
            return self.workflow.agent.compute_actions(agent_state, batch, jax.random.key(0))[1].value

        return np.asarray(jax.vmap(values)(self.state.agent_state))


@pytest.fixture
def train() -> Callable[..., Trained]:
    """Train by overrides like those of the command line, with one evaluation at the end."""

    def train(*overrides: str) -> Trained:
        config = compose([*overrides, "recorders=[]", "record_interval=${total_timesteps}"])
        workflow = build_workflow(config)
        state = workflow.learn(workflow.init(workflow.make_key()))
        metrics, state = workflow.evaluate(state)
        workflow.close()
        return Trained(workflow, state, np.asarray(metrics["eval/mean_reward"]))

    return train
