"""Checks that an environment follows the interface that rollouts, wrappers and agents rely on.

`check_env` takes an `Env` of Rookery, single or vectorized, or a Gymnasium env; `check_env_by_name` takes a name. In a
test: `report = check_env(env); assert report.passed, report`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import action_mask_of, sample_allowed
from rookery.envs.env import Env, EnvState, MultiAgentEnv, Wrapper
from rookery.envs.registration import make_env
from rookery.envs.wrappers import VmapWrapper
from rookery.errors import EnvironmentCheckError, RookeryError
from rookery.spaces import Discrete, Shape, Space
from rookery.testing.check_report import (
    AFTER_RESET,
    NUM_RANDOM_STEPS,
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
    count_text,
    describe_error,
    first_difference,
    first_index,
    first_mismatch,
    first_outside,
    index_text,
    leaf_text,
    tree_text,
    with_spaces,
)
from rookery.types import Action, Array, Key, Obs, PyTreeDict, index_tree

if TYPE_CHECKING:  # imported only if a Gymnasium env is checked: it takes long
    import gymnasium

MAX_STEPS_TO_AN_END = 2_000
NUM_MAPPED_COPIES = 3
NUM_MAPPED_STEPS = 4


def check_env(env: Env | gymnasium.Env, name: str | None = None, show_fn: ShowFn | None = None) -> CheckReport:
    """Check an environment against all rules; a failed rule does not stop the others.

    `name` is its name in the report, by default that of its class. A Gymnasium env is not closed.
    """
    if isinstance(env, Env):
        checks = run_checks(VECTOR_RULES if env.batch_shape else DEVICE_RULES, DeviceSubject(env))
        return make_report(name or type(env).__name__, checks, show_fn)

    from rookery.testing.check_gymnasium import check_gymnasium_env

    return check_gymnasium_env(env, name, show_fn)


def check_env_by_name(name: str, show_fn: ShowFn | None = None) -> CheckReport:
    """Check a device environment, or one of Gymnasium such as `gymnasium/CartPole-v1`."""
    if not name.startswith("gymnasium/"):
        return check_env(make_env(name), name, show_fn)

    from rookery.testing.check_gymnasium import check_gymnasium_env, make_gymnasium_env

    with make_gymnasium_env(name) as env:
        return check_gymnasium_env(env, name, show_fn)


@dataclass(frozen=True)
class Snapshot:
    """The outputs of an env at one of the random steps, on the host."""

    when: str
    obs: Obs
    reward: Any
    done: Any
    info: Any


class DeviceSubject:
    """An env with shared data of its checks: compiled functions, its first two states, a record of random steps."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.reset_fn = jax.jit(env.reset)
        self.step_fn = jax.jit(env.step)
        self.action_fn = jax.jit(self._random_action)

    @cached_property
    def reset(self) -> EnvState:
        """The state after a reset."""
        return _traced_call("reset", self.reset_fn, jax.random.key(SEED))

    @cached_property
    def step(self) -> EnvState:
        """The state one step later."""
        return _traced_call("step", self.step_fn, self.reset, self.action)

    @cached_property
    def action(self) -> Action:
        return self.env.action_space.sample(jax.random.key(SEED + 1), self.env.batch_shape)

    @cached_property
    def random_steps(self) -> list[Snapshot]:
        state = self.reset
        record = [_snapshot(AFTER_RESET, state)]
        for index, (action_key, reset_key) in enumerate(self.keys(NUM_RANDOM_STEPS)):
            if np.all(np.asarray(state.done) == 1):
                state = self.reset_fn(reset_key)
                record.append(_snapshot(AFTER_RESET, state))
            state = self.step_fn(state, self.action_fn(state.obs, action_key))
            record.append(_snapshot(f"at step {index + 1}", state))
        return record

    def num_steps_to_an_end(self) -> int | None:
        """Return the length of a random episode; None if no episode ended."""
        num_steps = 0
        for snapshot in self.random_steps:
            num_steps = 0 if snapshot.when == AFTER_RESET else num_steps + 1
            if num_steps and np.any(snapshot.done):
                return num_steps
        state = self.reset
        for index, (action_key, _) in enumerate(self.keys(MAX_STEPS_TO_AN_END)):
            state = self.step_fn(state, self.action_fn(state.obs, action_key))
            if np.any(state.done):
                return index + 1
        return None

    def keys(self, num_steps: int) -> Key:
        return jax.random.split(jax.random.key(SEED + 2), (num_steps, 2))

    def _random_action(self, obs: Obs, key: Key) -> Action:
        mask = action_mask_of(obs)
        if mask is not None and isinstance(self.env.action_space, Discrete):
            return sample_allowed(key, mask, self.env.action_space)
        return self.env.action_space.sample(key, self.env.batch_shape)


def _traced_call(method: str, function: Callable, *args: Any) -> EnvState:
    try:
        state = function(*args)
    except RookeryError:
        raise
    except Exception as error:
        raise EnvironmentCheckError(
            f"{method} under jax.jit raised {describe_error(error)}; expected pure JAX code: jnp and jax.random "
            "instead of numpy, jax.lax.cond and jnp.where instead of if."
        ) from error
    if not isinstance(state, EnvState):
        raise EnvironmentCheckError(f"{method} returned {type(state).__name__}; expected an EnvState.")
    return state


def _snapshot(when: str, state: EnvState) -> Snapshot:
    return Snapshot(when, *jax.device_get((state.obs, state.reward, state.done, state.info)))


def check_spaces(subject: DeviceSubject) -> Finding:
    for what in ("obs_space", "action_space"):
        space = getattr(subject.env, what)
        if not isinstance(space, Space):
            return failed(
                f"{what} is {type(space).__name__}; expected a space of rookery.spaces: from_gymnasium converts."
            )
    return passed(f"observations {subject.env.obs_space}, actions {subject.env.action_space}.")


def check_compiles(subject: DeviceSubject) -> Finding:
    return passed(f"observations {tree_text(subject.step.obs)}.")


def check_state_structure(subject: DeviceSubject) -> Finding:
    reset, step = (state.replace(info=PyTreeDict()) for state in (subject.reset, subject.step))
    if mismatch := first_mismatch(reset, step, "after reset", "after step"):
        return failed(f"{mismatch}; expected no change, since loops carry the state: use one dtype and shape.")
    return passed(f"{count_text(len(jax.tree.leaves(subject.reset)), 'array')}, the same after reset and step.")


def check_info_structure(subject: DeviceSubject) -> Finding:
    for method, state in (("reset", subject.reset), ("step", subject.step)):
        if not isinstance(state.info, PyTreeDict):
            return failed(f"info is {type(state.info).__name__} after {method}; expected a PyTreeDict.")
    if mismatch := first_mismatch(subject.reset.info, subject.step.info, "after reset", "after step"):
        return failed(f"info{mismatch}; expected the same entries always: fill them with zeros in reset.")
    return passed(f"entries: {', '.join(map(str, sorted(subject.reset.info))) or 'none'}.")


def check_input_unchanged(subject: DeviceSubject) -> Finding:
    if changed := changed_argument(subject.env.step, subject.reset, subject.action):
        return failed(f"step changed {changed} of its argument in place; expected a new state: use replace().")
    return passed("step does not change its arguments.")


def check_random_steps(subject: DeviceSubject) -> Finding:
    num_resets = sum(snapshot.when == AFTER_RESET for snapshot in subject.random_steps)
    return passed(f"{count_text(NUM_RANDOM_STEPS, 'step')}, {count_text(num_resets, 'reset')}.")


def check_observations(subject: DeviceSubject) -> Finding:
    space, batch_shape = subject.env.obs_space, subject.env.batch_shape
    for snapshot in subject.random_steps:
        space.check(snapshot.obs, f"obs {snapshot.when}", batch_shape)
        if outside := first_outside(space, snapshot.obs, "obs", batch_shape):
            return failed(f"{snapshot.when} {outside}: widen obs_space, or clip the observation.")
    for name, subspace, array in with_spaces(space, subject.step.obs, "obs"):
        if array.dtype != subspace.sample_dtype:
            return warned(f"{name} is {array.dtype}; obs_space declares {subspace.dtype}: use the same dtype.")
    return passed(f"inside obs_space over {NUM_RANDOM_STEPS} random steps.")


def check_nan(subject: DeviceSubject) -> Finding:
    for snapshot in subject.random_steps:
        for path, leaf in jax.tree_util.tree_leaves_with_path(snapshot.obs):
            if np.issubdtype(leaf.dtype, np.inexact) and np.any(np.isnan(leaf)):
                entry = f"obs{jax.tree_util.keystr(path)}{index_text(first_index(np.isnan(leaf)))}"
                return failed(
                    f"{entry} is NaN {snapshot.when}: look for a division by zero or a root of a negative number."
                )
    return passed(f"none over {NUM_RANDOM_STEPS} random steps.")


def check_rewards(subject: DeviceSubject) -> Finding:
    env = subject.env
    innermost = env.unwrapped if isinstance(env, Wrapper) else env
    for snapshot in subject.random_steps:
        rewards = {"reward": snapshot.reward}
        if isinstance(innermost, MultiAgentEnv):
            if not isinstance(snapshot.reward, Mapping) or set(snapshot.reward) != set(innermost.agents):
                given = sorted(snapshot.reward) if isinstance(snapshot.reward, Mapping) else leaf_text(snapshot.reward)
                return failed(f"reward is {given} {snapshot.when}; expected one for each of {list(innermost.agents)}.")
            rewards = {f"reward[{agent!r}]": reward for agent, reward in snapshot.reward.items()}
        for name, reward in rewards.items():
            if problem := _number_problem(reward, env.batch_shape):
                return failed(f"{name} {snapshot.when} {problem}.")
            if not np.all(np.isfinite(reward)):
                return failed(f"{name} {snapshot.when} is {reward}; expected a finite number.")
    return passed(f"finite, float32{list(env.batch_shape)}.")


def check_done(subject: DeviceSubject) -> Finding:
    for snapshot in subject.random_steps:
        if problem := _flag_problem(snapshot.done, subject.env.batch_shape):
            return failed(f"done {snapshot.when} {problem}.")
        if snapshot.when == AFTER_RESET and np.any(snapshot.done):
            return failed("done is 1 after reset; expected 0: an episode cannot end before its first step.")
    return passed(f"0 or 1, float32{list(subject.env.batch_shape)}.")


def check_truncation(subject: DeviceSubject) -> Finding:
    if "truncation" not in subject.step.info:
        return skipped("info has no truncation: every done is a termination.")
    for snapshot in subject.random_steps:
        truncation = snapshot.info["truncation"]
        if problem := _flag_problem(truncation, subject.env.batch_shape):
            return failed(f"info.truncation {snapshot.when} {problem}.")
        if np.any((truncation == 1) & (np.asarray(snapshot.done) == 0)):
            return failed(f"info.truncation is 1 and done is 0 {snapshot.when}: a truncated episode is done.")
    return passed("0 or 1, and 1 only where done is 1.")


def check_same_key(subject: DeviceSubject) -> Finding:
    # Traced a second time through new functions: random numbers sampled while tracing would differ.
    reset = jax.jit(lambda key: subject.env.reset(key))(jax.random.key(SEED))
    if difference := first_difference(subject.reset, reset, TOLERANCE):
        return failed(f"two resets with one key differ: {difference}; derive all randomness from the key.")
    step = jax.jit(lambda state, action: subject.env.step(state, action))(subject.reset, subject.action)
    if difference := first_difference(subject.step, step, TOLERANCE):
        return failed(f"two equal steps differ: {difference}; derive all randomness from a key in env_state.")
    return passed("reset and step repeat exactly.")


def check_different_keys(subject: DeviceSubject) -> Finding:
    others = [subject.reset_fn(jax.random.key(SEED + offset)) for offset in range(1, 4)]
    if all(first_difference(subject.reset.obs, other.obs) is None for other in others):
        return warned("four keys gave the same first observation: if it should vary, use the key in reset.")
    return passed("first observations differ.")


def check_key_types(subject: DeviceSubject) -> Finding:
    try:
        legacy = subject.reset_fn(jax.random.PRNGKey(SEED))
    except Exception as error:
        return failed(f"reset with a legacy PRNGKey raised {describe_error(error)}; start reset with as_key(key).")
    if difference := first_difference(subject.reset, legacy):
        return failed(f"typed and legacy key give different states: {difference}; start reset with as_key(key).")
    return passed("jax.random.key and PRNGKey give the same state.")


def check_depends_on_state_only(subject: DeviceSubject) -> Finding:
    outputs = ["obs", "reward", "done", "info"]
    if isinstance(subject.env, VmapWrapper):
        outputs.remove("done")  # VmapWrapper freezes done envs.
    for output, sign in itertools.product(outputs, (1, -1)):
        poisoned = jax.tree.map(lambda leaf, sign=sign: _garbage(leaf, sign), getattr(subject.reset, output))
        stepped = subject.step_fn(subject.reset.replace(**{output: poisoned}), subject.action)
        if difference := first_difference(subject.step, stepped):
            return failed(
                f"step depends on the {output} of its argument, which wrappers overwrite ({difference}): "
                "keep what the next step needs in env_state."
            )
    return passed(f"overwriting {', '.join(outputs)} changes nothing.")


def check_vmap(subject: DeviceSubject) -> Finding:
    env = subject.env
    reset_keys = jax.random.split(jax.random.key(SEED + 3), NUM_MAPPED_COPIES)
    mapped, mapped_step = jax.jit(jax.vmap(env.reset))(reset_keys), jax.jit(jax.vmap(env.step))
    single = [subject.reset_fn(key) for key in reset_keys]
    for num_steps, action_key in enumerate(jax.random.split(jax.random.key(SEED + 4), NUM_MAPPED_STEPS + 1)):
        for copy_index, state in enumerate(single):
            if difference := first_difference(index_tree(mapped, copy_index), state, TOLERANCE):
                return failed(
                    f"after {count_text(num_steps, 'step')} copy {copy_index} of {NUM_MAPPED_COPIES} mapped by "
                    f"jax.vmap differs from a single one: {difference}; expected independent copies."
                )
        actions = env.action_space.sample(action_key, (NUM_MAPPED_COPIES, *env.batch_shape))
        mapped = mapped_step(mapped, actions)
        single = [subject.step_fn(state, index_tree(actions, index)) for index, state in enumerate(single)]
    return passed(f"{NUM_MAPPED_COPIES} mapped copies equal {NUM_MAPPED_COPIES} single ones.")


def check_episodes_end(subject: DeviceSubject) -> Finding:
    limit = subject.env.max_episode_steps
    if limit is not None:
        return passed(f"time limit of {limit} steps.")
    num_steps = subject.num_steps_to_an_end()
    if num_steps is None:
        return warned(
            f"no episode ended within {MAX_STEPS_TO_AN_END} random steps, and max_episode_steps is None: declare it, "
            "or pass episode_length to create_env."
        )
    return passed(f"after {count_text(num_steps, 'random step')}; no time limit.")


def check_wrong_action(subject: DeviceSubject) -> Finding:
    wrong = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), subject.action)
    try:
        jax.eval_shape(subject.env.step, subject.reset, wrong)
    except Exception as error:
        return passed(f"{tree_text(wrong)} is refused with {type(error).__name__}.")
    return warned(
        f"an action {tree_text(wrong)} is accepted instead of {tree_text(subject.action)}: start step with "
        'self.action_space.check(action, "action").'
    )


def check_render(subject: DeviceSubject) -> Finding:
    try:
        with warnings.catch_warnings(action="ignore"):
            frame = subject.env.render(subject.step)
    except NotImplementedError:
        return skipped("the env cannot be rendered.")
    except Exception as error:
        return warned(f"render raised {describe_error(error)}: agents can learn, but there are no videos.")
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
        return failed(f"render returned {leaf_text(frame)}; expected a NumPy array uint8[height, width, 3].")
    return passed(f"{leaf_text(frame)}.")


def check_one_key_or_many(subject: DeviceSubject) -> Finding:
    (num_envs,) = subject.env.batch_shape
    keys = jax.random.split(jax.random.key(SEED), num_envs)
    if difference := first_difference(subject.reset, subject.reset_fn(keys)):
        return failed(f"reset(key) is not reset(jax.random.split(key, {num_envs})): {difference}.")
    return passed(f"one key is split into {num_envs}.")


DEVICE_RULES = (
    Rule("spaces are declared", check_spaces, essential=True),
    Rule("reset and step compile", check_compiles, essential=True),
    Rule("state keeps its structure", check_state_structure),
    Rule("info keeps its structure", check_info_structure),
    Rule("step leaves its input unchanged", check_input_unchanged),
    Rule("random steps run", check_random_steps, essential=True),
    Rule("observations are in the space", check_observations),
    Rule("observations are not NaN", check_nan),
    Rule("rewards are finite numbers", check_rewards),
    Rule("done is a flag", check_done),
    Rule("truncation comes with done", check_truncation),
    Rule("same key, same episode", check_same_key),
    Rule("different keys, other starts", check_different_keys),
    Rule("typed and legacy keys agree", check_key_types),
    Rule("step depends on the state only", check_depends_on_state_only),
    Rule("vmap equals single runs", check_vmap),
    Rule("episodes end", check_episodes_end),
    Rule("wrong actions are refused", check_wrong_action),
    Rule("render returns an image", check_render),
)
"""The rules for a single env, in order."""

VECTOR_RULES = (*DEVICE_RULES, Rule("one key or one per env", check_one_key_or_many))
"""The rules for a vectorized env."""


def _number_problem(value: Any, shape: Shape) -> str | None:
    if leaf_text(value) == f"float32{list(shape)}":
        return None
    return f"is {leaf_text(value)}; expected float32{list(shape)}"


def _flag_problem(value: Any, shape: Shape) -> str | None:
    problem = _number_problem(value, shape)
    if problem is None and not np.all((value == 0) | (value == 1)):
        return f"is {value}; expected 0 or 1"
    return problem


def _garbage(leaf: Array, sign: int) -> Array:
    """Return an array of the same shape and dtype with values that no env produces."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(~jax.random.key_data(leaf), impl=jax.random.key_impl(leaf))
    if leaf.dtype == jnp.bool_:
        return ~leaf
    magnitude = 12345 if jnp.issubdtype(leaf.dtype, jnp.inexact) else 99
    return leaf + jnp.asarray(magnitude, leaf.dtype) * jnp.asarray(sign).astype(leaf.dtype)
