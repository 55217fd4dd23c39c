"""Step counts and time limits, over many episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import AutoresetMode, Env, EnvState, wrap_env
from rookery.spaces import Box, Discrete, Space
from rookery.types import Array, Key

NUM_ENVS = 2


class HandsOnInfo(Env):
    """Never ends by itself; its step changes the state it is given, so `info` comes out as it went in."""

    @property
    def obs_space(self) -> Space:
        return Box(0.0, np.inf, ())

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def reset(self, key: Key) -> EnvState:
        zero = jnp.zeros((), jnp.float32)
        return EnvState(env_state=zero, obs=zero, reward=zero, done=zero)

    def step(self, env_state: EnvState, action: Array) -> EnvState:
        count = env_state.env_state + 1.0
        return env_state.replace(env_state=count, obs=count, reward=jnp.ones(()), done=jnp.zeros(()))


@pytest.mark.parametrize(
    ("mode", "steps", "truncation"),
    [
        (AutoresetMode.NORMAL, [1, 2, 3, 1, 2, 3, 1, 2, 3], [0, 0, 1, 0, 0, 1, 0, 0, 1]),
        (AutoresetMode.FAST, [1, 2, 3, 1, 2, 3, 1, 2, 3], [0, 0, 1, 0, 0, 1, 0, 0, 1]),
        (AutoresetMode.ENVPOOL, [1, 2, 3, 0, 1, 2, 3, 0, 1], [0, 0, 1, 0, 0, 0, 1, 0, 0]),
        (AutoresetMode.DISABLED, [1, 2, 3, 3, 3, 3, 3, 3, 3], [0, 0, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_truncation_is_not_repeated_by_an_env_that_hands_on_its_info(
    mode: AutoresetMode, steps: list[int], truncation: list[int]
) -> None:
    env = wrap_env(HandsOnInfo(), episode_length=3, parallel=NUM_ENVS, autoreset_mode=mode)
    actions = jnp.zeros(NUM_ENVS, jnp.int32)

    def step(state: EnvState, _: None) -> tuple[EnvState, EnvState]:
        state = env.step(state, actions)
        return state, state

    _, states = jax.lax.scan(step, env.reset(jax.random.key(0)), length=len(steps))
    for env_id in range(NUM_ENVS):
        np.testing.assert_array_equal(states.info.steps[:, env_id], steps)
        np.testing.assert_array_equal(states.info.truncation[:, env_id], truncation)
        np.testing.assert_array_equal(states.done[:, env_id], truncation)
    np.testing.assert_array_equal(states.info.termination, np.zeros((len(steps), NUM_ENVS)))
