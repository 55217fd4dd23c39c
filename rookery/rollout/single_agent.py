"""Rollouts of one agent: trajectories for training, returns for evaluation.

The recurrent functions pass the carry of the agent from step to step; the others are the same with an empty carry.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.control_flow import any_true
from rookery.envs import EnvState
from rookery.errors import InvalidInputError, check_count
from rookery.metrics import EvaluateMetric
from rookery.sample_batch import SampleBatch
from rookery.types import Action, Array, Key, PyTreeDict, as_one_key

EnvFn = Callable[[EnvState, Action], EnvState]
ActionFn = Callable[[AgentState, SampleBatch, Key], tuple[Action, PyTreeDict]]


def rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    key: Key,
    rollout_length: int,
    env_extra_fields: tuple[str, ...] = (),
) -> tuple[SampleBatch, EnvState]:
    """Act for `rollout_length` steps; return the trajectory `[T, B, ...]` and the last env state.

    `next_obs` is the observation that the env returned: under autoreset it may belong to the next episode. The fields
    `env_extra_fields` of `info` are stored in `extras.env_extras`, if the env has them.
    """
    trajectory, env_state, _ = recurrent_rollout(
        env_fn, action_fn, env_state, agent_state, (), key, rollout_length, env_extra_fields
    )
    return trajectory, env_state


def recurrent_rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
    env_extra_fields: tuple[str, ...] = (),
) -> tuple[SampleBatch, EnvState, Carry]:
    """`rollout` of a recurrent agent; takes the carry before the first step and returns the one after the last.

    `extras.policy_extras.episode_start` is 1 at the steps where the agent reset its carry before acting. Together with
    the first `carry`, this is enough to replay the trajectory.
    """
    check_count("rollout_length", rollout_length)
    if isinstance(env_extra_fields, str):
        raise InvalidInputError(
            f"env_extra_fields={env_extra_fields!r}: give a tuple of names, ({env_extra_fields!r},)."
        )
    return _rollout(
        env_fn, action_fn, env_state, agent_state, carry, as_one_key(key), rollout_length, tuple(env_extra_fields)
    )


@partial(jax.jit, static_argnames=("env_fn", "action_fn", "rollout_length", "env_extra_fields"))
def _rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
    env_extra_fields: tuple[str, ...],
) -> tuple[SampleBatch, EnvState, Carry]:
    def step(state: tuple[EnvState, Carry], index: Array) -> tuple[tuple[EnvState, Carry], SampleBatch]:
        env_state, carry = state
        step_key = jax.random.fold_in(key, index)
        actions, policy_extras, next_carry = act(action_fn, agent_state, env_state, carry, step_key)
        next_env_state = env_fn(env_state, actions)
        if is_recurrent(carry):
            policy_extras = policy_extras.replace(episode_start=env_state.info.episode_start)
        env_extras = {name: next_env_state.info[name] for name in env_extra_fields if name in next_env_state.info}
        transition = SampleBatch(
            obs=env_state.obs,
            actions=actions,
            rewards=next_env_state.reward,
            dones=next_env_state.done,
            extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
        )
        return (next_env_state, next_carry), transition

    (env_state, carry), trajectory = jax.lax.scan(step, (env_state, carry), jnp.arange(rollout_length))
    # The next observation of a row is the observation of the next row: copied once instead of stored in the loop.
    next_obs = jax.tree.map(lambda obs, last: jnp.concatenate([obs[1:], last[None]]), trajectory.obs, env_state.obs)
    return trajectory.replace(next_obs=next_obs), env_state, carry


def eval_rollout_episode(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    key: Key,
    rollout_length: int,
) -> tuple[SampleBatch, EnvState]:
    """Act until every env is done; return `rewards` and `dones`, `[T, B]`, and the last env state.

    After the end of its episode an env has reward 0 and done 1. Once every env is done, env steps are not computed any
    more. An env that is done in `env_state` plays no step.
    """
    trajectory, env_state, _ = recurrent_eval_rollout_episode(
        env_fn, action_fn, env_state, agent_state, (), key, rollout_length
    )
    return trajectory, env_state


def recurrent_eval_rollout_episode(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
) -> tuple[SampleBatch, EnvState, Carry]:
    """`eval_rollout_episode` of a recurrent agent."""
    check_count("rollout_length", rollout_length)
    return _eval_rollout(env_fn, action_fn, env_state, agent_state, carry, as_one_key(key), rollout_length)


@partial(jax.jit, static_argnames=("env_fn", "action_fn", "rollout_length"))
def _eval_rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
) -> tuple[SampleBatch, EnvState, Carry]:
    def step(state: tuple[EnvState, Carry, Array], step_key: Key) -> tuple[tuple, SampleBatch]:
        ended = state[-1]

        def advance(env_state: EnvState, carry: Carry, ended: Array) -> tuple[tuple, Any]:
            actions, _, carry = act(action_fn, agent_state, env_state, carry, step_key)
            env_state = env_fn(env_state, actions)
            rewards = jax.tree.map(lambda reward: jnp.where(ended, 0.0, reward), env_state.reward)
            return (env_state, carry, ended | (env_state.done > 0)), rewards

        def rest(env_state: EnvState, carry: Carry, ended: Array) -> tuple[tuple, Any]:
            return (env_state, carry, ended), jax.tree.map(jnp.zeros_like, env_state.reward)

        state, rewards = jax.lax.cond(any_true(~ended), advance, rest, *state)
        return state, SampleBatch(rewards=rewards, dones=state[-1].astype(jnp.float32))

    step_keys = jax.random.split(key, rollout_length)
    state = (env_state, carry, env_state.done > 0)
    (env_state, carry, _), trajectory = jax.lax.scan(step, state, step_keys)
    return trajectory, env_state, carry


def fast_eval_rollout_episode(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    key: Key,
    rollout_length: int,
    discount: float = 1.0,
) -> tuple[EvaluateMetric, EnvState]:
    """Act until every env is done or `rollout_length` is reached; return only returns and lengths, `[B]`.

    Steps after the first done of an env do not count, so the env may reset itself. An env that is done in `env_state`
    has return 0 and length 0.
    """
    metrics, env_state, _ = recurrent_fast_eval_rollout_episode(
        env_fn, action_fn, env_state, agent_state, (), key, rollout_length, discount
    )
    return metrics, env_state


def recurrent_fast_eval_rollout_episode(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
    discount: float = 1.0,
) -> tuple[EvaluateMetric, EnvState, Carry]:
    """`fast_eval_rollout_episode` of a recurrent agent."""
    check_count("rollout_length", rollout_length)
    return _fast_eval_rollout(
        env_fn, action_fn, env_state, agent_state, carry, as_one_key(key), rollout_length, jnp.float32(discount)
    )


@partial(jax.jit, static_argnames=("env_fn", "action_fn", "rollout_length"))
def _fast_eval_rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    carry: Carry,
    key: Key,
    rollout_length: int,
    discount: Array,
) -> tuple[EvaluateMetric, EnvState, Carry]:
    def is_unfinished(state: tuple) -> Array:
        num_steps, _, _, ended, *_ = state
        return (num_steps < rollout_length) & any_true(~ended)

    def step(state: tuple) -> tuple:
        num_steps, env_state, carry, ended, returns, lengths, discount_power = state
        step_key = jax.random.fold_in(key, num_steps)
        actions, _, carry = act(action_fn, agent_state, env_state, carry, step_key)
        env_state = env_fn(env_state, actions)
        returns = jax.tree.map(
            lambda so_far, reward: so_far + jnp.where(ended, 0.0, discount_power * reward), returns, env_state.reward
        )
        lengths = lengths + (~ended).astype(jnp.int32)
        ended = ended | (env_state.done > 0)
        return num_steps + 1, env_state, carry, ended, returns, lengths, discount_power * discount

    start = (
        jnp.zeros((), jnp.int32),
        env_state,
        carry,
        env_state.done > 0,
        jax.tree.map(jnp.zeros_like, env_state.reward),
        jnp.zeros(env_state.done.shape, jnp.int32),
        jnp.ones((), jnp.float32),
    )
    _, env_state, carry, _, returns, lengths, _ = jax.lax.while_loop(is_unfinished, step, start)
    return EvaluateMetric(episode_returns=returns, episode_lengths=lengths), env_state, carry


def act(
    action_fn: ActionFn, agent_state: AgentState, env_state: EnvState, carry: Carry, key: Key
) -> tuple[Action, PyTreeDict, Carry]:
    """Compute actions from the observations and the carry; return actions, extras without carry, and the carry."""
    policy_extras = PyTreeDict(carry=carry)
    if is_recurrent(carry):
        if "episode_start" not in env_state.info:
            raise InvalidInputError(
                "a recurrent agent needs info.episode_start to know where episodes begin: build the environment with "
                "create_env or wrap_env."
            )
        policy_extras.episode_start = env_state.info.episode_start
    batch = SampleBatch(obs=env_state.obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))
    actions, policy_extras = action_fn(agent_state, batch, key)
    policy_extras = PyTreeDict(policy_extras)
    return actions, policy_extras, policy_extras.pop("carry", carry)


def is_recurrent(carry: Carry) -> bool:
    """Tell whether the carry has any arrays."""
    return bool(jax.tree.leaves(carry))
