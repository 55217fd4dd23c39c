"""Checks of a host environment by its name: it is played at random, through the runner's interface."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from rookery.agent import action_mask_of, sample_allowed
from rookery.errors import EnvironmentCheckError, place_of
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.libraries import gymnasium_spec, make_host_env
from rookery.spaces import Discrete, MultiDiscrete, Space
from rookery.testing.check_env import check_env_by_name
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
    count_text,
    describe_error,
    first_difference,
    first_outside,
    leaf_text,
    with_spaces,
)
from rookery.types import Array, Key

MAX_STEPS_TO_AN_END = 4_000
"""The steps after which an episode is taken for endless: a random game of Pong takes about a thousand."""


def check_host_env_by_name(name: str, show_fn: ShowFn | None = None) -> CheckReport:
    """Check `library/name` of a host library; Gymnasium environments have additional rules."""
    if name.startswith("gymnasium/"):
        gymnasium_spec(name)
        return check_env_by_name(name, show_fn)
    subject = HostSubject(name)
    return make_report(name, run_checks(HOST_RULES, subject), show_fn)


@dataclass(frozen=True)
class Observed:
    """The outputs for one agent at one moment, with a copy of its observation."""

    when: str
    agent: AgentID
    obs: Any
    """None if it is missing."""
    reward: float
    end: End


@dataclass
class Play:
    """A record of random steps."""

    observed: list[Observed] = field(default_factory=list)
    num_steps: int = 0
    lengths: list[int] = field(default_factory=list)
    """The lengths of the finished episodes."""


class HostSubject:
    """A host env with what its checks share: its spaces and a record of random steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        with self.opened() as base_env:
            self.spaces = base_env.spaces
            self.is_multi_agent = base_env.is_multi_agent

    def opened(self, render: bool = False) -> contextlib.closing[BaseEnv]:
        """Make the env, for a `with` statement."""
        return contextlib.closing(make_host_env(self.name, 1, render=render))

    @cached_property
    def random_play(self) -> Play:
        return self.play(SEED)

    def play(self, seed: int, num_steps: int = NUM_RANDOM_STEPS, to_an_end: bool = False) -> Play:
        """Take random steps, the same for the same seed; with `to_an_end` only until an episode ends."""
        play = Play()
        with self.opened() as base_env:
            base_env.try_reset(0, seed)
            while not (to_an_end and play.lengths):
                polled = base_env.poll()
                self._take_in(polled, play)
                if play.num_steps == num_steps:
                    break
                if polled.over:
                    base_env.try_reset(0, seed + len(play.lengths))
                else:
                    base_env.send_actions(self._random_actions(polled, seed, play.num_steps))
        return play

    def first_obs(self, seed: int) -> list[Any]:
        """Return the first observations of the agents."""
        return [row.obs for row in self.play(seed, num_steps=0).observed]

    def _take_in(self, polled: EnvOutputs, play: Play) -> None:
        for fault in polled.failed.values():
            when = f"after {count_text(play.num_steps, 'step')}"
            where = f" in {place_of(fault.traceback)}" if fault.error.endswith("()") else ""
            text = f"{fault.error.removesuffix('.')}{where}"
            raise EnvironmentCheckError(f"{fault.phase} failed {when} ({fault.kind}): {text}.")
        play.num_steps += len(polled.stepped)
        if polled.over:
            play.lengths.append(play.num_steps - sum(play.lengths))
        when = AFTER_RESET if polled.resets else f"at step {play.num_steps}"
        for row, (agent, obs) in enumerate(_observed(polled)):
            obs = jax.tree.map(np.array, obs)
            play.observed.append(Observed(when, agent, obs, float(polled.rewards[row]), End(int(polled.ends[row]))))

    def _random_actions(self, polled: EnvOutputs, seed: int, num_steps: int) -> Actions:
        key = jax.random.fold_in(jax.random.key(seed), num_steps)
        agents, actions = [], []
        for row, (agent, obs) in enumerate(_observed(polled)):
            if obs is not None and polled.ends[row] == End.RUNNING:
                agents.append(agent)
                actions.append(_random_action(action_mask_of(obs), self.spaces[agent][1], jax.random.fold_in(key, row)))
        actions = jax.device_get(actions)
        if not self.is_multi_agent:
            return Actions(np.array([0]), jax.tree.map(lambda leaf: np.asarray(leaf)[None], actions[0]))
        return Actions(np.array([0]), actions, agents, np.zeros(len(agents), np.int64))


def _observed(polled: EnvOutputs) -> Iterator[tuple[AgentID, Any]]:
    """Iterate over the rows: agent and observation."""
    for row in range(len(polled.envs)):
        if polled.agents is None:
            yield SINGLE_AGENT, jax.tree.map(lambda leaf, row=row: leaf[row], polled.obs)
        else:
            yield polled.agents[row], polled.obs[row]


@partial(jax.jit, static_argnames="action_space")
def _random_action(mask: Array | None, action_space: Space, key: Key) -> Any:
    if mask is not None and isinstance(action_space, Discrete | MultiDiscrete):
        return sample_allowed(key, mask, action_space)
    return action_space.sample(key)


def check_spaces(subject: HostSubject) -> Finding:
    agents_by_spaces: dict[tuple[Space, Space], list[AgentID]] = {}
    for agent, spaces in subject.spaces.items():
        agents_by_spaces.setdefault(spaces, []).append(agent)
    texts = []
    for (obs_space, action_space), agents in agents_by_spaces.items():
        whose = f"{', '.join(map(str, agents))}: " if subject.is_multi_agent else ""
        texts.append(f"{whose}observations {obs_space}, actions {action_space}")
    return passed(f"{'; '.join(texts)}.")


def check_random_steps(subject: HostSubject) -> Finding:
    play = subject.random_play
    return passed(f"{count_text(play.num_steps, 'step')}, {count_text(len(play.lengths), 'end')} of episodes.")


def check_observations(subject: HostSubject) -> Finding:
    for row in subject.random_play.observed:
        what = f"the observation of {row.agent}" if subject.is_multi_agent else "the observation"
        if row.obs is None:
            continue
        if outside := first_outside(subject.spaces[row.agent][0], row.obs, what):
            return failed(f"{row.when} {outside}: correct the space or the observation.")
        for name, _, array in with_spaces(subject.spaces[row.agent][0], row.obs, what):
            if np.issubdtype(array.dtype, np.inexact) and np.isnan(array).any():
                return failed(f"{row.when} {name} holds a NaN.")
    return passed(f"inside their spaces over {NUM_RANDOM_STEPS} random steps.")


def check_agents(subject: HostSubject) -> Finding:
    if not subject.is_multi_agent:
        return skipped("the env has one agent.")
    seen = {row.agent for row in subject.random_play.observed}
    absent = [str(agent) for agent in subject.spaces if agent not in seen]
    if absent:
        return warned(f"{', '.join(absent)} never took part in {NUM_RANDOM_STEPS} random steps.")
    return passed(f"all of the {len(seen)} took part.")


def check_same_seed(subject: HostSubject) -> Finding:
    first, second = subject.random_play, subject.play(SEED)
    for one, other in zip(first.observed, second.observed, strict=False):
        whose = f" of {one.agent}" if subject.is_multi_agent else ""
        if (one.when, one.agent) != (other.when, other.agent):
            return failed(f"two runs with one seed are not about the same agent and step {one.when}.")
        if difference := first_difference(one.obs, other.obs):
            return failed(f"two runs with one seed differ in the observation{whose} {one.when}: {difference}.")
        if (one.reward, one.end) != (other.reward, other.end):
            return failed(
                f"two runs with one seed differ {one.when}: reward{whose} {one.reward} and {other.reward}, "
                f"{one.end.name} and {other.end.name}."
            )
    return passed(f"two runs of {NUM_RANDOM_STEPS} steps are equal.")


def check_other_seeds(subject: HostSubject) -> Finding:
    first, *others = [subject.first_obs(SEED + offset) for offset in range(4)]
    if all(first_difference(first, other) is None for other in others):
        return warned("four seeds gave the same first observations.")
    return passed("first observations differ.")


def check_episodes_end(subject: HostSubject) -> Finding:
    lengths = subject.random_play.lengths or subject.play(SEED, MAX_STEPS_TO_AN_END, to_an_end=True).lengths
    if not lengths:
        return warned(f"no end within {MAX_STEPS_TO_AN_END:,} random steps: set env.episode_length for training.")
    return passed(f"the first after {count_text(lengths[0], 'random step')}.")


def check_render(subject: HostSubject) -> Finding:
    try:
        with subject.opened(render=True) as base_env:
            base_env.poll()
            frame = base_env.try_render(0)
    except Exception as error:
        return warned(f"rendering raised {describe_error(error)}: agents can learn, but there will be no videos.")
    if frame is None:
        return skipped("the env cannot be rendered.")
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        return failed(f"its image is {leaf_text(frame)}; expected uint8[height, width, 3].")
    return passed(f"{leaf_text(frame)}.")


HOST_RULES = (
    Rule("spaces can be converted", check_spaces),
    Rule("random steps run", check_random_steps, essential=True),
    Rule("observations are in the space", check_observations),
    Rule("all agents take part", check_agents),
    Rule("same seed, same trajectory", check_same_seed),
    Rule("different seeds, other starts", check_other_seeds),
    Rule("episodes end", check_episodes_end),
    Rule("render returns an image", check_render),
)
"""The rules for an env of a host library, in the order they are checked.

Every step also checks that rewards are finite numbers, flags bools and observations of the right shape.
"""
