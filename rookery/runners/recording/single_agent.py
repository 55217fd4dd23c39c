"""Recording of environments with one agent and one policy, without work per row."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.actor import Logged
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, EnvOutputs, LoggedAction
from rookery.runners.ledger import Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.recording.filled import FilledFragment, FilledFragments
from rookery.runners.recording.fragments import ALL_COLUMNS
from rookery.runners.recording.policy_recorder import PolicyRecorder
from rookery.runners.recording.recorder import Fragment, FragmentRecorder, Tree, some_rows, stack_logged


class SingleAgentRecorder(FragmentRecorder):
    """Records one agent in every env, all with the same policy: column i is env i."""

    def __init__(
        self, policy: PolicyID, recorder: PolicyRecorder, num_envs: int, filled: FilledFragments | None = None
    ) -> None:
        self._policy = policy
        self._recorder = recorder
        self._num_envs = num_envs
        self._filled = filled
        self.times = np.zeros(num_envs, np.int32)
        self.returns = np.zeros(num_envs)
        self.numbers = np.zeros(num_envs, np.int32)
        self._everyone = np.arange(num_envs)
        self._acted: np.ndarray | None = None
        """The envs of the last actions if these were all envs, which mostly answer next."""
        self._logged: dict[int, LoggedAction] = {}
        """Actions that envs chose themselves and that are not stored yet."""

    def _columns_of(self, envs: np.ndarray) -> Any:
        """Return the columns of these envs; `ALL_COLUMNS` if they are all, in order."""
        if envs is self._acted or (len(envs) == self._num_envs and (envs == self._everyone).all()):
            return ALL_COLUMNS
        return envs

    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        envs, obs, rewards, ends = polled.envs, polled.obs, polled.rewards, polled.ends
        for env, actions in polled.off_policy_actions.items():
            self._logged[env] = actions[SINGLE_AGENT]
        if polled.resets:
            if len(polled.resets) == len(envs):
                self._start(envs, obs, episodes)
                return ()
            is_reset = polled.is_reset
            self._start(envs[is_reset], some_rows(obs, is_reset), episodes)
            is_step = ~is_reset
            envs, rewards, ends = envs[is_step], rewards[is_step], ends[is_step]
            obs = some_rows(obs, is_step)
        recorder = self._recorder
        columns = self._columns_of(envs)
        if columns is ALL_COLUMNS:  # without a copy
            self.times += 1
            self.returns += rewards
        else:
            self.times[columns] += 1
            self.returns[columns] += rewards
        if recorder.pipeline is not None:
            obs = recorder.to_policy(obs, envs, np.zeros(len(envs), bool), rewards)
        buffer = recorder.buffer
        buffer.follow(columns, obs)
        buffer.complete(columns, rewards, ends, self.returns[columns])
        buffer.observe(columns, obs)
        recorder.is_open[columns] = False
        if self._filled is not None:
            self._keep_full(envs, self._filled)
        return envs  # type: ignore[return-value]

    def _keep_full(self, envs: np.ndarray, filled: FilledFragments) -> None:
        """Let the envs go on in another fragment that have filled theirs."""
        length = filled.length
        for env in envs[self._recorder.buffer.cursor[envs] == length].tolist():
            columns = {self._policy: [self._recorder.next_fragment(env)]}
            filled.add(FilledFragment(Steps(length, length), columns))

    def _start(self, envs: np.ndarray, obs: Tree, episodes: Sequence[LiveEpisode]) -> None:
        for env in envs.tolist():
            self.numbers[env] = episodes[env].number
            episodes[env].policies = {SINGLE_AGENT: self._policy}
        if self._recorder.pipeline is not None:
            obs = self._recorder.to_policy(obs, envs, np.ones(len(envs), bool), np.zeros(len(envs)))
        self._recorder.buffer.observe(envs, obs)

    def act(self, envs: np.ndarray, episodes: Sequence[LiveEpisode], perf: Perf) -> Actions:
        if self._logged:
            return self._act_with_logged(envs, perf)
        return Actions(envs, self._act(envs, None, perf), version=self._recorder.actor.version)

    def _act(self, envs: np.ndarray, logged: Logged | None, perf: Perf) -> Tree:
        recorder, columns = self._recorder, ALL_COLUMNS if len(envs) == self._num_envs else envs
        self._acted = envs if columns is ALL_COLUMNS else None
        starts = self.times[columns] == 0 if recorder.actor.is_recurrent else None
        acts = recorder.act(columns, len(envs), starts, self.times[columns], self.numbers[columns], logged)
        perf.mark(Stage.INFERENCE)
        actions = recorder.to_env(acts.actions)
        perf.mark(Stage.ACTIONS)
        return actions

    def _act_with_logged(self, envs: np.ndarray, perf: Perf) -> Actions:
        """Act where the envs did not choose themselves; logged actions are sent back unchanged."""
        is_logged = np.array([env in self._logged for env in envs.tolist()])
        parts = []
        if is_logged.any():
            logged = stack_logged([self._logged.pop(env) for env in envs[is_logged].tolist()])
            parts.append(self._act(envs[is_logged], logged, perf))
        if not is_logged.all():
            parts.append(self._act(envs[~is_logged], None, perf))
        order = np.argsort(np.concatenate([np.flatnonzero(is_logged), np.flatnonzero(~is_logged)]))
        actions = jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *parts)
        return Actions(envs, actions, version=self._recorder.actor.version)

    def end_episode(self, episode: LiveEpisode) -> int:
        self.update(episode)
        env, buffer = episode.env_index, self._recorder.buffer
        num_steps = int(buffer.cursor[env] - buffer.episode_begin[env])
        buffer.end_episode(env)
        self.times[env], self.returns[env] = 0, 0.0
        return num_steps

    def abandon(self, env: int) -> Steps:
        self._logged.pop(env, None)
        num_open = int(self._recorder.is_open[env])
        self._recorder.is_open[env] = False
        self._recorder.buffer.truncate(env)
        return Steps(num_open, num_open)

    def discard(self, env: int) -> Steps:
        self._logged.pop(env, None)
        self.times[env], self.returns[env] = 0, 0.0
        self._recorder.is_open[env] = False
        num_rows = self._recorder.buffer.discard(env)
        return Steps(num_rows, num_rows)

    def last_action(self, env: int) -> Any:
        return self._recorder.buffer.last_actions(env)

    def update(self, episode: LiveEpisode) -> None:
        env = episode.env_index
        episode.length, episode.agent_returns = int(self.times[env]), {SINGLE_AGENT: float(self.returns[env])}

    def take(
        self,
        num_rows: int | None,
        next_num_rows: int,
        whole_episodes: bool = False,
        overdraft: np.ndarray | None = None,
    ) -> Fragment:
        num_kept = self._recorder.buffer.num_in_episode if whole_episodes else overdraft
        batch, first_carry, num_complete = self._recorder.take(num_rows, next_num_rows, num_kept)
        batches = {} if batch is None else {self._policy: batch}
        return Fragment(batches, {self._policy: first_carry}, Steps(num_complete, num_complete))

    def take_filled(self, num_fragments: int) -> Fragment:
        assert self._filled is not None, "fragments follow each other in a pool"
        taken = self._filled.take(num_fragments)
        batch, first_carry = self._recorder.take_columns([fragment.columns[self._policy][0] for fragment in taken])
        steps = sum((fragment.steps for fragment in taken), Steps())
        return Fragment({self._policy: batch}, {self._policy: first_carry}, steps)

    def discard_older(self, version: int) -> Steps:
        assert self._filled is not None, "fragments follow each other in a pool"
        older = self._filled.take_older(version)
        for fragment in older:
            self._recorder.release(fragment.columns[self._policy])
        return sum((fragment.steps for fragment in older), Steps())

    @property
    def env_steps(self) -> np.ndarray:
        return self._recorder.buffer.cursor

    @property
    def pending(self) -> Steps:
        num_rows = int(self._recorder.buffer.cursor.sum())
        return Steps(num_rows, num_rows) + (Steps() if self._filled is None else self._filled.steps)
