"""Checks that an agent follows the interface that rollouts, evaluators and populations rely on.

In a test: `report = check_agent(agent, obs_space, action_space); assert report.passed, report`.
"""

import itertools
import math
from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import ACTION_MASK, Agent, AgentState, Carry
from rookery.errors import InvalidInputError, RookeryError
from rookery.sample_batch import SampleBatch
from rookery.spaces import Dict, Discrete, Shape, Space
from rookery.testing.check_report import (
    SEED,
    CheckReport,
    Finding,
    Rule,
    ShowFn,
    failed,
    make_report,
    passed,
    run_checks,
    skipped,
    warned,
)
from rookery.testing.describe import (
    TOLERANCE,
    changed_argument,
    describe_error,
    first_difference,
    first_mismatch,
    first_outside,
    leaf_text,
    tree_text,
)
from rookery.types import Action, Array, Key, Obs, PyTreeDict, index_tree

BATCH_SHAPES: tuple[Shape, ...] = ((), (3,), (2, 3))
METHODS = ("compute_actions", "evaluate_actions")
NUM_STATES = 2
NUM_MASK_TRIALS = 4


def check_agent(
    agent: Agent, obs_space: Space, action_space: Space, name: str | None = None, show_fn: ShowFn | None = None
) -> CheckReport:
    """Check an agent against all rules, on observations sampled from `obs_space`.

    A failed rule does not stop the others. `name` is the name of the agent in the report, by default that of its class.
    """
    if not isinstance(agent, Agent):
        raise InvalidInputError(f"expected an Agent, got {type(agent).__name__}.")
    checks = run_checks(AGENT_RULES, AgentSubject(agent, obs_space, action_space))
    return make_report(name or type(agent).__name__, checks, show_fn)


class AgentSubject:
    """An agent with shared data of its checks: compiled methods, state, and actions for each batch shape."""

    def __init__(self, agent: Agent, obs_space: Space, action_space: Space) -> None:
        self.agent = agent
        self.obs_space = obs_space
        self.action_space = action_space
        self.action_key = jax.random.key(SEED + 1)
        self.act_fns = {method: jax.jit(self.untraced(method)) for method in METHODS}

    @cached_property
    def init(self) -> AgentState:
        state = jax.jit(self.init_fn)(jax.random.key(SEED))
        if not isinstance(state, AgentState):
            raise InvalidInputError(f"init returned {type(state).__name__}; expected an AgentState.")
        return state

    @cached_property
    def acting(self) -> dict[tuple[str, Shape], tuple[Action, PyTreeDict]]:
        """Actions and extras by method and batch shape."""
        results = {}
        for method, batch_shape in itertools.product(METHODS, BATCH_SHAPES):
            try:
                result = self.act_fns[method](self.init, self.sample_batch(batch_shape), self.action_key)
            except RookeryError:
                raise
            except Exception as error:
                raise InvalidInputError(
                    f"{method} under jax.jit raised {describe_error(error)} for {list(batch_shape)} envs."
                ) from error
            if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], PyTreeDict)):
                parts = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
                raise InvalidInputError(f"{method} returned {parts}; expected the actions and a PyTreeDict of extras.")
            results[method, batch_shape] = result
        return results

    def init_fn(self, key: Key) -> AgentState:
        return self.agent.init(self.obs_space, self.action_space, key)

    def untraced(self, method: str) -> Callable[[AgentState, SampleBatch, Key], tuple[Action, PyTreeDict]]:
        """Return a new function around a method of the agent, which JAX has not traced before."""
        return lambda agent_state, sample_batch, key: getattr(self.agent, method)(agent_state, sample_batch, key)

    def initial_carry(self, batch_shape: Shape) -> Carry:
        carry = self.agent.initial_carry(batch_shape)
        for leaf in jax.tree.leaves(carry):
            if leaf.shape[: len(batch_shape)] != batch_shape:
                raise InvalidInputError(
                    f"initial_carry({batch_shape}) has a leaf {leaf_text(leaf)}; expected the batch shape as its first "
                    "axes."
                )
        return carry

    def sample_batch(self, batch_shape: Shape) -> SampleBatch:
        """Make the input of the agent in the first step of an episode; every action is allowed."""
        obs = self.obs_space.sample(jax.random.key(SEED + 2), batch_shape)
        if self.has_mask:
            obs = obs.replace(**{ACTION_MASK: jnp.ones_like(obs[ACTION_MASK])})
        return make_sample_batch(obs, self.initial_carry(batch_shape), jnp.ones(batch_shape, jnp.float32))

    @property
    def has_mask(self) -> bool:
        return isinstance(self.obs_space, Dict) and ACTION_MASK in self.obs_space


def make_sample_batch(obs: Obs, carry: Carry, episode_start: Array) -> SampleBatch:
    """Make the batch that a rollout makes: a carry comes with `episode_start`."""
    policy_extras = PyTreeDict(carry=carry)
    if jax.tree.leaves(carry):
        policy_extras.episode_start = episode_start
    return SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict()))


def check_init(subject: AgentSubject) -> Finding:
    again = jax.jit(lambda key: subject.init_fn(key))(jax.random.key(SEED))
    if difference := first_difference(subject.init, again, TOLERANCE):
        return failed(f"two states made with one key differ: {difference}; derive all randomness from the key.")
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(subject.init.params))
    return passed(f"{num_parameters} parameters.")


def check_acting(subject: AgentSubject) -> Finding:
    batch_shapes = dict.fromkeys(str(list(batch_shape)) for _, batch_shape in subject.acting)
    return passed(f"for {', '.join(batch_shapes)} envs.")


def check_actions(subject: AgentSubject) -> Finding:
    for (method, batch_shape), (actions, _) in subject.acting.items():
        what = f"the action of {method}"
        subject.action_space.check(actions, what, batch_shape)
        if outside := first_outside(subject.action_space, jax.device_get(actions), what, batch_shape):
            return failed(f"{outside}: squash it, or clip it.")
        if any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(actions)):
            return failed(f"{what} is NaN for {list(batch_shape)} envs.")
    return passed(f"inside {subject.action_space}.")


def check_structure(subject: AgentSubject) -> Finding:
    for (method, batch_shape), result in subject.acting.items():
        actions, extras = result
        for path, leaf in jax.tree_util.tree_leaves_with_path({"actions": actions, "extras": extras}):
            if leaf.shape[: len(batch_shape)] != batch_shape:
                return failed(
                    f"{method} returned {jax.tree_util.keystr(path)} {leaf_text(leaf)} for {list(batch_shape)} envs; "
                    "expected these as its first axes."
                )
        first_row = index_tree(result, (0,) * len(batch_shape))
        mismatch = first_mismatch(subject.acting[method, ()], first_row, "for one env", f"for {list(batch_shape)} envs")
        if mismatch is not None:
            return failed(f"the result of {method} changes: {mismatch}; expected one structure.")
    _, extras = subject.acting["compute_actions", ()]
    return passed(f"extras for training: {', '.join(map(str, sorted(extras))) or 'none'}.")


def check_input_unchanged(subject: AgentSubject) -> Finding:
    for method in METHODS:
        sample_batch = subject.sample_batch((3,))
        if changed := changed_argument(subject.untraced(method), subject.init, sample_batch, subject.action_key):
            return failed(f"{method} changed {changed} of its arguments in place; expected new values: use replace().")
    return passed("acting does not change its arguments.")


def check_same_key(subject: AgentSubject) -> Finding:
    # Traced a second time: random numbers sampled while tracing would differ.
    for method in METHODS:
        again = jax.jit(subject.untraced(method))(subject.init, subject.sample_batch((3,)), subject.action_key)
        if difference := first_difference(subject.acting[method, (3,)], again, TOLERANCE):
            return failed(f"{method} differs for one key: {difference}; derive all randomness from the key.")
    return passed("acting repeats exactly.")


def check_vmap(subject: AgentSubject) -> Finding:
    init_keys, action_keys = jax.random.split(subject.action_key, (2, NUM_STATES))
    states = jax.jit(jax.vmap(subject.init_fn))(init_keys)
    sample_batch = subject.sample_batch((3,))
    for method, act_fn in subject.act_fns.items():
        mapped = jax.jit(jax.vmap(act_fn, in_axes=(0, None, 0)))(states, sample_batch, action_keys)
        for index in range(NUM_STATES):
            state, result = (index_tree(tree, index) for tree in (states, mapped))
            if difference := first_difference(result, act_fn(state, sample_batch, action_keys[index]), TOLERANCE):
                return failed(f"{method} of state {index} mapped by jax.vmap differs from a single one: {difference}.")
    return passed(f"{NUM_STATES} mapped states act like {NUM_STATES} single ones.")


def check_mask(subject: AgentSubject) -> Finding:
    if not (subject.has_mask and isinstance(subject.action_space, Discrete)):
        return skipped(f"needs Discrete actions and observations with {ACTION_MASK!r}.")
    batch_shape, num_actions = BATCH_SHAPES[-1], subject.action_space.n
    sample_batch = subject.sample_batch(batch_shape)
    allowed = jnp.arange(math.prod(batch_shape)).reshape(batch_shape) % num_actions
    mask = jax.nn.one_hot(allowed, num_actions).astype(sample_batch.obs[ACTION_MASK].dtype)
    sample_batch = sample_batch.replace(obs=sample_batch.obs.replace(**{ACTION_MASK: mask}))
    for method, act_fn in subject.act_fns.items():
        for key in jax.random.split(subject.action_key, NUM_MASK_TRIALS):
            actions, _ = act_fn(subject.init, sample_batch, key)
            forbidden = np.asarray(actions) - subject.action_space.start != np.asarray(allowed)
            if np.any(forbidden):
                return failed(
                    f"{method} took a forbidden action in {np.sum(forbidden)} of {forbidden.size} observations that "
                    "allowed one: give forbidden actions the probability 0."
                )
    return passed("no forbidden action is taken.")


def check_carry(subject: AgentSubject) -> Finding:
    starts = jnp.array([[1, 0, 1], [0, 1, 0]], jnp.float32)
    first_carry = subject.initial_carry(starts.shape)
    if not jax.tree.leaves(first_carry):
        return skipped("the agent is not recurrent.")
    obs = subject.sample_batch(starts.shape).obs
    for method, act_fn in subject.act_fns.items():
        results = []
        for carry in (first_carry, _other_carry(first_carry)):
            actions, extras = act_fn(subject.init, make_sample_batch(obs, carry, starts), subject.action_key)
            if "carry" not in extras:
                return failed(f'{method} returned no carry; expected the next one as policy_extras["carry"].')
            if mismatch := first_mismatch(first_carry, extras["carry"], "at first", "after a step"):
                return failed(f"the carry of {method}{mismatch}; expected one structure.")
            results.append((actions, extras))
        first, second = (index_tree(result, starts == 1) for result in results)
        if difference := first_difference(first, second):
            return failed(f"{method} keeps its carry across the start of an episode: {difference}; reset it there.")
        first, second = (index_tree(result, starts == 0) for result in results)
        if first_difference(first, second) is None:
            return warned(f"{method} does not use its carry: reset it only where episode_start is 1.")
    return passed(f"carry {tree_text(first_carry)}.")


AGENT_RULES = (
    Rule("init makes a state", check_init, essential=True),
    Rule("agent acts for any batch shape", check_acting, essential=True),
    Rule("actions are in the space", check_actions),
    Rule("results keep their structure", check_structure),
    Rule("acting leaves input unchanged", check_input_unchanged),
    Rule("same key, same actions", check_same_key),
    Rule("vmap over states", check_vmap),
    Rule("action mask is honored", check_mask),
    Rule("carry is cleared at starts", check_carry),
)
"""The rules for an agent, in order."""


def _other_carry(carry: Carry) -> Carry:
    """Make a different carry of the same structure."""

    def shifted(leaf: Array) -> Array:
        return ~leaf if leaf.dtype == jnp.bool_ else leaf + jnp.asarray(1, leaf.dtype)

    return jax.tree.map(shifted, carry)
