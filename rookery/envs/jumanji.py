"""Environments of jumanji.

Most jumanji envs report a time limit as a termination (discount 0). The adapter distinguishes the two: it takes the
same step in a copy of the env without a time limit; an episode that does not end there was truncated. XLA shares the
computation of both steps except for the last comparison.

The adapter detects only limits named `time_limit`. MultiCVRP ends, with a penalty, after twice as many steps as it has
customers; that counts as a termination.
"""

import copy
import inspect
import io
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import jumanji.registration
import jumanji.wrappers
import matplotlib.pyplot as plt
import numpy as np
from jumanji import specs
from PIL import Image

from rookery.compilation import relaxed_promotion
from rookery.envs.adapter import as_arrays
from rookery.envs.env import Env, EnvState
from rookery.errors import InvalidInputError, unknown_name
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiDiscrete, Space
from rookery.types import Array, Key, PyTreeDict, as_key

MULTI_AGENT_NAMES = ("Connector-v3", "LevelBasedForaging-v0", "SearchAndRescue-v0")
"""Registered envs with one reward per agent, which the adapter does not support."""

NO_TIME_LIMIT = np.iinfo(np.int32).max


class JumanjiAdapter(Env):
    """One jumanji env. Observations are `PyTreeDict`; the extras of jumanji are in `info.metrics`."""

    def __init__(self, jumanji_env: jumanji.Environment) -> None:
        rewards, discounts = jumanji_env.reward_spec.shape, jumanji_env.discount_spec.shape
        if rewards or discounts:
            raise InvalidInputError(
                f"{type(jumanji_env.unwrapped).__name__} has rewards of shape {list(rewards)} and discounts of shape "
                f"{list(discounts)}, one per agent; expected scalars. To sum them, use "
                "JumanjiAdapter(jumanji.wrappers.MultiToSingleWrapper(env))."
            )
        self.jumanji_env = jumanji_env
        self._timeless_env = _without_time_limit(jumanji_env)
        self._obs_space = _obs_space(jumanji_env)
        self._action_space = _action_space(jumanji_env)

    def reset(self, key: Key) -> EnvState:
        with relaxed_promotion():
            state, timestep = self.jumanji_env.reset(as_key(key))
        return self._env_state(state, timestep, truncated=jnp.zeros((), bool))

    def step(self, env_state: EnvState, action: Array) -> EnvState:
        self.action_space.check(action, "action")
        action = jnp.asarray(action, self.action_space.sample_dtype)
        with relaxed_promotion():
            state, timestep = self.jumanji_env.step(env_state.env_state, action)
            _, timeless = self._timeless_env.step(env_state.env_state, action)
            terminated = timeless.last() & (timeless.discount == 0)
        stepped = self._env_state(state, timestep, truncated=timestep.last() & ~terminated)
        return stepped.replace(info=env_state.info.replace(**stepped.info), _internal=env_state._internal)

    def _env_state(self, state: Any, timestep: jumanji.types.TimeStep, truncated: Array) -> EnvState:
        metrics = jax.tree.map(lambda metric: jnp.asarray(metric, jnp.float32), timestep.extras)
        return EnvState(
            env_state=as_arrays(state),
            obs=as_arrays(_named_entries(timestep.observation, self.jumanji_env.observation_spec)),
            reward=jnp.asarray(timestep.reward, jnp.float32),
            done=timestep.last().astype(jnp.float32),
            info=PyTreeDict(truncation=truncated.astype(jnp.float32), metrics=metrics),
        )

    @property
    def obs_space(self) -> Space:
        return self._obs_space

    @property
    def action_space(self) -> ArraySpace:
        return self._action_space

    @property
    def max_episode_steps(self) -> int | None:
        return getattr(self.jumanji_env.unwrapped, "time_limit", None)

    def render(self, env_state: EnvState) -> np.ndarray:
        with warnings.catch_warnings(), relaxed_promotion():
            warnings.filterwarnings("ignore", message=".*cannot be shown", category=UserWarning)
            frame = self.jumanji_env.render(env_state.env_state)
        if frame is None:  # unless its viewer returns arrays, the env renders into the current figure
            picture = io.BytesIO()
            plt.gcf().savefig(picture, format="png")
            frame = np.asarray(Image.open(picture))
        return frame[..., :3]


def names() -> tuple[str, ...]:
    """Return the names of the registered jumanji envs, except those with one reward per agent.

    `Sokoban-v0` downloads its levels when it is made.
    """
    return tuple(sorted(jumanji.registered_environments().difference(MULTI_AGENT_NAMES)))


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Build the jumanji env `name`; `kwargs` go to its constructor.

    `episode_length` replaces the time limit of an env that has one.
    """
    if name not in jumanji.registered_environments():
        raise unknown_name("environment", f"jumanji/{name}", [f"jumanji/{known}" for known in names()])
    env_class = jumanji.registration.load(jumanji.registration._REGISTRY[name].entry_point)
    constructor_arguments = set(inspect.signature(env_class).parameters)
    accepted = constructor_arguments - {"time_limit"} | {"episode_length"}
    for argument in kwargs:
        if argument not in accepted:
            raise InvalidInputError(
                f"jumanji/{name} takes no argument {argument!r}: it takes {', '.join(sorted(accepted))}."
            )
    if episode_length is not None and "time_limit" in constructor_arguments:
        kwargs["time_limit"] = episode_length
    try:
        with relaxed_promotion():
            jumanji_env = jumanji.make(name, **kwargs)
    except OSError as error:
        raise InvalidInputError(
            f"jumanji/{name} could not load its data ({error}): its first use needs internet access. "
            "Or pass another generator=."
        ) from error
    return JumanjiAdapter(jumanji_env)


def _without_time_limit(jumanji_env: jumanji.Environment) -> jumanji.Environment:
    """Return a copy of an env without its time limit."""
    timeless_env = copy.copy(jumanji_env)
    if isinstance(jumanji_env, jumanji.wrappers.Wrapper):
        timeless_env._env = _without_time_limit(jumanji_env._env)
    elif hasattr(jumanji_env, "time_limit"):
        timeless_env.time_limit = NO_TIME_LIMIT
    return timeless_env


def _obs_space(jumanji_env: jumanji.Environment) -> Space:
    """Convert the observation spec, with corrected bounds for two envs."""
    space = _to_space(jumanji_env.observation_spec)
    corrected: dict[str, Space] = {}
    match type(jumanji_env.unwrapped).__name__:
        case "Snake":
            # The spec excludes the time limit, which the last observation reaches.
            corrected["step_count"] = Box(0, jumanji_env.unwrapped.time_limit, (), np.int32)
        case "TSP":
            # Before the first city, the position is -1.
            corrected["position"] = Discrete(jumanji_env.unwrapped.num_cities + 1, start=-1)
    return Dict({**space.spaces, **corrected}) if isinstance(space, Dict) else space


def _action_space(jumanji_env: jumanji.Environment) -> ArraySpace:
    """Convert the action spec; an array of bounded integers becomes a `MultiDiscrete`."""
    space = _to_space(jumanji_env.action_spec)
    if not isinstance(space, ArraySpace):
        raise InvalidInputError(f"{type(jumanji_env.unwrapped).__name__} has actions {space}; expected one array.")
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.integer):
        num_values = space.high.astype(np.int64) - space.low + 1
        if type(jumanji_env.unwrapped).__name__ == "MultiCVRP":
            num_values -= 1  # the spec counts one node too many
        return MultiDiscrete(num_values, space.low, space.dtype)
    return space


def _to_space(spec: specs.Spec) -> Space:
    match spec:
        case specs.DiscreteArray():
            return Discrete(spec.num_values, dtype=spec.dtype)
        case specs.MultiDiscreteArray():
            return MultiDiscrete(spec.num_values, dtype=spec.dtype)
        case specs.BoundedArray():
            return Box(spec.minimum, spec.maximum, spec.shape, spec.dtype)
        case specs.Array():
            return Box(-np.inf, np.inf, spec.shape, spec.dtype)
    return Dict({name: _to_space(entry) for name, entry in _entries(spec).items()})


def _named_entries(obs: Any, spec: specs.Spec) -> Any:
    """Turn the named tuples and dataclasses of an observation into dicts, entry by entry of its spec."""
    if isinstance(spec, specs.Array):
        return obs
    return PyTreeDict({name: _named_entries(getattr(obs, name), entry) for name, entry in _entries(spec).items()})


def _entries(spec: specs.Spec) -> dict[str, specs.Spec]:
    return {name: entry for name, entry in vars(spec).items() if isinstance(entry, specs.Spec)}
