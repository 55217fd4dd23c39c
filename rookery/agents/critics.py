"""The loss of critics that share their targets, for agents with a policy and several critics."""

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.agents.replay import LossInfo, ReplayAgent, Transitions
from rookery.learning.moments import check_same_shape
from rookery.types import Array, Params


def critic_loss(
    agent: ReplayAgent, agent_state: AgentState, critics: Params, transitions: Transitions, targets: Array
) -> tuple[Array, LossInfo]:
    """Return the squared errors of all critics, which have the same targets `[T, N]`."""
    critic = agent_state.extra_state.network.critic

    def values_of(params: Params) -> Array:
        features, _ = agent.features(critic.trunk, params["trunk"], transitions)
        return critic(params, features, transitions.actions)

    return mean_squared_errors(jax.vmap(values_of)(critics), targets, transitions)


def mean_squared_errors(values: Array, targets: Array, transitions: Transitions) -> tuple[Array, LossInfo]:
    """Return the loss of several critics whose values are `[C, T, N]`, all with the same targets `[T, N]`."""
    check_same_shape(values=values[0], targets=targets)
    errors = values - targets[None]
    loss = transitions.corrected_mean(0.5 * jnp.sum(errors**2, axis=0))
    metrics = {"train/critic_loss": loss, "train/value": transitions.mean(values[0])}
    return loss, LossInfo(metrics=metrics, errors=transitions.errors_that_count(jnp.mean(jnp.abs(errors), axis=0)))
