"""What the episode book keeps of each episode and env."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace

from rookery.runners.envs.base_env import WITHOUT_OBSERVATION, AgentID, End
from rookery.runners.envs.episode_messages import Answer, AnswerFn, Report, Row, Stage, StartRequest


@dataclass(eq=False, slots=True)
class Episode:
    """An open episode."""

    owner: Hashable
    request: StartRequest
    env: int | None
    agents: Collection[AgentID]
    """All agents that there may be."""
    heard_at: float
    stage: Stage = Stage.OPEN
    row: Row | None = None
    """The last step, until the runner takes it."""
    is_known: bool = False
    """Whether the runner has taken the first step."""
    seq: int = -1
    digest: int = 0
    answer: Answer | None = None
    """The last answer; None while it is to come."""
    waiting: list[AnswerFn] = field(default_factory=list)
    pending: dict[AgentID, Report] = field(default_factory=dict)
    """What was reported since the last step."""
    running: set[AgentID] = field(default_factory=set)
    """The agents that have an observation and have not ended."""
    ended: set[AgentID] = field(default_factory=set)
    episode_return: float = 0.0
    num_rows: int = 0

    def note(self, reports: Mapping[AgentID, Report]) -> None:
        """Add reports to those since the last step."""
        for agent, report in reports.items():
            self.episode_return += report.reward
            before = self.pending.get(agent)
            self.pending[agent] = report if before is None else _joined(before, report)

    def next_row(self, end: End) -> Row:
        """Make the next row of what was reported."""
        reports, self.pending = self.pending, {}
        if end is not End.RUNNING:
            reports |= {agent: Report() for agent in sorted(self.running - reports.keys(), key=str)}
        reports = {agent: self._with_end(agent, report, end) for agent, report in reports.items()}
        is_over = end is not End.RUNNING or self.ended.issuperset(self.agents)
        is_reset = self.num_rows == 0
        self.num_rows += 1
        return Row(self.request, self.env, reports, is_reset, is_over)

    def _with_end(self, agent: AgentID, report: Report, end: End) -> Report:
        """Return how an agent goes on; its own end counts before that of the episode."""
        end = end if report.end is End.RUNNING else report.end
        is_seen = report.obs is not None and (end is End.RUNNING or agent in self.running)
        if end is not End.RUNNING:
            self.running.discard(agent)
            self.ended.add(agent)
        elif is_seen:
            self.running.add(agent)
        if is_seen:
            return report if end is report.end else replace(report, end=end)
        return replace(report, obs=None, end=WITHOUT_OBSERVATION[end])

    def is_silent(self, now: float) -> bool:
        """Return whether a simulator that is not waited for has said nothing for the time of its lease."""
        lease = self.request.lease
        return lease is not None and self.stage is not Stage.ASKED and now - self.heard_at >= lease

    def reply(self, answer: Answer) -> None:
        """Answer all requests that wait."""
        waiting, self.waiting, self.answer = self.waiting, [], answer
        for answer_fn in waiting:
            answer_fn(answer)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An episode that is over."""

    owner: Hashable
    outcome: Stage
    seq: int
    digest: int
    answer: Answer | None
    over_at: float


@dataclass(slots=True)
class Place:
    """An env of the runner, for one episode at a time."""

    episode: Episode | None = None
    is_requested: bool = False
    """Whether the runner waits for an episode here."""
    is_failed: bool = False
    """Whether no episode may begin here before the runner requests one."""


def _joined(before: Report, report: Report) -> Report:
    """Return the report of an agent since its last observation, of two parts."""
    later = before if report.obs is None else report
    return Report(
        obs=later.obs,
        reward=before.reward + report.reward,
        end=before.end if report.end is End.RUNNING else report.end,
        action=later.action,
        log_prob=later.log_prob,
        info={**before.info, **report.info} if before.info and report.info else before.info or report.info,
    )
