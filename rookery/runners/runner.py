"""The runner: collects experience from Python environments and recovers from their failures."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError
from rookery.runners.acting.assignment import PolicyMappingFn
from rookery.runners.acting.guests import Guests
from rookery.runners.acting.pipelines import ActionConnectorsFn, ObsConnectorsFn, PipelineMap
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID, PolicyMap
from rookery.runners.callbacks import Callbacks, SampleEvent
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv, End
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.validation import zeros_of
from rookery.runners.ledger import Account, Ledger, Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.quota import COMPLETE, ENV_STEPS, EPISODES, WHOLE_EPISODES
from rookery.runners.recording.episode import EpisodeMetric, LiveEpisode
from rookery.runners.recording.filled import FilledFragments
from rookery.runners.recording.multi_agent import MultiAgentRecorder
from rookery.runners.recording.policy_recorder import PolicyRecorder
from rookery.runners.recording.recorder import Fragment, FragmentRecorder
from rookery.runners.recording.single_agent import SingleAgentRecorder
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.runners.schedule import FragmentSchedule, QuotaSchedule
from rookery.sample_batch import MultiAgentBatch
from rookery.spaces import Space
from rookery.types import PyTreeDict, make_key


class EnvRunner:
    """Lets agents act in environments and returns their experience.

    It is an episode engine that records rows, policy by policy, and plays by quotas of steps. A fault costs one
    episode: the env that failed is restarted. `runner_index` tells runners of one run apart, so that no two episodes
    have the same seed.
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
                f"policies {sorted(agents)} need a policy_mapping_fn(agent_id, episode), which assigns them."
            )
        policy_key = jax.random.fold_in(make_key(seed), runner_index)
        self.policies = PolicyMap(agents, policy_key, config.explore)
        self._pipelines = PipelineMap(base_env.spaces, obs_connectors, action_connectors)
        self._callbacks = callbacks
        self._clock = clock
        self._has_sample_hook = callbacks is not None and "on_sample_end" in callbacks.overridden()
        self._policy_mapping_fn = policy_mapping_fn
        self._only_policy: PolicyID | None = None
        """The policy of all agents, if that cannot change."""
        self._version = 0
        """The number of the parameters that act."""
        self._filled = None if config.num_fragments is None else FilledFragments(config.rollout_fragment_length)
        self._recorder = self._make_recorder()
        self._schedule = QuotaSchedule(base_env, seed, runner_index)
        self._fragments = None
        if self._filled is not None and config.num_fragments is not None:
            self._fragments = FragmentSchedule(base_env, seed, runner_index, self._filled, config.num_fragments)
        self._engine = EpisodeEngine(
            base_env,
            self._recorder,
            self._fragments or self._schedule,
            config.restart,
            config.on_invalid,
            callbacks=callbacks,
            perf_decay=config.perf_decay,
            clock=clock,
            sleep=sleep,
        )
        self._guests = None
        if isinstance(base_env, ExternalBaseEnv):
            policy_of = policy_mapping_fn or (lambda agent, episode: next(iter(self.policies)))
            self._guests = Guests(self.policies, policy_of, base_env.spaces)
            base_env.guests_fn = self._guests.act
        self._returned = Steps()
        self._is_torn = False
        """True while rows are taken from the recorder; if it stays True, as after Ctrl-C, they are lost."""

    @property
    def perf(self) -> Perf:
        """The time that each phase of a step takes."""
        return self._engine.perf

    @property
    def fault_counts(self) -> Counter[str]:
        """The faults so far by kind, and `restarts`."""
        return self._engine.fault_counts

    def set_agent_states(
        self, agent_states: Mapping[PolicyID, AgentState] | AgentState, version: int | None = None
    ) -> None:
        """Act with these parameters from the next step on. Rows name their `version`, by default the next number."""
        if isinstance(agent_states, AgentState):
            agent_states = {DEFAULT_POLICY: agent_states}
        self._version = self._version + 1 if version is None else version
        self.policies.set_states(agent_states, self._version)

    def spaces_of(self, policy: PolicyID = DEFAULT_POLICY, agent: AgentID = SINGLE_AGENT) -> tuple[Space, Space]:
        """Return the spaces that a policy sees for an agent: those of the env, as the connectors change them."""
        pipeline = self._pipelines.of(policy, agent)
        return self.base_env.spaces[agent] if pipeline is None else (pipeline.obs_space, pipeline.action_space)

    def prepare(self) -> None:
        """Compile what acts in all environments at once, if they have one agent. No step is taken or counted."""
        if self._only_policy is not None and not self.base_env.is_multi_agent:
            obs_space, _ = self.spaces_of(self._only_policy)
            num_envs = self.base_env.num_envs
            self.policies[self._only_policy].prepare(zeros_of(obs_space, num_envs), num_envs)

    def step(self) -> None:
        """Poll the envs, record their outputs, and send actions to all that wait for them."""
        self._repair()
        self._engine.observe()
        self._engine.act()

    def sample(
        self, num_steps: int | None = None, num_episodes: int | None = None, *, force_reset: bool = False
    ) -> Sample:
        """Sample a fragment as configured, or `num_steps` env steps or `num_episodes` whole episodes of all envs.

        The share of each env is fixed beforehand: an env with short episodes does not give more of them. With
        `force_reset` rows that were not returned yet are discarded and all envs begin new episodes. So it is after a
        call that was interrupted while it did not just wait for envs.
        """
        self._repair()
        if force_reset:
            self._force_reset()
        if self._fragments is None:
            num_rows = self._begin_sample(num_steps, num_episodes)
            self._engine.run()
            return self._end_sample(num_rows)
        if (num_steps, num_episodes) != (None, None):
            raise InvalidInputError(
                f"num_steps={num_steps} and num_episodes={num_episodes} are for runners without num_fragments: they "
                "sample a number of fragments."
            )
        sample = self.sample_within(None)
        assert sample is not None, "without a limit, a sample is complete"
        return sample

    def sample_within(self, seconds: float | None) -> Sample | None:
        """Sample `num_fragments` fragments; None if they are not full within some seconds. What there is then stays."""
        assert self._fragments is not None, "other samples are complete as soon as all envs have made their steps"
        self._repair()
        until = None if seconds is None else self._clock() + seconds
        self._discard_old()
        while self._engine.run(until):
            self._discard_old()
            if self._fragments.is_finished(self._engine.states):
                return self._end_fragments()
        return None

    def render(self, env: int) -> np.ndarray | None:
        """Render an env as an RGB array; None if it cannot be rendered. The time counts as rendering."""
        self.perf.start()
        frame = self.base_env.try_render(env)
        self.perf.mark(Stage.RENDER)
        return frame

    @property
    def ledger(self) -> Ledger:
        """The account of all steps so far: taken, returned, discarded or pending."""
        self._repair()
        parts = (
            self._engine.taken,
            self._returned,
            self._engine.discarded,
            self._recorder.pending,
            self._engine.abandoned,
        )
        return Ledger(Account(*(part.env_steps for part in parts)), Account(*(part.rows for part in parts)))

    @property
    def num_lost_envs(self) -> int:
        """The number of envs that were given up."""
        return len(self._engine.states.lost)

    def get_state(self) -> dict[str, Any]:
        """Return what a later runner needs to go on in place of this one, without the state of simulators."""
        return {
            "episode_counts": np.array((self._fragments or self._schedule).episode_counts),
            "num_acts": {policy: self.policies[policy].num_acts for policy in self.policies},
            "connectors": self._pipelines.get_state(),
        }

    def set_state(self, state: Mapping[str, Any], num_fragments: int = 1) -> None:
        """Go on from `get_state` of another runner, with new episodes, seeds and random numbers.

        The other may have begun `num_fragments` fragments since then, whose seeds and random numbers are left out. In
        each step an episode may begin, with as many failed resets before it as an env is restarted.
        """
        counts, num_envs = np.asarray(state["episode_counts"]), self.base_env.num_envs
        if len(counts) != num_envs:
            raise InvalidInputError(f"the state is that of {len(counts)} environments: this runner has {num_envs}.")
        num_acts_left_out = num_fragments * (self.config.rollout_fragment_length + 1)
        num_episodes_left_out = num_acts_left_out * (self.config.restart.max_restarts + 1)
        (self._fragments or self._schedule).episode_counts = (counts + num_episodes_left_out).tolist()
        for policy, num_acts in state["num_acts"].items():
            self.policies[policy].count_from(np.asarray(num_acts) + num_acts_left_out)
        self._pipelines.set_state(state["connectors"])

    def close(self) -> None:
        """Close all environments."""
        self.base_env.close()

    # Beginning and ending a sample.

    def _force_reset(self) -> None:
        if self.base_env.is_external:
            raise InvalidInputError(
                f"force_reset: {self.base_env.name} begins its episodes itself; sample without force_reset."
            )
        self._is_torn = True
        self._engine.abandon_episodes()
        fragment = self._recorder.take(None, self.config.rollout_fragment_length)
        self._engine.discarded += fragment.steps
        self._schedule.end_sample()
        self._forget(fragment)
        self._is_torn = False

    def _begin_sample(self, num_steps: int | None, num_episodes: int | None) -> int | None:
        """Distribute the quotas; return the number of rows of the sample, None if it is not known."""
        config, num_envs = self.config, self.base_env.num_envs
        self._engine.check_alive()
        if self._only_policy is not None and list(self.policies) != [self._only_policy]:
            raise InvalidInputError(
                f"the policies are now {sorted(self.policies)}: only a runner with a policy_mapping_fn can assign them."
            )
        if num_steps is not None and num_episodes is not None:
            raise InvalidInputError(f"num_steps={num_steps} and num_episodes={num_episodes}: ask for one of them.")
        for name, value in (("num_steps", num_steps), ("num_episodes", num_episodes)):
            if value is not None and value < 0:
                raise InvalidInputError(f"{name}={value} must not be negative.")
        if num_episodes is not None:
            total, unit = num_episodes, EPISODES
        elif num_steps is not None:
            total, unit = num_steps, ENV_STEPS
        else:
            total = config.rollout_fragment_length * (1 if self.base_env.is_external else num_envs)
            unit = COMPLETE if config.batch_mode == COMPLETE else config.count_steps_by
        has_fixed_shares = num_steps is None and num_episodes is None
        return self._schedule.begin_sample(total, unit, has_fixed_shares, self._engine.states)

    def _end_sample(self, num_rows: int | None) -> Sample:
        quota, engine = self._schedule.quota, self._engine
        self._is_torn = True
        overdraft = quota.overdraft
        if overdraft is not None:
            overdraft = np.minimum(overdraft, self._recorder.env_steps)  # a fault may have discarded some
        num_next_rows, whole_episodes = self.config.rollout_fragment_length, quota.unit in WHOLE_EPISODES
        fragment = self._recorder.take(num_rows, num_next_rows, whole_episodes, overdraft)
        self._forget(fragment)
        sample = self._sample_of(fragment)
        engine.begin(self._recorder, self._schedule)
        self._schedule.end_sample(kept=overdraft)
        self._close_sample(sample, fragment)
        return sample

    def _discard_old(self) -> None:
        """Discard full fragments that are too old to learn from."""
        if self.config.max_age is not None:
            self._engine.discarded += self._recorder.discard_older(self._version - self.config.max_age)

    def _end_fragments(self) -> Sample:
        assert self.config.num_fragments is not None, "samples are a number of fragments"
        self._is_torn = True
        fragment = self._recorder.take_filled(self.config.num_fragments)
        sample = self._sample_of(fragment)
        self._engine.begin(self._recorder, self._engine.schedule)
        self._close_sample(sample, fragment)
        return sample

    def _sample_of(self, fragment: Fragment) -> Sample:
        return Sample(
            batch=MultiAgentBatch(batches=PyTreeDict(fragment.batches), env_steps=np.int32(fragment.steps.env_steps)),
            first_carries=fragment.first_carries,
            episodes=[EpisodeMetric.of(episode, how) for episode, how in sorted(self._engine.ended, key=_number)],
            faults=self._engine.faults,
            env_steps=fragment.steps.env_steps,
            agent_steps=fragment.steps.rows,
            evaluated=[] if self._guests is None else self._guests.take_evaluated(),
        )

    def _close_sample(self, sample: Sample, fragment: Fragment) -> None:
        """Count a sample as returned."""
        self._returned = self._returned + fragment.steps
        self._is_torn = False
        if self._has_sample_hook:
            self._callbacks.on_sample_end(SampleEvent(self.base_env, sample))  # type: ignore[union-attr]

    def _repair(self) -> None:
        """After an interruption, discard all rows that were not returned, and begin new episodes in all envs."""
        if not self._is_torn and not self._engine.is_torn:
            return
        self._is_torn = True
        if self._filled is not None:
            self._filled.clear()
        self._recorder = self._make_recorder()
        self._engine.abandon(self._recorder)
        self._schedule.end_sample()
        self._engine.discarded = self._engine.taken - self._returned - self._engine.abandoned
        self._is_torn = False

    def _forget(self, fragment: Fragment) -> None:
        for policy in fragment.forgotten:
            self._pipelines.forget(policy)

    # Building.

    def _make_recorder(self) -> FragmentRecorder:
        num_envs, policy_mapping_fn = self.base_env.num_envs, self._policy_mapping_fn
        if policy_mapping_fn is None and not self.base_env.is_multi_agent:
            (policy,) = self.policies
            self._only_policy = policy
            recorder = self._make_policy_recorder(policy, SINGLE_AGENT, num_envs)
            return SingleAgentRecorder(policy, recorder, num_envs, self._filled)
        if policy_mapping_fn is None:
            (only_policy,) = self.policies
            policy_mapping_fn = lambda agent, episode: only_policy  # noqa: E731
        return MultiAgentRecorder(
            self.policies,
            lambda policy, agent: self._make_policy_recorder(policy, agent, 0),
            policy_mapping_fn,
            num_envs,
            self.base_env.is_multi_agent,
            self._filled,
        )

    def _make_policy_recorder(self, policy: PolicyID, agent: AgentID, num_columns: int) -> PolicyRecorder:
        num_rows = self.config.rollout_fragment_length
        pipeline, is_pooled = self._pipelines.of(policy, agent), self._filled is not None
        return PolicyRecorder(self.policies[policy], pipeline, num_rows, num_columns, is_pooled)


def _number(ended: tuple[LiveEpisode, End]) -> int:
    """Return the number of an episode, by which episodes are sorted: the order in which they end may vary."""
    return ended[0].number
