"""Many environments side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import AutoresetMode, create_env, make_env


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_the_first_of_many_envs_is_drawn_as_it_would_be_alone(mode: AutoresetMode) -> None:
    env, single = create_env("classic/cartpole", parallel=3, autoreset_mode=mode), make_env("classic/cartpole")
    state = env.step(env.reset(jax.random.key(0)), jnp.array([0, 1, 1], jnp.int32))
    simulators = [jax.tree.map(lambda leaf, row=row: leaf[row], state.env_state) for row in range(3)]
    pictures = [single.render(state.replace(env_state=simulator)) for simulator in simulators]
    assert len({picture.tobytes() for picture in pictures}) == 3
    np.testing.assert_array_equal(env.render(state), pictures[0])


def test_a_cached_start_does_not_repeat_the_random_numbers_of_its_episode() -> None:
    env = create_env("probe/mask", parallel=2, autoreset_mode=AutoresetMode.FAST)

    def step(state, _):
        state = env.step(state, jnp.zeros(2, jnp.int32))
        return state, (state.obs.cue, state.obs.action_mask)

    _, (cues, masks) = jax.lax.scan(step, env.reset(jax.random.key(0)), length=4 * 8)
    episodes = np.asarray(masks).reshape(4, 8, 2, 4)
    np.testing.assert_array_equal(np.asarray(cues)[7::8], np.asarray(cues)[7:8].repeat(4, axis=0))
    for env_index in range(2):
        assert len({episodes[number, :, env_index].tobytes() for number in range(4)}) == 4
