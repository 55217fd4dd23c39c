"""Probe environments: small tasks with known results that each isolate one ability of a method.

They are the library `probe`: `create_env("probe/counter")`.
"""

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.adapter import make_from_table
from rookery.envs.env import Env, EnvState, MultiAgentEnv
from rookery.errors import check_count
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rookery.types import Action, Array, Key, Obs, PyTreeData, PyTreeDict, as_key


class CounterState(PyTreeData):
    start: Array
    count: Array


class CounterEnv(Env):
    """Counts its own steps: step t (from 0) gives reward t + 1 and the observation `[start, t + 1]`.

    `start` is random for each episode, so episodes differ. The episode terminates after `terminates_after` steps, or
    never if it is None. With `dict_obs` the observation is a dict of the same numbers. Actions have no effect.
    """

    def __init__(self, terminates_after: int | None = None, dict_obs: bool = False) -> None:
        self.terminates_after = terminates_after
        self.dict_obs = dict_obs

    @property
    def obs_space(self) -> Space:
        number = Box(0.0, np.inf, ())
        return Dict(start=number, count=number) if self.dict_obs else Box(0.0, np.inf, (2,))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def reset(self, key: Key) -> EnvState:
        start = jax.random.randint(as_key(key), (), 0, 2**23).astype(jnp.float32)
        return self._state(CounterState(start=start, count=jnp.zeros((), jnp.int32)), jnp.zeros((), jnp.float32))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        before = env_state.env_state
        after = before.replace(count=before.count + 1)
        return self._state(after, after.count.astype(jnp.float32))

    def _state(self, state: CounterState, reward: Array) -> EnvState:
        count = state.count.astype(jnp.float32)
        obs = PyTreeDict(start=state.start, count=count) if self.dict_obs else jnp.stack([state.start, count])
        done = jnp.zeros((), jnp.float32)
        if self.terminates_after is not None:
            done = (state.count >= self.terminates_after).astype(jnp.float32)
        return EnvState(env_state=state, obs=obs, reward=reward, done=done)


class MultiAgentCounterEnv(MultiAgentEnv):
    """Agents `a0`, `a1`, ... observe `[own index, step count]`; the reward of agent i is i plus its action, 0 or 1."""

    def __init__(self, num_agents: int = 3, terminates_after: int | None = None) -> None:
        self.num_agents = num_agents
        self.terminates_after = terminates_after

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(f"a{index}" for index in range(self.num_agents))

    @property
    def obs_space(self) -> Dict:
        return Dict({agent: Box(0.0, np.inf, (2,)) for agent in self.agents})

    @property
    def action_space(self) -> Dict:
        return Dict({agent: Discrete(2) for agent in self.agents})

    def reset(self, key: Key) -> EnvState:
        return self._state(jnp.zeros((), jnp.int32), {agent: jnp.zeros((), jnp.float32) for agent in self.agents})

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        rewards = {agent: index + action[agent].astype(jnp.float32) for index, agent in enumerate(self.agents)}
        return self._state(env_state.env_state + 1, rewards)

    def _state(self, count: Array, rewards: dict[str, Array]) -> EnvState:
        obs = {
            agent: jnp.stack([jnp.float32(index), count.astype(jnp.float32)]) for index, agent in enumerate(self.agents)
        }
        done = jnp.zeros((), jnp.float32)
        if self.terminates_after is not None:
            done = (count >= self.terminates_after).astype(jnp.float32)
        return EnvState(env_state=count, obs=PyTreeDict(obs), reward=PyTreeDict(rewards), done=done)


class ProbeState(PyTreeData):
    """The state of short probes: time, hidden cue, and random key."""

    time: Array
    cue: Array
    key: Key


class ShortProbe(Env):
    """A few steps, two actions, and a random cue of -1 or 1 per episode."""

    num_steps = 1

    @property
    def obs_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    @abstractmethod
    def observe(self, state: ProbeState) -> Obs:
        """Return the observation."""

    @abstractmethod
    def reward(self, state: ProbeState, action: Array) -> Array:
        """Return the reward of `action` in `state`."""

    def reset(self, key: Key) -> EnvState:
        cue_key, next_key = jax.random.split(as_key(key))
        cue = jnp.where(jax.random.bernoulli(cue_key), 1.0, -1.0).astype(jnp.float32)
        state = ProbeState(time=jnp.zeros((), jnp.int32), cue=cue, key=next_key)
        return EnvState(
            env_state=state, obs=self.observe(state), reward=jnp.zeros((), jnp.float32), done=jnp.zeros((), jnp.float32)
        )

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        state = env_state.env_state
        after = self.advance(state)
        done = (after.time >= self.num_steps).astype(jnp.float32)
        reward = self.reward(state, jnp.asarray(action)).astype(jnp.float32)
        return EnvState(env_state=after, obs=self.observe(after), reward=reward, done=done)

    def advance(self, state: ProbeState) -> ProbeState:
        return state.replace(time=state.time + 1)


class ConstantRewardProbe(ShortProbe):
    """One step with reward 1. The value is 1: tests the value loss."""

    def observe(self, state: ProbeState) -> Array:
        return jnp.zeros((1,), jnp.float32)

    def reward(self, state: ProbeState, action: Array) -> Array:
        return jnp.ones((), jnp.float32)


class ObservedRewardProbe(ShortProbe):
    """One step whose reward, and value, is the observation, -1 or 1: tests the input of the critic."""

    def observe(self, state: ProbeState) -> Array:
        return state.cue[None]

    def reward(self, state: ProbeState, action: Array) -> Array:
        return state.cue


class DelayedRewardProbe(ShortProbe):
    """Two steps, reward 1 at the second. The values are `discount` and 1: tests discounting."""

    num_steps = 2

    def observe(self, state: ProbeState) -> Array:
        return state.time.astype(jnp.float32)[None]

    @property
    def obs_space(self) -> Space:
        return Box(0.0, 2.0, (1,))

    def reward(self, state: ProbeState, action: Array) -> Array:
        return state.time.astype(jnp.float32)


class ActionRewardProbe(ShortProbe):
    """One step, reward 1 for action 1 and -1 for action 0: tests the policy loss."""

    def observe(self, state: ProbeState) -> Array:
        return jnp.zeros((1,), jnp.float32)

    def reward(self, state: ProbeState, action: Array) -> Array:
        return 2.0 * action.astype(jnp.float32) - 1.0


class CueRewardProbe(ShortProbe):
    """One step, reward 1 for the action that matches the cue, else -1: tests the input of the policy."""

    def observe(self, state: ProbeState) -> Array:
        return state.cue[None]

    def reward(self, state: ProbeState, action: Array) -> Array:
        return state.cue * (2.0 * action.astype(jnp.float32) - 1.0)


class MemoryProbe(CueRewardProbe):
    """The cue is observed once; the action `delay` steps later must match it. A memoryless policy has mean return 0."""

    def __init__(self, delay: int = 3) -> None:
        check_count("delay", delay)
        self.num_steps = delay + 1

    def observe(self, state: ProbeState) -> Array:
        return jnp.where(state.time == 0, state.cue, 0.0)[None]

    def reward(self, state: ProbeState, action: Array) -> Array:
        return jnp.where(state.time == self.num_steps - 1, super().reward(state, action), 0.0)


class MaskProbe(ShortProbe):
    """Four actions, of which two are allowed, at random in each step: reward 1, or -100 for a forbidden action."""

    num_steps = 8

    @property
    def obs_space(self) -> Space:
        return Dict(cue=Box(-1.0, 1.0, (1,)), action_mask=Box(0, 1, (4,), np.int8))

    @property
    def action_space(self) -> Space:
        return Discrete(4)

    def observe(self, state: ProbeState) -> PyTreeDict:
        return PyTreeDict(cue=state.cue[None], action_mask=self._allowed(state))

    def reward(self, state: ProbeState, action: Array) -> Array:
        return jnp.where(self._allowed(state)[action] == 1, 1.0, -100.0)

    def advance(self, state: ProbeState) -> ProbeState:
        return state.replace(time=state.time + 1, key=jax.random.split(state.key)[0])

    def _allowed(self, state: ProbeState) -> Array:
        mask_key = jax.random.split(state.key)[1]
        return (jax.random.permutation(mask_key, 4) < 2).astype(jnp.int8)


class MultiDiscreteProbe(CueRewardProbe):
    """Two choices, of 3 and of 2 values: reward 1 for each choice that matches the cue."""

    @property
    def action_space(self) -> Space:
        return MultiDiscrete([3, 2])

    def reward(self, state: ProbeState, action: Array) -> Array:
        right = jnp.where(state.cue > 0, jnp.array([2, 1]), jnp.array([0, 0]))
        return jnp.sum((action == right).astype(jnp.float32))


class ContinuousProbe(CueRewardProbe):
    """One step, a continuous action in [-1, 1]; the reward is minus the squared distance to half the cue."""

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    def reward(self, state: ProbeState, action: Array) -> Array:
        return -jnp.square(action[0] - 0.5 * state.cue)


PROBES: dict[str, type[Env]] = {
    "action_reward": ActionRewardProbe,
    "constant_reward": ConstantRewardProbe,
    "continuous": ContinuousProbe,
    "counter": CounterEnv,
    "cue_reward": CueRewardProbe,
    "delayed_reward": DelayedRewardProbe,
    "mask": MaskProbe,
    "memory": MemoryProbe,
    "multi_agent_counter": MultiAgentCounterEnv,
    "multi_discrete": MultiDiscreteProbe,
    "observed_reward": ObservedRewardProbe,
}


def names() -> tuple[str, ...]:
    """Return the names of the probes."""
    return tuple(PROBES)


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Build a probe; they have no time limit of their own."""
    return make_from_table("probe", PROBES, name, kwargs)
