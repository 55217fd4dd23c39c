"""rejax's SAC on gymnax's Pendulum; as a program, what eight seeds of it return after 20k steps."""

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


if __name__ == "__main__":
    algorithm = RejaxSAC(total_timesteps=20_000, eval_freq=5_000).algorithm
    _, (_, returns) = jax.jit(jax.vmap(algorithm.train))(jax.random.split(jax.random.key(0), 8))
    last = returns[:, -1].mean(axis=-1)
    print(f"mean {last.mean():.1f}, by seed {last.round(1)}")
