"""gymnax's environments for rejax, which was written for gymnax before 1.0."""

from typing import Any

from gymnax.environments.classic_control.cartpole import CartPole
from gymnax.environments.classic_control.pendulum import Pendulum


class OneDone:
    """One `done` for both kinds of end."""

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, Any, Any, Any, Any]:
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)  # type: ignore[misc]
        return obs, state, reward, terminated | truncated, info


class OneDoneCartPole(OneDone, CartPole):
    pass


class OneDonePendulum(OneDone, Pendulum):
    pass
