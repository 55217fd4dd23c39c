"""Environments with several agents, whose inputs and outputs are dicts by agent."""

import contextlib
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax
import numpy as np

from rookery.errors import EnvironmentCheckError, InvalidInputError
from rookery.runners.envs.base_env import ALL, COMMON, WITHOUT_OBSERVATION, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.validation import (
    InvalidFlagError,
    InvalidInfoError,
    InvalidReplyError,
    ObsStacker,
    as_failed,
    check_flag,
    check_info,
    check_reply,
    check_reward,
    row_of,
)
from rookery.runners.envs.vector_env import as_space, split_actions
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.transport import EnvTransport
from rookery.spaces import Space

logger = logging.getLogger(__name__)


class MultiAgentDictEnv(ABC):
    """One environment with several agents; inputs and outputs are dicts with an entry for each agent concerned.

    Exactly the agents with an observation act. So agents may act in turns, appear late or end early; `step` is called
    with an empty dict if nobody acts. A reward may come without an observation. In `terminateds` and `truncateds`,
    missing agents continue; the entry `"__all__"` ends the episode and is required. The last observation of an agent
    that ended is optional; nothing may come for it afterwards. Infos are for observed agents and for `"__common__"`.

    A class need not inherit from this one: an object with these methods will do.
    """

    possible_agents: Sequence[AgentID]
    """All agents that may ever appear."""
    observation_spaces: Mapping[AgentID, gymnasium.Space]
    action_spaces: Mapping[AgentID, gymnasium.Space]

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin an episode; return the first observations, maybe none, and infos."""

    @abstractmethod
    def step(self, actions: dict[AgentID, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Act; return observations, rewards, terminateds, truncateds and infos."""

    def render(self) -> np.ndarray | None:
        """Render the env as an RGB array."""
        return None

    def close(self) -> None:  # noqa: B027
        """Release the resources of the env."""


class EndedAgentError(EnvironmentCheckError):
    """An env returned data for an agent that had ended before."""


class _Stage(enum.Enum):
    """What happens next with an env."""

    UNBORN = "was not polled yet: poll first"
    RESETTING = "is being reset: poll first"
    WAITING = "waits for actions"
    STEPPING = "makes a step: poll first"
    OVER = "is over: call try_reset first"
    FAILED = "failed: call try_restart first"


@dataclass(slots=True)
class _Episode:
    """The agents of the running episode of one env, and what happens next."""

    stage: _Stage = _Stage.UNBORN
    seed: int | None = None
    step: int = 0
    running: set[AgentID] = field(default_factory=set)
    ended: set[AgentID] = field(default_factory=set)

    def begin(self) -> None:
        self.stage = _Stage.RESETTING
        self.step = 0
        self.running, self.ended = set(), set()


@dataclass(slots=True)
class _Row:
    """The outputs for one agent."""

    agent: AgentID
    obs: Any
    reward: float = 0.0
    end: End = End.RUNNING


class MultiAgentBaseEnv(BaseEnv):
    """Multi-agent dict environments of a transport, as a `BaseEnv`.

    Outputs are checked: an env that breaks the rules of `MultiAgentDictEnv` has failed. The rows of an env are in the
    order of its `possible_agents`.
    """

    def __init__(self, transport: EnvTransport, name: str | None = None, sample_bounds: bool = True) -> None:
        description = transport.describe()
        if description.possible_agents is None:
            raise InvalidInputError(f"{description.name} has no possible_agents: it is not a multi-agent environment.")
        self.num_envs = transport.num_envs
        self.name = name or description.name
        self.transport = transport
        self.is_asynchronous, self.patience = transport.is_asynchronous, transport.patience
        self._spaces = {
            agent: (as_space(description.observation_space[agent]), as_space(description.action_space[agent]))
            for agent in description.possible_agents
        }
        self._ranks = {agent: rank for rank, agent in enumerate(self._spaces)}
        self._stackers = {agent: ObsStacker(obs_space, sample_bounds) for agent, (obs_space, _) in self._spaces.items()}
        self._episodes = [_Episode() for _ in range(self.num_envs)]
        self._was_polled = False
        self._has_warned = False

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return self._spaces

    @property
    def is_multi_agent(self) -> bool:
        return True

    @property
    def num_clipped(self) -> int:
        return sum(stacker.num_clipped for stacker in self._stackers.values())

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        envs: list[int] = []
        rows: list[_Row] = []
        resets: list[int] = []
        stepped: list[int] = []
        over: list[int] = []
        infos: dict[int, Mapping[AgentID, Mapping]] = {}
        failed: dict[int, Failed] = {}
        for env, reply in sorted(self._replies(timeout).items()):
            episode = self._episodes[env]
            is_step = episode.stage is _Stage.STEPPING
            new_rows = self._rows_of(episode, reply, Phase.STEP if is_step else Phase.RESET)
            if isinstance(new_rows, Failed):
                episode.stage = _Stage.FAILED
                failed[env] = new_rows
                continue
            envs += [env] * len(new_rows)
            rows += new_rows
            (stepped if is_step else resets).append(env)
            if episode.stage is _Stage.OVER:
                over.append(env)
            if given := {agent: info for agent, info in reply[-1].items() if info}:
                infos[env] = given
        return EnvOutputs(
            envs=np.array(envs, np.int64),
            agents=[row.agent for row in rows],
            obs=[row.obs for row in rows],
            rewards=np.array([row.reward for row in rows], np.float64),
            ends=np.array([row.end for row in rows], np.uint8),
            is_reset=np.isin(envs, resets),
            resets=resets,
            over=over,
            stepped=stepped,
            infos=infos,
            failed=failed,
        )

    def wait(self, timeout: float | None = None) -> None:
        self.transport.wait(timeout)

    def send_actions(self, actions: Actions) -> None:
        for env in actions.envs.tolist():
            if (stage := self._episodes[env].stage) is not _Stage.WAITING:
                raise InvalidInputError(f"env {env} of {self.name} cannot take actions: it {stage.value}.")
        by_env = actions_by_env(self._spaces, actions)
        self.transport.send_steps(list(by_env), list(by_env.values()))
        for env in by_env:
            self._episodes[env].stage = _Stage.STEPPING

    def try_reset(self, env: int, seed: int | None) -> None:
        episode = self._episodes[env]
        if not self._was_polled:
            episode.seed = seed
            return
        self.transport.send_reset(env, seed)
        episode.begin()

    def try_restart(self, env: int, seed: int | None) -> None:
        self.transport.rebuild(env)
        self.try_reset(env, seed)

    def try_render(self, env: int) -> np.ndarray | None:
        return self.transport.render(env)

    def close(self) -> None:
        self.transport.close()

    def _replies(self, timeout: float | None) -> dict[int, Any]:
        """Wait for an env that is ready; at first for all."""
        if not self._was_polled:
            self._was_polled = True
            for env, episode in enumerate(self._episodes):
                self.try_reset(env, episode.seed)
            return self.transport.receive(range(self.num_envs))
        self.transport.wait(timeout)
        return self.transport.receive()

    def _rows_of(self, episode: _Episode, reply: Any, phase: Phase) -> list[_Row] | Failed:
        """Convert the reply of an env into rows, and keep track of the agents in its episode."""
        if isinstance(reply, Failed):
            return reply
        try:
            check_reply(reply, phase)
            return self._first_rows(episode, *reply) if phase is Phase.RESET else self._step_rows(episode, *reply)
        except EnvironmentCheckError as error:
            when = "at reset" if phase is Phase.RESET else f"at step {episode.step}"
            return as_failed(type(error)(f"{when}, {error}"), phase)
        except Exception as error:  # of an object that only looks like a dict or a number
            return Failed.by_exception(error, phase, FaultKind.INVALID)

    def _first_rows(self, episode: _Episode, obs: Any, infos: Any) -> list[_Row]:
        self._check_agents(observations=obs, infos=infos)
        _check_infos(infos, obs)
        rows = [_Row(agent, self._observed(agent, obs[agent])) for agent in self._in_order(obs)]
        episode.running.update(obs)
        episode.stage = _Stage.WAITING
        return rows

    def _step_rows(
        self, episode: _Episode, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any
    ) -> list[_Row]:
        self._check_agents(
            observations=obs, rewards=rewards, terminateds=terminateds, truncateds=truncateds, infos=infos
        )
        _check_infos(infos, obs)
        terminateds, truncateds = _flags("terminateds", terminateds), _flags("truncateds", truncateds)
        ending = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag} - {ALL}
        is_over = terminateds[ALL] or truncateds[ALL]
        if not is_over and episode.ended | ending >= self._ranks.keys():
            is_over = True
            self._warn_of_no_end()
        named = obs.keys() | rewards.keys()
        for agent in self._in_order(named & episode.ended):
            what = "an observation" if agent in obs else "a reward"
            raise EndedAgentError(f"agent {agent!r} gets {what}, but has ended before.")
        concerned = named | (episode.running if is_over else episode.running & ending)
        rows = []
        for agent in self._in_order(concerned):
            end = _end_of(agent, terminateds, truncateds)
            is_seen = agent in obs and (agent in episode.running or end is End.RUNNING)
            seen = self._observed(agent, obs[agent]) if is_seen else None
            with _naming(agent):
                reward = check_reward(rewards.get(agent, 0.0))
            rows.append(_Row(agent, seen, reward, end if is_seen else WITHOUT_OBSERVATION[end]))
        episode.ended |= ending
        episode.running = (episode.running | named) - episode.ended
        episode.step += 1
        episode.stage = _Stage.OVER if is_over else _Stage.WAITING
        return rows

    def _warn_of_no_end(self) -> None:
        """Warn once that an episode goes on without agents, which ends it."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: all agents have ended, but neither terminateds nor truncateds has %r: True. The episode is over; "
                "let the env say so.",
                self.name,
                ALL,
            )

    def _observed(self, agent: AgentID, obs: Any) -> Any:
        """Return a copy of an observation in the form of its space: the env may overwrite the original."""
        stacked, errors = self._stackers[agent].stack([obs])
        for error in errors.values():
            with _naming(agent):
                raise error
        return row_of(stacked, 0)

    def _in_order(self, agents: Collection[AgentID]) -> list[AgentID]:
        return sorted(agents, key=self._ranks.__getitem__)

    def _check_agents(self, **dicts: Any) -> None:
        """Raise unless these are dicts with entries for known agents."""
        for name, entries in dicts.items():
            if not isinstance(entries, Mapping):
                raise InvalidReplyError(f"{name} are {entries!r}; expected a dict by agent.")
            unknown = entries.keys() - self._ranks.keys() - OTHER_ENTRIES.get(name, set())
            if unknown:
                raise InvalidReplyError(
                    f"{name} has an entry {unknown.pop()!r}, which is not in possible_agents={list(self._ranks)}."
                )


OTHER_ENTRIES = {"terminateds": {ALL}, "truncateds": {ALL}, "infos": {COMMON}}
"""The entries of dicts that are for no agent."""


def actions_by_env(spaces: Mapping[AgentID, tuple[Space, Space]], actions: Actions) -> dict[int, dict[AgentID, Any]]:
    """Split the actions of several agents by env and agent, in the form of Gymnasium."""
    assert actions.agents is not None, "actions of several agents are rows"
    assert actions.row_envs is not None, "actions of several agents are rows"
    by_env: dict[int, dict[AgentID, Any]] = {env: {} for env in actions.envs.tolist()}
    for env, agent, action in zip(actions.row_envs.tolist(), actions.agents, actions.actions, strict=True):
        one_row = jax.tree.map(lambda leaf: np.asarray(leaf)[None], action)
        by_env[env][agent] = split_actions(spaces[agent][1], one_row, 1)[0]
    return by_env


def _end_of(agent: AgentID, terminateds: Mapping[AgentID, bool], truncateds: Mapping[AgentID, bool]) -> End:
    """Return how an agent with a last observation ends: its own flags count before those of the episode."""
    for key in (agent, ALL):
        if terminateds.get(key):
            return End.TERMINATED
        if truncateds.get(key):
            return End.TRUNCATED
    return End.RUNNING


def _flags(name: str, flags: Mapping[AgentID, Any]) -> dict[AgentID, bool]:
    if ALL not in flags:
        raise InvalidFlagError(f"{name} has no entry {ALL!r}; expected whether the episode is over.")
    return {agent: check_flag(f"{name}[{agent!r}]", flag) for agent, flag in flags.items()}


def _check_infos(infos: Mapping[AgentID, Any], obs: Mapping[AgentID, Any]) -> None:
    for agent, info in infos.items():
        if agent not in obs and agent != COMMON:
            raise InvalidInfoError(
                f"there is an info for agent {agent!r}, which is not observed; expected infos for observed agents and "
                f"for {COMMON!r}."
            )
        with _naming(agent):
            check_info(info)


@contextlib.contextmanager
def _naming(agent: AgentID) -> Iterator[None]:
    """Return an error that names the agent."""
    try:
        yield
    except EnvironmentCheckError as error:
        raise type(error)(f"agent {agent!r}: {error}") from None
