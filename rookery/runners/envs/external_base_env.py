"""External simulators in threads of this process, as a `BaseEnv`."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, BaseEnv, EnvOutputs, LoggedAction
from rookery.runners.envs.episode_messages import Acted, Report, Row, Stage
from rookery.runners.envs.external import ExternalEnv, ExternalEnvClosedError
from rookery.runners.envs.multi_agent import actions_by_env
from rookery.runners.envs.validation import zeros_of
from rookery.runners.envs.vector_env import rows_of, split_actions
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.spaces import Space
from rookery.types import all_finite

GuestsFn = Callable[[Sequence[Row]], Mapping[str, Acted]]
"""Acts in the episodes that nobody learns from: takes their steps, returns actions by episode."""
logger = logging.getLogger(__name__)

Shown = Sequence[tuple[int, AgentID, Report]]
"""The env, the agent and the report of each row."""

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for simulators; their threads do not keep the program alive."""
LINGER_SECONDS = 2e-4
"""How long the runner waits for another simulator that acts: a batch costs little more than one row."""
LEASE_CHECK_SECONDS = 0.5
NOT_FINITE = "the policy gave no finite action."


class ExternalBaseEnv(BaseEnv):
    """External simulators as a `BaseEnv`: each episode that they may play at once is an env.

    Seeds have no effect. Actions on observations for which the simulator chose itself are ignored. An action that is
    not finite is sent to nobody: it is a fault, which costs the episode.
    """

    is_external = True

    def __init__(self, envs: Sequence[ExternalEnv], name: str | None = None) -> None:
        first = envs[0]
        if any(env.spaces != first.spaces for env in envs):
            raise InvalidInputError("external environments that are sampled together must have the same spaces.")
        self.name = name or type(first).__name__
        self._envs = envs
        self._mutex = threading.Lock()
        self._bell = _Bell(self._mutex)
        self._places = [(env, place) for env in envs for place in range(env.max_episodes)]
        """The simulator of each env, and the env in its book."""
        self.num_envs = len(self._places)
        self._offsets = [sum(env.max_episodes for env in envs[:number]) for number in range(len(envs))]
        self._asked: dict[int, str] = {}
        """The id of the episode of each env that waits for actions."""
        self._faulty: dict[int, Failed] = {}
        """The envs whose episodes are over since the last poll, because the policy gave no finite action."""
        self._last_obs: dict[int, Any] = {}
        """The last observation of each env, if there is one agent."""
        self._is_multi_agent = first.is_multi_agent
        self.guests_fn: GuestsFn | None = None
        """Who acts in the episodes that nobody learns from."""
        self._was_polled = self._is_closed = False
        for env in envs:
            env._open(self._mutex, self._ring, self._bell.ring)

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return self._envs[0].spaces

    @property
    def is_multi_agent(self) -> bool:
        return self._is_multi_agent

    @property
    def num_clipped(self) -> int:
        return sum(stacker.num_clipped for env in self._envs for stacker in env._stackers.values())

    @property
    def max_age(self) -> int | None:
        """By how many versions the rows of a fragment may lag; None: the limit of the method."""
        return min([env.max_age for env in self._envs if env.max_age is not None], default=None)

    def prepare(self) -> None:
        for env in self._envs:
            env._prepare()

    def report(self) -> Mapping[str, float]:
        return {name: number for env in self._envs for name, number in env._report().items()}

    def require_log_probs(self, is_required: bool) -> None:
        """Refuse logged actions without their log-probability, or accept them."""
        for env in self._envs:
            env.needs_log_prob = is_required

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        deadline = np.inf if timeout is None else time.monotonic() + timeout
        if not self._was_polled:
            self._was_polled = True
            for env in range(self.num_envs):
                self.try_restart(env, None)
        self._wait_for_rows(deadline)
        self._wait_for_others()
        with self._mutex:
            rows = {
                offset + row.env: row
                for env, offset in zip(self._envs, self._offsets, strict=True)
                for row in env._book.take_rows()
                if row.env is not None
            }
            failed = self._take_failures()
        return self._outputs(dict(sorted(rows.items())), failed)

    def send_actions(self, actions: Actions) -> None:
        envs = actions.envs.tolist()
        for env in envs:
            if env not in self._asked:
                raise InvalidInputError(f"env {env} of {self.name} has not asked for an action: poll first.")
        now, answers = time.monotonic(), self._by_env(actions, envs)
        is_finite = all_finite(actions.actions)
        with self._mutex:
            for env, by_agent in answers.items():
                (simulator, place), episode = self._places[env], self._asked.pop(env)
                if is_finite or _are_finite(by_agent):
                    simulator._book.answer(episode, by_agent, actions.version, now)
                elif simulator._book.fail(episode, NOT_FINITE, now):
                    simulator._book.lose(place, now, is_failed=True)
                    self._faulty[env] = Failed(FaultKind.INVALID, Phase.STEP, NOT_FINITE)

    def try_reset(self, env: int, seed: int | None) -> None:
        if self._was_polled:
            simulator, place = self._places[env]
            self._asked.pop(env, None)
            self._faulty.pop(env, None)
            with self._mutex:
                simulator._book.request(place, time.monotonic())

    def try_restart(self, env: int, seed: int | None) -> None:
        self.try_reset(env, seed)
        owner, _ = self._places[env]
        if owner._thread is None or owner._stopped is not None:
            owner._stopped = None
            owner._thread = threading.Thread(target=_run, args=(owner,), name=self.name, daemon=True)
            owner._thread.start()

    def abandon_episodes(self) -> None:
        with self._mutex:
            for env in self._envs:
                env._book.take_rows()
        self._asked.clear()

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            for env in self._envs:
                env._book.close()
            self._bell.ring()
        for env in self._envs:
            env._close()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for env in self._envs:
            if env._thread is not None:
                env._thread.join(max(0.0, deadline - time.monotonic()))

    # Waiting.

    def _ring(self) -> None:
        """Wake the runner if enough was reported."""
        self._bell.note(self._num_ready + self._num_of_guests)

    @property
    def _num_ready(self) -> int:
        return sum([env._book.num_ready for env in self._envs])

    @property
    def _num_of_guests(self) -> int:
        """The number of steps that guests have reported."""
        return sum([env._book.num_of_guests for env in self._envs])

    def _answer_guests(self) -> None:
        """Act for the guests that wait."""
        for env in self._envs:
            if not env._book.num_of_guests:
                continue
            with self._mutex:
                rows = env._book.take_rows_of_guests()
            assert self.guests_fn is not None, "a runner acts for guests"
            try:
                answers = self.guests_fn(rows)
            except Exception:
                logger.exception("%s cannot act for episodes that do not learn", self.name)
                answers = {}
            with self._mutex:
                now = time.monotonic()
                for row in rows:
                    if (acted := answers.get(row.id)) is None:
                        env._book.fail(row.id, "there is no action: the log of the server has the reason.", now)
                    elif _are_finite(acted.actions):
                        env._book.answer(row.id, acted.actions, acted.version, now)
                    else:
                        env._book.fail(row.id, NOT_FINITE, now)

    def _wait_for_rows(self, deadline: float) -> None:
        """Wait until there is something to return; act for guests meanwhile."""
        while True:
            self._answer_guests()
            with self._mutex:
                now = time.monotonic()
                leases = [env.lease for env in self._envs if env.lease is not None]
                if leases:
                    for env in self._envs:
                        env._book.expire(now)
                if self._is_closed:
                    raise ExternalEnvClosedError(f"{self.name} was closed.")
                if self._num_ready or self._faulty or any(self._failures()) or now >= deadline:
                    return
                if self._num_of_guests:
                    continue
                self._bell.expect(1)
            self._bell.wait(min(deadline - now, min([LEASE_CHECK_SECONDS, *leases]) if leases else np.inf))

    def _wait_for_others(self) -> None:
        """Wait for simulators that act, as long as one of them reports every now and then."""
        num_ready = 0
        while True:
            with self._mutex:
                num_before, num_ready = num_ready, self._num_ready + self._num_of_guests
                num_acting = sum(env._book.num_acting for env in self._envs)
                if num_ready == num_before or not num_acting or self._is_closed:
                    return
                self._bell.expect(num_ready + num_acting)
            self._bell.wait(LINGER_SECONDS)

    # Failures.

    def _failures(self) -> Iterable[tuple[int, Failed]]:
        """Yield the failures of envs that wait for a simulator that has stopped."""
        for index, (env, place) in enumerate(self._places):
            if env._stopped is not None and (awaited := env._book.awaited(place)) is not None:
                yield index, replace(env._stopped, phase=Phase.RESET if awaited is Stage.OPEN else Phase.STEP)

    def _take_failures(self) -> dict[int, Failed]:
        failed, self._faulty = self._faulty | dict(self._failures()), {}
        now = time.monotonic()
        for index in failed:
            env, place = self._places[index]
            self._asked.pop(index, None)
            env._book.lose(place, now, is_failed=True)
        return failed

    # Rows.

    def _outputs(self, rows: dict[int, Row], failed: dict[int, Failed]) -> EnvOutputs:
        rows = {env: row for env, row in rows.items() if env not in failed}
        steps = {env: row for env, row in rows.items() if row.is_step}
        abandoned = {env: row.is_kept for env, row in rows.items() if row.is_abandoned}
        for env in abandoned:
            self._asked.pop(env, None)
        going_on = {env: row.id for env, row in steps.items() if not row.is_over and env not in abandoned}
        self._asked |= going_on
        shown = [(env, agent, row.reports[agent]) for env, row in steps.items() for agent in self._agents_in(row)]
        resets = [env for env, row in steps.items() if row.is_reset]
        return EnvOutputs(
            envs=np.array([env for env, *_ in shown], np.int64),
            agents=[agent for _, agent, _ in shown] if self.is_multi_agent else None,
            obs=[report.obs for *_, report in shown] if self.is_multi_agent else self._stacked(shown),
            rewards=np.array([report.reward for *_, report in shown], np.float64),
            ends=np.array([report.end for *_, report in shown], np.uint8),
            is_reset=np.array([steps[env].is_reset for env, *_ in shown], np.bool_),
            resets=resets,
            over=[env for env, row in steps.items() if row.is_over],
            stepped=[env for env, row in steps.items() if not row.is_reset],
            infos=_by_env((env, agent, report.info) for env, agent, report in shown if report.info),
            off_policy_actions=_by_env(
                (env, agent, LoggedAction(report.action, report.log_prob))
                for env, agent, report in shown
                if report.action is not None and env in going_on
            ),
            abandoned=abandoned,
            failed=failed,
        )

    def _agents_in(self, row: Row) -> list[AgentID]:
        """Return the agents of a row, in the order of the spaces."""
        return [agent for agent in self.spaces if agent in row.reports]

    def _stacked(self, shown: Shown) -> Any:
        """Return the observations of the only agent; without a last one, the one before stands for it."""
        for env, _, report in shown:
            if report.obs is not None:
                self._last_obs[env] = report.obs
        return rows_of([self._last_obs[env] for env, *_ in shown]) if shown else zeros_of(self._only_spaces[0], 0)

    def _by_env(self, actions: Actions, envs: list[int]) -> Mapping[int, Mapping[AgentID, Any]]:
        """Return the actions in the form of Gymnasium, by env and agent."""
        if self.is_multi_agent:
            return actions_by_env(self.spaces, actions)
        split = split_actions(self._only_spaces[1], actions.actions, len(envs))
        return {env: {SINGLE_AGENT: action} for env, action in zip(envs, split, strict=True)}

    @property
    def _only_spaces(self) -> tuple[Space, Space]:
        return self.spaces[SINGLE_AGENT]


class _Bell:
    """Wakes the runner once enough was reported. All methods but `wait` are called under the mutex."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self._signal = threading.Lock()
        self._signal.acquire()
        self._num_needed: int | None = None
        """How many rows the runner waits for; None if it does not wait."""

    def expect(self, num_needed: int) -> None:
        self._num_needed = num_needed

    def note(self, num_ready: int) -> None:
        """Wake the runner if that is as many rows as it waits for."""
        if self._num_needed is not None and num_ready >= self._num_needed:
            self.ring()

    def ring(self) -> None:
        """Wake the runner if it waits."""
        if self._num_needed is not None:
            self._num_needed = None
            if self._signal.locked():  # an interrupted wait may have left it open
                self._signal.release()

    def wait(self, timeout: float) -> None:
        """Wait for the signal, at most `timeout` seconds."""
        if not self._signal.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            with self._mutex:
                if self._num_needed is None:  # it was given in the meantime
                    self._signal.acquire()
                self._num_needed = None


def _are_finite(actions: Mapping[AgentID, Any]) -> bool:
    return all_finite(jax.tree.map(np.asarray, list(actions.values())))


def _by_env(entries: Iterable[tuple[int, AgentID, Any]]) -> dict[int, dict[AgentID, Any]]:
    """Return values by env and agent."""
    found: dict[int, dict[AgentID, Any]] = {}
    for env, agent, value in entries:
        found.setdefault(env, {})[agent] = value
    return found


def _run(env: ExternalEnv) -> None:
    """Run a simulator, and keep the reason why it ended."""
    try:
        env.run()
        stopped = Failed(FaultKind.EXITED, Phase.STEP, "run() returned")
    except BaseException as error:
        stopped = Failed.by_exception(error, Phase.STEP)
    env._stop(stopped)
