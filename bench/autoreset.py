"""The cost of each autoreset mode, against resetting every env at every step."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

from bench.rollout import ROLLOUT_LENGTH, our_rollout, random_rollout
from bench.table import Row
from bench.timing import cpu_seconds
from rookery.envs import AutoresetMode, EnvState, EpisodeWrapper, VectorWrapper, make_env
from rookery.types import Key, PyTreeDict, where_tree

NUM_ENVS = 1024


class EagerAutoresetWrapper(VectorWrapper):
    """The common implementation of autoreset: it resets every env at every step and discards most of the resets."""

    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        return state.replace(_internal=state._internal.replace(reset_keys=next_keys))

    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        keys = jax.vmap(jax.random.split)(stepped._internal.reset_keys)
        fresh = jax.vmap(self.env.reset)(keys[:, 0])
        starts = (fresh.env_state, fresh.obs, PyTreeDict(inner=fresh._internal, reset_keys=keys[:, 1]))
        parts = (stepped.env_state, stepped.obs, stepped._internal)
        env_state, obs, internal = where_tree(stepped.done, starts, parts)
        return stepped.replace(env_state=env_state, obs=obs, _internal=internal)


def eager_rollout() -> Callable[[], Any]:
    env = make_env("classic/cartpole")
    return random_rollout(EagerAutoresetWrapper(EpisodeWrapper(env, 500, record_ori_obs=False, discount=1.0), NUM_ENVS))


def rows() -> Iterator[Row]:
    contenders = {mode.name: our_rollout(NUM_ENVS, mode) for mode in AutoresetMode}
    seconds = cpu_seconds({"eager": eager_rollout(), **contenders})
    num_steps = NUM_ENVS * ROLLOUT_LENGTH
    for mode in contenders:
        yield Row(
            name=f"autoreset {mode}, {NUM_ENVS} envs",
            ours=f"{num_steps / seconds[mode] / 1e6:.1f} M steps/s",
            other=f"reset at every step {num_steps / seconds['eager'] / 1e6:.1f} M steps/s",
            ratio=seconds["eager"] / seconds[mode],
        )
