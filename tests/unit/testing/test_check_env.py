"""Every rule has an environment that breaks it, and no other, and is told so in the right words."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.control_flow import any_true
from rookery.envs import AutoresetMode, Env, EnvState, VmapWrapper, make_env, wrap_env
from rookery.errors import InvalidInputError, MissingExtraError, UnknownNameError
from rookery.spaces import Box, Dict, Discrete, Space
from rookery.testing.check_env import DEVICE_RULES, VECTOR_RULES, check_env, check_env_by_name
from rookery.testing.check_gymnasium import GYMNASIUM_OWN_CHECK, GYMNASIUM_RULES
from rookery.testing.check_report import NAME_WIDTH, Check, CheckReport, Outcome, Rule
from rookery.testing.probe_envs import CounterEnv, MultiAgentCounterEnv
from rookery.types import Array, Key, PyTreeData, PyTreeDict, as_key

EPISODE_LENGTH = 10


class WalkState(PyTreeData):
    position: Array
    count: Array


class Walk(Env):
    """An env that keeps every rule: a walk along a line that is cut off after ten steps."""

    @property
    def obs_space(self) -> Space:
        return Box(np.array([-20.0, 0.0]), np.array([20.0, EPISODE_LENGTH]))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def reset(self, key: Key) -> EnvState:
        position = jax.random.uniform(as_key(key), (), jnp.float32, -1.0, 1.0)
        return self.show(WalkState(position=position, count=jnp.zeros((), jnp.int32)))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self.action_space.check(action, "action")
        before = env_state.env_state
        move = jnp.where(action == 1, 1.0, -1.0)
        return self.show(WalkState(position=before.position + move, count=before.count + 1))

    def show(self, state: WalkState) -> EnvState:
        done = (state.count >= EPISODE_LENGTH).astype(jnp.float32)
        return EnvState(
            env_state=state,
            obs=jnp.stack([state.position, state.count.astype(jnp.float32)]),
            reward=-jnp.abs(state.position),
            done=done,
            info=PyTreeDict(truncation=done, distance=jnp.abs(state.position)),
        )

    def render(self, env_state: EnvState) -> np.ndarray:
        return np.zeros((8, 12, 3), np.uint8)


def walk(
    after_reset: Callable[[EnvState], Any] = lambda state: state,
    after_step: Callable[[EnvState], Any] = lambda state: state,
    **members: Any,
) -> Env:
    """Make a walk whose fresh or stepped states are changed, or some of whose members are others."""

    class ChangedWalk(Walk):
        def reset(self, key: Key) -> EnvState:
            return after_reset(super().reset(key))

        def step(self, env_state: EnvState, action: Any) -> EnvState:
            return after_step(super().step(env_state, action))

    return type("BrokenWalk", (ChangedWalk,), members)()


def both(change: Callable[[EnvState], EnvState]) -> Env:
    """Make a walk whose fresh and stepped states are changed alike."""
    return walk(change, change)


def walk_that_reads(output: str) -> Env:
    """Make a walk whose next position depends on an output of the step before."""

    def step(self: Walk, env_state: EnvState, action: Any) -> EnvState:
        state = Walk.step(self, env_state, action)
        first = jax.tree.leaves(getattr(env_state, output))[0]
        position = state.env_state.position + 1e-3 * jnp.clip(first.ravel()[0], -1.0, 1.0)
        return self.show(state.env_state.replace(position=position))

    return walk(step=step)


def at_count(count: int, change: Callable[[EnvState], EnvState]) -> Callable[[EnvState], EnvState]:
    """Change the state at one step of the episode."""

    def change_then(state: EnvState) -> EnvState:
        changed = change(state)
        return jax.tree.map(lambda new, old: jnp.where(state.env_state.count == count, new, old), changed, state)

    return change_then


def with_obs(value: float) -> Callable[[EnvState], EnvState]:
    return lambda state: state.replace(obs=state.obs.at[0].set(value))


def untyped_key_starts_elsewhere(self: Walk, key: Key) -> EnvState:
    return Walk.reset(self, key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else as_key(key + 1))


def only_typed_keys(self: Walk, key: Key) -> EnvState:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError("not a typed key")
    return Walk.reset(self, key)


def branch_on_a_traced_value(self: Walk, env_state: EnvState, action: Any) -> EnvState:
    return Walk.step(self, env_state, 1 if action == 0 else 0)


def write_into_the_argument(self: Walk, env_state: EnvState, action: Any) -> EnvState:
    env_state.info["distance"] = jnp.zeros(())
    return Walk.step(self, env_state, action)


def take_any_action(self: Walk, env_state: EnvState, action: Any) -> EnvState:
    return Walk.step(self, env_state, jnp.ravel(action)[0])


def render_fails(self: Walk, env_state: EnvState) -> np.ndarray:
    raise OSError("no display")


def cannot_render(self: Walk, env_state: EnvState) -> np.ndarray:
    return Env.render(self, env_state)


def greatest_of_all(value: Array) -> Array:
    """Count the eighths of [-1, 1] below `value`, or below the greatest of all mapped copies."""
    return sum(any_true(value > limit).astype(jnp.float32) for limit in np.linspace(-1.0, 1.0, 8))


def endless(state: EnvState) -> EnvState:
    return state.replace(done=jnp.zeros(()), info=PyTreeDict(truncation=jnp.zeros(()), distance=state.info.distance))


@dataclass(frozen=True)
class Broken:
    """An environment that breaks a rule; `also` are the rules that it cannot keep then."""

    make: Callable[[], Any]
    rule: str
    outcome: Outcome
    words: list[str]
    also: tuple[str, ...] = ()


def names_of(rules: Iterable[Rule]) -> list[str]:
    return [rule.name for rule in rules]


UNBOUNDED = property(lambda self: Box(-np.inf, np.inf, (2,)))

BROKEN_ENVS: dict[str, Broken] = {
    "a space of Gymnasium": Broken(
        lambda: walk(obs_space=gymnasium.spaces.Box(-20.0, 20.0, (2,))),
        "spaces are declared",
        Outcome.FAILED,
        ["obs_space is Box", "expected a space of rookery.spaces", "from_gymnasium"],
    ),
    "a Python branch": Broken(
        lambda: walk(step=branch_on_a_traced_value),
        "reset and step compile",
        Outcome.FAILED,
        ["step under jax.jit raised TracerBoolConversionError", "jnp.where instead of if"],
    ),
    "no EnvState": Broken(
        lambda: walk(after_reset=lambda state: (state.obs, state.reward)),
        "reset and step compile",
        Outcome.FAILED,
        ["reset returned tuple; expected an EnvState"],
    ),
    "a counter that becomes a float": Broken(
        lambda: walk(
            after_step=lambda s: s.replace(env_state=s.env_state.replace(count=s.env_state.count.astype(jnp.float32)))
        ),
        "state keeps its structure",
        Outcome.FAILED,
        [".env_state.count is int32[] after reset and float32[] after step", "use one dtype and shape"],
    ),
    "a second step that fails": Broken(
        lambda: walk(after_step=lambda s: s.replace(env_state=s.env_state.replace(position=s.obs))),
        "random steps run",
        Outcome.FAILED,
        ["raised ValueError: Cannot stack arrays"],
        also=("state keeps its structure",),
    ),
    "info that grows": Broken(
        lambda: walk(after_step=lambda state: state.replace(info=state.info.replace(bonus=jnp.zeros(())))),
        "info keeps its structure",
        Outcome.FAILED,
        ["info['bonus'] is missing after reset and float32[] after step", "fill them with zeros in reset"],
    ),
    "info that is a plain dict": Broken(
        lambda: both(lambda state: state.replace(info=dict(state.info))),
        "info keeps its structure",
        Outcome.FAILED,
        ["info is dict after reset; expected a PyTreeDict"],
    ),
    "a step that writes into its argument": Broken(
        lambda: walk(step=write_into_the_argument),
        "step leaves its input unchanged",
        Outcome.FAILED,
        ["step changed .info['distance'] of its argument in place", "use replace()"],
    ),
    "an observation that leaves its space": Broken(
        lambda: walk(after_step=at_count(7, with_obs(20.5))),
        "observations are in the space",
        Outcome.FAILED,
        ["at step 7 obs[0] is 20.5, outside [-20.0, 20.0]", "widen obs_space"],
    ),
    "an observation of another shape": Broken(
        lambda: both(lambda state: state.replace(obs=state.obs[None])),
        "observations are in the space",
        Outcome.FAILED,
        ["obs after reset has shape [1, 2]; expected [2]"],
    ),
    "an observation of another dtype": Broken(
        lambda: both(lambda state: state.replace(obs=state.obs.astype(jnp.float16))),
        "observations are in the space",
        Outcome.WARNING,
        ["obs is float16; obs_space declares float32"],
    ),
    "an observation that is NaN": Broken(
        lambda: walk(after_step=at_count(3, with_obs(jnp.nan))),
        "observations are not NaN",
        Outcome.FAILED,
        ["obs[0] is NaN at step 3", "division by zero"],
    ),
    "an infinite reward": Broken(
        lambda: walk(after_step=at_count(2, lambda state: state.replace(reward=jnp.asarray(jnp.inf)))),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["reward at step 2 is inf; expected a finite number"],
    ),
    "an integer reward": Broken(
        lambda: both(lambda state: state.replace(reward=jnp.int32(1))),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["reward after reset is int32[]; expected float32[]"],
    ),
    "a reward with an axis": Broken(
        lambda: both(lambda state: state.replace(reward=state.reward[None])),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["reward after reset is float32[1]; expected float32[]"],
    ),
    "a boolean done": Broken(
        lambda: both(lambda state: state.replace(done=state.done == 1)),
        "done is a flag",
        Outcome.FAILED,
        ["done after reset is bool[]; expected float32[]"],
    ),
    "half an end": Broken(
        lambda: walk(after_step=at_count(4, lambda state: state.replace(done=jnp.float32(0.5)))),
        "done is a flag",
        Outcome.FAILED,
        ["done at step 4 is 0.5; expected 0 or 1"],
    ),
    "an end before the first step": Broken(
        lambda: walk(after_reset=lambda state: state.replace(done=jnp.ones(()))),
        "done is a flag",
        Outcome.FAILED,
        ["done is 1 after reset; expected 0"],
    ),
    "a truncation that goes on": Broken(
        lambda: walk(
            after_step=at_count(5, lambda state: state.replace(info=state.info.replace(truncation=jnp.ones(()))))
        ),
        "truncation comes with done",
        Outcome.FAILED,
        ["info.truncation is 1 and done is 0 at step 5"],
    ),
    "a truncation of another dtype": Broken(
        lambda: both(lambda s: s.replace(info=s.info.replace(truncation=s.info.truncation.astype(jnp.int32)))),
        "truncation comes with done",
        Outcome.FAILED,
        ["info.truncation after reset is int32[]; expected float32[]"],
    ),
    "a start drawn by NumPy": Broken(
        lambda: walk(after_reset=lambda state: state.replace(obs=state.obs.at[0].add(np.random.uniform(1.0, 9.0)))),
        "same key, same episode",
        Outcome.FAILED,
        ["two resets with one key differ: .obs[0] is", "derive all randomness from the key"],
        also=("typed and legacy keys agree", "vmap equals single runs"),
    ),
    "a step drawn by NumPy": Broken(
        lambda: walk(after_step=lambda state: state.replace(reward=jnp.float32(np.random.uniform(1.0, 9.0)))),
        "same key, same episode",
        Outcome.FAILED,
        ["two equal steps differ: .reward is", "from a key in env_state"],
        also=("vmap equals single runs",),
    ),
    "one start for all keys": Broken(
        lambda: walk(
            after_reset=lambda _: Walk().show(WalkState(position=jnp.zeros(()), count=jnp.zeros((), jnp.int32)))
        ),
        "different keys, other starts",
        Outcome.WARNING,
        ["four keys gave the same first observation", "use the key in reset"],
    ),
    "another start for legacy keys": Broken(
        lambda: walk(reset=untyped_key_starts_elsewhere),
        "typed and legacy keys agree",
        Outcome.FAILED,
        ["typed and legacy key give different states: .env_state.position is", "as_key(key)"],
    ),
    "typed keys only": Broken(
        lambda: walk(reset=only_typed_keys),
        "typed and legacy keys agree",
        Outcome.FAILED,
        ["reset with a legacy PRNGKey raised TypeError: not a typed key", "as_key(key)"],
    ),
    **{
        f"a step that reads {output}": Broken(
            lambda output=output: walk_that_reads(output),
            "step depends on the state only",
            Outcome.FAILED,
            [f"step depends on the {output} of its argument", ".env_state.position is", "in env_state"],
        )
        for output in ("obs", "reward", "done", "info")
    },
    "copies that see each other": Broken(
        lambda: walk(after_reset=lambda state: state.replace(reward=greatest_of_all(state.obs[0]))),
        "vmap equals single runs",
        Outcome.FAILED,
        ["after 0 steps copy", "of 3 mapped by jax.vmap differs from a single one: .reward is", "independent copies"],
    ),
    "episodes without end": Broken(
        lambda: walk(after_step=endless, obs_space=UNBOUNDED),
        "episodes end",
        Outcome.WARNING,
        ["no episode ended within 2000 random steps, and max_episode_steps is None", "episode_length"],
    ),
    "any action will do": Broken(
        lambda: walk(step=take_any_action),
        "wrong actions are refused",
        Outcome.WARNING,
        ["an action int32[2] is accepted instead of int32[]", 'self.action_space.check(action, "action")'],
    ),
    "a picture of floats": Broken(
        lambda: walk(render=lambda self, env_state: np.zeros((8, 12, 3))),
        "render returns an image",
        Outcome.FAILED,
        ["render returned float64[8, 12, 3]; expected a NumPy array uint8[height, width, 3]"],
    ),
    "a picture that cannot be drawn here": Broken(
        lambda: walk(render=render_fails),
        "render returns an image",
        Outcome.WARNING,
        ["render raised OSError: no display"],
    ),
    "no picture": Broken(
        lambda: walk(render=cannot_render),
        "render returns an image",
        Outcome.SKIPPED,
        ["cannot be rendered"],
    ),
}


def check_named(report: CheckReport, name: str) -> Check:
    (check,) = [check for check in report.checks if check.name == name]
    return check


def test_an_env_that_keeps_every_rule_passes_every_check() -> None:
    report = check_env(Walk())
    assert [check.name for check in report.checks] == names_of(DEVICE_RULES)
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}, report
    assert report.verdict == "Walk: passed (19 checks, 0 warnings)"


@pytest.mark.parametrize("case", BROKEN_ENVS)
def test_a_broken_rule_is_named_and_the_others_are_still_checked(case: str) -> None:
    check_that_only_this_is_broken(BROKEN_ENVS[case], DEVICE_RULES)


def check_that_only_this_is_broken(broken: Broken, rules: tuple[Rule, ...]) -> None:
    report = check_env(broken.make())
    check = check_named(report, broken.rule)
    assert check.outcome is broken.outcome, str(report)
    for word in broken.words:
        assert word in check.finding
    others = [other for other in report.checks if other.name not in (broken.rule, GYMNASIUM_OWN_CHECK)]
    assert len(others) == len(rules) - 1
    kept = (Outcome.PASSED, Outcome.SKIPPED)
    assert tuple(other.name for other in others if other.outcome not in kept) == broken.also, str(report)


def test_every_rule_has_an_env_that_breaks_it() -> None:
    assert {broken.rule for broken in BROKEN_ENVS.values()} == set(names_of(DEVICE_RULES))


def test_what_cannot_be_checked_is_skipped_with_the_reason() -> None:
    report = check_env(BROKEN_ENVS["no EnvState"].make())
    check = check_named(report, "rewards are finite numbers")
    assert check.outcome is Outcome.SKIPPED
    assert check.finding == "not checked, because 'reset and step compile' failed."
    assert report.verdict == "BrokenWalk: FAILED (2 checks, 1 failed, 0 warnings, 17 skipped)"


def test_a_leaf_of_a_dict_observation_is_named() -> None:
    class NegativeCount(CounterEnv):
        def step(self, env_state: EnvState, action: Any) -> EnvState:
            state = super().step(env_state, action)
            return state.replace(obs=state.obs.replace(count=-state.obs.count))

    check = check_named(check_env(NegativeCount(terminates_after=4, dict_obs=True)), "observations are in the space")
    assert check.outcome is Outcome.FAILED
    assert "at step 1 obs['count'] is -1.0, outside [0.0, inf]" in check.finding


def test_a_multi_agent_env_needs_a_reward_for_each_agent() -> None:
    class UnpaidAgent(MultiAgentCounterEnv):
        def step(self, env_state: EnvState, action: Any) -> EnvState:
            state = super().step(env_state, action)
            return state.replace(reward=PyTreeDict(a0=state.reward.a0))

        def reset(self, key: Key) -> EnvState:
            state = super().reset(key)
            return state.replace(reward=PyTreeDict(a0=state.reward.a0))

    check = check_named(check_env(UnpaidAgent(2, terminates_after=4)), "rewards are finite numbers")
    assert check.outcome is Outcome.FAILED
    assert "reward is ['a0'] after reset; expected one for each of ['a0', 'a1']" in check.finding
    assert check_env(MultiAgentCounterEnv(2, terminates_after=4)).passed


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectorized_envs_pass_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    env = wrap_env(CounterEnv(terminates_after=3), episode_length=5, parallel=2, autoreset_mode=mode)
    report = check_env(env)
    assert [check.name for check in report.checks] == names_of(VECTOR_RULES)
    assert report.passed, report
    assert not report.with_outcome(Outcome.WARNING), report


def test_a_vectorized_env_must_split_its_key() -> None:
    class FoldedKey(VmapWrapper):
        def _key_per_env(self, key: Key) -> Key:
            return super()._key_per_env(jax.random.fold_in(key, 1) if as_key(key).shape == () else key)

    report = check_env(FoldedKey(CounterEnv(terminates_after=3), 2))
    assert [check.name for check in report.with_outcome(Outcome.FAILED)] == ["one key or one per env"], report
    assert "reset(key) is not reset(jax.random.split(key, 2))" in report.checks[-1].finding


def test_a_random_env_acts_within_the_mask() -> None:
    class OneAllowed(Walk):
        """Only action 1 is allowed; a forbidden one leads to a reward of NaN."""

        @property
        def obs_space(self) -> Space:
            return Dict(position=Box(-20.0, 20.0, ()), action_mask=Box(0, 1, (2,), np.int8))

        def show(self, state: WalkState) -> EnvState:
            mask = jnp.array([0, 1], jnp.int8)
            return super().show(state).replace(obs=PyTreeDict(position=state.position, action_mask=mask))

        def step(self, env_state: EnvState, action: Any) -> EnvState:
            state = super().step(env_state, action)
            return state.replace(reward=jnp.where(action == 1, 1.0, jnp.nan))

    assert check_named(check_env(OneAllowed()), "rewards are finite numbers").outcome is Outcome.PASSED


# Gymnasium


class GymnasiumWalk(gymnasium.Env):
    """A Gymnasium env that keeps every rule."""

    observation_space = gymnasium.spaces.Box(-20.0, 20.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.position, self.count = float(self.np_random.uniform(-1.0, 1.0)), 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.position += 1.0 if action == 1 else -1.0
        self.count += 1
        return self.obs(), -abs(self.position), self.count >= 12, False, {}

    def obs(self) -> Any:
        return np.array([self.position, self.count], np.float32)


def gymnasium_walk(change_step: Callable[[tuple], tuple] | None = None, **members: Any) -> gymnasium.Env:
    """Make a Gymnasium walk with a time limit, whose steps are changed or some of whose members are others."""

    class ChangedWalk(GymnasiumWalk):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return result if change_step is None else change_step(result)

    return gymnasium.wrappers.TimeLimit(type("BrokenWalk", (ChangedWalk,), members)(), 10)


class SharedBuffer(GymnasiumWalk):
    """Writes every observation into the same array."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def obs(self) -> Any:
        self.buffer[:] = self.position, self.count
        return self.buffer


def replace_entry(index: int, value: Any) -> Callable[[tuple], tuple]:
    return lambda result: (*result[:index], value, *result[index + 1 :])


def text_obs(self: GymnasiumWalk) -> Any:
    return f"{abs(self.position):.9f}"[-4:]


def unseeded_obs(self: GymnasiumWalk) -> Any:
    return np.random.uniform(-1.0, 1.0, 2).astype(np.float32)


def constant_start(self: GymnasiumWalk, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
    gymnasium.Env.reset(self, seed=seed)
    self.position, self.count = 0.0, 0
    return self.obs(), {}


def reset_without_info(self: GymnasiumWalk, *, seed: int | None = None, options: dict | None = None) -> Any:
    return GymnasiumWalk.reset(self, seed=seed)[0]


BROKEN_GYMNASIUM_ENVS: dict[str, Broken] = {
    "a text for an observation": Broken(
        lambda: gymnasium_walk(observation_space=gymnasium.spaces.Text(4), obs=text_obs),
        "spaces can be converted",
        Outcome.FAILED,
        ["Text(1, 4", "expected Box, Discrete"],
    ),
    "a step of the old API": Broken(
        lambda: gymnasium_walk(lambda result: result[:4]).unwrapped,
        "random steps run",
        Outcome.FAILED,
        ["step returned 4 values; expected (obs, reward, terminated, truncated, info)"],
    ),
    "a reset of the old API": Broken(
        lambda: gymnasium_walk(reset=reset_without_info),
        "random steps run",
        Outcome.FAILED,
        ["reset returned ndarray; expected (obs, info)"],
    ),
    "an observation that leaves its space": Broken(
        lambda: gymnasium_walk(lambda result: (result[0] + np.float32(20.5), *result[1:])),
        "observations are in the space",
        Outcome.FAILED,
        ["at step 1 the observation[", "outside [-20.0, 20.0]", "correct the space or the observation"],
    ),
    "an observation of another dtype": Broken(
        lambda: gymnasium_walk(obs=lambda self: np.array([self.position, self.count])),
        "observations are in the space",
        Outcome.FAILED,
        ["the observation is float64; the space declares float32"],
    ),
    "one array for all observations": Broken(
        lambda: gymnasium.wrappers.TimeLimit(SharedBuffer(), 10),
        "observations are new arrays",
        Outcome.WARNING,
        ["observations share memory", "Rookery copies them"],
    ),
    "a reward that is NaN": Broken(
        lambda: gymnasium_walk(replace_entry(1, float("nan"))),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["the reward at step 1 is nan; expected a finite number"],
    ),
    "a reward with an axis": Broken(
        lambda: gymnasium_walk(replace_entry(1, np.zeros(1))),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["the reward at step 1 is float64[1]; expected one real number"],
    ),
    "no reward": Broken(
        lambda: gymnasium_walk(replace_entry(1, None)),
        "rewards are finite numbers",
        Outcome.FAILED,
        ["the reward at step 1 is NoneType; expected one real number"],
    ),
    "an end that is a number": Broken(
        lambda: gymnasium_walk(replace_entry(2, 0)),
        "ends are bools",
        Outcome.FAILED,
        ["terminated at step 1 is 0; expected a bool"],
    ),
    "an info that is a list": Broken(
        lambda: gymnasium_walk(replace_entry(4, [])),
        "infos are dicts",
        Outcome.FAILED,
        ["info at step 1 is list; expected a dict"],
    ),
    "randomness without a seed": Broken(
        lambda: gymnasium_walk(obs=unseeded_obs),
        "same seed, same trajectory",
        Outcome.FAILED,
        ["two runs with one seed differ in obs after reset", "super().reset(seed=seed)"],
    ),
    "one start for all seeds": Broken(
        lambda: gymnasium_walk(reset=constant_start),
        "different seeds, other starts",
        Outcome.WARNING,
        ["four seeds gave the same first observation"],
    ),
    "no time limit": Broken(
        GymnasiumWalk,
        "a time limit exists",
        Outcome.WARNING,
        ["no time limit", "max_episode_steps", "gymnasium.wrappers.TimeLimit"],
    ),
}


def test_a_gymnasium_env_that_keeps_every_rule_passes_every_check() -> None:
    report = check_env(gymnasium_walk())
    assert [check.name for check in report.checks] == [GYMNASIUM_OWN_CHECK, *names_of(GYMNASIUM_RULES)]
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}, report


@pytest.mark.parametrize("case", BROKEN_GYMNASIUM_ENVS)
def test_a_broken_rule_of_a_gymnasium_env_is_named_and_the_others_are_still_checked(case: str) -> None:
    check_that_only_this_is_broken(BROKEN_GYMNASIUM_ENVS[case], GYMNASIUM_RULES)


def test_every_rule_for_gymnasium_has_an_env_that_breaks_it() -> None:
    assert {broken.rule for broken in BROKEN_GYMNASIUM_ENVS.values()} == set(names_of(GYMNASIUM_RULES))


def test_errors_of_gymnasiums_own_checker_fail_and_its_warnings_warn() -> None:
    no_options = gymnasium_walk(reset=lambda self, seed=None: GymnasiumWalk.reset(self, seed=seed)).unwrapped
    errors = [check for check in check_env(no_options).checks if check.name == GYMNASIUM_OWN_CHECK]
    assert [check.outcome for check in errors] == [Outcome.FAILED]
    assert "The `reset` method does not provide an `options`" in errors[0].finding

    unbounded = gymnasium_walk(observation_space=gymnasium.spaces.Box(-np.inf, 20.0, (2,)))
    warnings = [check for check in check_env(unbounded).checks if check.name == GYMNASIUM_OWN_CHECK]
    assert [check.outcome for check in warnings] == [Outcome.WARNING, Outcome.PASSED]
    assert warnings[0].finding == "A Box observation space minimum value is -infinity. This is probably too low."


@pytest.mark.parametrize("name", ["gymnasium/CartPole-v1", "gymnasium/MountainCarContinuous-v0", "gymnasium/Taxi-v4"])
def test_environments_of_gymnasium_pass(name: str) -> None:
    report = check_env_by_name(name)
    assert report.passed, report
    assert report.subject == name


def test_our_own_environments_pass_by_name() -> None:
    report = check_env_by_name("classic/mountain_car")
    assert report.passed, report
    assert str(report).splitlines()[-1] == "classic/mountain_car: passed (18 checks, 0 warnings, 1 skipped)"


def test_unknown_names_get_the_nearest_ones_of_rookery_and_of_gymnasium() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'classic/cartpole'"):
        check_env_by_name("cartpole")
    with pytest.raises(UnknownNameError, match="Did you mean 'gymnasium/CartPole-v1'"):
        check_env_by_name("CartPol-v1")
    with pytest.raises(UnknownNameError, match="probe/counter"):
        check_env_by_name("probe/conter")


def test_a_missing_package_of_gymnasium_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: Any, **kwargs: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(MissingExtraError, match=r"LunarLander-v3 needs a package .* Box2D is not installed"):
        check_env_by_name("gymnasium/LunarLander-v3")


def test_only_single_environments_of_the_two_kinds_are_taken() -> None:
    with pytest.raises(InvalidInputError, match="vectorized Gymnasium env"):
        check_env(gymnasium.make_vec("CartPole-v1", num_envs=2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="got int"):
        check_env(3)  # type: ignore[arg-type]


# The report


def test_the_report_aligns_its_columns_and_ends_with_the_verdict() -> None:
    report = CheckReport(
        "some/env",
        (
            Check("first rule", Outcome.PASSED, "fine."),
            Check("second rule", Outcome.FAILED, "bad."),
            Check("third rule", Outcome.WARNING, "odd."),
            Check("fourth rule", Outcome.SKIPPED, "no."),
        ),
    )
    *lines, verdict = str(report).splitlines()
    assert verdict == "some/env: FAILED (3 checks, 1 failed, 1 warning, 1 skipped)"
    assert [line.index(word) for line, word in zip(lines, ["fine.", "bad.", "odd.", "no."], strict=True)] == [
        11 + NAME_WIDTH
    ] * 4
    assert not report.passed


def test_all_names_fit_into_their_column() -> None:
    assert all(len(name) <= NAME_WIDTH for name in [*names_of(VECTOR_RULES + GYMNASIUM_RULES), GYMNASIUM_OWN_CHECK])


def test_checks_are_shown_as_they_are_made() -> None:
    shown: list[Check] = []
    report = check_env(make_env("probe/constant_reward"), show_fn=shown.append)
    assert tuple(shown) == report.checks
