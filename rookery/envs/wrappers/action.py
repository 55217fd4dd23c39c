"""Wrappers that change actions."""

import jax
import jax.numpy as jnp

from rookery.control_flow import any_true
from rookery.envs.env import Env, EnvState, Wrapper
from rookery.envs.wrappers.episode import check_single
from rookery.errors import InvalidInputError, check_count
from rookery.spaces import Box
from rookery.types import Action, where_tree


class ActionSquashWrapper(Wrapper):
    """Maps actions in [-1, 1] linearly onto the bounds of the env's action space."""

    def __init__(self, env: Env) -> None:
        check_single(self, env)
        if not (isinstance(env.action_space, Box) and env.action_space.bounded):
            raise InvalidInputError(f"ActionSquashWrapper needs a bounded Box of actions, got {env.action_space}.")
        super().__init__(env)
        self._bounds: Box = env.action_space

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, self._bounds.shape, self._bounds.dtype)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        low, high = jnp.asarray(self._bounds.low), jnp.asarray(self._bounds.high)
        fraction = (jnp.asarray(action, low.dtype) + 1.0) / 2.0
        return self.env.step(env_state, low * (1.0 - fraction) + high * fraction)


class ActionRepeat(Wrapper):
    """Repeats each action `num_repeats` times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: Env, num_repeats: int) -> None:
        check_count("num_repeats", num_repeats)
        check_single(self, env)
        super().__init__(env)
        self.num_repeats = num_repeats

    @property
    def max_episode_steps(self) -> int | None:
        inner = self.env.max_episode_steps
        return None if inner is None else -(-inner // self.num_repeats)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        # The first step ignores `done`: after an autoreset, `done` belongs to the previous episode.
        state = self.env.step(env_state, action)

        def repeat(state: EnvState, _: None) -> tuple[EnvState, None]:
            def step_unless_done(state: EnvState) -> EnvState:
                stepped = self.env.step(state, action)
                stepped = stepped.replace(reward=jax.tree.map(jnp.add, state.reward, stepped.reward))
                return where_tree(state.done, state, stepped)

            return jax.lax.cond(any_true(state.done == 0), step_unless_done, lambda same: same, state), None

        return jax.lax.scan(repeat, state, None, length=self.num_repeats - 1)[0]
