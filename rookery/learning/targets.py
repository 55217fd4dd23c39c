"""Targets for value functions: n-step returns, target parameters, distributional targets.

Windows of replayed rows are time-major, `[L, N, ...]`, and may span several episodes. `dones` marks the last row of
each episode and `terminations` the last rows that reached a terminal state, whose value is 0.

Gradients flow through all functions: apply `jax.lax.stop_gradient` to use a target as a constant.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from rookery.errors import ShapeError, check_count
from rookery.learning.moments import check_rank, check_same_shape
from rookery.types import PyTreeData, Tree

Scalar = float | int | Float[Array, ""]


class NStep(PyTreeData):
    """Parts of a target: `returns[t] + discounts[t] * value of the true successor of row last[t]`.

    Where `discounts` is 0 that value may be NaN, which a product would keep: select with `jnp.where`.
    """

    returns: Float[Array, "T N"]
    discounts: Float[Array, "T N"]
    last: Int[Array, "T N"]


def n_step(
    rewards: Float[Array, "L N"],
    terminations: Shaped[Array, "L N"],
    dones: Shaped[Array, "L N"],
    discount: Scalar,
    num_steps: int,
) -> NStep:
    """Sum the discounted rewards of `num_steps` rows, or up to and including the first done among them.

    The result has a row for each of the first `T = L - num_steps + 1` rows of the window. `last` is the row from whose
    true successor the target bootstraps (see `take_rows`). `discounts` is the factor of its value: a power of
    `discount`, or 0 after a termination, even if the row is also truncated.
    """
    check_same_shape(rewards=rewards, terminations=terminations, dones=dones)
    check_rank(2, rewards=rewards)
    check_rank(0, discount=discount)
    check_count("num_steps", num_steps)
    num_rows = rewards.shape[0] - num_steps + 1
    if num_rows < 1:
        raise ShapeError(
            f"rewards has {rewards.shape[0]} rows, too few for num_steps={num_steps}: "
            f"use windows of at least {num_steps} rows or a smaller num_steps."
        )
    goes_on = ~dones.astype(bool)
    successor_counts = jnp.where(terminations.astype(bool), 0.0, jnp.ones_like(rewards))

    returns = rewards[:num_rows]
    discounts = discount * successor_counts[:num_rows]
    offsets = jnp.zeros(returns.shape, jnp.int32)
    same_episode = goes_on[:num_rows]
    for step in range(1, num_steps):
        rows = slice(step, step + num_rows)
        returns = returns + discount**step * jnp.where(same_episode, rewards[rows], 0.0)
        discounts = jnp.where(same_episode, discount ** (step + 1) * successor_counts[rows], discounts)
        offsets = jnp.where(same_episode, step, offsets)
        same_episode = same_episode & goes_on[rows]
    first = jax.lax.broadcasted_iota(jnp.int32, offsets.shape, 0)
    return NStep(returns=returns, discounts=discounts, last=first + offsets)


def take_rows(tree: Tree, rows: Int[Array, "T N"]) -> Tree:
    """Take different rows of leaves `[L, N, ...]` for each `n`: element `[t, n]` of the result is `[rows[t, n], n]`."""
    check_rank(2, rows=rows)

    def take(path: jax.tree_util.KeyPath, leaf: Array) -> Array:
        if leaf.ndim < 2 or leaf.shape[1] != rows.shape[1]:
            raise ShapeError(
                f"leaf {jax.tree_util.keystr(path)} has shape {list(leaf.shape)}; "
                f"expected [L, {rows.shape[1]}, ...] for rows of shape {list(rows.shape)}."
            )
        if leaf.shape[0] == 1:
            return jnp.broadcast_to(leaf, (rows.shape[0], *leaf.shape[1:]))
        return jnp.asarray(leaf)[rows, jnp.arange(rows.shape[1])[None, :]]

    return jax.tree_util.tree_map_with_path(take, tree)


def polyak(targets: Tree, params: Tree, rate: Scalar) -> Tree:
    """Move target parameters towards the trained ones by the fraction `rate` (soft update; Lillicrap et al., 2016).

    Rates 1 and 0 copy and keep the targets exactly, so `jnp.where(is_due, 1.0, 0.0)` is the hard update of DQN.
    """
    check_rank(0, rate=rate)

    def move(path: jax.tree_util.KeyPath, target: Array, param: Array) -> Array:
        if target.shape != param.shape or target.dtype != param.dtype or not jnp.issubdtype(target.dtype, jnp.floating):
            raise ShapeError(
                f"leaf {jax.tree_util.keystr(path)} is {target.dtype}{list(target.shape)} in the targets and "
                f"{param.dtype}{list(param.shape)} in the params; expected floats of one dtype and shape."
            )
        moved = target + jnp.asarray(rate, target.dtype) * (param - target)
        return jnp.where(rate == 1, param, jnp.where(rate == 0, target, moved))

    return jax.tree_util.tree_map_with_path(move, targets, params)


def huber(errors: Float[Array, "*N"], delta: Scalar = 1.0) -> Float[Array, "*N"]:
    """Penalize errors by half their square up to `delta`, and linearly beyond (Huber, 1964)."""
    check_rank(0, delta=delta)
    sizes = jnp.abs(errors)
    quadratic = jnp.minimum(sizes, delta)
    return 0.5 * quadratic**2 + delta * (sizes - quadratic)


def categorical_projection(
    probabilities: Float[Array, "N K"], support_of_targets: Float[Array, "N K"], atoms: Float[Array, "K"]
) -> Float[Array, "N K"]:
    """Project distributions onto fixed atoms (Bellemare et al., 2017, algorithm 1).

    Each probability belongs to the value at the same position of `support_of_targets`. It is split between the two
    nearest atoms in proportion to their proximity; values outside the range go to the first or last atom. The atoms
    must be equally spaced and ascending.
    """
    check_same_shape(probabilities=probabilities, support_of_targets=support_of_targets)
    check_rank(2, probabilities=probabilities)
    num_atoms = probabilities.shape[1]
    if atoms.shape != (num_atoms,) or num_atoms < 2:
        raise ShapeError(
            f"atoms has shape {list(atoms.shape)} for probabilities of shape {list(probabilities.shape)}; "
            "expected [K] for [N, K], with K of at least 2."
        )
    # Clip positions, not values: rounding in the division cannot move positions out of range afterwards.
    spacing = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    positions = jnp.clip((support_of_targets - atoms[0]) / spacing, 0.0, num_atoms - 1.0)
    distances = jnp.abs(positions[:, :, None] - jnp.arange(num_atoms, dtype=positions.dtype)[None, None, :])
    shares = jnp.maximum(1.0 - distances, 0.0)  # [N, K of targets, K of atoms]
    # The default precision of accelerators would lose probability mass.
    return jnp.einsum("nj,njk->nk", probabilities, shares, precision=jax.lax.Precision.HIGHEST)


def quantile_huber_loss(
    quantiles: Float[Array, "N K"], targets: Float[Array, "N M"], kappa: Scalar = 1.0
) -> Float[Array, "N"]:
    """Regress `K` quantiles on `M` equally likely targets (Dabney et al., 2018, eq. 9 and 10, algorithm 1).

    Quantile `i` of `0 ... K - 1` has the level `(i + 1/2) / K`. The loss is the sum over quantiles of the mean over
    targets, not divided by `kappa` as in later papers.
    """
    check_rank(2, quantiles=quantiles, targets=targets)
    if quantiles.shape[0] != targets.shape[0]:
        raise ShapeError(
            f"targets has shape {list(targets.shape)}; expected [{quantiles.shape[0]}, M] "
            f"for quantiles of shape {list(quantiles.shape)}."
        )
    num_quantiles = quantiles.shape[1]
    levels = ((jnp.arange(num_quantiles, dtype=quantiles.dtype) + 0.5) / num_quantiles)[None, :, None]
    errors = targets[:, None, :] - quantiles[:, :, None]  # [N, K, M]
    losses = jnp.where(errors < 0.0, 1.0 - levels, levels) * huber(errors, kappa)
    return jnp.sum(jnp.mean(losses, axis=2), axis=1)
