"""The runner: samples experience from environments that are Python objects, and survives what they do."""

import numbers
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError
from rookery.runners.acting.pipelines import ActionConnectorsFn, ObsConnectorsFn, PipelineMap
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID, PolicyMap
from rookery.runners.callbacks import Callbacks, EpisodeEndEvent, EpisodeEvent, FaultEvent, SampleEvent
from rookery.runners.env_states import EnvStates
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase, Status
from rookery.runners.ledger import Account, Ledger, Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.recording.episode import EpisodeMetric, LiveEpisode
from rookery.runners.recording.fragments import TRUNCATED
from rookery.runners.recording.multi_agent import MultiAgentRecorder, PolicyMappingFn
from rookery.runners.recording.policy_recorder import PolicyRecorder
from rookery.runners.recording.recorder import EpisodeRecorder
from rookery.runners.recording.single_agent import SingleAgentRecorder
from rookery.runners.sampling import RAISE, RunnerConfig, Sample
from rookery.runners.schedule import AGENT_STEPS, COMPLETE, ENV_STEPS, EPISODES, NO_LIMIT, WHOLE_EPISODES, Quota
from rookery.runners.seeds import episode_seed
from rookery.sample_batch import MultiAgentBatch
from rookery.spaces import Space
from rookery.types import PyTreeDict, make_key

NO_INFOS: Mapping = {}
NUM_SEEDS_LEFT_OUT = 2**20
"""A run that is resumed leaves so many out: the run before may have used them after its last checkpoint."""
EPISODE_INFO = "episode_metrics"
"""The entry of an info in which an env reports numbers of its own with the end of an episode; others are left out."""


class EnvRunner:
    """Lets agents act in environments and returns what they experience.

    One step is: poll the envs, take in what they say, evaluate the policies in batches over envs and agents, send the
    actions. What fails costs its own episode: that env alone is built anew. `runner_index` tells runners of one run
    apart, so that no two episodes have the same seed.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        policies: Mapping[PolicyID, Agent] | Agent,
        policy_mapping_fn: PolicyMappingFn | None = None,
        config: RunnerConfig | None = None,
        *,
        obs_connectors: ObsConnectorsFn | None = None,
        action_connectors: ActionConnectorsFn | None = None,
        callbacks: Callbacks | None = None,
        seed: int = 0,
        runner_index: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_env = base_env
        self.config = config = config or RunnerConfig()
        agents = {DEFAULT_POLICY: policies} if isinstance(policies, Agent) else policies
        if policy_mapping_fn is None and len(agents) > 1:
            raise InvalidInputError(
                f"policies {sorted(agents)} need a policy_mapping_fn(agent_id, episode) that says who has which."
            )
        policy_key = jax.random.fold_in(make_key(seed), runner_index)
        self.policies = PolicyMap(agents, policy_key, config.explore)
        self.perf = Perf(config.perf_decay)
        self._pipelines = PipelineMap(base_env.spaces, obs_connectors, action_connectors)
        self._callbacks = callbacks
        self._hooks = set() if callbacks is None else callbacks.overridden()
        self._seed, self._runner_index = seed, runner_index
        self._clock, self._sleep = clock, sleep
        num_envs = base_env.num_envs
        self._only_policy: PolicyID | None = None
        """The policy of all agents, if that cannot change."""
        self._tracks = self._make_tracks(policy_mapping_fn, num_envs)
        self._episodes = [LiveEpisode(-1, env, None) for env in range(num_envs)]
        self._num_episodes = 0
        self._episode_counts = [0] * num_envs
        """How many episodes of each env were begun, also those that failed: their seeds follow from it."""
        self._slots = EnvStates(num_envs, config.restart)
        self._all_envs = np.arange(num_envs)
        self._kept: np.ndarray | None = None
        """The steps of each env that the last sample kept back."""
        self._is_started = False
        self._has_fixed_shares = True
        """Whether what a lost env does not give is missing, so that samples keep their shape."""
        self._quota = Quota(NO_LIMIT, num_envs, ENV_STEPS, is_shared=True)
        self._taken, self._returned, self._discarded = Steps(), Steps(), Steps()
        self._ended: list[tuple[LiveEpisode, End]] = []
        self._faults: list[Fault] = []
        self._first_fault: Fault | None = None
        self.fault_counts: Counter[str] = Counter()
        """The faults so far by kind, and `restarts`."""

    # What a user calls.

    def set_agent_states(self, agent_states: Mapping[PolicyID, AgentState] | AgentState) -> None:
        """Act with these parameters from the next step on."""
        if isinstance(agent_states, AgentState):
            agent_states = {DEFAULT_POLICY: agent_states}
        self.policies.set_states(agent_states)

    def spaces_of(self, policy: PolicyID = DEFAULT_POLICY, agent: AgentID = SINGLE_AGENT) -> tuple[Space, Space]:
        """The spaces that a policy works in for an agent: those of the env, as the connectors change them."""
        pipeline = self._pipelines.of(policy, agent)
        return self.base_env.spaces[agent] if pipeline is None else (pipeline.obs_space, pipeline.action_space)

    def step(self) -> None:
        """Poll the envs, take in what they say, and send actions to all that wait for them."""
        self._observe()
        self._act()

    def sample(self, num_steps: int | None = None, num_episodes: int | None = None) -> Sample:
        """Sample a fragment as the config says, or so many env steps, or so many whole episodes, over all envs.

        The share of each env is fixed before: an env with short episodes does not give more of them.
        """
        num_rows = self._begin_sample(num_steps, num_episodes)
        while not self._is_finished():
            self._act()
            self._observe()
        return self._end_sample(num_rows)

    def render(self, env: int) -> np.ndarray | None:
        """Draw an env as an RGB array; None if it cannot be drawn. The time counts as rendering."""
        self.perf.start()
        frame = self.base_env.try_render(env)
        self.perf.mark(Stage.RENDER)
        return frame

    @property
    def ledger(self) -> Ledger:
        """What became of every step so far."""
        pending = self._tracks.pending
        return Ledger(
            Account(self._taken.env_steps, self._returned.env_steps, self._discarded.env_steps, pending.env_steps),
            Account(self._taken.rows, self._returned.rows, self._discarded.rows, pending.rows),
        )

    @property
    def num_lost_envs(self) -> int:
        """How many envs were given up."""
        return len(self._slots.lost)

    def get_state(self) -> dict[str, Any]:
        """What a later runner needs to go on in place of this one; the simulators' own state is not part of it."""
        return {
            "num_episodes": self._num_episodes,
            "episode_counts": np.array(self._episode_counts),
            "num_calls": {policy: self.policies[policy].num_calls for policy in self.policies},
            "connectors": self._pipelines.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state` of another runner, with new episodes: none has a seed that was used before."""
        self._num_episodes = int(state["num_episodes"])
        num_left_out = NUM_SEEDS_LEFT_OUT // self.base_env.num_envs + 1
        self._episode_counts = (np.asarray(state["episode_counts"]) + num_left_out).tolist()
        for policy, num_calls in state["num_calls"].items():
            self.policies[policy].count_from(int(num_calls))
        self._pipelines.set_state(state["connectors"])

    def close(self) -> None:
        """Close all environments."""
        self.base_env.close()

    # Beginning and ending a sample.

    def _begin_sample(self, num_steps: int | None, num_episodes: int | None) -> int | None:
        """Give out the quotas; return how many rows the sample has, None if that will be seen."""
        config, num_envs = self.config, self.base_env.num_envs
        self._check_alive()
        if self._only_policy is not None and list(self.policies) != [self._only_policy]:
            raise InvalidInputError(
                f"the policies are now {sorted(self.policies)}: only a runner with a policy_mapping_fn can say "
                "who has which."
            )
        if num_steps is not None and num_episodes is not None:
            raise InvalidInputError(f"num_steps={num_steps} and num_episodes={num_episodes}: ask for one of them.")
        for name, value in (("num_steps", num_steps), ("num_episodes", num_episodes)):
            if value is not None and value < 0:
                raise InvalidInputError(f"{name}={value} must not be negative.")
        is_shared = self.base_env.is_external
        if num_episodes is not None:
            total, unit = num_episodes, EPISODES
        elif num_steps is not None:
            total, unit = num_steps, ENV_STEPS
        else:
            total = config.rollout_fragment_length * (1 if is_shared else num_envs)
            unit = COMPLETE if config.batch_mode == COMPLETE else config.count_steps_by
        self._has_fixed_shares = num_steps is None and num_episodes is None
        absent = () if self._has_fixed_shares else self._slots.lost
        self._quota = Quota(total, num_envs, unit, is_shared, absent)
        if self._kept is not None:
            self._quota.credit(self._kept)
        return self._quota.largest if unit == ENV_STEPS and not is_shared else None

    def _is_finished(self) -> bool:
        """Tell whether every env has given its share.

        Where shares are fixed, an env that is being built anew is waited for only if nobody has given anything, and
        envs that step together stop together, although some have lost a step by a reset.
        """
        quota = self._quota
        if quota.largest <= 0:
            return True
        if self._has_fixed_shares and self.base_env.steps_together and quota.unit == ENV_STEPS:
            return not quota.is_left_to_all
        slots = self._slots
        if not slots.suspect and not slots.lost and not slots.restarting:
            return False
        absent = slots.lost | slots.suspect | slots.restarting if self._has_fixed_shares else slots.lost
        return not any(map(quota.has_left, slots.everyone - absent)) and not quota.is_left_to_all

    def _end_sample(self, num_rows: int | None) -> Sample:
        whole_episodes, overdraft = self._quota.unit in WHOLE_EPISODES, self._quota.overdraft
        if overdraft is not None:
            overdraft = np.minimum(overdraft, self._tracks.env_steps)  # a fault may have taken some back
        self._kept = overdraft
        taken = self._tracks.take(num_rows, self.config.rollout_fragment_length, whole_episodes, overdraft)
        for policy in taken.forgotten:
            self._pipelines.forget(policy)
        self._returned += taken.steps
        sample = Sample(
            batch=MultiAgentBatch(batches=PyTreeDict(taken.batches), env_steps=np.int32(taken.steps.env_steps)),
            first_carries=taken.first_carries,
            episodes=[EpisodeMetric.of(episode, how) for episode, how in self._ended],
            faults=self._faults,
            env_steps=taken.steps.env_steps,
            agent_steps=taken.steps.rows,
        )
        self._ended, self._faults = [], []
        self._quota = Quota(NO_LIMIT, self.base_env.num_envs, ENV_STEPS, is_shared=True)
        if "on_sample_end" in self._hooks:
            self._callbacks.on_sample_end(SampleEvent(self.base_env, sample))  # type: ignore[union-attr]
        return sample

    # One step.

    def _act(self) -> None:
        """Step the envs that wait and still have something to give."""
        acting = self._slots.waiting
        if not self._quota.is_left_to_all and not self.base_env.steps_together:
            acting = set(filter(self._quota.has_left, acting))
        if not acting:
            return
        envs = self._all_envs if len(acting) == len(self._all_envs) else np.array(sorted(acting))
        perf = self.perf
        perf.start()
        actions = self._tracks.act(envs, self._episodes, perf)
        self.base_env.send_actions(actions)
        perf.mark(Stage.ENV_WAIT)
        self._slots.send(acting)

    def _observe(self) -> None:
        """Ask the envs what is new and take it in; start the episodes that come next."""
        self._start_episodes()
        if not self._slots.out:
            self._wait_for_restart()
            return
        perf = self.perf
        perf.start()
        polled = self.base_env.poll(self._patience())
        perf.mark(Stage.ENV_WAIT)
        self._take_in(polled)
        perf.mark(Stage.OBSERVATIONS)
        while self._start_episodes():
            # Resets are waited for, so that all envs go on together; what is built anew, or comes from outside, is not.
            is_waited_for = not self.base_env.is_external and not self._slots.restarting
            self._take_in(self.base_env.poll(timeout=None if is_waited_for else 0))
            perf.mark(Stage.ENV_WAIT)
        perf.end_step()

    def _take_in(self, polled: EnvOutputs) -> None:
        stepped = polled.stepped
        if len(stepped):
            self._slots.answer(stepped)
            self._taken.env_steps += len(stepped)
            self._quota.use(ENV_STEPS, stepped)
            if self._slots.restored and self._quota.unit not in WHOLE_EPISODES:
                self._slots.trust(stepped)
        if len(polled.envs) or polled.resets or len(stepped):
            completed = self._tracks.observe(polled, self._episodes)
            self._taken.rows += len(completed)
            self._quota.use(AGENT_STEPS, completed)
        if polled.resets:
            self._slots.begin_episodes(polled.resets)
        if self._hooks:
            self._call_for("on_episode_start", polled.resets, polled)
            self._call_for("on_episode_step", stepped, polled)
        if polled.over:
            self._end_episodes(polled)
        for env, failed in polled.failed.items():  # last, as it may end the run: what the others gave is counted
            self._fail(env, failed)

    # Episodes.

    def _start_episodes(self) -> bool:
        """Ask for new episodes, and for new envs in place of those that failed; tell whether there were any."""
        slots = self._slots
        if not slots.over and not slots.suspect:
            return False
        wanted = sorted(slots.over)
        if self._quota.unit in WHOLE_EPISODES and self._is_started:  # the first poll resets all envs
            wanted = [env for env in wanted if self._quota.has_left(env)]
        self._is_started = True
        for env in wanted:
            self.base_env.try_reset(env, self._begin_episode(env))
        slots.ask_for_episodes(wanted)
        due = slots.restart_due(self._clock()) if slots.suspect else []
        for env in due:
            self.fault_counts["restarts"] += 1
            self.base_env.try_restart(env, self._begin_episode(env))
        return bool(wanted or due)

    def _begin_episode(self, env: int) -> int:
        """Make ready for the next episode of an env; return its seed."""
        number = self._episode_counts[env] * self.base_env.num_envs + env
        seed = episode_seed(self._seed, self._runner_index, number)
        self._episode_counts[env] += 1
        self._episodes[env] = LiveEpisode(self._num_episodes, env, seed)
        self._num_episodes += 1
        if "on_episode_created" in self._hooks:
            self._callbacks.on_episode_created(EpisodeEvent(self.base_env, self._episodes[env]))  # type: ignore[union-attr]
        return seed

    def _end_episodes(self, polled: EnvOutputs) -> None:
        over, truncated = polled.over, _truncated_envs(polled)
        self._slots.end_episodes(over)
        if self._slots.restored:
            self._slots.trust(over, num_steps=self.config.restart.good_steps)
        for env in over:
            episode = self._episodes[env]
            episode.infos = polled.infos.get(env, NO_INFOS)
            num_steps = self._tracks.end_episode(episode)
            self._close_episode(episode, End.TRUNCATED if env in truncated else End.TERMINATED, None)
            self._quota.use(COMPLETE, (env,), num_steps)
        self._quota.use(EPISODES, over)

    def _close_episode(self, episode: LiveEpisode, how: End, fault: Fault | None) -> None:
        """Report an episode that has ended, well or not; its figures must be up to date."""
        if "on_episode_end" in self._hooks:
            self._callbacks.on_episode_end(EpisodeEndEvent(self.base_env, episode, fault))  # type: ignore[union-attr]
        for info in episode.infos.values():
            episode.metrics = _numbers_in(info.get(EPISODE_INFO)) | episode.metrics
        self._ended.append((episode, how))

    def _call_for(self, hook: str, envs: Iterable[int], polled: EnvOutputs) -> None:
        """Call a hook for the episodes of some envs, if there is one."""
        if hook in self._hooks:
            for env in envs:
                episode = self._episodes[env]
                self._tracks.update(episode)
                episode.infos = polled.infos.get(env, NO_INFOS)
                getattr(self._callbacks, hook)(EpisodeEvent(self.base_env, episode))

    # Faults.

    def _fail(self, env: int, failed: Failed) -> None:
        """Give up the episode of an env that failed, and say when it is built anew."""
        episode, policy = self._episodes[env], self.config.restart
        self._tracks.update(episode)
        action = self._tracks.last_action(env) if failed.phase is Phase.STEP else None
        health = self._slots.fail(env, self._clock())
        is_lost = health.status is Status.LOST
        is_raised = failed.kind is FaultKind.INVALID and self.config.on_invalid == RAISE
        if is_raised:
            outcome = "on_invalid='raise' ends the run"
        elif is_lost:
            outcome = "the env is given up"
        else:
            outcome = f"restart {health.num_tries + 1} of {policy.max_restarts}"
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
        self._discarded += self._tracks.discard(env)
        self._faults.append(fault)
        self.fault_counts[failed.kind.value] += 1
        if "on_env_fault" in self._hooks:
            self._callbacks.on_env_fault(FaultEvent(self.base_env, episode, fault))  # type: ignore[union-attr]
        if is_lost and not self._has_fixed_shares:
            self._quota.take_from(env)
        self._close_episode(episode, End.FAULTY, fault)
        self._first_fault = self._first_fault or fault
        if is_raised:
            raise EnvFaultError(str(fault), fault)
        self._check_alive()

    def _check_alive(self) -> None:
        if self._slots.lost == self._slots.everyone:
            first = self._first_fault
            assert first is not None
            raise EnvFaultError(f"all {self.base_env.num_envs} environments are lost; the first fault: {first}", first)

    def _patience(self) -> float | None:
        """How long to wait for envs; those from outside may say nothing for any time, while others are to be built."""
        if not self.base_env.is_external or not self._slots.suspect:
            return None
        return self._slots.seconds_to_restart(self._clock())

    def _wait_for_restart(self) -> None:
        """Nothing is under way: let the time pass until an env may be built anew."""
        if self._slots.suspect:
            self._sleep(self._slots.seconds_to_restart(self._clock()))

    # Building.

    def _make_tracks(self, policy_mapping_fn: PolicyMappingFn | None, num_envs: int) -> EpisodeRecorder:
        if policy_mapping_fn is None and not self.base_env.is_multi_agent:
            (policy,) = self.policies
            self._only_policy = policy
            return SingleAgentRecorder(policy, self._make_recorder(policy, SINGLE_AGENT, num_envs), num_envs)
        if policy_mapping_fn is None:
            (only_policy,) = self.policies
            policy_mapping_fn = lambda agent, episode: only_policy  # noqa: E731
        return MultiAgentRecorder(
            self.policies,
            lambda policy, agent: self._make_recorder(policy, agent, 0),
            policy_mapping_fn,
            num_envs,
            self.base_env.is_multi_agent,
        )

    def _make_recorder(self, policy: PolicyID, agent: AgentID, num_lanes: int) -> PolicyRecorder:
        num_rows = self.config.rollout_fragment_length
        return PolicyRecorder(self.policies[policy], self._pipelines.of(policy, agent), num_rows, num_lanes)


def _truncated_envs(polled: EnvOutputs) -> frozenset[int]:
    """The envs with an agent that was truncated."""
    ends = polled.ends.tobytes()
    if not any(end in ends for end in TRUNCATED):
        return frozenset()
    return frozenset(polled.envs[np.isin(polled.ends, TRUNCATED)].tolist())


def _numbers_in(report: Any) -> dict[str, float]:
    if not isinstance(report, Mapping):
        return {}
    return {str(name): float(value) for name, value in report.items() if isinstance(value, numbers.Real)}
