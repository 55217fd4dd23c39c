"""Episodes for videos: played one at a time on the device, rendered on the host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from rookery.agent import AgentState, Carry
from rookery.envs import Env, EnvState, MultiAgentEnv, VectorWrapper
from rookery.envs.wrappers import VmapWrapper
from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.rollout import ActionFn, EnvFn, act
from rookery.types import Key, as_one_key


class RenderError(RookeryError):
    """An environment cannot be rendered."""


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: its states from first to last, and the sum of its rewards."""

    env: Env
    states: tuple[EnvState, ...]
    episode_return: float

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.states) - 1

    def frames(self) -> Iterator[np.ndarray]:
        """Render the states lazily: `length + 1` frames `uint8[height, width, 3]`."""
        return (render(self.env, state) for state in self.states)


def play_episodes(
    env: Env,
    action_fn: ActionFn,
    initial_carry_fn: Callable[[tuple[int, ...]], Carry],
    agent_state: AgentState,
    key: Key,
    max_steps: int,
    num_episodes: int = 1,
) -> list[PlayedEpisode]:
    """Play episodes and keep their states for rendering.

    `action_fn` is `agent.evaluate_actions`, `initial_carry_fn` is `agent.initial_carry`. `env` is vectorized; one of
    its envs is played, up to its first done or for `max_steps`. Raises `RenderError` before the first step if the env
    cannot be rendered.
    """
    check_count("max_steps", max_steps)
    check_count("num_episodes", num_episodes)
    if not isinstance(env, VectorWrapper) or isinstance(env.unwrapped, MultiAgentEnv):
        raise InvalidInputError(
            "play_episodes needs a vectorized environment with one agent: make it with create_env or wrap_env."
        )
    single = VmapWrapper(env.env, 1)
    episode_keys = jax.random.split(as_one_key(key), num_episodes)
    carry = initial_carry_fn(single.batch_shape)
    return [_play(single, action_fn, carry, agent_state, episode_key, max_steps) for episode_key in episode_keys]


def render(env: Env, env_state: EnvState) -> np.ndarray:
    """Render one state; raise `RenderError` with the reason if that fails."""
    name = type(env.unwrapped).__name__
    try:
        return env.render(env_state)
    except NotImplementedError:
        raise RenderError(f"{name} cannot be rendered: it has no render method.") from None
    except Exception as error:
        raise RenderError(f"{name} cannot be rendered: render() raised {error!r}.") from error


def _play(
    env: VmapWrapper, action_fn: ActionFn, carry: Carry, agent_state: AgentState, key: Key, max_steps: int
) -> PlayedEpisode:
    reset_key, action_key = jax.random.split(key)
    env_state = env.reset(reset_key)
    render(env, env_state)
    states, episode_return = [env_state], 0.0
    while len(states) <= max_steps and not env_state.done[0]:
        step_key = jax.random.fold_in(action_key, len(states))
        env_state, carry = _step(env.step, action_fn, agent_state, env_state, carry, step_key)
        states.append(env_state)
        episode_return += float(env_state.reward[0])
    return PlayedEpisode(env, tuple(states), episode_return)


@partial(jax.jit, static_argnames=("env_fn", "action_fn"))
def _step(
    env_fn: EnvFn, action_fn: ActionFn, agent_state: AgentState, env_state: EnvState, carry: Carry, key: Key
) -> tuple[EnvState, Carry]:
    actions, _, carry = act(action_fn, agent_state, env_state, carry, key)
    return env_fn(env_state, actions), carry
