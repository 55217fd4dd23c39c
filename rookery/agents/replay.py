"""The base class of off-policy agents, and the transitions that they learn from."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.agents.network import NetworkAgent
from rookery.hyperparameters import HyperparameterValues
from rookery.learning.moments import Weighted, check_same_shape
from rookery.learning.targets import n_step, take_rows
from rookery.networks.policy import Trunk
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Params, PyTreeData, index_tree, pytree_field


class ReplayBatch(PyTreeData):
    """Windows `[L, N]` sampled from a replay buffer and, with prioritized replay, their importance weights `[N]`."""

    windows: SampleBatch
    importance: Array | None


class LossInfo(PyTreeData):
    """The metrics of a loss, and the absolute errors of the rows `[T, N]` if the loss has any."""

    metrics: dict[str, Array] = pytree_field(default_factory=dict)
    errors: Any = None


class Transitions(Weighted):
    """The n-step transitions `[T, N]` of windows `[L, N]`: one for each row after the burn-in that has a full n-step.

    `returns` are the discounted rewards of `n_step` steps, or fewer if the episode ended. `next_obs` is the observation
    after them, and `discounts` is the weight of its value.
    """

    obs: Any
    actions: Any
    returns: Array
    discounts: Array
    next_obs: Any
    importance: Array | None
    """The importance weight of each window, `[N]`; None if all are 1."""
    last: Array
    """The index of the row before `next_obs`, counted from the end of the burn-in."""
    window_obs: Any
    episode_start: Array | None

    def corrected_mean(self, values: Array) -> Array:
        """Average with importance weights, which correct for prioritized sampling."""
        if self.importance is None:
            return self.mean(values)
        check_same_shape(row=values[0], importance=self.importance)
        return self.mean(values * self.importance[None])

    def errors_that_count(self, errors: Array) -> Array:
        """Set the errors of rows with weight 0 to 0, so that replay does not prioritize them."""
        return errors if self.weights is None else jnp.where(self.weights > 0, errors, 0.0)

    def with_discounted(self, next_values: Array) -> Array:
        """Return the targets `returns + discounts * next_values`; a value with discount 0 may be NaN."""
        return self.returns + jnp.where(self.discounts > 0.0, self.discounts * next_values, 0.0)


class ReplayAgent(NetworkAgent):
    """Learns from windows of rows in a replay buffer."""

    actor_entry: ClassVar[str] = "policy"
    """The entry of the parameters that acts: what evolution can search."""

    n_step: int = pytree_field(static=True, default=1)
    burn_in: int = pytree_field(static=True, default=0)

    def explore_with(self, agent_state: AgentState, hyperparameters: HyperparameterValues) -> AgentState:
        """Set the exploration of `compute_actions`."""
        return agent_state

    def transitions(self, agent_state: AgentState, batch: ReplayBatch, discount: Array) -> Transitions:
        """Return the transitions in windows `[L, N]`, with preprocessed observations."""
        windows = batch.windows
        env_extras, policy_extras = windows.extras.env_extras, windows.extras.policy_extras
        rows = index_tree(windows, slice(self.burn_in, None))
        sums = n_step(rows.rewards, rows.extras.env_extras.termination, rows.dones, discount, self.n_step)
        num_rows = sums.returns.shape[0]
        obs = self.preprocess_obs(agent_state, windows.obs)
        learned = slice(self.burn_in, self.burn_in + num_rows)
        autoreset = env_extras.get("autoreset")
        return Transitions(
            obs=index_tree(obs, learned),
            actions=index_tree(windows.actions, learned),
            returns=sums.returns,
            discounts=sums.discounts,
            next_obs=self.preprocess_obs(agent_state, take_rows(rows.next_obs, sums.last)),
            weights=None if autoreset is None else 1.0 - autoreset[learned],
            importance=batch.importance,
            last=sums.last,
            window_obs=obs,
            episode_start=policy_extras.get("episode_start"),
        )

    def features(self, trunk: Trunk, params: Params, transitions: Transitions) -> tuple[Array, Array]:
        """Return the features of `obs` and of `next_obs`, both `[T, N, F]`.

        A recurrent trunk starts each window with its initial carry. The burn-in, which has no gradient, warms it up.
        `next_obs` uses the carry after the row before it.
        """
        if trunk.config.core is None:
            return trunk(params, transitions.obs)[0], trunk(params, transitions.next_obs)[0]
        starts = transitions.episode_start
        assert starts is not None, "the rows of a recurrent agent have episode_start"
        carry = trunk.initial_carry(starts.shape[1:])
        if self.burn_in:
            early_obs = index_tree(transitions.window_obs, slice(self.burn_in))
            _, carry = trunk.unroll(jax.lax.stop_gradient(params), early_obs, carry, starts[: self.burn_in])
        late_obs = index_tree(transitions.window_obs, slice(self.burn_in, None))
        features, carries = trunk.trace(params, late_obs, carry, starts[self.burn_in :])
        no_start = jnp.zeros_like(transitions.returns)
        next_features, _ = trunk(params, transitions.next_obs, take_rows(carries, transitions.last), no_start)
        return features[: transitions.returns.shape[0]], next_features
