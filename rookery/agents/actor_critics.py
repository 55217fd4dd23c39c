"""The agent of SAC, TD3 and DDPG: a policy, and critics that say what its actions are worth."""

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.agents.replay import LossInfo, ReplayAgent, Transitions
from rookery.learning.moments import check_same_shape
from rookery.networks.critic import ActorCriticsConfig, ActorCriticsNetwork
from rookery.spaces import Space
from rookery.types import Array, Params, pytree_field


class ActorCriticsAgent(ReplayAgent):
    """Has parameters of a `policy` and of several `critics`; the methods add how they act and what they aim at."""

    config: ActorCriticsConfig = pytree_field(static=True, default_factory=ActorCriticsConfig)

    def make_network(self, obs_space: Space, action_space: Space) -> ActorCriticsNetwork:
        return ActorCriticsNetwork(obs_space, action_space, self.config)

    def critic_loss(
        self, agent_state: AgentState, critics: Params, transitions: Transitions, targets: Array
    ) -> tuple[Array, LossInfo]:
        """Return the squared errors of all critics, which have the same targets `[T, N]`."""
        critic = agent_state.extra_state.network.critic

        def values_of(params: Params) -> Array:
            features, _ = self.features(critic.trunk, params["trunk"], transitions)
            return critic(params, features, transitions.actions)

        return mean_squared_errors(jax.vmap(values_of)(critics), targets, transitions)


def mean_squared_errors(values: Array, targets: Array, transitions: Transitions) -> tuple[Array, LossInfo]:
    """Return the loss of several critics whose values are `[C, T, N]`, all with the same targets `[T, N]`."""
    check_same_shape(values=values[0], targets=targets)
    errors = values - targets[None]
    loss = transitions.corrected_mean(0.5 * jnp.sum(errors**2, axis=0))
    metrics = {"train/critic_loss": loss, "train/value": transitions.mean(values[0])}
    return loss, LossInfo(metrics=metrics, errors=transitions.errors_that_count(jnp.mean(jnp.abs(errors), axis=0)))
