"""Experience, in the form in which both device and host environments provide it.

Timestep convention: acting with `A_t` on `O_t` gives `R_t`, `D_t` (done) and `O_{t+1}`; row `t` holds all of them.
"""

from typing import Any

import numpy as np

from rookery.types import Action, Array, Obs, PyTreeData, PyTreeDict, pytree_field


def empty_extras() -> PyTreeDict:
    """Return empty extras: `policy_extras` of the agent and `env_extras` of the env."""
    return PyTreeDict(policy_extras=PyTreeDict(), env_extras=PyTreeDict())


class SampleBatch(PyTreeData):
    """Transitions: `[T, B, ...]` for a trajectory, `[B, ...]` for one step; every field is optional."""

    obs: Obs = None
    actions: Action = None
    rewards: Any = None
    next_obs: Obs = None
    dones: Any = None
    extras: PyTreeDict = pytree_field(default_factory=empty_extras)


class MultiAgentBatch(PyTreeData):
    """One `SampleBatch` per policy, and the number of env steps they come from.

    Agents that share a policy are concatenated on the batch axis: `[T, A * B, ...]`, agent-major.
    """

    batches: PyTreeDict
    env_steps: Array | np.integer
