"""A plain verdict on an environment: does it keep the promises that rollouts, wrappers and agents rely on?

`check_env` takes an `Env` of Rookery, single or vectorised, or a Gymnasium env; `check_env_by_name` takes the name of
one. In a test: `report = check_env(env); assert report.passed, report`.
"""

from __future__ import annotations

import copy
import enum
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import action_mask_of, sample_allowed
from rookery.envs.env import Env, EnvState, MultiAgentEnv, Wrapper
from rookery.envs.registration import env_names, is_installed, library_names, make_env
from rookery.envs.wrappers import VmapWrapper
from rookery.errors import (
    EnvironmentCheckError,
    InvalidInputError,
    MissingExtraError,
    RookeryError,
    ShapeError,
    unknown_name,
)
from rookery.spaces import ArraySpace, Box, Dict, Discrete, Shape, Space, Tuple, from_gymnasium
from rookery.types import Array, Key, PyTreeDict

if TYPE_CHECKING:
    import gymnasium

SEED = 0
NUM_RANDOM_STEPS = 256
MAX_STEPS_TO_AN_END = 2_000
NUM_MAPPED_COPIES = 3
NUM_MAPPED_STEPS = 4
TOLERANCE = 1e-4
"""How far two computations of the same number may differ: mapped code adds up in another order."""
AFTER_RESET = "after reset"
NAME_WIDTH = 31


class Outcome(enum.Enum):
    """How a check came out; its value is the word in the report."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


Finding = tuple[Outcome, str]
"""What a check returns: how it came out, and one line that says what was found."""


@dataclass(frozen=True)
class Check:
    """One rule and how the subject stands to it, in one line."""

    name: str
    outcome: Outcome
    finding: str

    def __str__(self) -> str:
        return f"{self.outcome.value:<7}  {self.name:<{NAME_WIDTH}}  {self.finding}"


@dataclass(frozen=True)
class CheckReport:
    """All checks of one subject; as text it has a line per check and the verdict last."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.with_outcome(Outcome.FAILED)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        num_failed, num_warnings, num_skipped = (
            len(self.with_outcome(outcome)) for outcome in (Outcome.FAILED, Outcome.WARNING, Outcome.SKIPPED)
        )
        parts = [_count(len(self.checks) - num_skipped, "check")]
        if num_failed:
            parts.append(f"{num_failed} failed")
        parts.append(_count(num_warnings, "warning"))
        if num_skipped:
            parts.append(f"{num_skipped} skipped")
        return f"{self.subject}: {'passed' if self.passed else 'FAILED'} ({', '.join(parts)})"

    def with_outcome(self, outcome: Outcome) -> list[Check]:
        """Return the checks that came out this way."""
        return [check for check in self.checks if check.outcome is outcome]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), self.verdict])


def passed(finding: str) -> Finding:
    return Outcome.PASSED, finding


def warned(finding: str) -> Finding:
    return Outcome.WARNING, finding


def failed(finding: str) -> Finding:
    return Outcome.FAILED, finding


def skipped(finding: str) -> Finding:
    return Outcome.SKIPPED, finding


ShowFn = Callable[[Check], None]
"""Called with each check as soon as it is done: compiling may take a while."""


def check_env(env: Env | gymnasium.Env, name: str | None = None, show_fn: ShowFn | None = None) -> CheckReport:
    """Check an environment against every rule; a broken rule does not keep the others from being checked.

    `name` is what the report calls it, by default its class. A Gymnasium env is reset and stepped, and left open.
    """
    if isinstance(env, Env):
        checks = run_checks(VECTOR_RULES if env.batch_shape else DEVICE_RULES, DeviceSubject(env))
        return make_report(name or type(env).__name__, checks, show_fn)

    import gymnasium

    if isinstance(env, gymnasium.Env):
        checks = itertools.chain(gymnasium_own_checks(env), run_checks(GYMNASIUM_RULES, GymnasiumSubject(env)))
        return make_report(name or type(env.unwrapped).__name__, checks, show_fn)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidInputError(f"{type(env).__name__} is a vectorised Gymnasium env: check one of its single envs.")
    raise InvalidInputError(f"expected an Env of Rookery or a gymnasium.Env, got {type(env).__name__}.")


def check_env_by_name(name: str, show_fn: ShowFn | None = None) -> CheckReport:
    """Check `library/name` of Rookery, `gymnasium/ID`, or any id that Gymnasium knows, `CartPole-v1`."""
    if name.partition("/")[0] in library_names():
        return check_env(make_env(name), name, show_fn)
    env = _make_gymnasium_env(name)
    try:
        return check_env(env, name, show_fn)
    finally:
        env.close()


def _make_gymnasium_env(name: str) -> gymnasium.Env:
    import gymnasium

    gymnasium_id = name.removeprefix("gymnasium/")
    try:
        return gymnasium.make(gymnasium_id, disable_env_checker=True)
    except gymnasium.error.UnregisteredEnv:
        ours = [full for library in library_names() if is_installed(library) for full in env_names(library)]
        same = [full for full in ours if full.partition("/")[2].casefold() == name.casefold()]
        hint = "Names look like 'classic/cartpole' (`rookery list envs`), or 'CartPole-v1' for Gymnasium."
        raise unknown_name("environment", name, same or [*ours, *gymnasium.registry], hint) from None
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(f"{name} needs a package that is not installed: {one_line(str(error))}") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidInputError(f"gymnasium.make({gymnasium_id!r}) raised {describe_error(error)}.") from error


# What the checks of environments and of agents share.


@dataclass(frozen=True)
class Rule:
    """A check that can be made of a subject; if an essential one fails, nothing after it can be checked."""

    name: str
    check_fn: Callable[[Any], Finding]
    essential: bool = False


def run_checks(rules: Iterable[Rule], subject: Any) -> Iterator[Check]:
    """Make one check after the other; what a check raises is its failure."""
    missing = None
    for rule in rules:
        if missing is not None:
            yield Check(rule.name, *skipped(f"not checked, because {missing!r} failed."))
            continue
        try:
            outcome, finding = rule.check_fn(subject)
        except RookeryError as error:
            outcome, finding = failed(one_line(str(error)))
        except Exception as error:
            outcome, finding = failed(f"raised {describe_error(error)}.")
        yield Check(rule.name, outcome, finding)
        if rule.essential and outcome is Outcome.FAILED:
            missing = rule.name


def make_report(subject: str, checks: Iterable[Check], show_fn: ShowFn | None) -> CheckReport:
    """Collect the checks as they come, showing each."""
    done = []
    for check in checks:
        done.append(check)
        if show_fn is not None:
            show_fn(check)
    return CheckReport(subject, tuple(done))


def describe_error(error: BaseException) -> str:
    """Name an exception and give the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip().rstrip('.')}" if lines else type(error).__name__


def one_line(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


def leaf_text(leaf: Any) -> str:
    """Name the dtype and shape of an array, as in `float32[3, 2]`."""
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__


def tree_text(tree: Any) -> str:
    """Name the dtypes and shapes of a tree of arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {leaf_text(leaf)}".strip() for path, leaf in leaves) or "nothing"


def first_mismatch(one: Any, other: Any, name_of_one: str, name_of_other: str) -> str | None:
    """Describe the first leaf of which two trees have different shapes or dtypes, or that only one of them has."""
    leaves_of_one, leaves_of_other = (
        {jax.tree_util.keystr(path): leaf_text(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (one, other)
    )
    for path in dict.fromkeys([*leaves_of_one, *leaves_of_other]):
        text_of_one, text_of_other = leaves_of_one.get(path, "missing"), leaves_of_other.get(path, "missing")
        if text_of_one != text_of_other:
            return f"{path} is {text_of_one} {name_of_one} and {text_of_other} {name_of_other}"
    structure_of_one: Any = jax.tree.structure(one)
    if structure_of_one != jax.tree.structure(other):
        return f"the containers or static fields {name_of_one} are not those {name_of_other}"
    return None


def first_difference(one: Any, other: Any, tolerance: float = 0.0) -> str | None:
    """Describe the first leaf in which two trees differ, in structure or in value; NaN equals NaN."""
    mismatch = first_mismatch(one, other, "in one", "in the other")
    if mismatch is not None:
        return mismatch
    for (path, leaf), other_leaf in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        array, other_array = _comparable(leaf), _comparable(other_leaf)
        if np.issubdtype(array.dtype, np.inexact):
            equal = np.isclose(array, other_array, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            equal = np.asarray(array == other_array)
        if not np.all(equal):
            where = tuple(int(index) for index in np.argwhere(~equal)[0])
            entry = jax.tree_util.keystr(path) + _index_text(where)
            return f"{entry or 'it'} is {array[where]} in one and {other_array[where]} in the other"
    return None


def with_spaces(space: Space, tree: Any, what: str) -> Iterator[tuple[str, ArraySpace, np.ndarray]]:
    """Go through the arrays of an element of a space, each with its name and its own space."""
    match space:
        case Dict():
            for name, subspace in space.spaces.items():
                yield from with_spaces(subspace, tree[name], f"{what}[{name!r}]")
        case Tuple():
            for index, subspace in enumerate(space.spaces):
                yield from with_spaces(subspace, tree[index], f"{what}[{index}]")
        case ArraySpace():
            yield what, space, np.asarray(tree)


def first_outside(space: Space, tree: Any, what: str, batch_shape: Shape = ()) -> str | None:
    """Describe the first entry of `tree` outside the space; a NaN is not an entry outside."""
    for name, subspace, array in with_spaces(space, tree, what):
        for row in np.ndindex(batch_shape):
            element = array[row]
            if isinstance(subspace, Box) and np.issubdtype(element.dtype, np.inexact):
                element = np.where(np.isnan(element), subspace.low.astype(element.dtype), element)
            if subspace.contains(element):
                continue
            if not isinstance(subspace, Box):
                return f"{name}{_index_text(row)} is {element.tolist()}, outside {subspace}"
            low, high = subspace.low.astype(element.dtype), subspace.high.astype(element.dtype)
            where = tuple(int(index) for index in np.argwhere((element < low) | (element > high))[0])
            bounds = f"[{low[where]}, {high[where]}]"
            return f"{name}{_index_text((*row, *where))} is {element[where]}, outside {bounds}"
    return None


def changed_argument(function: Callable, *args: Any) -> str | None:
    """Trace a function and name the first leaf of its arguments that it replaced, added or removed in place."""
    changes: list[str] = []

    def watched(*traced: Any) -> None:
        before = dict(jax.tree_util.tree_leaves_with_path(traced))
        function(*traced)
        after = dict(jax.tree_util.tree_leaves_with_path(traced))
        changed = (path for path in before | after if before.get(path) is not after.get(path))
        changes.extend(jax.tree_util.keystr(path[1:]) for path in changed)  # path[0] is the argument

    jax.eval_shape(watched, *args)
    return changes[0] if changes else None


def _comparable(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _index_text(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# Environments of Rookery.


@dataclass(frozen=True)
class Snapshot:
    """What an env showed at one moment of the random steps, on the host."""

    when: str
    obs: Any
    reward: Any
    done: Any
    info: Any


class DeviceSubject:
    """An env with what its checks share: compiled functions, its first two states, and a record of random steps."""

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
    def action(self) -> Any:
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
        """The number of steps that a random episode took to end, or None if none did."""
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

    def _random_action(self, obs: Any, key: Key) -> Any:
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
    mismatch = first_mismatch(reset, step, "after reset", "after step")
    if mismatch is not None:
        return failed(f"{mismatch}; expected no change, or no loop can carry the state: give it one dtype and shape.")
    return passed(f"{_count(len(jax.tree.leaves(subject.reset)), 'array')}, the same after reset and step.")


def check_info_structure(subject: DeviceSubject) -> Finding:
    for method, state in (("reset", subject.reset), ("step", subject.step)):
        if not isinstance(state.info, PyTreeDict):
            return failed(f"info is {type(state.info).__name__} after {method}; expected a PyTreeDict.")
    mismatch = first_mismatch(subject.reset.info, subject.step.info, "after reset", "after step")
    if mismatch is not None:
        return failed(f"info{mismatch}; expected the same entries always: let reset fill them with zeros.")
    return passed(f"entries: {', '.join(map(str, sorted(subject.reset.info))) or 'none'}.")


def check_input_unchanged(subject: DeviceSubject) -> Finding:
    changed = changed_argument(subject.env.step, subject.reset, subject.action)
    if changed is not None:
        return failed(f"step changed {changed} of its argument in place; expected a new state: use replace().")
    return passed("step leaves its arguments as they are.")


def check_random_steps(subject: DeviceSubject) -> Finding:
    num_resets = sum(snapshot.when == AFTER_RESET for snapshot in subject.random_steps)
    return passed(f"{_count(NUM_RANDOM_STEPS, 'step')}, {_count(num_resets, 'reset')}.")


def check_observations(subject: DeviceSubject) -> Finding:
    space, batch_shape = subject.env.obs_space, subject.env.batch_shape
    for snapshot in subject.random_steps:
        space.check(snapshot.obs, f"obs {snapshot.when}", batch_shape)
        outside = first_outside(space, snapshot.obs, "obs", batch_shape)
        if outside is not None:
            return failed(f"{snapshot.when} {outside}: widen obs_space, or clip the observation.")
    for name, subspace, array in with_spaces(space, subject.step.obs, "obs"):
        if array.dtype != subspace.sample_dtype:
            return warned(f"{name} is {array.dtype}; obs_space declares {subspace.dtype}: make them one dtype.")
    return passed(f"inside obs_space over {NUM_RANDOM_STEPS} random steps.")


def check_nan(subject: DeviceSubject) -> Finding:
    for snapshot in subject.random_steps:
        for path, leaf in jax.tree_util.tree_leaves_with_path(snapshot.obs):
            if np.issubdtype(leaf.dtype, np.inexact) and np.any(np.isnan(leaf)):
                where = tuple(int(index) for index in np.argwhere(np.isnan(leaf))[0])
                entry = f"obs{jax.tree_util.keystr(path)}{_index_text(where)}"
                return failed(f"{entry} is NaN {snapshot.when}: look for a division by zero, or a root of less than 0.")
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
            problem = _number_problem(reward, env.batch_shape)
            if problem is not None:
                return failed(f"{name} {snapshot.when} {problem}.")
            if not np.all(np.isfinite(reward)):
                return failed(f"{name} {snapshot.when} is {reward}; expected a finite number.")
    return passed(f"finite, float32{list(env.batch_shape)}.")


def check_done(subject: DeviceSubject) -> Finding:
    for snapshot in subject.random_steps:
        problem = _flag_problem(snapshot.done, subject.env.batch_shape)
        if problem is not None:
            return failed(f"done {snapshot.when} {problem}.")
        if snapshot.when == AFTER_RESET and np.any(snapshot.done):
            return failed("done is 1 after reset; expected 0: an episode cannot end before its first step.")
    return passed(f"0 or 1, float32{list(subject.env.batch_shape)}.")


def check_truncation(subject: DeviceSubject) -> Finding:
    if "truncation" not in subject.step.info:
        return skipped("info has no truncation: all ends are terminations.")
    for snapshot in subject.random_steps:
        truncation = snapshot.info["truncation"]
        problem = _flag_problem(truncation, subject.env.batch_shape)
        if problem is not None:
            return failed(f"info.truncation {snapshot.when} {problem}.")
        if np.any((truncation == 1) & (np.asarray(snapshot.done) == 0)):
            return failed(f"info.truncation is 1 and done is 0 {snapshot.when}: an episode that is cut off is done.")
    return passed("0 or 1, and 1 only where done is 1.")


def check_same_key(subject: DeviceSubject) -> Finding:
    # Traced a second time, through functions JAX has not seen: numbers drawn while tracing would be others now.
    reset = jax.jit(lambda key: subject.env.reset(key))(jax.random.key(SEED))
    difference = first_difference(subject.reset, reset, TOLERANCE)
    if difference is not None:
        return failed(f"two resets with one key differ: {difference}; draw random numbers from the key alone.")
    step = jax.jit(lambda state, action: subject.env.step(state, action))(subject.reset, subject.action)
    difference = first_difference(subject.step, step, TOLERANCE)
    if difference is not None:
        return failed(f"two equal steps differ: {difference}; draw random numbers from a key in env_state alone.")
    return passed("reset and step repeat exactly.")


def check_different_keys(subject: DeviceSubject) -> Finding:
    others = [subject.reset_fn(jax.random.key(SEED + offset)) for offset in range(1, 4)]
    if all(first_difference(subject.reset.obs, other.obs) is None for other in others):
        return warned("four keys gave one first observation: if the start is meant to vary, use the key in reset.")
    return passed("first observations differ.")


def check_key_types(subject: DeviceSubject) -> Finding:
    try:
        legacy = subject.reset_fn(jax.random.PRNGKey(SEED))
    except Exception as error:
        return failed(f"reset with a legacy PRNGKey raised {describe_error(error)}; start reset with as_key(key).")
    difference = first_difference(subject.reset, legacy)
    if difference is not None:
        return failed(f"typed and legacy key give different states: {difference}; start reset with as_key(key).")
    return passed("jax.random.key and PRNGKey give the same state.")


def check_depends_on_state_only(subject: DeviceSubject) -> Finding:
    outputs = ["obs", "reward", "done", "info"]
    if isinstance(subject.env, VmapWrapper):
        outputs.remove("done")  # It freezes the envs that are done: that is its job.
    for output, sign in itertools.product(outputs, (1, -1)):
        poisoned = jax.tree.map(lambda leaf, sign=sign: _garbage(leaf, sign), getattr(subject.reset, output))
        difference = first_difference(
            subject.step, subject.step_fn(subject.reset.replace(**{output: poisoned}), subject.action)
        )
        if difference is not None:
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
            difference = first_difference(_row(mapped, copy_index), state, TOLERANCE)
            if difference is not None:
                return failed(
                    f"after {_count(num_steps, 'step')} copy {copy_index} of {NUM_MAPPED_COPIES} mapped by jax.vmap is "
                    f"not what it is alone: {difference}; expected copies that do not see each other."
                )
        actions = subject.env.action_space.sample(action_key, (NUM_MAPPED_COPIES, *env.batch_shape))
        mapped = mapped_step(mapped, actions)
        single = [subject.step_fn(state, _row(actions, index)) for index, state in enumerate(single)]
    return passed(f"{NUM_MAPPED_COPIES} mapped copies equal {NUM_MAPPED_COPIES} single ones.")


def check_episodes_end(subject: DeviceSubject) -> Finding:
    limit = subject.env.max_episode_steps
    if limit is not None:
        return passed(f"time limit of {limit} steps.")
    num_steps = subject.num_steps_to_an_end()
    if num_steps is None:
        return warned(
            f"no end within {MAX_STEPS_TO_AN_END} random steps, and max_episode_steps is None: declare it, or give "
            "episode_length to create_env."
        )
    return passed(f"after {_count(num_steps, 'random step')}; no time limit.")


def check_wrong_action(subject: DeviceSubject) -> Finding:
    wrong = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), subject.action)
    try:
        jax.eval_shape(subject.env.step, subject.reset, wrong)
    except Exception as error:
        return passed(f"{tree_text(wrong)} is refused with {type(error).__name__}.")
    return warned(
        f"an action {tree_text(wrong)} is taken for {tree_text(subject.action)}: start step with "
        'self.action_space.check(action, "action").'
    )


def check_render(subject: DeviceSubject) -> Finding:
    try:
        with warnings.catch_warnings(action="ignore"):
            frame = subject.env.render(subject.step)
    except NotImplementedError:
        return skipped("the env cannot be rendered.")
    except Exception as error:
        return warned(f"render raised {describe_error(error)}: agents can learn, but there will be no pictures.")
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
        return failed(f"render returned {leaf_text(frame)}; expected a NumPy array uint8[height, width, 3].")
    return passed(f"{leaf_text(frame)}.")


def check_one_key_or_many(subject: DeviceSubject) -> Finding:
    (num_envs,) = subject.env.batch_shape
    keys = jax.random.split(jax.random.key(SEED), num_envs)
    difference = first_difference(subject.reset, subject.reset_fn(keys))
    if difference is not None:
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
    Rule("render draws a picture", check_render),
)
"""The rules for a single env, in the order they are checked."""

VECTOR_RULES = (*DEVICE_RULES, Rule("one key or one per env", check_one_key_or_many))
"""The rules for a vectorised env."""


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
    """Return an array of the same shape and dtype that no env would have made."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(~jax.random.key_data(leaf), impl=jax.random.key_impl(leaf))
    if leaf.dtype == jnp.bool_:
        return ~leaf
    magnitude = 12345 if jnp.issubdtype(leaf.dtype, jnp.inexact) else 99
    return leaf + jnp.asarray(magnitude, leaf.dtype) * jnp.asarray(sign).astype(leaf.dtype)


def _row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


# Environments of Gymnasium.

GYMNASIUM_OWN_CHECK = "gymnasium's own check_env"
COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")


def gymnasium_own_checks(env: gymnasium.Env) -> Iterator[Check]:
    """Run the checker that comes with Gymnasium; each of its warnings becomes a check of its own."""
    from gymnasium.utils.env_checker import check_env as check_gymnasium_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_gymnasium_env(env, skip_render_check=True)
            verdict = Check(GYMNASIUM_OWN_CHECK, Outcome.PASSED, "no error.")
        except Exception as error:
            verdict = Check(GYMNASIUM_OWN_CHECK, Outcome.FAILED, f"{describe_error(error)}.")
    messages = [one_line(COLOR_CODES.sub("", str(warning.message))).removeprefix("WARN: ") for warning in caught]
    for message in dict.fromkeys(messages):
        if "is different from the unwrapped version" not in message:  # true of everything that gymnasium.make builds
            yield Check(GYMNASIUM_OWN_CHECK, Outcome.WARNING, message)
    yield verdict


@dataclass(frozen=True)
class GymnasiumSnapshot:
    """What a Gymnasium env returned at one moment, its observation copied before it could be overwritten."""

    when: str
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any
    shares_memory: bool


class GymnasiumSubject:
    """A Gymnasium env with what its checks share: a record of random steps."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env

    @cached_property
    def random_play(self) -> list[GymnasiumSnapshot]:
        return self.play(SEED)

    def play(self, seed: int) -> list[GymnasiumSnapshot]:
        """Take random steps, the same for the same seed."""
        self.env.action_space.seed(seed)
        obs, info = self._reset(seed=seed)
        record = [GymnasiumSnapshot(AFTER_RESET, copy.deepcopy(obs), 0.0, False, False, info, False)]
        for index in range(NUM_RANDOM_STEPS):
            result = self.env.step(self.env.action_space.sample())
            if not isinstance(result, tuple) or len(result) != 5:
                given = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
                raise EnvironmentCheckError(
                    f"step returned {given}; expected (obs, reward, terminated, truncated, info)."
                )
            next_obs, reward, terminated, truncated, info = result
            shares_memory = _share_memory(obs, next_obs)
            snapshot = (copy.deepcopy(next_obs), reward, terminated, truncated, info, shares_memory)
            record.append(GymnasiumSnapshot(f"at step {index + 1}", *snapshot))
            obs = next_obs
            if terminated or truncated:
                obs, info = self._reset()
                record.append(GymnasiumSnapshot(AFTER_RESET, copy.deepcopy(obs), 0.0, False, False, info, False))
        return record

    def _reset(self, **kwargs: Any) -> tuple[Any, Any]:
        result = self.env.reset(**kwargs)
        if not isinstance(result, tuple) or len(result) != 2:
            given = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvironmentCheckError(f"reset returned {given}; expected (obs, info).")
        return result


def check_gymnasium_spaces(subject: GymnasiumSubject) -> Finding:
    obs_space, action_space = from_gymnasium(subject.env.observation_space), from_gymnasium(subject.env.action_space)
    return passed(f"observations {obs_space}, actions {action_space}.")


def check_gymnasium_steps(subject: GymnasiumSubject) -> Finding:
    num_resets = sum(snapshot.when == AFTER_RESET for snapshot in subject.random_play)
    return passed(f"{_count(NUM_RANDOM_STEPS, 'step')}, {_count(num_resets, 'reset')}.")


def check_gymnasium_observations(subject: GymnasiumSubject) -> Finding:
    space = subject.env.observation_space
    for snapshot in subject.random_play:
        if not space.contains(snapshot.obs):
            return failed(
                f"{snapshot.when} {_outside_text(space, snapshot.obs)}: correct the space or the observation."
            )
    return passed(f"inside observation_space over {NUM_RANDOM_STEPS} random steps.")


def check_gymnasium_memory(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        if snapshot.shares_memory:
            return warned(
                f"observations share memory ({snapshot.when} with the one before); Rookery copies them, other code may "
                "see them change: return a new array from each step."
            )
    return passed("each observation is a new one.")


def check_gymnasium_rewards(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        reward = np.asarray(snapshot.reward)
        if reward.ndim or not (np.issubdtype(reward.dtype, np.floating) or np.issubdtype(reward.dtype, np.integer)):
            given = type(snapshot.reward).__name__ if reward.dtype == object else leaf_text(reward)
            return failed(f"the reward {snapshot.when} is {given}; expected one real number.")
        if not np.isfinite(reward):
            return failed(f"the reward {snapshot.when} is {reward}; expected a finite number.")
    return passed("finite real numbers.")


def check_gymnasium_flags(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        for name in ("terminated", "truncated"):
            flag = getattr(snapshot, name)
            if not isinstance(flag, (bool, np.bool_)):
                return failed(f"{name} {snapshot.when} is {flag!r}; expected a bool: return bool(...).")
    return passed("both are bools.")


def check_gymnasium_infos(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        if not isinstance(snapshot.info, dict):
            return failed(f"info {snapshot.when} is {type(snapshot.info).__name__}; expected a dict.")
    return passed("always a dict.")


def check_gymnasium_same_seed(subject: GymnasiumSubject) -> Finding:
    spec = subject.env.spec
    if spec is not None and spec.nondeterministic:
        return skipped("the env is registered as nondeterministic.")
    for first, second in itertools.zip_longest(subject.random_play, subject.play(SEED)):
        if first is None or second is None or first.when != second.when:
            return failed("two runs with one seed end their episodes at different steps: seed all randomness in reset.")
        for name in ("obs", "reward", "terminated", "truncated"):
            difference = first_difference(getattr(first, name), getattr(second, name))
            if difference is not None:
                return failed(
                    f"two runs with one seed differ in {name} {first.when}: {difference}; draw from self.np_random "
                    "alone, and let reset call super().reset(seed=seed)."
                )
    return passed(f"two runs of {NUM_RANDOM_STEPS} steps are equal.")


def check_gymnasium_other_seeds(subject: GymnasiumSubject) -> Finding:
    first, *others = [copy.deepcopy(subject.env.reset(seed=SEED + offset)[0]) for offset in range(4)]
    if all(first_difference(first, other) is None for other in others):
        return warned("four seeds gave one first observation: if the start is meant to vary, use self.np_random.")
    return passed("first observations differ.")


def check_gymnasium_time_limit(subject: GymnasiumSubject) -> Finding:
    from gymnasium.wrappers import TimeLimit

    if any(isinstance(layer, TimeLimit) for layer in _layers(subject.env)):
        return passed("there is a TimeLimit wrapper.")
    if any(snapshot.truncated for snapshot in subject.random_play):
        return passed("the env truncates its episodes itself.")
    return warned(
        "no time limit: an episode may never end. Register the env with max_episode_steps, or wrap it in "
        "gymnasium.wrappers.TimeLimit."
    )


GYMNASIUM_RULES = (
    Rule("spaces can be converted", check_gymnasium_spaces),
    Rule("random steps run", check_gymnasium_steps, essential=True),
    Rule("observations are in the space", check_gymnasium_observations),
    Rule("observations are new arrays", check_gymnasium_memory),
    Rule("rewards are finite numbers", check_gymnasium_rewards),
    Rule("ends are bools", check_gymnasium_flags),
    Rule("infos are dicts", check_gymnasium_infos),
    Rule("same seed, same trajectory", check_gymnasium_same_seed),
    Rule("different seeds, other starts", check_gymnasium_other_seeds),
    Rule("a time limit exists", check_gymnasium_time_limit),
)
"""Our own rules for a Gymnasium env, checked after Gymnasium's."""


def _share_memory(obs: Any, next_obs: Any) -> bool:
    arrays = [[leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray)] for tree in (obs, next_obs)]
    return any(np.may_share_memory(one, other) for one, other in itertools.product(*arrays))


def _outside_text(gymnasium_space: gymnasium.Space, obs: Any) -> str:
    """Say what is wrong with an observation, as exactly as the space allows."""
    try:
        space = from_gymnasium(gymnasium_space)
        space.check(obs, "the observation")
    except InvalidInputError:
        return f"the observation {one_line(repr(obs))} is not in {gymnasium_space}"
    except ShapeError as error:
        return one_line(str(error)).removesuffix(".")
    for name, subspace, array in with_spaces(space, obs, "the observation"):
        if array.dtype != subspace.dtype:
            return f"{name} is {array.dtype}; the space declares {subspace.dtype}"
    return first_outside(space, obs, "the observation") or "the observation holds a NaN"


def _layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """Return the env and all envs it wraps, from the outside in."""
    import gymnasium

    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers
