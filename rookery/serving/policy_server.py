"""Acts for episodes that do not learn: all requests of one turn of the event loop in one batch."""

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery.policy import Policy, first_obs
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, End
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.runners.envs.episode_messages import Report, Row
from rookery.runners.envs.external_base_env import NOT_FINITE
from rookery.runners.envs.validation import row_of
from rookery.runners.envs.vector_env import rows_of
from rookery.serving.metrics import Metrics
from rookery.types import all_finite

SLOW_SECONDS = 0.005
"""A policy whose largest batch takes longer acts in a thread."""
TRIALS = 5
"""How often that is measured: the machine may be busy."""
TERMINATED = (End.TERMINATED, End.GONE_TERMINATED)
TRUNCATED = (End.TRUNCATED, End.GONE_TRUNCATED)

logger = logging.getLogger(__name__)


class StepLog(Protocol):
    """Where the steps of episodes are written."""

    def write(
        self,
        episode: str,
        t: int,
        agent: AgentID | None,
        obs: Any,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        log_prob: float | None,
        policy: str | None,
        info: Mapping[str, Any] | None,
    ) -> None:
        """Write a step, with the reward of its action; the last one of an episode has no action (None).

        `agent` is None in episodes with one agent. `info` is that of the episode, with the first step of each agent.
        Raises `OSError` if the step cannot be written.
        """

    def close(self) -> None:
        """Keep what was written. Raises `OSError` if that fails."""


class Team(NamedTuple):
    """The policies that act at a time, and their version."""

    policies: Mapping[str, Policy]
    version: int
    since: float
    """When they began to act, in seconds since 1970."""


@dataclass(eq=False, slots=True)
class Ask:
    """One observation that waits for its action."""

    obs: Any
    carry: Any = None
    """The recurrent state, which the next one replaces; None where an episode begins."""
    action: Any = None
    log_prob: float | None = None
    is_faulty: bool = False
    """Whether the action is not finite."""


class _Last(NamedTuple):
    """The last step of an agent, which is not logged yet: its action and its reward are to come."""

    t: int
    obs: Any
    action: Any = None
    """None until the policy has acted, and if it cannot."""
    log_prob: float | None = None
    policy: str | None = None
    reward: float = 0.0


@dataclass(eq=False, slots=True)
class _Played:
    """What is kept of an open episode of a recurrent policy, or of one that is logged."""

    log_id: str
    """The id of the episode in the log: clients may use theirs again."""
    info: Mapping[str, Any] | None = None
    """What its simulator wants to be kept with it."""
    carries: dict[AgentID, Any] = field(default_factory=dict)
    last: dict[AgentID, _Last] = field(default_factory=dict)


Groups = dict[tuple[str, bool], list[Ask]]
"""What is asked, by the name of the policy and whether it explores."""


class _Job(NamedTuple):
    """Rows and requests that are answered together."""

    team: Team
    groups: Groups
    rows: "list[tuple[Row, dict[AgentID, Ask]]]"
    futures: "list[asyncio.Future[int]]"
    """Of requests for actions without an episode: they receive the version."""


class PolicyServer:
    """Answers the rows of an episode book, and requests for actions without an episode, by the policies of a run.

    Recurrent states are kept by episode and agent. `mapping` has the policy of each agent. `max_batch` is rounded down
    to a power of two.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        mapping: Mapping[AgentID, str],
        version: int,
        book: EpisodeBook,
        metrics: Metrics,
        max_batch: int = 256,
        log: StepLog | None = None,
    ) -> None:
        self.team = Team(policies, version, time.time())
        self.mapping = mapping
        self._book, self._metrics, self._log = book, metrics, log
        self._max_batch = 1 << (max_batch.bit_length() - 1)
        self._is_recurrent = any(policy.is_recurrent for policy in policies.values())
        self._played: dict[str, _Played] = {}
        self._groups: Groups = {}
        self._futures: list[asyncio.Future[int]] = []
        self._is_scheduled = self._was_faulty = False
        self._jobs: queue.SimpleQueue[Callable[[], None]] | None = None
        """What the thread of slow policies does next."""

    @property
    def is_logging(self) -> bool:
        """Whether the steps of episodes are logged."""
        return self._log is not None

    def warm_up(self) -> None:
        """Compile all sizes of batches; decide whether policies act in a thread."""
        for policy in self.team.policies.values():
            ask = Ask(row_of(first_obs(policy.obs_space, 1), 0))
            for explore in (False, True):
                for power in range(self._max_batch.bit_length()):
                    act_together(policy, [ask] * (1 << power), explore)
            act_fn = partial(act_together, policy, [ask] * self._max_batch, False)
            if min(timeit.repeat(act_fn, number=1, repeat=TRIALS)) > SLOW_SECONDS:
                self.act_in_thread()

    def act_in_thread(self) -> None:
        """Act in a thread from now on: the loop answers other requests meanwhile.

        A policy that takes too long does not keep the process alive, as it would in a thread of an executor.
        """
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._jobs,), name="rookery-acting", daemon=True).start()

    def replace(self, policies: Mapping[str, Policy], version: int) -> None:
        """Act with other parameters from the next batch on; open episodes keep their recurrent states."""
        self.team = Team(policies, version, time.time())

    def wake(self) -> None:
        """Act in the next turn of the loop, on all that is asked until then."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._act)

    async def act(self, policy: str, asks: Sequence[Ask], explore: bool) -> int:
        """Act without an episode; return the version."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._groups.setdefault((policy, explore), []).extend(asks)
        self._futures.append(future)
        self.wake()
        return await future

    def _act(self) -> None:
        """Act on all that is asked, here or in the thread of slow policies."""
        self._is_scheduled = False
        groups, self._groups = self._groups, {}
        futures, self._futures = self._futures, []
        job = _Job(self.team, groups, self._take_rows(groups), futures)
        if self._jobs is None or not groups:
            self._compute(job)
            self._answer(job)
            return
        self._is_scheduled = True
        self._jobs.put(partial(self._compute_in_thread, job, asyncio.get_running_loop()))

    def _compute_in_thread(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        self._compute(job)
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(self._continue, job)

    def _continue(self, job: _Job) -> None:
        """Answer a job of the thread, and act on what was asked meanwhile."""
        self._is_scheduled = False
        self._answer(job)
        self.wake()

    def _take_rows(self, groups: Groups) -> "list[tuple[Row, dict[AgentID, Ask]]]":
        """Return the rows to answer with what they ask, which is put into `groups` too."""
        rows = []
        for row in self._book.take_rows_of_guests():
            if self._log is not None:
                self._write(row)
            if row.is_over or row.is_abandoned:
                self._played.pop(row.id, None)
            else:
                rows.append((row, self._asks_of(row, groups)))
        return rows

    def _asks_of(self, row: Row, groups: Groups) -> dict[AgentID, Ask]:
        """Return what the agents of a row ask, which is put into `groups` too."""
        mapping = row.request.policies or self.mapping
        carries = self._played_of(row).carries if self._is_recurrent else {}
        asks = {agent: Ask(row.reports[agent].obs, carries.get(agent)) for agent in row.acting}
        for agent, ask in asks.items():
            groups.setdefault((mapping[agent], row.request.explore), []).append(ask)
        return asks

    def _compute(self, job: _Job) -> None:
        for (name, explore), asks in job.groups.items():
            for first in range(0, len(asks), self._max_batch):
                batch = asks[first : first + self._max_batch]
                self._metrics.rows.add(len(batch))
                self._act_on(batch, name, job.team.policies[name], explore)

    def _act_on(self, batch: Sequence[Ask], name: str, policy: Policy, explore: bool) -> None:
        """Act on a batch; if that fails, on each of its rows alone."""
        try:
            act_together(policy, batch, explore)
        except Exception:
            if len(batch) > 1:
                for ask in batch:
                    self._act_on([ask], name, policy, explore)
                return
            logger.exception("the policy %s cannot act", name)
            batch[0].is_faulty = True

    def _answer(self, job: _Job) -> None:
        now = time.monotonic()
        for row, asks in job.rows:
            if True in [ask.is_faulty for ask in asks.values()]:
                self._note_fault(row.id)
                self._book.fail(row.id, NOT_FINITE, now)
                continue
            actions = {
                agent: ask.action if (logged := row.reports[agent].action) is None else logged
                for agent, ask in asks.items()
            }
            if self._played:
                self._keep(row, asks, actions, job.team.version)
            self._book.answer(row.id, actions, job.team.version, now)
        for future in job.futures:
            if not future.done():
                future.set_result(job.team.version)

    def _note_fault(self, episode_id: str) -> None:
        self._metrics.num_faulty += 1
        if not self._was_faulty:
            self._was_faulty = True
            logger.error("episode %s: %s Further ones are counted.", episode_id, NOT_FINITE)

    # What is kept of episodes.

    def _played_of(self, row: Row) -> _Played:
        if row.id not in self._played:
            self._played[row.id] = _Played(f"{row.id}-{secrets.token_hex(4)}", row.request.info)
        return self._played[row.id]

    def _keep(self, row: Row, asks: Mapping[AgentID, Ask], actions: Mapping[AgentID, Any], version: int) -> None:
        """Keep the recurrent states and the actions of an episode, unless it is over meanwhile."""
        played = self._played.get(row.id)
        if played is None:
            return
        mapping = row.request.policies or self.mapping
        for agent, ask in asks.items():
            played.carries[agent] = ask.carry
            if agent in played.last:
                report, policy = row.reports[agent], f"{mapping[agent]}@{version}"
                log_prob = ask.log_prob if report.action is None else report.log_prob
                played.last[agent] = _Last(played.last[agent].t, ask.obs, actions[agent], log_prob, policy)

    def _write(self, row: Row) -> None:
        """Log the steps of an episode whose rewards this row has, and its end."""
        played = self._played_of(row)
        try:
            for agent, report in row.reports.items():
                self._write_report(played, agent, report)
            if row.is_abandoned:
                self._write_last_obs(played)
        except OSError as error:
            self._note_log_failure(error)

    def _note_log_failure(self, error: OSError) -> None:
        """Log no more: answering goes on."""
        log, self._log = self._log, None
        self._metrics.log_failures += 1
        logger.error("the log of episodes ends here: %s", error)
        with contextlib.suppress(OSError):
            log.close()  # type: ignore[union-attr]

    def _write_report(self, played: _Played, agent: AgentID, report: Report) -> None:
        """Log the last step of an agent with what it led to, and the end; keep what the agent sees next."""
        last, is_over = played.last.get(agent), report.end is not End.RUNNING
        if last is None:
            if report.obs is not None and not is_over:
                played.last[agent] = _Last(0, report.obs)
            return
        last = last._replace(reward=last.reward + report.reward)
        following = _Last(last.t + 1, last.obs if report.obs is None else report.obs)
        if is_over:
            del played.last[agent]
        elif report.obs is None:  # a part of the reward: the step goes on
            played.last[agent] = last
            return
        else:
            played.last[agent] = following
        self._write_step(played, agent, last, report.end)
        if is_over and last.action is not None:
            self._write_obs(played, agent, following)

    def close(self) -> None:
        """Log the last observations of open episodes, the steps before which are complete, and close the log."""
        if self._log is None:
            return
        try:
            for played in self._played.values():
                self._write_last_obs(played)
            self._log.close()
        except OSError as error:
            self._note_log_failure(error)
        self._log = None

    def _write_last_obs(self, played: _Played) -> None:
        """Log what agents saw last; what they did there led nowhere."""
        for agent, last in played.last.items():
            self._write_obs(played, agent, last)

    def _write_obs(self, played: _Played, agent: AgentID, step: _Last) -> None:
        """Log the observation of a step without its action."""
        self._write_step(played, agent, _Last(step.t, step.obs), End.RUNNING)

    def _write_step(self, played: _Played, agent: AgentID, step: _Last, end: End) -> None:
        """Log a step; of one without an action, what was seen."""
        assert self._log is not None
        t, obs, action, log_prob, policy, reward = step
        flags = (False, False) if action is None else (end in TERMINATED, end in TRUNCATED)
        name, info = None if agent == SINGLE_AGENT else agent, played.info if t == 0 else None
        self._log.write(played.log_id, t, name, obs, action, reward, *flags, log_prob, policy, info)


def _work(jobs: "queue.SimpleQueue[Callable[[], None]]") -> None:
    """Do one job after the other, forever."""
    while True:
        jobs.get()()


def act_together(policy: Policy, asks: Sequence[Ask], explore: bool) -> None:
    """Act on some observations in one batch, filled up to a power of two."""
    num_rows = len(asks)
    padding = [asks[0]] * ((1 << (num_rows - 1).bit_length()) - num_rows)
    filled = [*asks, *padding]
    carry, starts = (), None
    if policy.is_recurrent:
        starts = np.array([ask.carry is None for ask in filled], np.float32)
        first = row_of(policy.agent.initial_carry((1,)), 0) if starts.any() else None
        carry = rows_of([first if ask.carry is None else ask.carry for ask in filled])
    actions, carry, log_probs = policy.act(rows_of([ask.obs for ask in filled]), carry, starts, explore)
    for index, ask in enumerate(asks):
        ask.action = row_of(actions, index)
        if starts is not None:
            ask.carry = row_of(carry, index)
        if log_probs is not None:
            ask.log_prob = float(log_probs[index])
    if not all_finite(actions):
        for ask in asks:
            ask.is_faulty = not all_finite(ask.action)
