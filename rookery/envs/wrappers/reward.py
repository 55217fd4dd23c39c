"""Wrappers that change rewards."""

import jax

from rookery.envs.env import Env, EnvState, Wrapper
from rookery.envs.wrappers.episode import check_inside_episodes
from rookery.types import Action


class RewardScaleWrapper(Wrapper):
    """Multiplies every reward by `scale`."""

    def __init__(self, env: Env, scale: float) -> None:
        check_inside_episodes(self, env)
        super().__init__(env)
        self.scale = scale

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        state = self.env.step(env_state, action)
        return state.replace(reward=jax.tree.map(lambda reward: reward * self.scale, state.reward))
