"""rejax's SAC on gymnax's Pendulum."""

from typing import Any

import jax
import rejax
from gymnax.environments.classic_control.pendulum import Pendulum

from bench.peers import sac_sizes


class OneDonePendulum(Pendulum):
    """gymnax's Pendulum with one `done` for both kinds of end: rejax was written for gymnax before 1.0."""

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, Any, Any, Any, Any]:
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


class RejaxSAC:
    """The same sizes as ours; the rest is rejax's own."""

    def __init__(self, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "num_envs": 1,
            "num_epochs": 1,
            "batch_size": sac_sizes.BATCH_SIZE,
            "buffer_size": sac_sizes.BUFFER_CAPACITY,
            "fill_buffer": sac_sizes.WARMUP_STEPS,
            "polyak": 1.0 - sac_sizes.TARGET_UPDATE_RATE,
            "agent_kwargs": {"hidden_layer_sizes": sac_sizes.HIDDEN_SIZES, "activation": "relu"},
        }
        self.algorithm = rejax.SAC.create(env=OneDonePendulum(), **(settings | changes))

    def init(self, key: jax.Array) -> Any:
        return self.algorithm.init_state(key)

    def iterate(self, state: Any) -> Any:
        """Take one step of the environment and one update."""
        return self.algorithm.train_iteration(state)
