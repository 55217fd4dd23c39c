"""Gradient steps of several actors that share their critics, side by side.

The reference of CEM-RL trains one actor after the other, each with targets of its own. Here a joint step updates the
critics once, on the mean of the losses of all actors, and then every actor (as fastpbrl and EvoRL do).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery.agents.replay import LossInfo
from rookery.distributed.collectives import key_of_this_device, mean_over_devices
from rookery.hyperparameters import HyperparameterValues, values_at
from rookery.learners.actor_critic import ActorCriticLearner
from rookery.learners.learner import Metrics
from rookery.learners.replay import OffPolicyState, repeated
from rookery.learning.targets import polyak
from rookery.metrics import Mean
from rookery.types import Array, Key, Params, PyTreeData


class Actors(PyTreeData):
    """The actors of this device `[K, ...]`, with their target copies and optimizer states; these start fresh."""

    params: Params
    targets: Params
    optimizer_states: Any


def climb(
    learner: ActorCriticLearner, state: OffPolicyState, actors: Params, num_steps: Array, key: Key
) -> tuple[Metrics, Params, OffPolicyState]:
    """Take joint steps: the critics fit all actors, and every actor climbs the critics.

    Return the actors `[K, ...]` of this device and the state; the policy of the state itself stays as it is.
    """
    hyperparameters: HyperparameterValues = values_at(state.hyperparameters, state.env_steps.as_float())
    started = Actors(params=actors, targets=actors, optimizer_states=jax.vmap(learner.optimizer.init)(actors))
    step = jax.jit(partial(joint_step, learner, hyperparameters))  # traced once
    num_steps = jnp.where(learner.is_ready(state), num_steps, 0)
    metrics, (climbed, state) = repeated(step, (started, state), key_of_this_device(key), num_steps)
    return metrics, climbed.params, state


def joint_step(
    learner: ActorCriticLearner,
    hyperparameters: HyperparameterValues,
    carry: tuple[Actors, OffPolicyState],
    key: Key,
) -> tuple[tuple[Actors, OffPolicyState], Metrics]:
    """Update the critics by the mean of the losses of all actors, then all actors, then the targets."""
    actors, state = carry
    num_actors = jax.tree.leaves(actors.params)[0].shape[0]
    sample_key, critic_key, actor_key = jax.random.split(key, 3)
    batches, _ = jax.vmap(
        lambda key: learner.sample_batch(state.buffer_state, hyperparameters, key, learner.config.batch_size)
    )(jax.random.split(sample_key, num_actors))
    transitions = jax.vmap(lambda batch: learner.agent.transitions(state.agent_state, batch, hyperparameters.discount))(
        batches
    )

    def loss_of_critics(critics: Params) -> tuple[Array, LossInfo]:
        def of_one(policy: Params, target: Params, transitions: Any, key: Key) -> tuple[Array, dict[str, Array]]:
            of_actor = with_actor(state, policy, target)
            loss, info = learner.loss_of_critics(of_actor, transitions, hyperparameters, key)(critics)
            return loss, info.metrics

        keys = jax.random.split(critic_key, num_actors)
        losses, metrics = jax.vmap(of_one)(actors.params, actors.targets, transitions, keys)
        return jnp.mean(losses), LossInfo(metrics=jax.tree.map(jnp.mean, metrics))

    of_critics, state = learner.gradient_step(
        state, "critics", loss_of_critics, hyperparameters.critic_learning_rate, hyperparameters.max_grad_norm
    )

    def climb_once(policy: Params, optimizer_state: Any, transitions: Any, key: Key) -> tuple[Params, Any, dict]:
        loss_fn = learner.loss_of_actor(with_actor(state, policy, policy), transitions, hyperparameters, key)
        gradients, info = jax.grad(loss_fn, has_aux=True)(policy)
        policy, optimizer_state, _ = learner.optimizer.step(
            gradients, optimizer_state, policy, hyperparameters.actor_learning_rate, hyperparameters.max_grad_norm
        )
        return policy, optimizer_state, info.metrics

    keys = jax.random.split(actor_key, num_actors)
    params, optimizer_states, of_actors = jax.vmap(climb_once)(
        actors.params, actors.optimizer_states, transitions, keys
    )
    rate = hyperparameters.target_update_rate
    actors = Actors(params=params, targets=polyak(actors.targets, params, rate), optimizer_states=optimizer_states)
    of_actor = LossInfo(metrics=mean_over_devices(jax.tree.map(jnp.mean, of_actors)))
    first = jax.tree.map(lambda leaf: leaf[0], transitions)
    state = learner.adapt(state, first, of_actor, hyperparameters)
    critics = polyak(state.target_params.critics, state.agent_state.params.critics, rate)
    state = state.replace(
        target_params=state.target_params.replace(critics=critics), num_updates=state.num_updates.add(1)
    )
    metrics = of_critics.metrics | of_actor.metrics
    return (actors, state), {name: Mean.of(value) for name, value in metrics.items()}


def with_actor(state: OffPolicyState, policy: Params, target: Params) -> OffPolicyState:
    """Return the state with one of the actors as its policy; methods without a target policy ignore its target."""
    targets = {"policy": target} if "policy" in state.target_params else {}
    return state.replace(
        agent_state=state.agent_state.replace(params=state.agent_state.params.replace(policy=policy)),
        target_params=state.target_params.replace(**targets),
        buffer_state=None,
    )
