"""The episode engine: steps environments, records what they return, and restarts those that fail."""

import contextlib
import math
import numbers
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rookery.runners.callbacks import Callbacks, EpisodeEndEvent, EpisodeEvent, FaultEvent
from rookery.runners.envs.base_env import EPISODE_INFO, SUCCESS_INFO, SUCCESS_RATE, BaseEnv, End, EnvOutputs
from rookery.runners.faults import EnvFaultError, EnvsLostError, Failed, Fault, FaultKind, Phase
from rookery.runners.health import EnvStates, RestartPolicy, Status
from rookery.runners.ledger import Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.recording.fragments import TRUNCATED
from rookery.runners.recording.recorder import EpisodeRecorder
from rookery.runners.schedule import NO_EPISODE, Schedule

RAISE = "raise"
NO_INFOS: Mapping = {}


class EpisodeEngine:
    """Plays episodes: training, evaluation and populations are three uses of it.

    One step polls the envs, records their outputs, chooses the actions and sends them. The `recorder` keeps rows or
    sums, and acts. The `schedule` decides which envs play on, with which seeds, and until when. An env that fails loses
    its episode and is restarted, after a delay if it fails repeatedly; the others go on meanwhile. Invalid data is a
    fault like others or, with `on_invalid="raise"`, an error.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        recorder: EpisodeRecorder,
        schedule: Schedule,
        restart: RestartPolicy,
        on_invalid: str,
        *,
        callbacks: Callbacks | None = None,
        perf_decay: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_env = base_env
        self.recorder = recorder
        self.schedule = schedule
        self.states = EnvStates(base_env.num_envs, restart)
        self.perf = Perf(perf_decay)
        self.fault_counts: Counter[str] = Counter()
        """The faults so far by kind, and `restarts`."""
        self.taken, self.discarded, self.abandoned = Steps(), Steps(), Steps()
        self.ended: list[tuple[LiveEpisode, End]] = []
        """The episodes that ended since `begin`, and how."""
        self.faults: list[Fault] = []
        """The faults since `begin`."""
        self._restart, self._on_invalid = restart, on_invalid
        self._callbacks = callbacks
        self._hooks = set() if callbacks is None else callbacks.overridden()
        self._clock, self._sleep = clock, sleep
        self._episodes = [LiveEpisode(-1, env, None) for env in range(base_env.num_envs)]
        self._all_envs = np.arange(base_env.num_envs)
        self._is_started = False
        self._idle: set[int] = set()
        """Envs of the first poll that have no episode to play."""
        self._first_fault: Fault | None = None
        self._until: float | None = None
        """When `run` returns at the latest, on the clock; it waits no longer for envs."""
        self._heard_at = clock()
        """When an asynchronous env was sent something, or answered, for the last time."""
        self.is_torn = False
        """True during an exchange with the envs; if it stays True, as after Ctrl-C, nothing is known for certain."""

    def begin(self, recorder: EpisodeRecorder, schedule: Schedule) -> None:
        """Play by this schedule from now on, into this recorder; a new one does not get the rest of old episodes."""
        if recorder is not self.recorder and (self.is_torn or self.states.out or self.states.waiting):
            self.abandon(recorder)
        self.recorder, self.schedule = recorder, schedule
        self.ended, self.faults = [], []

    def abandon(self, recorder: EpisodeRecorder) -> None:
        """Forget all running episodes, and what envs were asked; their next episodes are for another recorder."""
        self.is_torn = True
        self.recorder = recorder
        self.base_env.abandon_episodes()
        self.states.abandon_episodes()
        self._idle.clear()
        self.is_torn = False

    def run(self, until: float | None = None) -> bool:
        """Play until the schedule is finished, or until this time; return whether it is finished."""
        self.check_alive()
        self._until = until
        while not self.schedule.is_finished(self.states):
            if until is not None and self._clock() >= until:
                return False
            self.act()
            self.observe()
        return True

    def check_alive(self) -> None:
        """Raise if all environments were given up."""
        if self.states.lost == self.states.everyone:
            first = self._first_fault
            assert first is not None
            raise EnvsLostError(f"all {self.base_env.num_envs} environments are lost; the first fault: {first}", first)

    def abandon_episodes(self) -> None:
        """Discard the episodes that have begun, so that all envs start new ones; wait for envs that make a step."""
        while self.states.out - self.states.restarting:
            self.observe()
        for env in sorted(self.states.waiting):
            episode = self._episodes[env]
            self.recorder.update(episode)
            if episode.length:
                self.discarded += self.recorder.discard(env)
                self.states.end_episodes([env])

    # One step.

    def act(self) -> None:
        """Step the waiting envs that the schedule lets act."""
        acting = self.schedule.may_act(self.states.waiting)
        if not acting:
            return
        self.is_torn = True
        envs = self._all_envs if len(acting) == len(self._all_envs) else np.array(sorted(acting))
        perf = self.perf
        perf.start()
        actions = self.recorder.act(envs, self._episodes, perf)
        self.base_env.send_actions(actions)
        perf.mark(Stage.ENV_WAIT)
        self.states.send(acting)
        self._heard_at = self._clock()
        self.is_torn = False

    def observe(self) -> None:
        """Poll the envs and record their outputs; start the next episodes."""
        self.is_torn = True
        self._start_episodes()
        self.is_torn = False
        if not self.states.out:
            self._wait_for_restart()
            return
        perf, timeout = self.perf, self._patience()
        perf.start()
        if self.base_env.is_asynchronous:
            self.base_env.wait(timeout)  # here, where an interruption costs nothing
            timeout = 0.0
        self.is_torn = True
        outputs = self.base_env.poll(timeout)
        perf.mark(Stage.ENV_WAIT)
        self._take_in(outputs)
        perf.mark(Stage.OBSERVATIONS)
        if self.base_env.is_asynchronous:
            self._listen(outputs)
        else:
            self._wait_for_resets()
        perf.end_step()
        self.is_torn = False

    def _wait_for_resets(self) -> None:
        """Start the next episodes at once, so that all envs go on together, if the schedule wants that."""
        while self.schedule.waits_for_resets and self._start_episodes():
            # Restarts and external simulators may take long: nobody waits for them.
            is_waited_for = not self.base_env.is_external and not self.states.restarting
            self._take_in(self.base_env.poll(timeout=None if is_waited_for else 0))
            self.perf.mark(Stage.ENV_WAIT)

    def _listen(self, outputs: EnvOutputs) -> None:
        """Request new episodes at once, while others act; note when asynchronous envs are silent for too long."""
        self._start_episodes()
        now, patience = self._clock(), self.base_env.patience
        if len(outputs.stepped) or outputs.resets or outputs.failed:
            self._heard_at = now
        elif patience is not None and now - self._heard_at >= patience:
            self.states.note_silence()

    def _take_in(self, outputs: EnvOutputs) -> None:
        stepped, states, schedule = outputs.stepped, self.states, self.schedule
        if len(stepped):
            states.answer(stepped)
            self.taken.env_steps += len(stepped)
            schedule.count_steps(stepped)  # type: ignore[arg-type]
            if states.restored and schedule.trusts_steps:
                states.trust(stepped)
        if len(outputs.envs) or outputs.resets or len(stepped):
            completed = self.recorder.observe(outputs, self._episodes)
            self.taken.rows += len(completed)
            schedule.count_rows(completed)
        if outputs.resets:
            states.begin_episodes(outputs.resets)
            if self._idle:
                self._release_idle(outputs.resets)
        if self._hooks:
            self._call_for("on_episode_start", outputs.resets, outputs)
            self._call_for("on_episode_step", stepped, outputs)
        if outputs.over:
            self._end_episodes(outputs)
        for env, is_kept in outputs.abandoned.items():
            self._leave_episode(env, is_kept)
        errors = [self._fail(env, failed) for env, failed in outputs.failed.items()]
        if errors:
            self.is_torn = False  # all envs are accounted for
            for error in filter(None, errors):
                raise error
            self.check_alive()
            self.is_torn = True

    # Episodes.

    def _start_episodes(self) -> bool:
        """Request new episodes and restart failed envs; return whether there were any."""
        states, schedule = self.states, self.schedule
        if not states.over and not states.suspect:
            return False
        is_first, self._is_started = not self._is_started, True  # the first poll resets all envs
        begun = []
        for env in sorted(states.over):
            if is_first or schedule.may_begin(env):
                self.base_env.try_reset(env, self._begin_episode(env))
                begun.append(env)
        states.request_episodes(begun)
        for env in states.due(self._clock()) if states.suspect else ():
            if schedule.may_restart(env):
                self.fault_counts["restarts"] += 1
                self.base_env.try_restart(env, self._begin_episode(env))
                states.restart(env)
                begun.append(env)
        if begun:
            self._heard_at = self._clock()
        return bool(begun)

    def _release_idle(self, envs: Iterable[int]) -> None:
        """Let envs wait for an episode that were reset without one; those that step together with others go on."""
        idle = self._idle.intersection(envs)
        self._idle -= idle
        if not self.base_env.steps_together:
            self.states.end_episodes(idle)

    def _begin_episode(self, env: int) -> int:
        """Make the next episode of an env; return its seed."""
        number, seed = self.schedule.begin_episode(env)
        if number == NO_EPISODE:
            self._idle.add(env)
        else:
            self._idle.discard(env)
        self._episodes[env] = LiveEpisode(number, env, seed)
        if "on_episode_created" in self._hooks:
            self._callbacks.on_episode_created(EpisodeEvent(self.base_env, self._episodes[env]))  # type: ignore[union-attr]
        return seed

    def _end_episodes(self, outputs: EnvOutputs) -> None:
        over, truncated = outputs.over, _truncated_envs(outputs)
        self.states.end_episodes(over)
        if self.states.restored:
            self.states.trust(over, num_steps=self._restart.good_steps)
        for env in over:
            episode = self._episodes[env]
            episode.infos = outputs.infos.get(env, NO_INFOS)
            num_steps = self.recorder.end_episode(episode)
            self._close_episode(episode, End.TRUNCATED if env in truncated else End.TERMINATED, None)
            self.schedule.end_episode(env, num_steps)

    def _leave_episode(self, env: int, is_kept: bool) -> None:
        """End an episode that its simulator has left; the env plays on."""
        episode, recorder = self._episodes[env], self.recorder
        self.states.leave_episode(env)
        num_steps = 0
        if is_kept:
            dropped = recorder.abandon(env)
            self.taken += dropped
            self.abandoned += dropped
            num_steps = recorder.end_episode(episode)
        else:
            recorder.update(episode)
            self.discarded += recorder.discard(env)
        self._close_episode(episode, End.ABANDONED, None)
        self.schedule.end_episode(env, num_steps)

    def _close_episode(self, episode: LiveEpisode, how: End, fault: Fault | None) -> None:
        """Report an episode that has ended or failed; its figures must be up to date."""
        if "on_episode_end" in self._hooks:
            self._callbacks.on_episode_end(EpisodeEndEvent(self.base_env, episode, fault))  # type: ignore[union-attr]
        if fault is None:
            episode.metrics = _reported_in(episode.infos.values()) | episode.metrics
        self.ended.append((episode, how))

    def _call_for(self, hook: str, envs: Iterable[int], outputs: EnvOutputs) -> None:
        """Call a hook for the episodes of these envs, if it is overridden."""
        if hook in self._hooks:
            for env in envs:
                episode = self._episodes[env]
                self.recorder.update(episode)
                episode.infos = outputs.infos.get(env, NO_INFOS)
                getattr(self._callbacks, hook)(EpisodeEvent(self.base_env, episode))

    # Faults.

    def _fail(self, env: int, failed: Failed) -> EnvFaultError | None:
        """Discard the episode of an env that failed, and plan its restart; return the error if it ends the run."""
        episode, recorder, schedule = self._episodes[env], self.recorder, self.schedule
        recorder.update(episode)
        action = recorder.last_action(env) if failed.phase is Phase.STEP else None
        num_episode_faults = schedule.count_fault(env, failed)
        health = self.states.fail(env, self._clock(), num_episode_faults)
        is_lost = health.status is Status.LOST
        is_raised = failed.kind is FaultKind.INVALID and self._on_invalid == RAISE
        max_restarts = self._restart.max_restarts
        is_given_up = num_episode_faults is not None and num_episode_faults > max_restarts
        if is_raised:
            outcome = "on_invalid='raise' ends the run"
        elif is_lost:
            outcome = "the env is given up"
        elif is_given_up:
            outcome = "the episode is given up"
        elif num_episode_faults is not None:
            outcome = f"the episode is played again, {num_episode_faults} of {max_restarts}"
        else:
            outcome = f"restart {health.num_failures} of {max_restarts}"
        fault = Fault(
            failed=failed,
            env_name=self.base_env.name,
            env_index=env,
            seed=episode.seed,
            episode=episode.number,
            step=episode.length,
            action=action,
            consequence=f"episode discarded, {outcome}",
        )
        self.discarded += recorder.discard(env)
        self.faults.append(fault)
        self.fault_counts[failed.kind.value] += 1
        if "on_env_fault" in self._hooks:
            self._callbacks.on_env_fault(FaultEvent(self.base_env, episode, fault))  # type: ignore[union-attr]
        schedule.discard_episode(env, is_given_up)
        if is_lost:
            schedule.lose(env)
        self._close_episode(episode, End.FAULTY, fault)
        self._first_fault = self._first_fault or fault
        return EnvFaultError(str(fault), fault) if is_raised else None

    def _patience(self) -> float | None:
        """Return how long to wait for envs, which may be silent: that must not delay restarts nor samples."""
        base_env, states = self.base_env, self.states
        if not base_env.is_external and not base_env.is_asynchronous:
            return None
        now, wanted = self._clock(), self._restartable()
        limits = [states.seconds_to_restart(now, wanted)] if wanted else []
        if self._until is not None:
            limits.append(max(0.0, self._until - now))
        if base_env.patience is not None and states.out - states.restarting - states.late:
            limits.append(max(0.0, self._heard_at + base_env.patience - now))
        return min(limits, default=None)

    def _wait_for_restart(self) -> None:
        """Sleep until the first env may be restarted, as no env has anything to do."""
        if wanted := self._restartable():
            now = self._clock()
            seconds = self.states.seconds_to_restart(now, wanted)
            self._sleep(seconds if self._until is None else min(seconds, max(0.0, self._until - now)))

    def _restartable(self) -> list[int]:
        """Return the suspect envs that the schedule restarts when they are due."""
        return list(filter(self.schedule.may_restart, self.states.suspect))


def _truncated_envs(outputs: EnvOutputs) -> frozenset[int]:
    """The envs with an agent that was truncated."""
    ends = outputs.ends.tobytes()
    if not any(end in ends for end in TRUNCATED):
        return frozenset()
    return frozenset(outputs.envs[np.isin(outputs.ends, TRUNCATED)].tolist())


def _reported_in(infos: Iterable[Mapping]) -> dict[str, float]:
    """Return the numbers that an env reports in the last infos of an episode; those of several agents are averaged."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for info in infos:
        report = _numbers_in({SUCCESS_RATE: info.get(SUCCESS_INFO)}) | _numbers_in(info.get(EPISODE_INFO))
        for name, value in report.items():
            found[name].append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _numbers_in(report: Any) -> dict[str, float]:
    """Return the finite numbers in the metrics of an episode; an env may put anything there."""
    found: dict[str, float] = {}
    if isinstance(report, Mapping):
        with contextlib.suppress(Exception):
            found.update((str(name), float(value)) for name, value in report.items() if _is_finite(value))
    return found


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (numbers.Real, np.bool_)) and math.isfinite(value)
    except OverflowError:  # of a large integer
        return False
