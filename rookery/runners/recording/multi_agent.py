"""Recording of environments with agents that come and go, act in turns and have different policies."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.assignment import PolicyMappingFn
from rookery.runners.acting.policy_map import PolicyID, PolicyMap
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, End, EnvOutputs, LoggedAction
from rookery.runners.ledger import Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.recording.filled import FilledFragment, FilledFragments
from rookery.runners.recording.policy_recorder import PolicyRecorder
from rookery.runners.recording.recorder import Fragment, FragmentRecorder, Tree, some_rows, stack_logged, stacked


@dataclass(slots=True)
class Track:
    """One agent in one running episode."""

    policy: PolicyID
    column: int
    pending: float = 0.0
    """Rewards since its last observation."""
    is_waiting: bool = True
    num_steps: int = 0


@dataclass(slots=True)
class Written:
    """Rows of one policy, gathered to be written at once."""

    completed: list[tuple[int, float, int, float]] = field(default_factory=list)
    """Column, reward, end and return so far."""
    ended: list[tuple[int, Tree | None, float]] = field(default_factory=list)
    """Column, last observation if there was one, and the reward that came with it."""
    observed: list[tuple[int, Tree, bool, float]] = field(default_factory=list)
    """Column, observation, whether it is the agent's first, and the reward that came with it."""


class MultiAgentRecorder(FragmentRecorder):
    """Records agents that come and go, each with the policy that the mapping assigns for the episode."""

    def __init__(
        self,
        policies: PolicyMap,
        make_recorder: Callable[[PolicyID, AgentID], PolicyRecorder],
        policy_mapping_fn: PolicyMappingFn,
        num_envs: int,
        is_multi_agent: bool,
        filled: FilledFragments | None = None,
    ) -> None:
        self._policies = policies
        self._make_recorder = make_recorder
        self._policy_mapping_fn = policy_mapping_fn
        self._is_multi_agent = is_multi_agent
        self._filled = filled
        self._recorders: dict[PolicyID, PolicyRecorder] = {}
        self._tracks: list[dict[AgentID, Track]] = [{} for _ in range(num_envs)]
        self._used: list[set[PolicyID]] = [set() for _ in range(num_envs)]
        """The policies that the running episode of each env has used."""
        self._logged: dict[tuple[int, AgentID], LoggedAction] = {}
        """Actions that envs chose themselves and that are not stored yet."""
        self._columns: dict[tuple[PolicyID, int], list[int]] = {}
        """The columns of a policy in an env."""
        self._free: dict[tuple[PolicyID, int], list[int]] = {}
        self._env_steps = np.zeros(num_envs, np.int64)
        """The steps of each env that `take` has not returned yet."""
        self._episode_env_steps = np.zeros(num_envs, np.int64)
        """The steps among them in the running episode."""

    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        for env, actions in polled.off_policy_actions.items():
            self._logged |= {(env, agent): action for agent, action in actions.items()}
        for env in polled.stepped:
            episodes[env].length += 1
            self._env_steps[env] += 1
            self._episode_env_steps[env] += 1
        written: dict[PolicyID, Written] = {}
        agents = [SINGLE_AGENT] * len(polled.envs) if polled.agents is None else polled.agents
        completed = []
        for index, (env, agent) in enumerate(zip(polled.envs.tolist(), agents, strict=True)):
            if polled.agents is None:
                obs = jax.tree.map(lambda leaf, index=index: leaf[index], polled.obs)
            else:
                obs = polled.obs[index]
            end = int(polled.ends[index])
            if self._observe_one(episodes[env], agent, obs, float(polled.rewards[index]), end, written):
                completed.append(env)
        for policy, rows in written.items():
            self._write(self._recorders[policy], rows)
        if self._filled is not None:
            self._keep_full(polled.stepped, self._filled)
        return completed

    def _keep_full(self, envs: Iterable[int], filled: FilledFragments) -> None:
        """Let the envs go on in another fragment that have filled theirs."""
        for env in [env for env in envs if self._env_steps[env] == filled.length]:
            self._env_steps[env] = self._episode_env_steps[env] = 0
            full = {
                policy: [self._recorders[policy].next_fragment(column) for column in self._with_rows(policy, columns)]
                for (policy, owner), columns in self._columns.items()
                if owner == env
            }
            num_rows = sum(column.num_rows for columns in full.values() for column in columns)
            filled.add(FilledFragment(Steps(filled.length, num_rows), full))

    def _with_rows(self, policy: PolicyID, columns: Iterable[int]) -> list[int]:
        """Return those of the columns of a policy that have a complete row."""
        cursor = self._recorders[policy].buffer.cursor
        return [column for column in columns if cursor[column]]

    def _observe_one(
        self,
        episode: LiveEpisode,
        agent: AgentID,
        obs: Tree | None,
        reward: float,
        end: int,
        written: dict[PolicyID, Written],
    ) -> bool:
        """Record the outputs of one agent; return whether that completes a row."""
        env = episode.env_index
        episode.agent_returns[agent] = total = episode.agent_returns.get(agent, 0.0) + reward
        track = self._tracks[env].get(agent)
        if track is None:
            if end == End.RUNNING and obs is not None:
                track = self._start(episode, agent)
                written.setdefault(track.policy, Written()).observed.append((track.column, obs, True, 0.0))
            return False
        track.pending += reward
        if obs is None and end == End.RUNNING:
            return False
        rows = written.setdefault(track.policy, Written())
        rows.completed.append((track.column, track.pending, end, total))
        if end == End.RUNNING:
            rows.observed.append((track.column, obs, False, track.pending))
            track.is_waiting, track.pending = True, 0.0
            track.num_steps += 1
        else:
            rows.ended.append((track.column, obs, track.pending))
            del self._tracks[env][agent]
            self._free[track.policy, env].append(track.column)
        return True

    def _start(self, episode: LiveEpisode, agent: AgentID) -> Track:
        """Assign a policy and a column to an agent."""
        env = episode.env_index
        policy = self._policy_mapping_fn(agent, episode)
        self._policies.check_may_begin(policy, episode.policies.values())
        episode.policies[agent] = policy
        self._used[env].add(policy)
        if policy not in self._recorders:
            self._recorders[policy] = self._make_recorder(policy, agent)
        free = self._free.setdefault((policy, env), [])
        if not free:
            free.append(self._new_column(policy, env))
        free.sort(reverse=True)
        track = self._tracks[env][agent] = Track(policy, free.pop())
        return track

    def _new_column(self, policy: PolicyID, env: int) -> int:
        """Return another column of an env: first come the first ones of all envs, then the second ones.

        So it does not depend on which env is ready first.
        """
        columns, num_envs = self._columns.setdefault((policy, env), []), len(self._tracks)
        column = len(columns) * num_envs + env
        recorder = self._recorders[policy]
        if column >= recorder.num_columns:
            recorder.reserve((len(columns) + 1) * num_envs)
        columns.append(column)
        return column

    @staticmethod
    def _write(recorder: PolicyRecorder, rows: Written) -> None:
        """Write the rows of one policy: first what ended, last what begins."""
        buffer = recorder.buffer
        for column, obs, reward in rows.ended:
            buffer.follow(np.array([column]), _final_obs(recorder, column, obs, reward))
        if rows.observed:
            columns = np.array([column for column, *_ in rows.observed])
            obs = stacked([obs for _, obs, *_ in rows.observed])
            starts = np.array([is_first for *_, is_first, _ in rows.observed])
            obs = recorder.to_policy(obs, columns, starts, np.array([reward for *_, reward in rows.observed]))
            buffer.follow(columns[~starts], some_rows(obs, ~starts))
        if rows.completed:
            completed, rewards, ends, returns = (np.array(values) for values in zip(*rows.completed, strict=True))
            buffer.complete(completed, rewards, ends, returns)
            recorder.is_open[completed] = False
        if rows.observed:
            buffer.observe(columns, obs)

    def act(self, envs: np.ndarray, episodes: Sequence[LiveEpisode], perf: Perf) -> Actions:
        waiting: dict[tuple[PolicyID, bool], list[tuple[int, AgentID, Track]]] = {}
        for env in envs.tolist():
            for agent, track in self._tracks[env].items():
                if track.is_waiting:
                    key = track.policy, (env, agent) in self._logged
                    waiting.setdefault(key, []).append((env, agent, track))
        sent: list[tuple[int, AgentID, Tree]] = []
        for (policy, is_logged), group in waiting.items():
            recorder = self._recorders[policy]
            logged = stack_logged([self._logged.pop((env, agent)) for env, agent, _ in group]) if is_logged else None
            columns = np.array([track.column for *_, track in group])
            starts = np.array([track.num_steps == 0 for *_, track in group])
            times = np.array([episodes[env].length for env, *_ in group], np.int32)
            numbers = np.array([episodes[env].number for env, *_ in group], np.int32)
            acts = recorder.act(columns, len(group), starts, times, numbers, logged)
            perf.mark(Stage.INFERENCE)
            actions = recorder.to_env(acts.actions)
            for row, (env, agent, track) in enumerate(group):
                sent.append((env, agent, jax.tree.map(lambda leaf, row=row: leaf[row], actions)))
                track.is_waiting = False
            perf.mark(Stage.ACTIONS)
        sent.sort(key=lambda row: row[0])
        version = max([recorder.actor.version for recorder in self._recorders.values()], default=0)
        if not self._is_multi_agent:
            return Actions(envs, stacked([action for *_, action in sent]), version=version)
        return Actions(
            envs,
            [action for *_, action in sent],
            [agent for _, agent, _ in sent],
            np.array([env for env, *_ in sent], np.int64),
            version,
        )

    def end_episode(self, episode: LiveEpisode) -> int:
        self.update(episode)
        env = episode.env_index
        self._release(env)
        for (policy, owner), columns in self._columns.items():
            if owner == env:
                self._recorders[policy].buffer.end_episode(columns)
        num_steps, self._episode_env_steps[env] = int(self._episode_env_steps[env]), 0
        return num_steps

    def abandon(self, env: int) -> Steps:
        open_tracks = [track for track in self._tracks[env].values() if not track.is_waiting]
        for track in self._tracks[env].values():
            recorder = self._recorders[track.policy]
            recorder.is_open[track.column] = False
            recorder.buffer.truncate(track.column)
        return Steps(int(bool(open_tracks)), len(open_tracks))

    def discard(self, env: int) -> Steps:
        self._release(env)
        discarded = Steps(env_steps=int(self._episode_env_steps[env]))
        self._env_steps[env] -= self._episode_env_steps[env]
        self._episode_env_steps[env] = 0
        for (policy, owner), columns in self._columns.items():
            if owner == env:
                recorder = self._recorders[policy]
                recorder.is_open[columns] = False
                discarded.rows += sum(recorder.buffer.discard(column) for column in columns)
        return discarded

    def _release(self, env: int) -> None:
        for track in self._tracks[env].values():
            self._free[track.policy, env].append(track.column)
        for key in [key for key in self._logged if key[0] == env]:
            del self._logged[key]
        self._tracks[env].clear()
        self._used[env].clear()

    def last_action(self, env: int) -> Any:
        actions = {
            agent: self._recorders[track.policy].buffer.last_actions(track.column)
            for agent, track in self._tracks[env].items()
            if not track.is_waiting
        }
        return actions if self._is_multi_agent else actions.get(SINGLE_AGENT)

    def update(self, episode: LiveEpisode) -> None:
        pass  # updated row by row

    def take(
        self,
        num_rows: int | None,
        next_num_rows: int,
        whole_episodes: bool = False,
        overdraft: np.ndarray | None = None,
    ) -> Fragment:
        kept = np.zeros_like(self._env_steps) if overdraft is None else overdraft.copy()
        if whole_episodes:
            kept = self._episode_env_steps.copy()
        taken = Fragment({}, {}, Steps(env_steps=int((self._env_steps - kept).sum())))
        self._env_steps, self._episode_env_steps = kept, np.minimum(self._episode_env_steps, kept)
        for policy, recorder in self._recorders.items():
            num_kept = recorder.buffer.num_in_episode if whole_episodes else self._of_columns(policy, overdraft)
            batch, first_carry, num_complete = recorder.take(num_rows, next_num_rows, num_kept)
            if batch is not None:
                taken.batches[policy] = batch
                taken.first_carries[policy] = first_carry
            taken.steps.rows += num_complete
        taken.forgotten = self._forget()
        return taken

    def take_filled(self, num_fragments: int) -> Fragment:
        assert self._filled is not None, "fragments follow each other in a pool"
        fragments = self._filled.take(num_fragments)
        taken = Fragment({}, {}, sum((fragment.steps for fragment in fragments), Steps()))
        for policy, recorder in self._recorders.items():
            by_fragment = [fragment.columns.get(policy, ()) for fragment in fragments]
            num_columns = max(map(len, by_fragment))
            columns = [
                columns[number] if number < len(columns) else None
                for number in range(num_columns)
                for columns in by_fragment
            ]
            if columns:
                taken.batches[policy], taken.first_carries[policy] = recorder.take_columns(columns)
        return taken

    def discard_older(self, version: int) -> Steps:
        assert self._filled is not None, "fragments follow each other in a pool"
        older = self._filled.take_older(version)
        for fragment in older:
            for policy, columns in fragment.columns.items():
                self._recorders[policy].release(columns)
        return sum((fragment.steps for fragment in older), Steps())

    def _of_columns(self, policy: PolicyID, numbers: np.ndarray | None) -> np.ndarray | None:
        """Return the number of each column's env, for the columns of a policy."""
        if numbers is None:
            return None
        spread = np.zeros(self._recorders[policy].buffer.num_columns, np.int64)
        for (owner, env), columns in self._columns.items():
            if owner == policy:
                spread[columns] = numbers[env]
        return np.minimum(spread, self._recorders[policy].buffer.cursor)

    def _forget(self) -> list[PolicyID]:
        """Forget the removed policies that are not used any more; return their names."""
        with_rows = {policy for policy, recorder in self._recorders.items() if recorder.buffer.cursor.any()}
        forgotten = self._policies.forget_unused(with_rows.union(*self._used))
        for policy in forgotten:
            self._recorders.pop(policy, None)
            for key in [key for key in self._columns if key[0] == policy]:
                del self._columns[key]
                self._free.pop(key, None)
        return forgotten

    @property
    def env_steps(self) -> np.ndarray:
        return self._env_steps

    @property
    def pending(self) -> Steps:
        num_rows = sum(int(recorder.buffer.cursor.sum()) for recorder in self._recorders.values())
        return Steps(int(self._env_steps.sum()), num_rows) + (Steps() if self._filled is None else self._filled.steps)


def _final_obs(recorder: PolicyRecorder, column: int, obs: Tree | None, reward: float) -> Tree | None:
    """Return the last observation as the policy sees it, in a batch of one; None if there is none."""
    if obs is None:
        return None
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], obs)
    return recorder.to_policy(one, np.array([column]), np.zeros(1, bool), np.array([reward]))
