"""Experience: the one value in which the device world and the host world meet.

Timestep convention: acting with `A_t` on `O_t` gives `R_t`, `D_t` (done) and `O_{t+1}`; they sit together in row `t`.
"""

from typing import Any

import numpy as np

from rookery.types import Array, PyTreeData, PyTreeDict, pytree_field


def empty_extras() -> PyTreeDict:
    """What a batch carries besides the transition: `policy_extras` of the agent and `env_extras` of the env."""
    return PyTreeDict(policy_extras=PyTreeDict(), env_extras=PyTreeDict())


class SampleBatch(PyTreeData):
    """Transitions, time-major `[T, B, ...]` in a trajectory, `[B, ...]` for one step; every field is optional."""

    obs: Any = None
    actions: Any = None
    rewards: Any = None
    next_obs: Any = None
    dones: Any = None
    extras: PyTreeDict = pytree_field(default_factory=empty_extras)


class MultiAgentBatch(PyTreeData):
    """One `SampleBatch` per policy, and the number of env steps they come from.

    The agents that share a policy lie side by side on the batch axis: `[T, A * B, ...]`, agent-major.
    """

    batches: PyTreeDict
    env_steps: Array | np.integer
