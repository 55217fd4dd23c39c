"""The runner beyond the written cases: random episodes of many agents, memory, quotas, and what is kept for later."""

import gc
import json
import signal
import sys
from collections import Counter, UserDict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
import pytest

from rookery.agent import RandomAgent
from rookery.errors import InvalidInputError
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import ALL, SINGLE_AGENT, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.multi_agent import MultiAgentDictEnv
from rookery.runners.faults import EnvFaultError
from rookery.runners.health import RestartPolicy
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.spaces import Box, Discrete, Space
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, LyingEnv, raise_error, with_nan_reward
from tests.runner_envs import (
    NUMBER,
    FakeTime,
    Moment,
    ParityAgent,
    Row,
    ScriptedEnv,
    StaggeredEnvs,
    SummingAgent,
    everyone,
    in_dicts,
    make_runner,
    rows_of,
    times_of,
    vectorized,
)

# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_fragment_length": 0}, "rollout_fragment_length=0"),
        ({"batch_mode": "whole"}, "batch_mode='whole': choose 'truncate_episodes' or 'complete_episodes'"),
        ({"count_steps_by": "steps"}, "count_steps_by='steps'"),
        ({"on_invalid": "ignore"}, "on_invalid='ignore'"),
        ({"perf_decay": 2.0}, "decay=2.0"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_runner(vectorized(lambda index: CountingEnv(3)), **settings)


def test_several_policies_need_a_mapping() -> None:
    with pytest.raises(InvalidInputError, match="policy_mapping_fn"):
        EnvRunner(vectorized(lambda index: CountingEnv(3)), {"a": ParityAgent(), "b": ParityAgent()})


def test_sampling_needs_parameters() -> None:
    runner = EnvRunner(vectorized(lambda index: CountingEnv(3)), ParityAgent())
    with pytest.raises(InvalidInputError, match="set_agent_states"):
        runner.sample()


# Random episodes of many agents.

AGENTS = [f"agent{index}" for index in range(6)]
OBS_STRIDE = 1000


class RandomSocietyEnv(MultiAgentDictEnv):
    """Agents that appear late, end early, are silent and absent at the end, at random; it may fail at any moment.

    An observation is the number of the agent times 1,000 plus the step. What should come of each episode is written
    down under its seed.
    """

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, NUMBER)
    action_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Discrete(2))

    def __init__(self, diary: dict[int, "Expected"], fault_probability: float = 0.0) -> None:
        self._diary = diary
        self._fault_probability = fault_probability

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        assert seed is not None
        self._rng = np.random.default_rng(seed)
        self._maybe_fail()
        self._time = 0
        self._length = int(self._rng.integers(1, 12))
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._expected = self._diary[seed] = Expected()
        return self._show(AGENTS, {}), {}

    def _maybe_fail(self) -> None:
        if self._rng.random() < self._fault_probability:
            raise RuntimeError

    def _show(self, agents: list[str], rewards: dict[str, float], probability: float = 0.5) -> dict[str, np.ndarray]:
        """Show some agents what they see, and write down what rows that makes."""
        obs = {}
        for agent in agents:
            if agent in self._ended or self._rng.random() > probability:
                continue
            number = float(AGENTS.index(agent) * OBS_STRIDE + self._time)
            obs[agent] = np.array([number], np.float32)
            self._expected.observe(agent, number, self._time)
        self._running |= obs.keys()
        return obs

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self._maybe_fail()
        for agent, action in actions.items():
            self._expected.check_action(agent, int(action))
        self._time += 1
        rng, expected = self._rng, self._expected
        is_over = self._time >= self._length
        alive = [agent for agent in AGENTS if agent not in self._ended]
        rewards = {agent: float(rng.integers(1, 9)) for agent in alive if rng.random() < 0.6}
        for agent, reward in rewards.items():
            expected.reward(agent, reward)
        terminateds, truncateds = {ALL: False}, {ALL: False}
        ending = [agent for agent in alive if rng.random() < 0.1]
        for agent in ending:
            (terminateds if rng.random() < 0.5 else truncateds)[agent] = True
        if is_over:
            (terminateds if rng.random() < 0.5 else truncateds)[ALL] = True
        born = [agent for agent in alive if agent in self._running or (agent not in ending and not is_over)]
        obs = self._show(born, rewards)
        for agent in alive:
            if agent in ending or is_over:
                own = terminateds.get(agent) or (terminateds[ALL] and not truncateds.get(agent))
                expected.end(agent, agent in obs, bool(own), agent in self._running)
        self._ended |= set(ending)
        return obs, rewards, terminateds, truncateds, {}


class Expected:
    """The rows and returns of an episode, by agent, written down while it is played."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[float, int, float, float, End]]] = {agent: [] for agent in AGENTS}
        """Observation, step, reward, successor and end."""
        self.returns = dict.fromkeys(AGENTS, 0.0)
        self._open: dict[str, tuple[float, int]] = {}
        self._pending = dict.fromkeys(AGENTS, 0.0)
        self._is_done: set[str] = set()

    def observe(self, agent: str, number: float, time: int) -> None:
        if agent in self._open:
            self._close(agent, number, End.RUNNING)
        self._open[agent] = (number, time)
        self._pending[agent] = 0.0

    def reward(self, agent: str, reward: float) -> None:
        self.returns[agent] += reward
        self._pending[agent] += reward

    def check_action(self, agent: str, action: int) -> None:
        assert action == int(self._open[agent][0]) % 2

    def end(self, agent: str, is_seen: bool, is_terminated: bool, has_begun: bool) -> None:
        if not has_begun or agent in self._is_done:
            return
        self._is_done.add(agent)
        if is_seen and self.rows[agent] and self.rows[agent][-1][3] == self._open[agent][0]:
            *row, _ = self.rows[agent][-1]
            self.rows[agent][-1] = (*row, End.TERMINATED if is_terminated else End.TRUNCATED)
            return
        number, _ = self._open[agent]
        self._close(agent, number, End.GONE_TERMINATED if is_terminated else End.GONE_TRUNCATED)

    def _close(self, agent: str, successor: float, end: End) -> None:
        number, time = self._open[agent]
        self.rows[agent].append((number, time, self._pending[agent], successor, end))


def policy_of(agent: str, episode: Any) -> str:
    return f"p{AGENTS.index(agent) % 2}"


def check_society(samples: list[Sample], diary: dict[int, Expected]) -> None:
    """Compare what was sampled with what was written down, episode by episode."""
    metrics = {episode.number: episode for sample in samples for episode in sample.episodes}
    rows: dict[tuple[int, str], list[Row]] = {}
    for sample in samples:
        for policy in sample.batch.batches:
            for row in rows_of(sample, policy):
                agent = AGENTS[int(row.obs) // OBS_STRIDE]
                assert policy_of(agent, None) == policy
                rows.setdefault((row.episode, agent), []).append(row)
    names = Counter((episode, agent, row.t) for (episode, agent), group in rows.items() for row in group)
    assert set(names.values()) <= {1}
    for number, metric in metrics.items():
        if metric.is_faulty:
            continue
        assert metric.seed is not None
        expected = diary[metric.seed]
        for agent in AGENTS:
            found = sorted(rows.get((number, agent), []), key=lambda row: row.t)
            assert [(row.obs, row.t, row.reward, row.successor, row.end) for row in found] == expected.rows[agent]
            assert metric.agent_returns.get(agent, 0.0) == expected.returns[agent]
        assert metric.episode_return == sum(expected.returns.values())


@pytest.mark.parametrize(
    "settings", [{}, {"batch_mode": "complete_episodes"}, {"count_steps_by": "agent_steps"}], ids=str
)
@pytest.mark.parametrize("seed", range(2))
def test_random_societies_give_each_row_once(settings: dict[str, Any], seed: int) -> None:
    diary: dict[int, Expected] = {}
    runner = make_runner(
        in_dicts(*(RandomSocietyEnv(diary) for _ in range(3))),
        {"p0": ParityAgent(), "p1": ParityAgent()},
        policy_of,
        rollout_fragment_length=5,
        seed=seed,
        **settings,
    )
    samples = []
    for _ in range(20):
        samples.append(runner.sample())
        assert runner.ledger.is_exact
        assert sum(len(rows_of(samples[-1], policy)) for policy in ("p0", "p1")) == samples[-1].agent_steps
    check_society(samples, diary)
    assert sum(len(sample.episodes) for sample in samples) > 20


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_random_societies_that_fail_lose_only_what_failed(seed: int, batch_mode: str) -> None:
    diary: dict[int, Expected] = {}
    time = FakeTime(tick=0.1)
    runner = make_runner(
        in_dicts(*(RandomSocietyEnv(diary, fault_probability) for fault_probability in (0.0, 0.1, 0.2))),
        {"p0": ParityAgent(), "p1": ParityAgent()},
        policy_of,
        rollout_fragment_length=5,
        batch_mode=batch_mode,
        seed=seed,
        restart=RestartPolicy(max_restarts=50),
        clock=time.clock,
        sleep=time.sleep,
    )
    samples: list[Sample] = []
    for _ in range(20):
        before = runner.ledger.rows.discarded
        samples.append(runner.sample())
        assert runner.ledger.is_exact
        assert runner.ledger.rows.discarded - before == 0 or samples[-1].faults
        faulty = {episode.number for episode in samples[-1].episodes if episode.is_faulty}
        for policy in ("p0", "p1"):
            assert not faulty & {row.episode for row in rows_of(samples[-1], policy)}
    check_society(samples, diary)
    faults = [fault for sample in samples for fault in sample.faults]
    assert len(faults) > 10
    assert {fault.env_index for fault in faults} == {1, 2}
    ended = [episode for sample in samples for episode in sample.episodes]
    assert sum(episode.is_faulty for episode in ended) == len(faults)
    assert len({episode.seed for episode in ended}) == len(ended)


def test_turns_are_taken() -> None:
    """As in chess: only the agent that moves is observed, the reward comes with the other's move."""
    script = [Moment({"a": 0})]
    for t in range(1, 6):
        mover, other = ("a", "b") if t % 2 == 0 else ("b", "a")
        script.append(Moment({mover: t}, {other: float(t)}))
    script.append(Moment({}, {"a": 10.0, "b": -10.0}, terminated=[ALL]))
    env = ScriptedEnv(script)
    runner = make_runner(
        in_dicts(env),
        {"a": ParityAgent(), "b": ParityAgent()},
        lambda agent, episode: agent,
        rollout_fragment_length=3,
    )
    samples = [runner.sample() for _ in range(2)]
    assert [sorted(actions) for actions in env.received] == [["a"], ["b"]] * 3
    mine, its = ([row for sample in samples for row in rows_of(sample, agent)] for agent in "ab")
    assert [(row.t, row.reward, row.end) for row in mine] == [
        (0, 1.0, End.RUNNING),
        (2, 3.0, End.RUNNING),
        (4, 15.0, End.GONE_TERMINATED),
    ]
    assert [(row.t, row.reward) for row in its] == [(1, 2.0), (3, 4.0), (5, -10.0)]
    assert runner.ledger.is_exact


# Memory.


class PassersbyEnv(BaseEnv):
    """Two envs through whose endless episodes agents come and go, each with a name that nobody had before."""

    num_envs = 2
    name = "passers-by"

    def __init__(self) -> None:
        self._num_born = 0
        self._present: list[list[int]] = [[], []]
        self._time = -1

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return {"anybody": (Box(-np.inf, np.inf, (1,)), Discrete(2))}

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        if timeout == 0:
            return self._polled([])
        self._time += 1
        rows: list[tuple[int, int, End]] = []
        for env, present in enumerate(self._present):
            leaving = present[:1] if self._time % 2 else []
            rows += [(env, agent, End.TERMINATED if agent in leaving else End.RUNNING) for agent in present]
            del present[: len(leaving)]
            while len(present) < 3:
                present.append(self._num_born)
                rows.append((env, self._num_born, End.RUNNING))
                self._num_born += 1
        return self._polled(rows)

    def _polled(self, rows: list[tuple[int, int, End]]) -> EnvOutputs:
        is_reset = self._time == 0 and bool(rows)
        return EnvOutputs(
            envs=np.array([env for env, *_ in rows], np.int64),
            agents=[f"agent{number}" for _, number, _ in rows],
            obs=[np.array([number], np.float32) for _, number, _ in rows],
            rewards=np.zeros(len(rows)),
            ends=np.array([end for *_, end in rows], np.uint8),
            is_reset=np.full(len(rows), is_reset),
            resets=[0, 1] if is_reset else [],
            stepped=[0, 1] if rows and not is_reset else [],
        )

    def send_actions(self, actions: Actions) -> None: ...

    def try_reset(self, env: int, seed: int | None) -> None: ...

    def try_restart(self, env: int, seed: int | None) -> None: ...


def test_agents_that_come_and_go_for_ever_do_not_use_more_and_more_columns() -> None:
    env = PassersbyEnv()
    runner = make_runner(env, SummingAgent(), rollout_fragment_length=20)
    widths = [runner.sample().batch.batches.default.rewards.shape[1] for _ in range(20)]
    assert env._num_born > 400
    assert set(widths) <= {6, 7, 8}
    assert widths[-1] == widths[3]


def test_samples_do_not_leave_objects_behind() -> None:
    diary: dict[int, Expected] = {}
    runner = make_runner(
        in_dicts(*(RandomSocietyEnv(diary) for _ in range(2))),
        {"p0": SummingAgent(), "p1": ParityAgent()},
        policy_of,
        rollout_fragment_length=10,
    )

    def count_objects() -> int:
        for _ in range(15):
            runner.sample()
        diary.clear()
        gc.collect()
        return len(gc.get_objects())

    counts = [count_objects() for _ in range(5)]
    assert np.diff(counts).min() < 50  # what compiles now and then leaves something; samples would do so every time


def test_memory_does_not_grow_with_the_steps_while_episodes_come_and_go_and_envs_fail() -> None:
    def make_env(index: int) -> CountingEnv:
        length = 3 + index % 7
        return CountingEnv(length) if index % 4 else FaultyEnv(raise_error, probability=0.01, length=length)

    time = FakeTime(tick=0.01)
    runner = make_runner(
        vectorized(make_env, num_envs=64),
        RandomAgent(),
        rollout_fragment_length=50,
        restart=RestartPolicy(max_restarts=50),
        clock=time.clock,
        sleep=time.sleep,
    )
    num_faults = 0

    def num_objects_after(num_steps: int) -> int:
        nonlocal num_faults
        while runner.ledger.env_steps.taken < num_steps:
            num_faults += len(runner.sample().faults)
        gc.collect()
        return sys.getallocatedblocks()

    num_objects_after(10_000)  # programs for every number of envs that a fault leaves are compiled about here
    early, late = num_objects_after(20_000), num_objects_after(50_000)
    assert num_faults > 100
    assert (
        late - early < 200
    )  # of 5,000 episodes and 70 faults; Python's own tracebacks leave one or two for each fault


# Quotas.


def test_steps_that_do_not_divide_are_shared_out() -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(10), num_envs=3))
    sample = runner.sample(num_steps=7)
    assert sample.env_steps == len(rows_of(sample)) == 7
    assert Counter(row.column for row in rows_of(sample)) == {0: 3, 1: 2, 2: 2}
    assert sample.batch.batches.default.rewards.shape == (3, 3)


def test_a_batch_is_made_of_arrays_and_counts_its_steps_in_32_bits() -> None:
    batch = make_runner(vectorized(lambda index: CountingEnv(10), num_envs=3)).sample(num_steps=7).batch
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(batch))
    assert (batch.env_steps.dtype, int(batch.env_steps)) == (np.int32, 7)


def test_samples_of_all_kinds_can_be_mixed() -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(7), num_envs=3), rollout_fragment_length=4)
    rows: list[Row] = []
    episodes = []
    for settings in ({}, {"num_episodes": 2}, {"num_steps": 5}, {}, {"num_episodes": 7}, {"num_steps": 1}, {}):
        sample = runner.sample(**settings)
        rows += rows_of(sample)
        episodes += sample.episodes
        assert runner.ledger.is_exact
        assert len(rows_of(sample)) == sample.agent_steps
        if "num_episodes" in settings:
            assert len(sample.episodes) == settings["num_episodes"]
        else:
            assert sample.env_steps == settings.get("num_steps", 12)
    names = Counter((row.episode, row.t) for row in rows)
    assert set(names.values()) == {1}
    assert {episode.episode_length for episode in episodes} == {7}
    for episode in episodes:
        assert sorted(t for number, t in names if number == episode.number) == [*range(7)]


@pytest.mark.parametrize("num_steps_before", [1, 2, 9])
def test_what_single_steps_gave_is_in_the_next_sample(num_steps_before: int) -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(20), num_envs=2), rollout_fragment_length=4)
    for _ in range(num_steps_before):
        runner.step()
    sample = runner.sample()
    rows = rows_of(sample)
    assert len(rows) == sample.agent_steps == sample.env_steps
    for column in range(2):
        times = [row.t for row in rows if row.column == column]
        assert times == [*range(len(times))]
        assert len(times) >= 4
    assert times_of(runner.sample())[0] == len(rows) // 2
    assert runner.ledger.is_exact


MIXED = [{"num_steps": 5}, {"num_episodes": 2}, {}]


@pytest.mark.parametrize("kinds", [[{}], [{"num_episodes": 2}], MIXED], ids=str)
@pytest.mark.parametrize("agent", [ParityAgent(), SummingAgent()], ids=lambda agent: type(agent).__name__)
@pytest.mark.parametrize("has_mapping", [False, True])
def test_episodes_from_outside_give_each_row_once_and_in_whole(
    kinds: list[dict[str, int]], agent: ParityAgent, has_mapping: bool
) -> None:
    env = StaggeredEnvs([3, 7, 4, 9], np.random.default_rng(0), fails_at={1: 3, 2: 0}, is_external=True)
    mapping = (lambda agent, episode: "default") if has_mapping else None
    runner = make_runner(env, agent, mapping, rollout_fragment_length=7)
    samples: list[Sample] = []
    for settings in kinds * 6:
        samples.append(runner.sample(**settings))
        assert runner.ledger.is_exact
        assert len(rows_of(samples[-1])) == samples[-1].agent_steps
    names = Counter((row.episode, row.t) for sample in samples for row in rows_of(sample))
    assert set(names.values()) == {1}
    # The last steps of an episode may be among those that are kept back for the next sample.
    for episode in (episode for sample in samples[:-1] for episode in sample.episodes if not episode.is_faulty):
        assert sorted(t for number, t in names if number == episode.number) == [*range(episode.episode_length)]
    if isinstance(agent, SummingAgent):
        check_memories(samples)


def lossy_runner(**settings: Any) -> EnvRunner:
    """Four envs, of which the last is lost at once."""
    return make_runner(
        vectorized(lambda index: FaultyEnv(raise_error, at_reset=0) if index == 3 else CountingEnv(5), num_envs=4),
        restart=RestartPolicy(max_restarts=0),
        **settings,
    )


def test_the_share_of_a_lost_env_is_given_to_the_others() -> None:
    runner = lossy_runner()
    runner.sample(num_steps=4)
    assert runner.num_lost_envs == 1
    assert len(runner.sample(num_episodes=8).episodes) == 8
    assert runner.sample(num_steps=40).env_steps == 40


@pytest.fixture
def no_endless_loop() -> Iterator[None]:
    """End a test that would otherwise never end."""

    def give_up(*_: Any) -> None:
        raise TimeoutError("this goes on for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_endless_loop")
def test_a_runner_that_has_lost_all_envs_says_so_every_time() -> None:
    runner = make_runner(
        vectorized(lambda index: FaultyEnv(raise_error, at_reset=0), num_envs=2), restart=RestartPolicy(max_restarts=0)
    )
    for _ in range(2):
        with pytest.raises(EnvFaultError, match="all 2 environments are lost"):
            runner.sample()


def test_a_fragment_keeps_its_shape_when_an_env_is_lost() -> None:
    runner = lossy_runner(rollout_fragment_length=6)
    for _ in range(2):
        batch = runner.sample().batch.batches.default
        assert batch.rewards.shape == (6, 4)
        np.testing.assert_array_equal((batch.extras.env_extras.autoreset == 0).sum(axis=0), [6, 6, 6, 0])


@pytest.mark.parametrize("settings", [{}, {"num_steps": 10}, {"num_episodes": 7}], ids=str)
@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode), ids=lambda mode: mode.name)
def test_gymnasium_vector_envs_are_sampled_like_any_others(
    mode: gymnasium.vector.AutoresetMode, settings: dict[str, int]
) -> None:
    lengths = (3, 5, 4)
    vector_env = gymnasium.vector.SyncVectorEnv(
        [lambda length=length: CountingEnv(length) for length in lengths], autoreset_mode=mode
    )
    runner = make_runner(AutoresetBaseEnv(vector_env), rollout_fragment_length=6)
    rows: list[Row] = []
    for _ in range(4):
        sample = runner.sample(**settings)
        assert sample.faults == []
        assert len(sample.episodes) == settings.get("num_episodes", len(sample.episodes))
        assert sample.env_steps >= settings.get("num_steps", 0)  # they all step at once
        assert runner.ledger.is_exact
        assert len(rows_of(sample)) == sample.agent_steps
        rows += rows_of(sample)
    for row in rows:
        assert (row.obs, row.successor, row.reward) == (row.t, row.t + 1, 1.0)
        assert row.termination == (row.t == lengths[row.column] - 1)
    assert set(Counter((row.episode, row.t) for row in rows).values()) == {1}


@pytest.mark.parametrize("has_mapping", [False, True])
def test_steps_that_a_fault_took_back_are_not_kept_for_the_next_sample(has_mapping: bool) -> None:
    vector_env = gymnasium.vector.SyncVectorEnv(
        [lambda: CountingEnv(1), lambda: LyingEnv(with_nan_reward, at_step=8, length=100)],
        autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP,  # the first loses every other step
    )
    fake_time = FakeTime()
    runner = make_runner(
        AutoresetBaseEnv(vector_env),
        None,
        (lambda agent, episode: "default") if has_mapping else None,
        clock=fake_time.clock,
        sleep=fake_time.sleep,
    )
    for _ in range(2):
        sample = runner.sample(num_steps=10)
        rows = rows_of(sample)
        assert len(rows) == sample.agent_steps == sample.env_steps
        assert all((row.obs, row.successor) == (row.t, row.t + 1) for row in rows)
        fake_time.sleep(1.0)


# What is kept for later.


def test_a_resumed_runner_repeats_no_seed_and_no_number() -> None:
    def make() -> EnvRunner:
        return make_runner(vectorized(lambda index: FaultyEnv(raise_error, at_step=3, length=10), num_envs=2), seed=4)

    first, second = make(), make()
    before = [episode for _ in range(3) for episode in first.sample(num_steps=8).episodes]
    state = first.get_state()
    second.set_state(jax.tree.map(np.array, state))
    after = [episode for _ in range(3) for episode in second.sample(num_steps=8).episodes]
    assert before
    assert after
    assert not {episode.seed for episode in before} & {episode.seed for episode in after}
    assert not {episode.number for episode in before} & {episode.number for episode in after}


def test_a_resumed_runner_repeats_no_seed_of_what_was_lost_after_the_state_was_saved() -> None:
    first, second = (make_runner(vectorized(lambda index: CountingEnv(2), num_envs=3)) for _ in range(2))
    state = first.get_state()
    lost = first.sample(num_episodes=60).episodes
    second.set_state(state)
    again = second.sample(num_episodes=60).episodes
    assert len({episode.seed for episode in lost + again}) == 120


@pytest.mark.parametrize("where", [{}, {"processes": True}])
def test_force_reset_abandons_open_episodes_and_gives_whole_ones(where: dict) -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(5), num_envs=2, **where), rollout_fragment_length=3)
    runner.sample()
    sample = runner.sample(num_episodes=2, force_reset=True)
    assert [row.t for row in rows_of(sample)] == [*range(5), *range(5)]
    assert [(episode.episode_length, episode.number) for episode in sample.episodes] == [(5, 2), (5, 3)]
    runner.sample(num_steps=4)
    sample = runner.sample(num_episodes=2, force_reset=True)
    assert [row.t for row in rows_of(sample)] == [*range(5), *range(5)]
    assert runner.ledger.is_exact
    runner.close()


def test_force_reset_counts_the_steps_that_it_abandons() -> None:
    config = {"batch_mode": "complete_episodes", "rollout_fragment_length": 1}
    runner = make_runner(vectorized(lambda index: CountingEnv(4 + index), num_envs=2), **config)
    for _ in range(3):
        runner.step()
    runner.sample(force_reset=True)
    assert (runner.ledger.is_exact, runner.ledger.env_steps.discarded) == (True, 6)


def test_an_interrupted_step_costs_the_running_episodes_and_fails_the_env_that_made_it() -> None:
    class InterruptedEnv(CountingEnv):
        interrupts = True

        def step(self, action: Any) -> Any:
            if self.num_steps == 2 and self.interrupts:
                type(self).interrupts = False
                raise KeyboardInterrupt
            return super().step(action)

    classes = [CountingEnv, InterruptedEnv, CountingEnv]
    runner = make_runner(vectorized(lambda index: classes[index](8), num_envs=3), rollout_fragment_length=8)
    with pytest.raises(KeyboardInterrupt):
        runner.sample()
    samples = [runner.sample() for _ in range(3)]
    assert [fault.env_index for fault in samples[0].faults] == [1]
    assert runner.ledger.is_exact
    rows = [row for sample in samples for row in rows_of(sample)]
    for column in range(3):
        mine = [row for row in rows if row.column == column]
        assert all(row.successor == row.obs + 1 for row in mine)
        assert [row.t for row in mine[:8]] == [*range(8)]


def test_the_state_is_made_of_numbers_and_arrays() -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(3), num_envs=2))
    runner.sample(num_steps=10)
    state = runner.get_state()
    text = json.dumps(jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), state))
    another = make_runner(vectorized(lambda index: CountingEnv(3), num_envs=2))
    another.set_state(json.loads(text))
    assert state["num_acts"]["default"].tolist() == [5, 5]
    num_left_out = runner.config.rollout_fragment_length + 1
    assert another.get_state()["num_acts"]["default"].tolist() == [5 + num_left_out] * 2


def test_the_state_of_another_number_of_envs_is_refused() -> None:
    state = make_runner(vectorized(lambda index: CountingEnv(3), num_envs=2)).get_state()
    with pytest.raises(InvalidInputError, match="the state is that of 2 environments: this runner has 3"):
        make_runner(vectorized(lambda index: CountingEnv(3), num_envs=3)).set_state(state)


def test_new_parameters_act_from_the_next_step_on() -> None:
    class ParameterAgent(ParityAgent):
        def compute_actions(self, agent_state: Any, sample_batch: Any, key: Any) -> Any:
            actions, extras = super().compute_actions(agent_state, sample_batch, key)
            return actions, extras | {"parameter": agent_state.params + 0.0 * extras.seen}

    runner = make_runner(vectorized(lambda index: CountingEnv(30)), ParameterAgent(), rollout_fragment_length=3)
    state = ParameterAgent().init(None, None, jax.random.key(0))
    for number in (1.0, 2.0):
        runner.set_agent_states(state.replace(params=jax.numpy.float32(number)))
        batch = runner.sample().batch.batches.default
        np.testing.assert_array_equal(batch.extras.policy_extras.parameter, number)


# Memories of agents.


def check_memories(samples: list[Sample], policy: str = "default") -> int:
    """Replay the sums that a `SummingAgent` remembers, from the first carries alone; return the number of rows."""
    num_rows = 0
    for sample in samples:
        batch = sample.batch.batches[policy]
        extras, env_extras = batch.extras.policy_extras, batch.extras.env_extras
        memory = np.array(sample.first_carries[policy])
        assert memory.shape == batch.rewards.shape[1:]
        for t in range(len(batch.rewards)):
            is_live = env_extras.autoreset[t] == 0
            memory = np.where(extras.episode_start[t] == 1, 0.0, memory)
            np.testing.assert_array_equal(extras.memory[t][is_live], memory[is_live])
            memory = np.where(is_live, memory + batch.obs[t, :, 0], memory)
            np.testing.assert_array_equal(extras.next_carry[t][is_live], memory[is_live])
            num_rows += int(is_live.sum())
    return num_rows


def test_a_memory_begins_with_the_episode_and_goes_on_over_fragments() -> None:
    runner = make_runner(
        vectorized(lambda index: CountingEnv(4 + index), num_envs=3), SummingAgent(), rollout_fragment_length=3
    )
    samples = [runner.sample() for _ in range(6)]
    assert check_memories(samples) == 54
    for sample in samples:
        batch = sample.batch.batches.default
        is_first = batch.extras.env_extras.t == 0
        np.testing.assert_array_equal(batch.extras.policy_extras.episode_start == 1, is_first)
        np.testing.assert_array_equal(batch.extras.policy_extras.memory[is_first], 0.0)


def test_memories_of_envs_out_of_lockstep_are_their_own() -> None:
    env = StaggeredEnvs([3, 7, 4, 1, 5], np.random.default_rng(0), fails_at={2: 2})
    runner = make_runner(env, SummingAgent(), rollout_fragment_length=6)
    assert check_memories([runner.sample() for _ in range(4)]) > 100


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("fragment_length", [1, 4])
def test_memories_of_agents_that_come_go_and_are_silent_are_their_own(fragment_length: int, batch_mode: str) -> None:
    diary: dict[int, Expected] = {}
    runner = make_runner(
        in_dicts(*(RandomSocietyEnv(diary, 0.05) for _ in range(2))),
        SummingAgent(),
        rollout_fragment_length=fragment_length,
        batch_mode=batch_mode,
        restart=RestartPolicy(max_restarts=20, first_delay=0.0),
    )
    samples = [runner.sample() for _ in range(15)]
    assert check_memories([sample for sample in samples if sample.batch.batches]) > 15


def test_agents_without_memory_have_none() -> None:
    sample = make_runner(vectorized(lambda index: CountingEnv(3))).sample(num_steps=4)
    assert sample.first_carries == {"default": ()}
    assert "episode_start" not in sample.batch.batches.default.extras.policy_extras


def test_the_only_agent_is_called_agent() -> None:
    sample = make_runner(vectorized(lambda index: CountingEnv(3))).sample(num_episodes=1)
    assert sample.episodes[0].agent_returns == {SINGLE_AGENT: 3.0}
    assert sample.episodes[0].policies == {SINGLE_AGENT: "default"}


@pytest.mark.parametrize("truncates", [False, True])
def test_an_episode_says_how_it_ended(truncates: bool) -> None:
    how = End.TRUNCATED if truncates else End.TERMINATED
    single = make_runner(vectorized(lambda index: CountingEnv(3, truncates)))
    several = make_runner(in_dicts(ScriptedEnv(everyone("ab", 3, truncates))))
    for runner in (single, several):
        assert [episode.how for episode in runner.sample(num_episodes=2).episodes] == [how, how]


def test_a_config_is_a_value() -> None:
    assert RunnerConfig() == RunnerConfig()
    assert hash(RunnerConfig()) == hash(RunnerConfig())


def test_a_faulty_episode_is_reported_with_what_it_had_made() -> None:
    runner = make_runner(vectorized(lambda index: FaultyEnv(raise_error, at_step=3, length=9)))
    episodes = [episode for episode in runner.sample(num_steps=5).episodes if episode.is_faulty]
    assert [(episode.episode_length, episode.episode_return) for episode in episodes[:1]] == [(3, 3.0)]


def test_drawing_counts_as_rendering() -> None:
    class DrawnEnv(CountingEnv):
        metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def render(self) -> np.ndarray:
            return np.full((2, 3, 3), 7, np.uint8)

    runner = make_runner(vectorized(lambda index: DrawnEnv(3)))
    runner.sample(num_steps=1)
    frame = runner.render(0)
    assert frame is not None
    assert frame.shape == (2, 3, 3)
    assert runner.perf.milliseconds()["render"] > 0.0


class NumberedPicture(CountingEnv):
    """Draws its own number."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, number: int) -> None:
        super().__init__(3)
        self.number = number
        self.render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self.number, np.uint8)


class NumberedSociety(ScriptedEnv):
    """Draws its own number."""

    def __init__(self, number: int) -> None:
        super().__init__(everyone("ab", 3))
        self.number = number

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self.number, np.uint8)


def test_any_env_can_be_drawn() -> None:
    pictures = [lambda number=number: NumberedPicture(number) for number in range(3)]
    for base_env in (
        vectorized(NumberedPicture, num_envs=3),
        in_dicts(*map(NumberedSociety, range(3))),
        AutoresetBaseEnv(gymnasium.vector.SyncVectorEnv(pictures)),
    ):
        runner = make_runner(base_env)
        runner.sample(num_steps=3)
        frames = [runner.render(env) for env in (2, 0, 1)]
        assert [frame[0, 0, 0] for frame in frames if frame is not None] == [2, 0, 1]


def test_more_steps_than_a_fragment_are_returned_although_agents_act_in_turns() -> None:
    script = [Moment({"ab"[t % 2]: t}) for t in range(40)]
    sample = make_runner(in_dicts(ScriptedEnv(script)), rollout_fragment_length=4).sample(num_steps=20)
    assert sample.env_steps == 20
    assert sample.agent_steps == len(rows_of(sample)) > 10


def test_a_fault_names_the_action_that_led_to_it_also_later() -> None:
    actions: list[int] = []

    class FaithfulEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            actions.append(int(action))
            if self.num_steps == 3:
                raise ValueError("bad leg")
            return super().step(action)

    runner = make_runner(vectorized(lambda index: FaithfulEnv(9)), RandomAgent(), restart=RestartPolicy(good_steps=1))
    faults = runner.sample(num_steps=40).faults
    assert len(faults) > 3
    assert [int(fault.action) for fault in faults] == actions[3::4][: len(faults)]


class RaisingReport(UserDict):
    def items(self) -> Any:
        raise ValueError("no metrics")


@pytest.mark.parametrize(
    "report", [None, 3, {"score": "high", "huge": 10**400, "nan": np.nan, "won": 1}, RaisingReport()]
)
def test_what_an_env_reports_of_its_episode_and_is_no_number_is_left_out(report: Any) -> None:
    class ReportingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {"episode_metrics": report}

    (episode,) = make_runner(vectorized(lambda index: ReportingEnv(2))).sample(num_episodes=1).episodes
    assert episode.metrics == ({"won": 1.0} if isinstance(report, dict) else {})


@pytest.mark.parametrize(
    ("value", "rate"),
    [(True, 1.0), (np.False_, 0.0), (np.float32(0.5), 0.5), (None, None), ("yes", None), (np.nan, None)],
)
def test_the_success_of_an_episode_is_a_number_or_left_out(value: Any, rate: float | None) -> None:
    class Successful(CountingEnv):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {"is_success": value}

    (episode,) = make_runner(vectorized(lambda index: Successful(2))).sample(num_episodes=1).episodes
    assert episode.metrics == ({} if rate is None else {"success_rate": rate})


def test_a_runner_without_mapping_refuses_another_policy() -> None:
    runner = make_runner(vectorized(lambda index: CountingEnv(3)))
    runner.sample(num_steps=2)
    runner.policies.add("new", ParityAgent())
    runner.policies.remove("default")
    with pytest.raises(InvalidInputError, match="policy_mapping_fn"):
        runner.sample(num_steps=2)


def test_steps_kept_back_count_for_the_next_sample() -> None:
    vector_env = gymnasium.vector.SyncVectorEnv([lambda: CountingEnv(50)] * 4)
    runner = make_runner(AutoresetBaseEnv(vector_env, "counting"))
    assert [runner.sample(num_steps=num_steps).env_steps for num_steps in (5, 5, 5, 2, 1, 9)] == [5, 5, 5, 2, 1, 9]
    assert runner.ledger.is_exact
    assert runner.ledger.env_steps.pending < 4


def test_a_runner_of_closed_envs_does_not_build_new_ones() -> None:
    made: list[CountingEnv] = []
    runner = make_runner(vectorized(lambda index: made.append(CountingEnv(5)) or made[-1]))
    runner.sample(num_steps=2)
    runner.close()
    with pytest.raises(EnvFaultError):
        runner.sample(num_steps=9)
    assert len(made) == 1
