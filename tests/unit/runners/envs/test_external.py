"""External simulators: their actions, the outputs that the runner gets, and the end of both."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.agents.policy import PolicyAgent
from rookery.errors import InvalidInputError, RookeryError
from rookery.networks.policy import PolicyConfig
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, End, EnvOutputs, LoggedAction
from rookery.runners.envs.episode_messages import Mode
from rookery.runners.envs.external import EpisodeLostError, ExternalEnv, ExternalEnvClosedError
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.validation import InvalidObservationError, InvalidRewardError
from rookery.runners.faults import FaultKind, Phase
from tests.runner_envs import make_runner, rows_of

TIMEOUT = 30.0
"""Seconds after which a test fails instead of waiting for ever."""


def seen(number: int) -> np.ndarray:
    return np.array([number], np.float32)


class Simulator(ExternalEnv):
    """Runs a function of the env; exceptions that its calls raise are kept."""

    def __init__(
        self, play_fn: Callable[["Simulator"], None], max_episodes: int = 1, lease: float | None = None
    ) -> None:
        super().__init__(gymnasium.spaces.Box(0, 1000, (1,)), gymnasium.spaces.Discrete(1000), max_episodes, lease)
        self.play_fn = play_fn
        self.errors: queue.Queue[RookeryError] = queue.Queue()

    def run(self) -> None:
        self.play_fn(self)

    def attempt(self, method: Callable, *args: Any) -> None:
        with pytest.raises(RookeryError) as caught:
            method(*args)
        self.errors.put(caught.value)


def play_episode(simulator: Simulator, length: int, offset: int = 0) -> list[int]:
    """An episode whose observations are its steps and whose rewards are 1."""
    episode = simulator.start_episode()
    actions = []
    for step in range(length):
        actions.append(simulator.get_action(episode, seen(offset + step)))
        simulator.log_returns(episode, 1.0)
    simulator.end_episode(episode, seen(offset + length))
    return actions


def play_until_closed(simulator: Simulator, length: int, offset: int) -> None:
    with contextlib.suppress(ExternalEnvClosedError):
        play_episode(simulator, length, offset)


def wait_for_ever(simulator: Simulator) -> None:
    """What a simulator does when it has nothing more to do."""
    simulator.get_action(simulator.start_episode(), seen(0))


@pytest.fixture
def base_env_of(request: pytest.FixtureRequest) -> Callable[..., ExternalBaseEnv]:
    def make(*simulators: Simulator) -> ExternalBaseEnv:
        base_env = ExternalBaseEnv(simulators)
        request.addfinalizer(base_env.close)
        return base_env

    return make


def poll(base_env: ExternalBaseEnv, num_rows: int = 1) -> list[EnvOutputs]:
    """Poll until this number of rows has come."""
    polls: list[EnvOutputs] = []
    while sum(len(polled.envs) for polled in polls) < num_rows:
        polled = base_env.poll(TIMEOUT)
        assert len(polled.envs), f"nothing to poll: {polled.failed}"
        polls.append(polled)
    return polls


def answer(base_env: ExternalBaseEnv, actions: dict[int, int]) -> None:
    base_env.send_actions(Actions(np.array(list(actions)), np.array(list(actions.values()), np.int32)))


def failure(base_env: ExternalBaseEnv) -> Any:
    """Poll until something fails."""
    while not (polled := base_env.poll(TIMEOUT)).failed:
        assert len(polled.envs), "nothing to poll"
    return polled.failed


def test_an_episode_passes_with_its_rewards_actions_and_end(base_env_of: Callable) -> None:
    actions: queue.Queue[list[int]] = queue.Queue()

    def play(simulator: Simulator) -> None:
        while True:
            actions.put(play_episode(simulator, length=3))

    base_env = base_env_of(Simulator(play))
    for _ in range(2):
        heard = []
        while not heard or not heard[-1].over:
            heard += poll(base_env)
            if not heard[-1].over:
                answer(base_env, {0: 10 + len(heard)})
        assert [float(polled.obs[0, 0]) for polled in heard] == [0, 1, 2, 3]
        assert [float(polled.rewards[0]) for polled in heard] == [0, 1, 1, 1]
        assert [End(polled.ends[0]) for polled in heard] == [End.RUNNING] * 3 + [End.TERMINATED]
        assert [bool(polled.is_reset[0]) for polled in heard] == [True, False, False, False]
        assert [list(polled.resets) for polled in heard] == [[0], [], [], []]
        assert [list(polled.stepped) for polled in heard] == [[], [0], [0], [0]]
        assert actions.get(timeout=TIMEOUT) == [11, 12, 13]
        base_env.try_reset(0, seed=None)


def test_nothing_runs_before_the_first_poll(base_env_of: Callable) -> None:
    has_run = threading.Event()

    def play(simulator: Simulator) -> None:
        has_run.set()
        wait_for_ever(simulator)

    base_env = base_env_of(Simulator(play))
    base_env.try_reset(0, seed=1)
    assert not has_run.is_set()
    poll(base_env)
    assert has_run.is_set()


def test_a_truncated_episode_says_so(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        simulator.get_action(episode, seen(0))
        simulator.end_episode(episode, seen(1), truncated=True)
        wait_for_ever(simulator)

    base_env = base_env_of(Simulator(play))
    poll(base_env)
    answer(base_env, {0: 0})
    assert poll(base_env)[0].ends.tolist() == [End.TRUNCATED]


def test_rewards_between_two_observations_are_summed_and_infos_joined(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        simulator.get_action(episode, seen(0))
        simulator.log_returns(episode, 1.5, {"fuel": 3})
        simulator.log_returns(episode, np.float32(2), {"wind": 4})
        simulator.get_action(episode, seen(1))

    base_env = base_env_of(Simulator(play))
    poll(base_env)
    answer(base_env, {0: 0})
    (polled,) = poll(base_env)
    assert polled.rewards.tolist() == [3.5]
    assert polled.infos == {0: {SINGLE_AGENT: {"fuel": 3, "wind": 4}}}


def test_logged_actions_come_with_their_observations_one_after_the_other(base_env_of: Callable) -> None:
    answers: queue.Queue[int] = queue.Queue()

    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        simulator.log_action(episode, seen(0), 7)
        simulator.log_returns(episode, 1.0)
        simulator.log_action(episode, seen(1), np.int64(8))
        simulator.log_returns(episode, 2.0)
        answers.put(simulator.get_action(episode, seen(2)))
        wait_for_ever(simulator)

    base_env = base_env_of(Simulator(play))
    heard = []
    for action in (100, 101, 102):
        heard += poll(base_env)
        assert len(base_env.poll(timeout=0).envs) == 0, "the next row must wait until this one is answered"
        answer(base_env, {0: action})
    logged = [polled.off_policy_actions for polled in heard]
    assert logged == [{0: {SINGLE_AGENT: LoggedAction(7)}}, {0: {SINGLE_AGENT: LoggedAction(8)}}, {}]
    assert [float(polled.rewards[0]) for polled in heard] == [0, 1, 2]
    assert answers.get(timeout=TIMEOUT) == 102


def test_episodes_of_one_simulator_run_out_of_lockstep(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        threads = [
            threading.Thread(target=play_until_closed, args=(simulator, length, offset), daemon=True)
            for length, offset in ((2, 100), (2, 200))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for_ever(simulator)

    base_env = base_env_of(Simulator(play, max_episodes=2))
    assert base_env.num_envs == 2
    first = {int(obs[0]): env for polled in poll(base_env, 2) for env, obs in zip(polled.envs, polled.obs, strict=True)}
    assert set(first) == {100, 200}
    fast = int(first[200])
    for number in (201, 202):
        answer(base_env, {fast: 0})
        (polled,) = poll(base_env)
        assert (polled.envs.tolist(), float(polled.obs[0, 0])) == ([fast], number)
    assert list(polled.over) == [fast]
    answer(base_env, {int(first[100]): 0})
    assert float(poll(base_env)[0].obs[0, 0]) == 101


def test_a_wrong_episode_id_is_an_error_for_that_client_alone(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        simulator.attempt(simulator.get_action, "never", seen(0))
        simulator.start_episode("mine")
        simulator.attempt(simulator.start_episode, "mine")
        simulator.attempt(simulator.start_episode, "one too many")
        simulator.get_action("mine", seen(0))
        simulator.end_episode("mine", seen(1))
        simulator.attempt(simulator.log_returns, "mine", 1.0)
        wait_for_ever(simulator)

    def play_on(simulator: Simulator) -> None:
        play_episode(simulator, length=100)

    simulator = Simulator(play)
    base_env = base_env_of(simulator, Simulator(play_on))
    for _ in range(2):
        heard = poll(base_env)
        while 0 not in heard[-1].envs:
            answer(base_env, dict.fromkeys(heard[-1].envs.tolist(), 0))
            heard = poll(base_env)
        waiting = [env for env in heard[-1].envs.tolist() if env not in heard[-1].over]
        if waiting:
            answer(base_env, dict.fromkeys(waiting, 0))
    messages = [str(simulator.errors.get(timeout=TIMEOUT)) for _ in range(4)]
    assert "no open episode 'never'" in messages[0]
    assert "episode 'mine' is open already" in messages[1]
    assert "max_episodes=1 episodes are open already" in messages[2]
    assert "no open episode 'mine': it has ended" in messages[3]
    assert not base_env.poll(timeout=0).failed


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, e: s.get_action(e, np.zeros(1)), InvalidObservationError, "dtype float64"),
        (lambda s, e: s.get_action(e, seen(2000)), InvalidObservationError, "outside of"),
        (lambda s, e: s.log_returns(e, 1.0), InvalidInputError, "before its first observation"),
        (lambda s, e: s.log_returns(e, float("nan")), InvalidRewardError, "nan"),
        (lambda s, e: s.log_action(e, seen(0), 1000), InvalidInputError, "outside of Discrete"),
    ],
)
def test_what_cannot_be_used_is_refused_where_it_is_given(
    base_env_of: Callable, call: Callable, error: type[Exception], message: str
) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        simulator.attempt(call, simulator, episode)
        simulator.get_action(episode, seen(5))

    simulator = Simulator(play)
    base_env = base_env_of(simulator)
    assert float(poll(base_env)[0].obs[0, 0]) == 5
    caught = simulator.errors.get(timeout=TIMEOUT)
    assert isinstance(caught, error)
    assert message in str(caught)


def test_a_simulator_that_raises_costs_its_own_episode_and_is_run_again(base_env_of: Callable) -> None:
    num_runs = 0

    def crash(simulator: Simulator) -> None:
        nonlocal num_runs
        num_runs += 1
        episode = simulator.start_episode()
        simulator.get_action(episode, seen(num_runs))
        raise KeyError

    base_env = base_env_of(Simulator(crash), Simulator(wait_for_ever))
    poll(base_env, 2)
    answer(base_env, {0: 0})
    failed = failure(base_env)
    assert list(failed) == [0]
    assert (failed[0].kind, failed[0].phase, failed[0].error) == (FaultKind.RAISED, Phase.STEP, "KeyError()")
    assert "in crash" in failed[0].traceback
    base_env.try_restart(0, seed=None)
    (polled,) = poll(base_env)
    assert (polled.envs.tolist(), polled.obs.tolist(), polled.is_reset.tolist()) == ([0], [[2.0]], [True])


def test_a_simulator_that_returns_fails_where_an_episode_is_expected(base_env_of: Callable) -> None:
    base_env = base_env_of(Simulator(lambda simulator: None))
    failed = failure(base_env)
    assert (failed[0].kind, failed[0].phase, failed[0].error) == (FaultKind.EXITED, Phase.RESET, "run() returned")


def test_closing_wakes_a_waiting_client_with_a_clear_error() -> None:
    caught: queue.Queue[RookeryError] = queue.Queue()

    def play(simulator: Simulator) -> None:
        try:
            wait_for_ever(simulator)
        except RookeryError as error:
            caught.put(error)

    base_env = ExternalBaseEnv([Simulator(play)])
    poll(base_env)
    base_env.close()
    base_env.close()
    error = caught.get(timeout=TIMEOUT)
    assert isinstance(error, ExternalEnvClosedError)
    assert "closed" in str(error)


def test_an_episode_that_the_runner_gives_up_is_over_for_the_client(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode("given up")
        simulator.attempt(simulator.get_action, episode, seen(0))
        play_episode(simulator, length=1, offset=50)

    simulator = Simulator(play)
    base_env = base_env_of(simulator)
    poll(base_env)
    base_env.try_reset(0, seed=None)
    assert float(poll(base_env)[0].obs[0, 0]) == 50
    assert isinstance(simulator.errors.get(timeout=TIMEOUT), EpisodeLostError)


def test_an_episode_without_a_step_leaves_no_trace(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        simulator.end_episode(simulator.start_episode(), seen(9))
        play_episode(simulator, length=1, offset=20)

    base_env = base_env_of(Simulator(play))
    assert float(poll(base_env)[0].obs[0, 0]) == 20


def test_an_action_that_was_not_asked_for_is_refused(base_env_of: Callable) -> None:
    base_env = base_env_of(Simulator(wait_for_ever))
    with pytest.raises(InvalidInputError, match="env 0 of Simulator has not asked for an action"):
        answer(base_env, {0: 1})


def test_a_left_episode_keeps_its_complete_steps_and_its_env(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        for number in range(7):  # more often than an env may fail
            episode = simulator.start_episode()
            for step in range(3):
                simulator.get_action(episode, seen(10 * number + step))
                simulator.log_returns(episode, 1.0)
            simulator.leave_episode(episode, keep=number != 3)
            simulator.attempt(simulator.get_action, episode, seen(0))
        play_episode(simulator, length=1, offset=100)
        wait_for_ever(simulator)

    runner = make_runner(base_env_of(Simulator(play)), rollout_fragment_length=15)
    sample = runner.sample(num_steps=15)
    *rows, _ = rows_of(sample)
    assert [row.obs for row in rows] == [10 * number + step for number in (0, 1, 2, 4, 5, 6) for step in range(2)]
    assert [row.truncation for row in rows] == [0.0, 1.0] * 6
    assert [row.successor - row.obs for row in rows] == [1.0] * 12
    assert (sample.faults, runner.num_lost_envs) == ([], 0)
    account = runner.ledger.env_steps
    assert account.is_exact
    assert (account.returned, account.discarded, account.abandoned) == (13, 2, 6)
    ends = [(episode.how, episode.is_finished) for episode in sample.episodes]
    assert ends == [(End.ABANDONED, False)] * 7 + [(End.TERMINATED, True)]


def test_silence_for_the_time_of_a_lease_abandons_the_episode(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        simulator.get_action(episode, seen(0))
        simulator.is_expired.wait(TIMEOUT)
        simulator.attempt(simulator.get_action, episode, seen(1))
        wait_for_ever(simulator)

    simulator = Simulator(play, lease=0.1)
    simulator.is_expired = threading.Event()
    base_env = base_env_of(simulator)
    poll(base_env)
    answer(base_env, {0: 0})
    assert base_env.poll(TIMEOUT).abandoned == {0: True}
    simulator.is_expired.set()
    base_env.try_reset(0, seed=None)
    assert list(poll(base_env)[0].resets) == [0]
    assert isinstance(simulator.errors.get(timeout=TIMEOUT), EpisodeLostError)


def test_the_log_probability_of_a_simulator_is_stored_as_it_is(base_env_of: Callable) -> None:
    def play(simulator: Simulator) -> None:
        episode = simulator.start_episode()
        for step, log_prob in enumerate([-0.5, None, -1.5]):
            simulator.log_action(episode, seen(step), 7, log_prob)
        simulator.attempt(simulator.log_action, episode, seen(3), 7, -np.inf)
        simulator.end_episode(episode, seen(3))
        wait_for_ever(simulator)

    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,)))
    runner = make_runner(base_env_of(Simulator(play)), agent)
    extras = runner.sample(num_steps=3).batch.batches.default.extras
    log_probs = extras.policy_extras.log_prob[:3, 0]
    assert log_probs[[0, 2]].tolist() == [-0.5, -1.5]
    assert abs(log_probs[1] + np.log(1000)) < 1.0
    assert extras.env_extras.logged[:3, 0].all()


class Team(ExternalEnv):
    """Plays with agents `a` and `b`."""

    def __init__(self, play_fn: Callable[["Team"], None]) -> None:
        box = gymnasium.spaces.Box(0, 1000, (1,))
        super().__init__({"a": box, "b": box}, dict.fromkeys("ab", gymnasium.spaces.Discrete(1000)))
        self.play_fn = play_fn

    def run(self) -> None:
        self.play_fn(self)
        threading.Event().wait()


def test_agents_that_are_silent_late_or_gone_have_the_rows_of_the_rules(base_env_of: Callable) -> None:
    def play(team: Team) -> None:
        episode = team.start_episode()
        team.get_action(episode, {"a": seen(0)})
        team.log_returns(episode, {"a": 1.0, "b": 5.0})  # b is not there yet: it counts in its return
        team.get_action(episode, {"a": seen(1), "b": seen(11)})
        team.log_returns(episode, {"a": 1.0, "b": 3.0})
        team.get_action(episode, {"a": seen(2)})  # b is silent
        team.log_returns(episode, {"b": 4.0})
        team.get_action(episode, {"b": seen(13)})  # a is silent
        team.log_returns(episode, {"a": 2.0, "b": 1.0})
        team.end_agents(episode, {"a": seen(4)})
        team.get_action(episode, {"b": seen(14)})
        team.log_returns(episode, {"b": 2.0})
        team.end_episode(episode, truncated=True)  # without a last observation

    runner = make_runner(base_env_of(Team(play)), rollout_fragment_length=5)
    sample = runner.sample(num_episodes=1)
    by_agent = {int(row.obs) // 10: [] for row in rows_of(sample)}
    for row in rows_of(sample):
        by_agent[int(row.obs) // 10].append((row.t, row.obs, row.successor, row.reward, row.end))
    assert by_agent[0] == [
        (0, 0, 1, 1.0, End.RUNNING),
        (1, 1, 2, 1.0, End.RUNNING),
        (2, 2, 4, 2.0, End.TERMINATED),
    ]
    assert by_agent[1] == [
        (1, 11, 13, 7.0, End.RUNNING),
        (3, 13, 14, 1.0, End.RUNNING),
        (4, 14, 14, 2.0, End.GONE_TRUNCATED),
    ]
    assert sample.episodes[0].agent_returns == {"a": 4.0, "b": 15.0}
    assert runner.ledger.is_exact


def test_a_team_that_leaves_keeps_the_complete_rows_of_each_agent(base_env_of: Callable) -> None:
    def play(team: Team) -> None:
        episode = team.start_episode()
        team.get_action(episode, {"a": seen(0), "b": seen(10)})
        team.get_action(episode, {"a": seen(1)})
        team.leave_episode(episode)
        episode = team.start_episode()
        team.get_action(episode, {"a": seen(5)})
        team.end_episode(episode, {"a": seen(6)})

    runner = make_runner(base_env_of(Team(play)), rollout_fragment_length=5)
    rows = rows_of(runner.sample(num_steps=2))
    assert [(row.obs, row.end) for row in rows] == [(0, End.ABANDONED), (5, End.TERMINATED)]
    ledger = runner.ledger
    assert ledger.is_exact
    assert (ledger.env_steps.abandoned, ledger.rows.abandoned) == (1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, e: t.get_action(e, seen(0)), "must be a dict by agent"),
        (lambda t, e: t.get_action(e, {"c": seen(0)}), "there is no agent 'c'"),
        (lambda t, e: t.log_returns(e, {"a": 1.0}), "before its first observation"),
    ],
)
def test_what_a_team_gives_is_checked(base_env_of: Callable, call: Callable, message: str) -> None:
    team = Team(lambda team: None)
    base_env_of(team)
    episode = team.start_episode()
    with pytest.raises(InvalidInputError, match=message):
        call(team, episode)


def test_a_simulator_gets_an_error_for_an_action_that_is_not_finite_and_a_guest_that_fails_costs_itself() -> None:
    class Heated(ExternalEnv):
        def run(self) -> None:
            for mode in (Mode.LEARN, Mode.WATCH):
                episode = self.start_episode(mode=mode)
                reason = "no finite action" if mode is Mode.LEARN else "there is no action"
                with pytest.raises(RookeryError, match=reason):
                    self.get_action(episode, np.zeros(1, np.float32))
            over.set()

    def fail(rows: object) -> None:
        raise ValueError("planted")

    over, box = threading.Event(), gymnasium.spaces.Box(-1, 1, (1,))
    base_env = ExternalBaseEnv([Heated(box, box)])
    base_env.guests_fn = fail
    polled = base_env.poll(TIMEOUT)
    base_env.send_actions(Actions(polled.envs, np.full((1, 1), np.nan, np.float32)))
    deadline = time.monotonic() + 5.0
    while not over.is_set() and time.monotonic() < deadline:
        base_env.poll(0.1)
    base_env.close()
    assert over.is_set(), "both errors were raised"
