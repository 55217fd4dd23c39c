"""A hybrid learns the same on the host as on the device, if the same actions have the same results there."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import Env, EnvState
from rookery.envs.own import DEVICE, give_name
from rookery.registry import build_workflow
from rookery.spaces import Box, Space
from rookery.types import Action, Array, Key

LENGTH, POPULATION_SIZE, START = 8, 4, 0.75


class Slide(Env):
    """A number that half of the action is added to; it is best at 0, and over at 1."""

    @property
    def obs_space(self) -> Space:
        return Box(-8.0, 8.0, (1,))

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    def reset(self, key: Key) -> EnvState:
        return self._state(jnp.full(1, START))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self._state(env_state.env_state + 0.5 * action)

    def _state(self, place: Array) -> EnvState:
        return EnvState(env_state=place, obs=place, reward=-(place[0] ** 2), done=(place[0] > 1.0).astype(jnp.float32))


class SlideOnHost(gymnasium.Env):
    """The same for Gymnasium."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-8.0, 8.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.place = np.full(1, START, np.float32)
        return self.place, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = self.place + np.float32(0.5) * action
        return self.place, -float(self.place[0] ** 2), bool(self.place[0] > 1.0), False, {}


def trained(method: str, env: str) -> tuple[list[dict[str, float]], Any]:
    """Train for four generations; return the metrics of each, and the parameters of all parts."""
    config = {
        "agent": {
            "name": method,
            "population_size": POPULATION_SIZE,
            "learner_episodes": 0,  # random actions have other keys
            "num_lanes": 1,  # with more, rows have another order on the device
            "warmup_steps": 10,
            "normalize_obs": True,
            "update_ratio": 0.5,
            "learner": {"batch_size": 8, "network": {"hidden_sizes": [8]}},
        },
        "env": {"name": env, "episode_length": LENGTH},
        "total_timesteps": 1000,
        "recorders": [],
    }
    workflow = build_workflow(config)
    state, metrics = workflow.init(workflow.make_key()), []
    for _ in range(4):
        of_generation, state = workflow.step(state)
        metrics.append({name: float(value) for name, value in of_generation.items()})
    workflow.close()
    hybrid = state.learner
    return metrics, (hybrid.evo_state.mean, hybrid.gradient.agent_state.params, hybrid.gradient.target_params)


@pytest.mark.parametrize("method", ["erl_es", "cem_rl"])
def test_the_host_computes_what_the_device_does(method: str) -> None:
    gymnasium.register("Slide-v0", SlideOnHost)
    try:
        on_host, host_params = trained(method, "gymnasium/Slide-v0")
    finally:
        del gymnasium.registry["Slide-v0"]
    on_device, device_params = trained(method, give_name(DEVICE, "Slide", Slide))
    for here, there in zip(on_host, on_device, strict=True):
        assert there.keys() - here.keys() == {"rollout/idle_rows"}
        np.testing.assert_allclose([*here.values()], [there[name] for name in here], rtol=1e-3, atol=1e-4)
    assert on_host[-1]["hybrid/injections"] > 0
    jax.tree.map(lambda *leaves: np.testing.assert_allclose(*leaves, rtol=1e-3, atol=1e-4), host_params, device_params)
