"""Advantage and return estimators for trajectories that may span several episodes.

All arrays are time-major. `next_values[t]` is the value of the true successor of row `t`: at a truncation, the value of
the last observation of the episode, not of the first observation of the next one. `dones` marks the last row of each
episode and `terminations` the last rows that reached a terminal state. The value of a terminal state is 0 even if
`next_values` is NaN there. After the last row of the trajectory, estimates bootstrap as at a truncation.

Gradients flow through the estimates: apply `jax.lax.stop_gradient` to use them as constants.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rookery.errors import check_count
from rookery.learning.moments import check_rank, check_same_shape
from rookery.types import PyTreeData

Scalar = float | int | Float[Array, ""]


class VTrace(PyTreeData):
    """The result of V-trace: targets for the critic, advantages for the policy gradient."""

    targets: Float[Array, "T *B"]
    advantages: Float[Array, "T *B"]


def gae(
    rewards: Float[Array, "T *B"],
    values: Float[Array, "T *B"],
    next_values: Float[Array, "T *B"],
    terminations: Shaped[Array, "T *B"],
    dones: Shaped[Array, "T *B"],
    discount: Scalar,
    gae_lambda: Scalar,
) -> Float[Array, "T *B"]:
    """Estimate advantages by generalized advantage estimation (Schulman et al., 2016, eq. 16).

    The matching targets of the value function are `advantages + values`.
    """
    check_same_shape(rewards=rewards, values=values, next_values=next_values, terminations=terminations, dones=dones)
    check_rank(0, discount=discount, gae_lambda=gae_lambda)
    deltas = rewards + discount * _zero_where(terminations, next_values) - values

    def backward(next_advantage: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, done = row
        advantage = delta + discount * gae_lambda * _zero_where(done, next_advantage)
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(values[0]), (deltas, dones), reverse=True)
    return advantages


def lambda_returns(
    rewards: Float[Array, "T *B"],
    next_values: Float[Array, "T *B"],
    terminations: Shaped[Array, "T *B"],
    dones: Shaped[Array, "T *B"],
    discount: Scalar,
    trace_lambda: Scalar,
) -> Float[Array, "T *B"]:
    """Average the n-step returns with weights that decay by `trace_lambda` (Sutton and Barto, 2018, eq. 12.3).

    `trace_lambda=0` gives the targets of TD(0), 1 the sum of all rewards up to the end of the episode.
    """
    check_same_shape(rewards=rewards, next_values=next_values, terminations=terminations, dones=dones)
    check_rank(0, discount=discount, trace_lambda=trace_lambda)
    bootstraps = _zero_where(terminations, next_values)

    def backward(next_return: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, bootstrap, done = row
        mixed = (1.0 - trace_lambda) * bootstrap + trace_lambda * next_return
        lambda_return = reward + discount * jnp.where(done.astype(bool), bootstrap, mixed)
        return lambda_return, lambda_return

    _, returns = jax.lax.scan(backward, bootstraps[-1], (rewards, bootstraps, dones), reverse=True)
    return returns


def n_step_returns(
    rewards: Float[Array, "T *B"],
    next_values: Float[Array, "T *B"],
    terminations: Shaped[Array, "T *B"],
    dones: Shaped[Array, "T *B"],
    discount: Scalar,
    num_steps: int,
) -> Float[Array, "T *B"]:
    """Sum the next `num_steps` discounted rewards and the discounted value of the state after them.

    The sum stops early at the end of the episode or of the trajectory.
    """
    check_same_shape(rewards=rewards, next_values=next_values, terminations=terminations, dones=dones)
    check_rank(0, discount=discount)
    check_count("num_steps", num_steps)
    bootstraps = _zero_where(terminations, next_values)

    def add_step(_: Any, returns: Array) -> Array:
        return rewards + discount * _of_successors(returns, bootstraps, dones)

    one_step_returns = rewards + discount * bootstraps
    return jax.lax.fori_loop(1, min(num_steps, len(rewards)), add_step, one_step_returns)


def vtrace(
    log_ratios: Float[Array, "T *B"],
    rewards: Float[Array, "T *B"],
    values: Float[Array, "T *B"],
    next_values: Float[Array, "T *B"],
    terminations: Shaped[Array, "T *B"],
    dones: Shaped[Array, "T *B"],
    discount: Scalar,
    trace_lambda: Scalar = 1.0,
    max_target_ratio: Scalar = 1.0,
    max_trace_ratio: Scalar = 1.0,
    max_policy_ratio: Scalar = 1.0,
) -> VTrace:
    """Correct off-policy experience by truncated importance ratios (V-trace; Espeholt et al., 2018, eq. 1).

    `log_ratios` is log pi(a|x) of the learned policy minus log mu(a|x) of the policy that acted. `max_target_ratio`
    is rho-bar in the paper, which determines the policy whose value is learned. `max_trace_ratio` is c-bar, which
    determines the speed of learning. `max_policy_ratio` truncates the ratio of the policy gradient. `trace_lambda` is
    defined in remark 2 of the paper; if all ratios are 1, the targets are the `lambda_returns`.
    """
    check_same_shape(
        log_ratios=log_ratios,
        rewards=rewards,
        values=values,
        next_values=next_values,
        terminations=terminations,
        dones=dones,
    )
    check_rank(
        0,
        discount=discount,
        trace_lambda=trace_lambda,
        max_target_ratio=max_target_ratio,
        max_trace_ratio=max_trace_ratio,
        max_policy_ratio=max_policy_ratio,
    )
    bootstraps = _zero_where(terminations, next_values)
    deltas = _truncated_ratios(log_ratios, max_target_ratio) * (rewards + discount * bootstraps - values)
    traces = trace_lambda * _truncated_ratios(log_ratios, max_trace_ratio)

    def backward(next_correction: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        delta, trace, done = row
        correction = delta + discount * trace * _zero_where(done, next_correction)
        return correction, correction

    _, corrections = jax.lax.scan(backward, jnp.zeros_like(values[0]), (deltas, traces, dones), reverse=True)
    targets = values + corrections
    advantages = _truncated_ratios(log_ratios, max_policy_ratio) * (
        rewards + discount * _of_successors(targets, bootstraps, dones) - values
    )
    return VTrace(targets=targets, advantages=advantages)


def _zero_where(mask: Shaped[Array, "*B"], array: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Set to 0 by selection: a product with 0 would keep NaN and infinity."""
    return jnp.where(mask.astype(bool), 0.0, array)


def _of_successors(
    estimates: Float[Array, "T *B"], bootstraps: Float[Array, "T *B"], dones: Shaped[Array, "T *B"]
) -> Float[Array, "T *B"]:
    """Return the estimate of the next row, or the bootstrap where the episode or the trajectory ends."""
    following = jnp.concatenate([estimates[1:], bootstraps[-1:]])
    return jnp.where(dones.astype(bool), bootstraps, following)


def _truncated_ratios(log_ratios: Float[Array, "T *B"], max_ratio: Scalar) -> Float[Array, "T *B"]:
    """Compute min(max_ratio, ratio), with finite gradients also where the ratio itself overflows."""
    return jnp.exp(jnp.minimum(log_ratios, jnp.log(max_ratio)))
