"""External environments: simulators that begin and end episodes themselves and ask for actions."""

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import numpy as np

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, End
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.runners.envs.episode_messages import (
    Acted,
    Answer,
    Code,
    Mode,
    Refused,
    Report,
    Stage,
    StartRequest,
    StepRequest,
)
from rookery.runners.envs.validation import ObsStacker, check_info, check_reward, row_of
from rookery.runners.envs.vector_env import as_space
from rookery.runners.faults import Failed
from rookery.spaces import Dict, Space, Tuple, check_discrete_range
from rookery.types import PyTreeDict

OWNER = "this process"

AnySpace = Space | gymnasium.Space


class ExternalEnvClosedError(RookeryError):
    """The environment was closed while the simulator used it."""


class EpisodeLostError(RookeryError):
    """The episode that the simulator plays was discarded, or has expired."""


class ExternalEnv(ABC):
    """A simulator that is in control: implement `run`, which plays episodes for ever.

    `run` is called in its own thread. In it, or in threads that it starts, the simulator calls `start_episode`, then
    `get_action` or `log_action` at each step and `log_returns` for the rewards, and `end_episode`. It may leave an
    episode at any time. If `run` raises or returns, the open episodes fail, and it is called again. Up to
    `max_episodes` are played at once. After `lease` seconds without a call, an episode counts as left. Fragments whose
    parameters lag by more than `max_age` updates are discarded and counted.

    With spaces by agent, `{"left": space, "right": space}`, observations, rewards and actions are dicts by agent.
    """

    def __init__(
        self,
        observation_space: AnySpace | Mapping[AgentID, AnySpace],
        action_space: AnySpace | Mapping[AgentID, AnySpace],
        max_episodes: int = 1,
        lease: float | None = None,
        max_age: int | None = None,
    ) -> None:
        check_count("max_episodes", max_episodes)
        if lease is not None and lease <= 0:
            raise InvalidInputError(f"lease={lease} must be a positive number of seconds, or None.")
        self.max_episodes = max_episodes
        self.lease = lease
        self.max_age = max_age
        """By how many versions the rows of a fragment may lag; None: the limit of the method."""
        self.spaces = _spaces_by_agent(observation_space, action_space)
        """The observation space and the action space of each agent."""
        self.is_multi_agent = set(self.spaces) != {SINGLE_AGENT}
        self.needs_log_prob = False
        """Whether logged actions need their log-probability, because the method that trains would be biased."""
        self._book = EpisodeBook(max_episodes, self.spaces)
        self._stackers = {agent: ObsStacker(obs_space) for agent, (obs_space, _) in self.spaces.items()}
        self._mutex = threading.Lock()
        self._notify: Callable[[], None] = lambda: None
        """Tells the runner that something was reported."""
        self._on_stop: Callable[[], None] = lambda: None
        self._stopped: Failed | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run(self) -> None:
        """Play episodes."""

    def start_episode(self, episode_id: str | None = None, mode: str = Mode.LEARN, explore: bool = False) -> str:
        """Begin an episode; return its id.

        From an episode that `watch`es or `evaluate`s nothing is learned. The first may `explore`, the second is greedy
        and its return goes to `eval/mean_reward`. They take no place of the `max_episodes`.
        """
        episode_id = uuid.uuid4().hex if episode_id is None else episode_id
        request = StartRequest(episode_id, Mode(mode), self.lease, may_repeat=False, explore=explore)
        with self._mutex:
            _checked(self._book.start(OWNER, request, time.monotonic()))
        return request.id

    def get_action(self, episode_id: str, obs: Any) -> Any:
        """Return the action of the policy on an observation, or on those of some agents."""
        with self._mutex:
            reports = {agent: Report(obs=seen) for agent, seen in self._observed(obs).items()}
        actions = self._ask(episode_id, reports)
        return actions if self.is_multi_agent else actions[SINGLE_AGENT]

    def log_action(self, episode_id: str, obs: Any, action: Any, log_prob: Any = None) -> None:
        """Log the action that the simulator chose itself on an observation, and its log-probability."""
        actions, log_probs = self._by_agent(action), self._by_agent(log_prob)
        chosen = {agent: self._chosen(agent, given) for agent, given in actions.items()}
        if self.needs_log_prob and any(log_probs.get(agent) is None for agent in chosen):
            raise InvalidInputError(
                "log_prob_needed: the method that trains compares probabilities, so an action that the simulator chose "
                "needs the log-probability of that choice: log_action(..., log_prob=...); or train a replay method, "
                "such as sac or dqn."
            )
        with self._mutex:
            reports = {
                agent: Report(obs=seen, action=chosen[agent], log_prob=_as_log_prob(log_probs.get(agent)))
                for agent, seen in self._observed(obs).items()
            }
        self._ask(episode_id, reports)

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[Any, Any] | None = None) -> None:
        """Log the reward of the last action; rewards until the next observation are summed up."""
        infos = self._by_agent(info) if info else {}
        for agent_info in infos.values():
            check_info(agent_info)
        reports = {
            agent: Report(reward=check_reward(given), info=infos.get(agent))
            for agent, given in self._by_agent(reward).items()
        }
        self._tell(episode_id, StepRequest(reports, asks=False))

    def end_agents(self, episode_id: str, obs: Mapping[AgentID, Any], truncated: bool = False) -> None:
        """End some agents in the next step, with their last observations, or None; the others go on."""
        end = End.TRUNCATED if truncated else End.TERMINATED
        with self._mutex:
            seen = self._observed({agent: last for agent, last in obs.items() if last is not None})
        reports = {agent: Report(obs=seen.get(agent), end=end) for agent in obs}
        self._tell(episode_id, StepRequest(reports, asks=False))

    def end_episode(self, episode_id: str, obs: Any = None, truncated: bool = False) -> None:
        """End an episode with its last observation; `truncated` if it could have gone on."""
        end = End.TRUNCATED if truncated else End.TERMINATED
        with self._mutex:
            seen = {} if obs is None else self._observed(obs)
        self._tell(episode_id, StepRequest({agent: Report(obs=last) for agent, last in seen.items()}, end))

    def leave_episode(self, episode_id: str, keep: bool = True) -> None:
        """Leave an episode that does not go on. Its complete steps are kept, and the last of them is truncated."""
        with self._mutex:
            _checked(self._book.leave(OWNER, episode_id, keep, time.monotonic()))
            self._notify()

    def _ask(self, episode_id: str, reports: Mapping[AgentID, Report]) -> Any:
        """Report a step; wait for the actions."""
        call = _Call()
        with self._mutex:
            self._book.step(OWNER, episode_id, StepRequest(reports), time.monotonic(), call)
            self._notify()
        answer = _checked(call.wait())
        assert isinstance(answer, Acted)
        return answer.actions

    def _tell(self, episode_id: str, request: StepRequest) -> None:
        """Report what is answered at once."""
        answers: list[Answer] = []
        with self._mutex:
            self._book.step(OWNER, episode_id, request, time.monotonic(), answers.append)
            if request.end is not End.RUNNING:
                self._notify()
        _checked(answers[0])

    def _open(self, mutex: threading.Lock, notify: Callable[[], None], on_stop: Callable[[], None]) -> None:
        """Begin to play for a runner, without the episodes of an earlier one."""
        self._mutex, self._notify, self._on_stop = mutex, notify, on_stop
        self._book = EpisodeBook(self.max_episodes, self.spaces)
        self._stopped = self._thread = None
        self.needs_log_prob = False

    def _prepare(self) -> None:  # noqa: B027
        """Prepare before anything compiles; raise if no simulator can play."""

    def _close(self) -> None:  # noqa: B027
        """End what `run` does; called when training is over, from another thread."""

    def _report(self) -> Mapping[str, float]:
        """Return numbers for the record of training."""
        return {}

    def _stop(self, reason: Failed) -> None:
        """Note that `run` has ended."""
        with self._mutex:
            self._stopped = reason
            self._on_stop()

    def _by_agent(self, given: Any) -> Mapping[AgentID, Any]:
        if not self.is_multi_agent:
            return {SINGLE_AGENT: given}
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise InvalidInputError(f"{given!r:.80} must be a dict by agent: {list(self.spaces)}.")
        unknown = [agent for agent in given if agent not in self.spaces]
        if unknown:
            raise InvalidInputError(f"there is no agent {unknown[0]!r}: the agents are {list(self.spaces)}.")
        return given

    def _observed(self, obs: Any) -> Mapping[AgentID, Any]:
        """Return copies of observations in the form of their spaces: the simulator may overwrite the originals."""
        seen = {}
        for agent, given in self._by_agent(obs).items():
            stacked, errors = self._stackers[agent].stack([given])
            for error in errors.values():
                raise error
            seen[agent] = row_of(stacked, 0)
        return seen

    def _chosen(self, agent: AgentID, action: Any) -> Any:
        """Return an action that the simulator chose, as policies give it."""
        space = self.spaces[agent][1]
        action = jax.tree.map(np.asarray, action)
        space.check(action, "the logged action")
        check_discrete_range(space, action, "the logged action")
        return _as_policies_act(space, action)


class _Call:
    """A request that waits for its answer, in the thread of its caller."""

    __slots__ = ("_answer", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self, answer: Answer) -> None:
        self._answer = answer
        self._lock.release()

    def wait(self) -> Answer:
        self._lock.acquire()
        return self._answer


def _checked(answer: Any) -> Any:
    """Return an answer; raise if the request was refused."""
    if not isinstance(answer, Refused):
        return answer
    if answer.code is Code.CLOSED:
        raise ExternalEnvClosedError(answer.message)
    if answer.outcome in (Stage.LOST, Stage.EXPIRED):
        raise EpisodeLostError(answer.message)
    raise InvalidInputError(answer.message)


def _spaces_by_agent(observation_space: Any, action_space: Any) -> dict[AgentID, tuple[Space, Space]]:
    """Return the spaces of each agent."""
    are_several = [
        isinstance(space, Mapping) and not isinstance(space, gymnasium.Space)
        for space in (observation_space, action_space)
    ]
    if not any(are_several):
        return {SINGLE_AGENT: (as_space(observation_space), as_space(action_space))}
    if not all(are_several) or set(observation_space) != set(action_space):
        raise InvalidInputError("the observation spaces and the action spaces of several agents must have their names.")
    return {
        agent: (as_space(obs_space), as_space(action_space[agent])) for agent, obs_space in observation_space.items()
    }


def _as_log_prob(log_prob: Any) -> float | None:
    """Return a log-probability as a number; raise if it is none."""
    if log_prob is None:
        return None
    number = float(log_prob)
    if not np.isfinite(number):
        raise InvalidInputError(f"log_prob={log_prob} must be finite: an action of probability 0 cannot be chosen.")
    return number


def _as_policies_act(space: Space, action: Any) -> Any:
    """Convert an action to the dtypes of policy actions."""
    match space:
        case Dict():
            return PyTreeDict({name: _as_policies_act(part, action[name]) for name, part in space.spaces.items()})
        case Tuple():
            return tuple(_as_policies_act(part, item) for part, item in zip(space.spaces, action, strict=True))
    return action.astype(space.sample_dtype)  # type: ignore[attr-defined]
