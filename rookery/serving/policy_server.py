"""Acts for episodes that do not learn: all requests of one turn of the event loop in one batch."""

from collections.abc import Mapping
from typing import Any, Protocol

from rookery.policy import Policy
from rookery.runners.envs.base_env import AgentID


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
    ) -> None:
        """Write a step, with the reward of its action; the last one of an episode has no action (None).

        `agent` is None in episodes with one agent. Raises `OSError` if the step cannot be written.
        """


class PolicyServer:
    """Answers the rows of episodes, and actions without an episode, by the policies of a run."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        mapping: Mapping[AgentID, str],
        version: int,
        max_batch: int = 256,
        log: StepLog | None = None,
    ) -> None:
        raise NotImplementedError
