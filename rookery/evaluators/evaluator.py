"""Evaluation of one agent on an exact number of episodes, each up to its first done."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState, Carry
from rookery.envs import Env
from rookery.envs.env import check_is_env
from rookery.errors import InvalidInputError, check_count, check_discount
from rookery.evaluators.playback import play_episodes
from rookery.metrics import EvaluateMetric
from rookery.rollout import ActionFn, recurrent_fast_eval_rollout_episode
from rookery.types import Array, Key, PyTreeNode, as_one_key, pytree_field


class Evaluator(PyTreeNode):
    """Evaluates an agent in a vectorized env, with or without autoreset.

    `agent_fn` (alias `action_fn`) is `agent.evaluate_actions`. A recurrent agent also needs
    `initial_carry_fn=agent.initial_carry`. The episodes to count are fixed before they start: counting the first to
    finish would favor short episodes.
    """

    env: Env = pytree_field(static=True)
    agent_fn: ActionFn | None = pytree_field(static=True, default=None)
    action_fn: ActionFn | None = pytree_field(static=True, default=None)
    initial_carry_fn: Callable[[tuple[int, ...]], Carry] = pytree_field(static=True, default=lambda batch_shape: ())
    max_episode_steps: int = pytree_field(static=True)
    discount: float = pytree_field(static=True, default=1.0)

    def __post_init__(self) -> None:
        if (self.agent_fn is None) == (self.action_fn is None):
            raise InvalidInputError("Evaluator takes either agent_fn or action_fn, for example agent.evaluate_actions.")
        check_is_env(self.env)
        check_count("max_episode_steps", self.max_episode_steps)
        check_discount(self.discount)
        if not self.env.batch_shape:
            raise InvalidInputError("Evaluator needs a vectorized environment: make it with create_env or wrap_env.")

    def evaluate(self, agent_state: AgentState, key: Key, num_episodes: int) -> EvaluateMetric:
        """Play `num_episodes` episodes; return the return and length of each."""
        check_count("num_episodes", num_episodes)
        return self._evaluate(agent_state, as_one_key(key), num_episodes)

    def frames(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play one episode of at most `max_steps` steps and render it; raise `RenderError` if that fails."""
        max_steps = min(max_steps, self.max_episode_steps)
        (episode,) = play_episodes(self.env, self._action_fn, self.initial_carry_fn, agent_state, key, max_steps)
        return episode.frames()

    def close(self) -> None:
        """Do nothing: device environments need no closing."""

    @property
    def _action_fn(self) -> ActionFn:
        return self.agent_fn or self.action_fn  # type: ignore[return-value]

    @partial(jax.jit, static_argnames=("num_episodes",))
    def _evaluate(self, agent_state: AgentState, key: Key, num_episodes: int) -> EvaluateMetric:
        (num_envs,) = self.env.batch_shape
        num_rounds = -(-num_episodes // num_envs)
        # Surplus envs of the last round are done from the start, so the round does not wait for them.
        left_over = jnp.arange(num_rounds * num_envs).reshape(num_rounds, num_envs) >= num_episodes

        def play_round(inputs: tuple[Key, Array]) -> EvaluateMetric:
            round_key, idle = inputs
            reset_key, rollout_key = jax.random.split(round_key)
            env_state = self.env.reset(reset_key)
            metrics, _, _ = recurrent_fast_eval_rollout_episode(
                self.env.step,
                self._action_fn,
                env_state.replace(done=idle.astype(env_state.done.dtype)),
                agent_state,
                self.initial_carry_fn(self.env.batch_shape),
                rollout_key,
                self.max_episode_steps,
                self.discount,
            )
            return metrics

        metrics = jax.lax.map(play_round, (jax.random.split(key, num_rounds), left_over))
        return jax.tree.map(lambda leaf: leaf.reshape(-1)[:num_episodes], metrics)
