"""Rollouts of several agents. Agents that share a policy are batched; all policies form one joint action function.

`joint_action_fn` combines several policies into one action function whose observations, actions, state and carry are
dicts, so all rollouts and `Evaluator` accept it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.envs import EnvState
from rookery.errors import InvalidInputError, ShapeError
from rookery.rollout.single_agent import ActionFn, EnvFn, is_recurrent, recurrent_rollout
from rookery.sample_batch import MultiAgentBatch, SampleBatch
from rookery.types import Array, Key, PyTree, PyTreeDict

PolicyMapping = Mapping[str, str]
"""The policy of each agent: agent name -> policy name."""


def multi_agent_rollout(
    env_fn: EnvFn,
    action_fns: Mapping[str, ActionFn],
    policy_mapping: PolicyMapping,
    env_state: EnvState,
    agent_states: Mapping[str, AgentState],
    key: Key,
    rollout_length: int,
    env_extra_fields: tuple[str, ...] = (),
) -> tuple[MultiAgentBatch, EnvState]:
    """`rollout` with several agents: `action_fns` and `agent_states` have one entry per policy."""
    batch, env_state, _ = recurrent_multi_agent_rollout(
        env_fn, action_fns, policy_mapping, env_state, agent_states, {}, key, rollout_length, env_extra_fields
    )
    return batch, env_state


def recurrent_multi_agent_rollout(
    env_fn: EnvFn,
    action_fns: Mapping[str, ActionFn],
    policy_mapping: PolicyMapping,
    env_state: EnvState,
    agent_states: Mapping[str, AgentState],
    carries: Mapping[str, Carry],
    key: Key,
    rollout_length: int,
    env_extra_fields: tuple[str, ...] = (),
) -> tuple[MultiAgentBatch, EnvState, PyTreeDict]:
    """`multi_agent_rollout` with recurrent policies; `carries` has an entry `[A * B, ...]` for each of them."""
    _check_names("policies with a state", agent_states, "policies with an action function", action_fns)
    trajectory, env_state, carries = recurrent_rollout(
        env_fn,
        joint_action_fn(action_fns, policy_mapping),
        env_state,
        agent_states,  # type: ignore[arg-type]
        PyTreeDict({policy: carries.get(policy, ()) for policy in action_fns}),
        key,
        rollout_length,
        tuple(sorted({"autoreset", *env_extra_fields})),
    )
    return split_by_policy(trajectory, policy_mapping), env_state, PyTreeDict(carries)


def joint_action_fn(action_fns: Mapping[str, ActionFn], policy_mapping: PolicyMapping) -> ActionFn:
    """Combine one action function per policy; agent states, carries and extras become dicts over policies."""
    _check_names("policies of policy_mapping", policy_mapping.values(), "policies with an action function", action_fns)
    return _JointActionFn(tuple(sorted(action_fns.items())), tuple(policy_mapping.items()))


def agents_of(policy: str, policy_mapping: PolicyMapping) -> list[str]:
    """Return the agents that share a policy in the order in which they lie on the batch axis: sorted."""
    return sorted(agent for agent, its_policy in policy_mapping.items() if its_policy == policy)


def split_by_policy(trajectory: SampleBatch, policy_mapping: PolicyMapping) -> MultiAgentBatch:
    """Regroup a joint trajectory into one `[T, A * B, ...]` batch per policy."""
    batches = PyTreeDict()
    for policy in sorted(set(policy_mapping.values())):
        agents = agents_of(policy, policy_mapping)

        def side_by_side(shared_or_per_agent: PyTree, agents: list[str] = agents) -> PyTree:
            return _join([_of_agent(shared_or_per_agent, agent, policy_mapping) for agent in agents], axis=1)

        extras = trajectory.extras
        policy_extras = extras.policy_extras.get(policy, PyTreeDict())
        if "episode_start" in extras.policy_extras and "episode_start" not in policy_extras:
            policy_extras = policy_extras.replace(episode_start=side_by_side(extras.policy_extras.episode_start))
        batches[policy] = SampleBatch(
            obs=side_by_side(trajectory.obs),
            actions=side_by_side(trajectory.actions),
            rewards=side_by_side(trajectory.rewards),
            next_obs=side_by_side(trajectory.next_obs),
            dones=side_by_side(trajectory.dones),
            extras=PyTreeDict(
                policy_extras=policy_extras,
                env_extras={name: side_by_side(values) for name, values in extras.env_extras.items()},
            ),
        )
    return MultiAgentBatch(batches=batches, env_steps=_num_env_steps(trajectory))


@dataclass(frozen=True)
class _JointActionFn:
    """A hashable action function, so that JAX finds the compiled rollout again."""

    action_fns: tuple[tuple[str, ActionFn], ...]
    policy_mapping: tuple[tuple[str, str], ...]

    def __call__(self, agent_states: PyTree, sample_batch: SampleBatch, key: Key) -> tuple[PyTreeDict, PyTreeDict]:
        mapping = dict(self.policy_mapping)
        _check_names("agents of policy_mapping", mapping, "agents of the environment", sample_batch.obs)
        inputs = sample_batch.extras.policy_extras
        actions, extras, carries = PyTreeDict(), PyTreeDict(), PyTreeDict()
        for (policy, action_fn), policy_key in zip(
            self.action_fns, jax.random.split(key, len(self.action_fns)), strict=True
        ):
            agents = agents_of(policy, mapping)
            carry = inputs.carry[policy] if inputs.carry else ()
            policy_inputs = PyTreeDict(carry=carry)
            if is_recurrent(carry):
                policy_inputs.episode_start = _join([inputs.episode_start] * len(agents), axis=0)
            batch = SampleBatch(
                obs=_join([sample_batch.obs[agent] for agent in agents], axis=0),
                extras=PyTreeDict(policy_extras=policy_inputs, env_extras=PyTreeDict()),
            )
            policy_actions, policy_extras = action_fn(agent_states[policy], batch, policy_key)
            policy_extras = PyTreeDict(policy_extras)
            carries[policy] = policy_extras.pop("carry", carry)
            extras[policy] = policy_extras
            actions |= dict(zip(agents, _split(policy_actions, len(agents)), strict=True))
        if inputs.carry:
            extras["carry"] = carries
        return actions, extras


def _check_names(what: str, given: Iterable[str], of_what: str, expected: Iterable[str]) -> None:
    given, expected = set(given), set(expected)
    if given != expected:
        raise InvalidInputError(
            f"the {what} must equal the {of_what}: "
            f"missing {sorted(expected - given)}, unknown {sorted(given - expected)}."
        )


def _num_env_steps(trajectory: SampleBatch) -> Array:
    """Count the env steps without the dead rows of `ENVPOOL` mode."""
    dead = trajectory.extras.env_extras.get("autoreset", jnp.zeros_like(trajectory.dones))
    return jnp.sum(dead == 0, dtype=jnp.int32)


def _of_agent(shared_or_per_agent: PyTree, agent: str, policy_mapping: PolicyMapping) -> PyTree:
    """Return the agent's entry of values keyed by agent; other values belong to the env and are shared."""
    if isinstance(shared_or_per_agent, Mapping) and set(shared_or_per_agent) == set(policy_mapping):
        return shared_or_per_agent[agent]
    return shared_or_per_agent


def _join(parts: list[PyTree], axis: int) -> PyTree:
    """Concatenate the values of several agents on the batch axis."""

    def concatenate(*arrays: Array) -> Array:
        try:
            return jnp.concatenate(arrays, axis=axis)
        except TypeError:
            shapes = [list(array.shape) for array in arrays]
            raise ShapeError(f"agents that share a policy must have equal spaces, got the shapes {shapes}.") from None

    return jax.tree.map(concatenate, *parts)


def _split(joined: PyTree, num_parts: int) -> list[PyTree]:
    """Undo `_join` along the first axis."""
    leaves, structure = jax.tree.flatten(joined)
    pieces = [jnp.split(leaf, num_parts) for leaf in leaves]
    return [jax.tree.unflatten(structure, [parts[index] for parts in pieces]) for index in range(num_parts)]
