"""Training on external simulators: shapes, staleness, logged actions, and what is refused."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import rookery
from rookery.errors import InvalidInputError, RookeryError
from rookery.runners import ExternalEnv
from rookery.runners.envs.external import ExternalEnvClosedError
from rookery.workflows.hooks import RecordEvent

BOX = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32)
SMALL = {"agent.network.hidden_sizes": [4]}
NEVER = 60.0
"""Seconds after which a test fails instead of waiting for ever."""


class Counters(ExternalEnv):
    """Each of its threads plays episodes whose rewards are the number of the step: 0, 1, 2, ..."""

    def __init__(
        self,
        play_fn: Callable | None = None,
        num_threads: int = 1,
        action_space: Any = None,
        max_episodes: int | None = None,
    ) -> None:
        super().__init__(BOX, action_space or gymnasium.spaces.Discrete(2), max_episodes or num_threads)
        self.num_threads = num_threads
        self.play_fn = play_fn or Counters.play
        self.errors: list[Exception] = []
        self.has_failed = threading.Event()

    def run(self) -> None:
        threads = [threading.Thread(target=self._play, args=(k,), daemon=True) for k in range(self.num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _play(self, number: int) -> None:
        try:
            while True:
                self.play_fn(self, number)
        except ExternalEnvClosedError:
            pass
        except RookeryError as error:
            self.errors.append(error)
            self.has_failed.set()

    def play(self, number: int) -> None:
        episode = self.start_episode()
        for step in range(5 + number):
            self.get_action(episode, np.array([number, step], np.float32))
            self.log_returns(episode, step)
        self.end_episode(episode, np.array([number, 5 + number], np.float32))


def train(env: Any, agent: str = "a2c", total_timesteps: int = 96, **config: Any) -> rookery.Run:
    sizes = {"agent.num_envs": 3, "agent.rollout_length": 8}
    return rookery.train(agent, env, total_timesteps=total_timesteps, config=SMALL | sizes | config)


@pytest.mark.parametrize("num_threads", [1, 2, 12])
def test_any_number_of_simulators_gives_samples_of_one_shape(num_threads: int) -> None:
    metrics = train(Counters(num_threads=num_threads)).metrics
    assert (
        metrics["rollout/steps_sampled"][-1]
        == metrics["time/total_timesteps"][-1] + (metrics["rollout/steps_discarded"][-1])
    )
    assert metrics["rollout/staleness_max"].max() <= 1  # the limit of A2C
    assert "eval/mean_reward" not in metrics


def test_with_staleness_the_policy_acts_on_while_an_update_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    acted, went_on = threading.Semaphore(0), []

    class Acting(Counters):
        def get_action(self, *arguments: Any) -> Any:
            action = super().get_action(*arguments)
            acted.release()
            return action

    class Late(ThreadPoolExecutor):
        """Begins an update once the simulator has acted five times after it was due."""

        def submit(self, update_fn: Callable, *args: Any) -> Future:  # type: ignore[override]
            while acted.acquire(blocking=False):
                pass

            def update_late() -> Any:
                went_on.append(all(acted.acquire(timeout=NEVER) for _ in range(5)))
                return update_fn(*args)

            return super().submit(update_late)

    monkeypatch.setattr("rookery.workflows.host.training.ThreadPoolExecutor", Late)
    metrics = train(Acting(), total_timesteps=32, max_staleness=1, **{"agent.num_envs": 1}).metrics
    assert went_on == [True] * 3, "after the last update nothing is collected"
    assert metrics["rollout/staleness_max"][-1] == 1


@pytest.mark.parametrize(("num_threads", "num_envs"), [(1, 64), (64, 4)])
def test_few_and_many_simulators_train_and_compile_no_program_twice(
    num_threads: int, num_envs: int, caplog: pytest.LogCaptureFixture
) -> None:
    env = Counters(num_threads=num_threads, max_episodes=64)
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        run = train(env, total_timesteps=4 * 8 * num_envs, **{"agent.num_envs": num_envs})
    assert run.metrics["time/total_timesteps"][-1] == 4 * 8 * num_envs
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling jit(")]
    programs = [message for message in compiled if any(f"jit({name})" in message for name in ("_act", "update"))]
    assert 2 <= len(programs) == len(set(programs))


def test_a_replay_method_stores_fragments_that_do_not_continue_each_other() -> None:
    config = {"agent.warmup_steps": 48, "agent.n_step": 3, "agent.updates_per_step": 0.125}
    run = train(Counters(num_threads=5), "dqn", 144, **config)
    rows = run.state.learner.buffer_state
    stored = rows.layout.unpack(rows.storage)
    for env in range(3):
        num_rows = int(rows.num_rows[env])
        obs, successor = np.asarray(stored.obs[env, :num_rows]), np.asarray(stored.next_obs[env, :num_rows])
        continues = ~np.asarray(stored.dones[env, : num_rows - 1]).astype(bool)
        np.testing.assert_array_equal(obs[1:][continues], successor[:-1][continues])
        np.testing.assert_array_equal(obs[:, 1] + 1, successor[:, 1])


def test_windows_that_no_fragment_holds_are_refused_before_anything_runs() -> None:
    sizes = {"agent.rollout_length": 2, "agent.n_step": 3, "agent.updates_per_step": 0.5, "agent.warmup_steps": 12}
    with pytest.raises(InvalidInputError, match=r"agent.rollout_length=2 holds no window of 3 steps"):
        train(Counters(), "dqn", **sizes)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        ("openes", {}, "no episode can be asked of an individual"),
        ("a2c", {"num_env_runners": 2}, "has one runner"),
        ("a2c", {"env.episode_length": 10}, "env.episode_length=10: .* is in control"),
    ],
)
def test_what_a_simulator_in_control_cannot_do_is_refused(agent: str, settings: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        rookery.train(agent, Counters, total_timesteps=64, config=settings)


def test_an_on_policy_method_refuses_logged_actions_without_their_log_probability() -> None:
    def play(env: Counters, number: int) -> None:
        if not env.errors:
            episode = env.start_episode()
            try:
                env.log_action(episode, np.zeros(2, np.float32), 1)
            finally:
                env.leave_episode(episode)
        Counters.play(env, number)

    env = Counters(play)
    run = train(env)
    assert "log_prob_needed" in str(env.errors[0])
    assert run.metrics["rollout/logged_share"].max() == 0.0


def log_every_action(env: Counters, number: int) -> None:
    episode = env.start_episode()
    for step in range(4):
        env.log_action(episode, np.array([number, step], np.float32), 1, log_prob=-0.25)
        env.log_returns(episode, 1.0)
    env.end_episode(episode, np.array([number, 4], np.float32))


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_logged_actions_train_a_policy(agent: str) -> None:
    replay = {"agent.warmup_steps": 48, "agent.updates_per_step": 0.125} if agent == "dqn" else {}
    sizes = {"agent.num_envs": 4, "agent.rollout_length": 8, "agent.num_minibatches": 2} if agent == "ppo" else {}
    run = train(Counters(log_every_action), agent, **replay, **sizes)
    assert run.metrics["rollout/logged_share"][-1] == 1.0


def test_episodes_that_are_left_train_and_do_not_count_in_the_returns() -> None:
    def play(env: Counters, number: int) -> None:
        episode = env.start_episode()
        for step in range(3):
            env.get_action(episode, np.array([number, step], np.float32))
            env.log_returns(episode, 100.0)
        env.leave_episode(episode)
        Counters.play(env, number)

    metrics = train(Counters(play)).metrics
    assert metrics["rollout/episodes_abandoned"][-1] >= 5
    assert metrics["rollout/steps_abandoned"][-1] == metrics["rollout/episodes_abandoned"][-1]
    returns = metrics["rollout/ep_rew_mean"]
    assert set(returns[~np.isnan(returns)]) == {10.0}


class Pair(ExternalEnv):
    """Two agents with one policy each: the second acts in every other step and ends first."""

    def __init__(self) -> None:
        spaces = dict.fromkeys(("left", "right"), BOX)
        super().__init__(spaces, dict.fromkeys(spaces, gymnasium.spaces.Discrete(2)), max_episodes=2)

    def run(self) -> None:
        while True:
            episode = self.start_episode()
            for step in range(6):
                seen = np.array([0, step], np.float32)
                is_seen = step % 2 == 0 and step < 4
                actions = self.get_action(episode, {"left": seen, "right": seen} if is_seen else {"left": seen})
                assert set(actions) == ({"left", "right"} if is_seen else {"left"})
                self.log_returns(episode, {"left": 1.0, "right": 2.0} if step < 4 else {"left": 1.0})
                if step == 3:
                    self.end_agents(episode, {"right": seen})
            self.end_episode(episode, {"left": np.array([0, 6], np.float32)})


def test_two_agents_train_two_policies() -> None:
    run = train(Pair(), "ppo", 96, **{"env.policies": "per_agent", "agent.num_envs": 4, "agent.num_minibatches": 2})
    assert run.metrics["left/rollout/ep_rew_mean"][-1] == 6.0
    assert run.metrics["right/rollout/ep_rew_mean"][-1] == 8.0
    assert run.policy_of("right").action_space.n == 2


def test_the_same_simulator_trains_again() -> None:
    env = Counters()
    for _ in range(2):
        assert train(env, total_timesteps=24).metrics["time/total_timesteps"][-1] == 24


def test_evaluated_episodes_are_reported_and_not_learned_from() -> None:
    def play(env: Counters, number: int) -> None:
        Counters.play(env, number)
        for mode, reward in (("evaluate", 100.0), ("watch", 1000.0)):
            episode = env.start_episode(mode=mode)
            for _ in range(2):
                assert env.get_action(episode, np.zeros(2, np.float32)) in (0, 1)
                env.log_returns(episode, reward)
            env.end_episode(episode, np.zeros(2, np.float32))

    metrics = train(Counters(play), **{"evaluation.interval": 48}).metrics
    assert metrics["eval/mean_reward"][-1] == 200.0
    assert metrics["eval/mean_ep_length"][-1] == 2.0
    returns = metrics["rollout/ep_rew_mean"]
    assert set(returns[~np.isnan(returns)]) == {10.0}


def test_two_agents_are_evaluated_by_their_policies() -> None:
    class Evaluated(Pair):
        def start_episode(self, *args: Any) -> str:
            self.number = getattr(self, "number", -1) + 1
            return super().start_episode(mode="evaluate" if self.number % 2 else "learn")

    config = {"env.policies": "per_agent", "agent.num_envs": 4, "agent.num_minibatches": 2}
    metrics = train(Evaluated(), "ppo", 96, **config).metrics
    names = ("eval/mean_reward", "left/eval/mean_reward", "right/eval/mean_reward")
    assert [metrics[name][-1] for name in names] == [14.0, 6.0, 8.0]


def test_fragments_that_are_older_than_the_simulator_allows_are_discarded_and_counted() -> None:
    def steps_discarded(max_age: int | None) -> float:
        env = Counters(num_threads=12)
        env.max_age = max_age
        return float(train(env, "impala", 240, **{"agent.num_minibatches": 1}).metrics["rollout/steps_discarded"][-1])

    assert steps_discarded(None) == 0
    assert steps_discarded(0) > 0


def test_an_evaluation_without_episodes_of_its_own_is_refused() -> None:
    run = train(Counters(), total_timesteps=24)
    with pytest.raises(InvalidInputError, match="begins its episodes itself"):
        run.evaluate(3)


def test_silent_simulators_do_not_keep_a_run_from_stopping() -> None:
    is_over = threading.Event()

    def play(env: Counters, number: int) -> None:
        Counters.play(env, number)
        is_over.wait(1.5)

    def stop(event: RecordEvent) -> None:
        is_over.set()

    run = rookery.train("a2c", Counters(play), total_timesteps=24, on_record=stop, config=SMALL | {"agent.num_envs": 1})
    assert len(run.metrics["time/total_timesteps"]) >= 1
