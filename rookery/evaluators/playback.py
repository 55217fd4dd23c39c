"""Episodes for videos: played one at a time on the device, rendered on the host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState, Carry
from rookery.compilation import run_once_options
from rookery.envs import Env, EnvState, MultiAgentEnv, VectorWrapper
from rookery.envs.wrappers import VmapWrapper
from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.rollout import ActionFn, act
from rookery.types import Array, Key, as_one_key, index_tree

STEPS_PER_CALL = 100
"""The number of steps of an episode that are played in one call of a program."""


class RenderError(RookeryError):
    """An environment cannot be rendered."""


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: its states from first to last on the host, and the sum of its rewards."""

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
    carry = initial_carry_fn(single.batch_shape)
    play_fn = partial(_play, single, action_fn, carry, agent_state, as_one_key(key), max_steps, num_episodes)
    return [play_fn(number) for number in range(num_episodes)]


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
    env: VmapWrapper,
    action_fn: ActionFn,
    carry: Carry,
    agent_state: AgentState,
    key: Key,
    max_steps: int,
    num_episodes: int,
    number: int,
) -> PlayedEpisode:
    start_fn = jax.jit(_start, static_argnums=(0, 2), compiler_options=run_once_options())
    env_state, action_key = start_fn(env, key, num_episodes, np.int32(number))
    states, episode_return = [jax.device_get(env.first(env_state))], 0.0
    render(env.env, states[0])
    while len(states) <= max_steps and not states[-1].done:
        first_step = np.int32(len(states))
        (env_state, carry), played = _steps(env, action_fn, agent_state, env_state, carry, action_key, first_step)
        played = jax.device_get(played)
        num_played = min(int(np.argmax([*played.done, True])) + 1, STEPS_PER_CALL, max_steps - len(states) + 1)
        states += [index_tree(played, step) for step in range(num_played)]
        episode_return += sum(map(float, played.reward[:num_played]))
    return PlayedEpisode(env.env, tuple(states), episode_return)


def _start(env: VmapWrapper, key: Key, num_episodes: int, number: Array) -> tuple[EnvState, Key]:
    """Start an episode; return the state of the env and the key of its actions."""
    reset_key, action_key = jax.random.split(jax.random.split(key, num_episodes)[number])
    return env.reset(reset_key), action_key


@partial(jax.jit, static_argnames=("env", "action_fn"))
def _steps(
    env: VmapWrapper,
    action_fn: ActionFn,
    agent_state: AgentState,
    env_state: EnvState,
    carry: Carry,
    key: Key,
    first_step: Array,
) -> tuple[tuple[EnvState, Carry], EnvState]:
    """Take several steps; an env that is done stays as it is. Return its last state, and all of them."""

    def step(state: tuple[EnvState, Carry], number: Array) -> tuple[tuple[EnvState, Carry], EnvState]:
        env_state, carry = state
        actions, _, carry = act(action_fn, agent_state, env_state, carry, jax.random.fold_in(key, number))
        env_state = env.step(env_state, actions)
        return (env_state, carry), env.first(env_state)

    return jax.lax.scan(step, (env_state, carry), first_step + jnp.arange(STEPS_PER_CALL, dtype=jnp.int32))
