"""The rules for a Gymnasium env: those of Gymnasium's own checker, then Rookery's."""

import copy
import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs import registration
from gymnasium.utils import env_checker

from rookery.envs.registration import env_names
from rookery.errors import (
    EnvironmentCheckError,
    InvalidInputError,
    MissingExtraError,
    ShapeError,
    unknown_name,
)
from rookery.spaces import from_gymnasium
from rookery.testing.check_report import (
    AFTER_RESET,
    NUM_RANDOM_STEPS,
    SEED,
    Check,
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
    count_text,
    describe_error,
    first_difference,
    first_outside,
    leaf_text,
    one_line,
    with_spaces,
)
from rookery.trust import import_named
from rookery.types import Obs

GYMNASIUM_OWN_CHECK = "gymnasium's own check_env"
COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")


def check_gymnasium_env(env: Any, name: str | None = None, show_fn: ShowFn | None = None) -> CheckReport:
    """Check a Gymnasium env against all rules; it is reset and stepped, but not closed."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidInputError(f"{type(env).__name__} is a vectorized Gymnasium env: check one of its single envs.")
    if not isinstance(env, gymnasium.Env):
        raise InvalidInputError(f"expected an Env of Rookery or a gymnasium.Env, got {type(env).__name__}.")
    checks = itertools.chain(own_checks(env), run_checks(GYMNASIUM_RULES, GymnasiumSubject(env)))
    return make_report(name or type(env.unwrapped).__name__, checks, show_fn)


def make_gymnasium_env(name: str) -> gymnasium.Env:
    """Build an env by its name, `gymnasium/ID`; warnings of Gymnasium are hidden."""
    gymnasium_id = name.removeprefix("gymnasium/")
    module, has_module, _ = gymnasium_id.partition(":")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f"{COLOR_CODES.pattern}WARN: ")
            if has_module:
                import_named(module, name)
            return gymnasium.make(gymnasium_id, disable_env_checker=True)
    except gymnasium.error.UnregisteredEnv:
        raise unknown_name("environment", name, env_names("gymnasium")) from None
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(f"{name} needs a package that is not installed: {one_line(str(error))}") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidInputError(f"gymnasium.make({gymnasium_id!r}) raised {describe_error(error)}.") from error


def own_checks(env: gymnasium.Env) -> Iterator[Check]:
    """Run Gymnasium's own checker; each of its warnings becomes a check."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env_checker.check_env(env, skip_render_check=True)
            verdict = passed("no error.")
        except Exception as error:
            verdict = failed(f"{describe_error(error)}.")
    messages = [one_line(COLOR_CODES.sub("", str(warning.message))).removeprefix("WARN: ") for warning in caught]
    for message in dict.fromkeys(messages):
        if "is different from the unwrapped version" not in message:  # true for every env of gymnasium.make
            yield Check(GYMNASIUM_OWN_CHECK, *warned(message))
    if newest := _newer_version(env):
        yield Check(GYMNASIUM_OWN_CHECK, *warned(f"there is a newer version: {newest}."))
    yield Check(GYMNASIUM_OWN_CHECK, *verdict)


@dataclass(frozen=True)
class GymnasiumSnapshot:
    """The outputs of a Gymnasium env at one step; the observation is copied before the env can overwrite it."""

    when: str
    obs: Obs
    info: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    shares_memory: bool = False


class GymnasiumSubject:
    """A Gymnasium env with a record of random steps, which its checks share."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env

    @cached_property
    def random_play(self) -> list[GymnasiumSnapshot]:
        return self.play(SEED)

    def play(self, seed: int) -> list[GymnasiumSnapshot]:
        """Take random steps, the same for the same seed."""
        self.env.action_space.seed(seed)
        obs, info = self._reset(seed=seed)
        record = [GymnasiumSnapshot(AFTER_RESET, copy.deepcopy(obs), info)]
        for index in range(NUM_RANDOM_STEPS):
            result = self.env.step(self.env.action_space.sample())
            names = ("obs", "reward", "terminated", "truncated", "info")
            next_obs, reward, terminated, truncated, info = _unpacked("step", result, names)
            shown = (copy.deepcopy(next_obs), info, reward, terminated, truncated, _share_memory(obs, next_obs))
            record.append(GymnasiumSnapshot(f"at step {index + 1}", *shown))
            obs = next_obs
            if terminated or truncated:
                obs, info = self._reset()
                record.append(GymnasiumSnapshot(AFTER_RESET, copy.deepcopy(obs), info))
        return record

    def _reset(self, **kwargs: Any) -> tuple:
        return _unpacked("reset", self.env.reset(**kwargs), ("obs", "info"))


def _unpacked(method: str, result: Any, names: tuple[str, ...]) -> tuple:
    """Return the result of a method if it is a tuple with one value per name; else raise."""
    if isinstance(result, tuple) and len(result) == len(names):
        return result
    given = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
    raise EnvironmentCheckError(f"{method} returned {given}; expected ({', '.join(names)}).")


def check_spaces(subject: GymnasiumSubject) -> Finding:
    obs_space, action_space = from_gymnasium(subject.env.observation_space), from_gymnasium(subject.env.action_space)
    return passed(f"observations {obs_space}, actions {action_space}.")


def check_steps(subject: GymnasiumSubject) -> Finding:
    num_resets = sum(snapshot.when == AFTER_RESET for snapshot in subject.random_play)
    return passed(f"{count_text(NUM_RANDOM_STEPS, 'step')}, {count_text(num_resets, 'reset')}.")


def check_observations(subject: GymnasiumSubject) -> Finding:
    space = subject.env.observation_space
    for snapshot in subject.random_play:
        if not space.contains(snapshot.obs):
            outside = _outside_text(space, snapshot.obs)
            return failed(f"{snapshot.when} {outside}: correct the space or the observation.")
    return passed(f"inside observation_space over {NUM_RANDOM_STEPS} random steps.")


def check_memory(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        if snapshot.shares_memory:
            return warned(
                f"observations share memory ({snapshot.when} with the previous one); Rookery copies them, but other "
                "code may see them change: return a new array from each step."
            )
    return passed("each observation is a new array.")


def check_rewards(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        reward = np.asarray(snapshot.reward)
        if reward.ndim or not (np.issubdtype(reward.dtype, np.floating) or np.issubdtype(reward.dtype, np.integer)):
            given = type(snapshot.reward).__name__ if reward.dtype == object else leaf_text(reward)
            return failed(f"the reward {snapshot.when} is {given}; expected one real number.")
        if not np.isfinite(reward):
            return failed(f"the reward {snapshot.when} is {reward}; expected a finite number.")
    return passed("finite real numbers.")


def check_flags(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        for name in ("terminated", "truncated"):
            flag = getattr(snapshot, name)
            if not isinstance(flag, (bool, np.bool_)):
                return failed(f"{name} {snapshot.when} is {flag!r}; expected a bool: return bool(...).")
    return passed("both are bools.")


def check_infos(subject: GymnasiumSubject) -> Finding:
    for snapshot in subject.random_play:
        if not isinstance(snapshot.info, dict):
            return failed(f"info {snapshot.when} is {type(snapshot.info).__name__}; expected a dict.")
    return passed("always a dict.")


def check_same_seed(subject: GymnasiumSubject) -> Finding:
    spec = subject.env.spec
    if spec is not None and spec.nondeterministic:
        return skipped("the env is registered as nondeterministic.")
    for first, second in itertools.zip_longest(subject.random_play, subject.play(SEED)):
        if first is None or second is None or first.when != second.when:
            return failed("two runs with one seed end their episodes at different steps: seed all randomness in reset.")
        for name in ("obs", "reward", "terminated", "truncated"):
            if difference := first_difference(getattr(first, name), getattr(second, name)):
                return failed(
                    f"two runs with one seed differ in {name} {first.when}: {difference}; use only self.np_random, "
                    "and call super().reset(seed=seed) in reset."
                )
    return passed(f"two runs of {NUM_RANDOM_STEPS} steps are equal.")


def check_other_seeds(subject: GymnasiumSubject) -> Finding:
    first, *others = [copy.deepcopy(subject.env.reset(seed=SEED + offset)[0]) for offset in range(4)]
    if all(first_difference(first, other) is None for other in others):
        return warned("four seeds gave the same first observation: if it should vary, use self.np_random.")
    return passed("first observations differ.")


def check_time_limit(subject: GymnasiumSubject) -> Finding:
    if _has_time_limit(subject.env):
        return passed("there is a TimeLimit wrapper.")
    if any(snapshot.truncated for snapshot in subject.random_play):
        return passed("the env truncates its episodes itself.")
    return warned(
        "no time limit: an episode may never end. Register the env with max_episode_steps, or wrap it in "
        "gymnasium.wrappers.TimeLimit."
    )


GYMNASIUM_RULES = (
    Rule("spaces can be converted", check_spaces),
    Rule("random steps run", check_steps, essential=True),
    Rule("observations are in the space", check_observations),
    Rule("observations are new arrays", check_memory),
    Rule("rewards are finite numbers", check_rewards),
    Rule("ends are bools", check_flags),
    Rule("infos are dicts", check_infos),
    Rule("same seed, same trajectory", check_same_seed),
    Rule("different seeds, other starts", check_other_seeds),
    Rule("a time limit exists", check_time_limit),
)
"""Rookery's rules for a Gymnasium env, checked after Gymnasium's."""


def _newer_version(env: gymnasium.Env) -> str | None:
    """Return the id of a newer registered version of an env; None without one."""
    spec = env.spec
    if spec is None or spec.version is None:
        return None
    newest = registration.find_highest_version(spec.namespace, spec.name)
    if newest is None or newest <= spec.version:
        return None
    return registration.get_env_id(spec.namespace, spec.name, newest)


def _share_memory(obs: Obs, next_obs: Obs) -> bool:
    arrays = [[leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray)] for tree in (obs, next_obs)]
    return any(np.may_share_memory(one, other) for one, other in itertools.product(*arrays))


def _outside_text(gymnasium_space: gymnasium.Space, obs: Obs) -> str:
    """Describe why an observation is not in its space."""
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
    return first_outside(space, obs, "the observation") or "the observation contains NaN"


def _has_time_limit(env: gymnasium.Env) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False
