"""Training on host environments: the learner gets exactly the transitions of the environments.

The environment keeps its own log, with which the tests compare.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import cli
from rookery.algorithms.a2c import A2CWorkflow
from rookery.algorithms.ddpg import DDPGWorkflow
from rookery.algorithms.dqn import DQNWorkflow
from rookery.envs.config import EnvConfig
from rookery.envs.libraries import LIBRARIES
from rookery.errors import InvalidInputError
from rookery.evaluators.host import HostEvaluator
from rookery.evaluators.playback import RenderError
from rookery.hyperparameters import values_at
from rookery.metrics import EvaluateMetric
from rookery.rollout import Experience
from rookery.runners.callbacks import FaultNotices
from rookery.runners.envs.libraries import load_host_library
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase
from rookery.runners.groups import group
from rookery.runners.groups.group import HostedRunner
from rookery.runners.host_envs import TRIAL_SEED, make_rendered_env
from rookery.runners.transports.worker_process import WorkerProcess
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DivergedError
from rookery.runs.log import RunLog
from rookery.sample_batch import SampleBatch
from rookery.workflows.host.single_agent_collector import SingleAgentCollector
from tests.host_training import advance, is_live, used_anew, watch_collecting
from tests.runner_envs import FakeTime

TIME_LIMIT = 4


@dataclass
class Log:
    """The log of all environments."""

    seeds: list[int | None] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    """Returns of the finished episodes."""
    num_steps: int = 0
    """Steps that did not raise."""
    faults: tuple[int, ...] = ()
    """Indexes of the steps that raise, over all environments."""
    num_faults: int = 0
    num_made: int = 0
    num_open: int = 0


class TellTale(gymnasium.Env):
    """Every transition can be checked by itself: the observation is `[start, count]`, the reward 10 count + action.

    By their start, a third of the episodes terminates after 2 steps, a third at the time limit of 4, a third never.
    With `fails_always` every step raises.
    """

    log: ClassVar[Log] = Log()
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self,
        fails_always: bool = False,
        discrete: bool = False,
        dict_obs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        box = gymnasium.spaces.Box(0.0, 99.0, (2,), np.float64)
        self.observation_space = (
            gymnasium.spaces.Dict({"b": box, "a": gymnasium.spaces.Discrete(9)}) if dict_obs else box
        )
        self.action_space = gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-2.0, 2.0, (1,))
        self.fails_always, self.dict_obs, self.render_mode = fails_always, dict_obs, render_mode
        self.log.num_made += 1
        self.log.num_open += 1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.log.seeds.append(seed)
        self.start, self.count, self.total = self.np_random.random(), 0, 0.0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.fails_always or self.log.num_steps + self.log.num_faults in self.log.faults:
            self.log.num_faults += 1
            raise ValueError("bad leg")
        self.log.num_steps += 1
        reward = 10.0 * self.count + float(np.ravel(action)[0])
        self.total += reward
        self.count += 1
        terminated = self.count >= length_of(self.start)
        if terminated or self.count == TIME_LIMIT:
            self.log.returns.append(self.total)
        info = {"episode_metrics": {"last_count": self.count}} if terminated else {}
        return self.obs(), reward, terminated, False, info

    def obs(self) -> Any:
        obs = np.array([self.start, self.count])
        return {"b": obs, "a": self.count} if self.dict_obs else obs

    def render(self) -> Any:
        return np.full((4, 6, 3), self.count, np.uint8)

    def close(self) -> None:
        self.log.num_open -= 1


def length_of(start: Any) -> Any:
    return np.where(start < 1 / 3, 2.0, np.where(start < 2 / 3, TIME_LIMIT, np.inf))


class Unrendered(TellTale):
    def render(self) -> Any:
        raise NotImplementedError


class Screenless(TellTale):
    def render(self) -> Any:
        raise RuntimeError("mujoco has no screen")


class Deadly(TellTale):
    """Ends its process when it is rendered for the third time."""

    def render(self) -> Any:
        if self.count == 2:
            os._exit(1)
        return super().render()


class Escaping(TellTale):
    """Returns observations outside its space."""

    def obs(self) -> np.ndarray:
        return super().obs() - 50.0


class SinglePrecision(TellTale):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gymnasium.spaces.Box(0.0, 99.0, (2,), np.float32)

    def obs(self) -> Any:
        return super().obs().astype(np.float32)


class JaxArrays(SinglePrecision):
    """Written in JAX: all that it returns is a JAX array."""

    def obs(self) -> Any:
        return jnp.array(super().obs())

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, jnp.float32(reward), jnp.asarray(terminated), jnp.asarray(truncated), info


class Unmade(TellTale):
    def __init__(self, **kwargs: Any) -> None:
        raise ValueError("bad\nleg")


ENVS = {
    "TellTale-v0": TellTale,
    "Unrendered-v0": Unrendered,
    "Screenless-v0": Screenless,
    "Deadly-v0": Deadly,
    "Escaping-v0": Escaping,
    "SinglePrecision-v0": SinglePrecision,
    "JaxArrays-v0": JaxArrays,
    "Unmade-v0": Unmade,
}


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(TellTale, "log", Log())
    for name, env in ENVS.items():
        gymnasium.register(name, entry_point=env)
    yield TellTale.log
    for name in ENVS:
        gymnasium.registry.pop(name)


def make(kind: type = A2CWorkflow, env: dict | None = None, network: dict | None = None, **config: Any) -> Any:
    agent = {"num_envs": 3, "network": {"hidden_sizes": [8], "core_size": 4, **(network or {})}}
    agent |= {"rollout_length": 6} if kind is A2CWorkflow else {"batch_size": 8, "warmup_steps": 25, "n_step": 3}
    return kind.build_from_config(
        {
            "agent": agent | config.pop("agent", {}),
            "env": {"name": "gymnasium/TellTale-v0", "episode_length": TIME_LIMIT, **(env or {})},
            "evaluation": {"num_episodes": 5},
            "total_timesteps": 400,
            "recorders": [],
            **config,
        }
    )


@pytest.fixture(scope="module")
def shared() -> Callable[..., Any]:
    return functools.cache(lambda kind, **agent: make(kind, agent=agent))


@pytest.fixture
def begin(shared: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Reset a shared workflow to its start."""
    with used_anew(shared) as begin:
        yield begin


@pytest.fixture
def workflow(begin: Callable[..., Any]) -> Any:
    return begin(A2CWorkflow)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Experience]:
    """All experience that workflows collect."""
    return watch_collecting(monkeypatch, SingleAgentCollector)


def check_transitions(rows: SampleBatch, termination: Any, successors: Any) -> None:
    """Check each row `[N, ...]` by itself against the rules of the environment."""
    start, count = np.moveaxis(np.asarray(rows.obs), -1, 0)
    np.testing.assert_allclose(rows.rewards, 10 * count + rows.actions[..., 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(successors, np.stack([start, count + 1], axis=-1), rtol=1e-6)
    np.testing.assert_array_equal(termination, count + 1 >= length_of(start))


def check_replay(workflow: Any, agent_state: Any, experience: Experience) -> None:
    """Check that a replay with this state and the first carry gives the recorded log-probabilities and values."""

    @jax.jit
    def log_prob_of(agent_state: Any, trajectory: SampleBatch, first_carry: Any) -> Any:
        distribution, _ = workflow.agent.replay(agent_state, trajectory, first_carry)
        return distribution.log_prob(trajectory.extras.policy_extras.raw_action)

    replayed = log_prob_of(agent_state, experience.trajectory, experience.first_carry)
    np.testing.assert_allclose(replayed, experience.trajectory.extras.policy_extras.log_prob, atol=1e-5)


# One step.


def test_a_step_learns_from_what_the_runner_collected(workflow: Any, collected: list[Experience], log: Log) -> None:
    state = workflow.init(workflow.make_key())
    assert log.num_steps == 0
    metrics, after = workflow.step(state)
    (experience,) = collected
    trajectory = experience.trajectory
    env_extras = trajectory.extras.env_extras
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), trajectory)
    check_transitions(rows, env_extras.termination.ravel() > 0, rows.extras.env_extras.ori_obs)
    assert int(after.env_steps) == log.num_steps == trajectory.rewards.size == 18
    learned_metrics, learned = workflow.training._learn(state, experience)
    jax.tree.map(np.testing.assert_array_equal, learned.agent_state, after.agent_state)
    assert float(learned_metrics["train/loss"].value) == float(metrics["train/loss"])


@pytest.mark.parametrize("clips", [True, False])
def test_rewards_are_clipped_and_normalized_for_learning_alone(
    log: Log, collected: list[Experience], monkeypatch: pytest.MonkeyPatch, clips: bool
) -> None:
    # As for Atari: an option of training that is not passed to the env.
    library = replace(load_host_library("gymnasium"), clipping_option="clips", clips_by_default=True)
    monkeypatch.setitem(LIBRARIES, "gymnasium", library)
    workflow = make(env={"kwargs": {} if clips else {"clips": False}}, agent={"normalize_rewards": True})
    state, metrics = advance(workflow, workflow.init(workflow.make_key()), 4)
    for experience in collected:
        rows = experience.trajectory
        raw = 10 * rows.obs[..., 1] + rows.actions[..., 0]
        assert np.abs(raw).max() > 1.0
        np.testing.assert_allclose(rows.rewards, np.sign(raw) if clips else raw, rtol=1e-5, atol=1e-5)
        assert rows.rewards.dtype == np.float32
    assert len(log.returns) > 10
    assert metrics["rollout/ep_rew_mean"].weight == metrics["rollout/ep_len_mean"].weight == len(log.returns)
    np.testing.assert_allclose(metrics["rollout/ep_rew_mean"].value, np.mean(log.returns), rtol=1e-5)
    log.returns.clear()
    evaluated = workflow.evaluator.evaluate(state.agent_state, jax.random.key(0), 5)
    np.testing.assert_allclose(sorted(evaluated.episode_returns.tolist()), sorted(log.returns), rtol=1e-5)
    workflow.close()


def test_evaluation_leaves_out_the_options_that_are_for_training(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    library = replace(load_host_library("gymnasium"), training_options=("fails_always",))
    monkeypatch.setitem(LIBRARIES, "gymnasium", library)
    workflow = make(env={"kwargs": {"fails_always": True}})
    state = workflow.init(workflow.make_key())
    workflow.evaluator.evaluate(state.agent_state, jax.random.key(0), 5)
    assert len(list(workflow.play(state.agent_state, jax.random.key(0), 100))) > 1
    assert log.num_faults == 0
    with pytest.raises(EnvFaultError):
        workflow.step(state)
    workflow.close()


def test_dict_observations_and_recurrent_agents_work_as_on_the_device(collected: list[Experience]) -> None:
    workflow = make(env={"kwargs": {"dict_obs": True}}, network={"core": "gru"})
    state = workflow.init(workflow.make_key())
    state, _ = advance(workflow, state, 2)
    agent_state = jax.tree.map(jnp.copy, state.agent_state)
    advance(workflow, state, 1)
    trajectory = collected[2].trajectory
    starts = trajectory.extras.policy_extras.episode_start
    np.testing.assert_array_equal(starts, trajectory.obs["a"] == 0)
    assert 0 < starts.sum() < starts.size
    check_replay(workflow, agent_state, collected[2])
    workflow.close()


def test_a_step_cannot_be_traced(workflow: Any) -> None:
    state = workflow.init(workflow.make_key())
    with pytest.raises(InvalidInputError, match="cannot be part of a compiled program"):
        jax.eval_shape(workflow.step, state)


def test_warm_up_steps_cannot_be_traced() -> None:
    workflow = make(DQNWorkflow, env={"kwargs": {"discrete": True}}, agent={"updates_per_step": 1})
    with pytest.raises(InvalidInputError, match="cannot be part of a compiled program"):
        jax.eval_shape(workflow.init, workflow.make_key())


# Replay.


def stored(state: Any) -> list[SampleBatch]:
    """The rows in the buffer of each env, on the host and from the oldest to the newest."""
    buffer_state = state.learner.buffer_state
    rows = jax.tree.map(np.asarray, buffer_state.layout.unpack(buffer_state.storage))

    def of_env(env: int, head: int, num_rows: int) -> SampleBatch:
        return jax.tree.map(lambda leaf: np.roll(leaf[env], -head, axis=0)[-num_rows:], rows)

    positions = zip(buffer_state.head.tolist(), buffer_state.num_rows.tolist(), strict=True)
    return [of_env(env, *position) for env, position in enumerate(positions)]


def joined(rows: list[SampleBatch]) -> SampleBatch:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)


def check_windows(rows: list[SampleBatch]) -> None:
    """Check that the rows of each env follow one another wherever no row says that its episode is over."""
    for of_env in rows:
        assert is_live(of_env).all()
        continued = of_env.dones[:-1] == 0
        np.testing.assert_array_equal(of_env.next_obs[:-1][continued], of_env.obs[1:][continued])


def test_the_warm_up_acts_at_random_and_stores_exactly_its_steps(begin: Callable[..., Any], log: Log) -> None:
    workflow = begin(DDPGWorkflow, rollout_length=1)
    state = workflow.init(workflow.make_key())
    rows = joined(stored(state))
    assert int(state.env_steps) == log.num_steps == rows.rewards.size == 27  # 25, rounded up to 3 envs
    assert int(state.num_updates) == 0
    check_transitions(rows, rows.extras.env_extras.termination > 0, rows.next_obs)
    check_windows(stored(state))
    assert np.abs(rows.actions).max() > 1.0, "an untrained policy with a little noise does not go so far"
    state, metrics = advance(workflow, state, 5)
    assert int(state.env_steps) == log.num_steps == 42
    assert int(state.num_updates) == 15
    assert metrics["rollout/ep_rew_mean"].weight > 0
    rows = joined(stored(state))
    check_transitions(rows, rows.extras.env_extras.termination > 0, rows.next_obs)
    check_windows(stored(state))


def test_exploration_follows_its_schedule_without_delay() -> None:
    schedule = {"start": 1.0, "end": 0.0, "steps": 100}
    workflow = make(DQNWorkflow, env={"kwargs": {"discrete": True}}, agent={"epsilon": schedule, "updates_per_step": 1})
    state = workflow.init(workflow.make_key())
    rates = []
    for _ in range(3):
        now = values_at(state.hyperparameters, state.env_steps.as_float())
        expected = workflow.agent.explore_with(state.agent_state, now)
        acting = workflow.training.acting_state(state)
        jax.tree.map(np.testing.assert_array_equal, acting.extra_state, expected.extra_state)
        metrics, state = workflow.step(state)
        np.testing.assert_allclose(metrics["rollout/exploration_rate"], now.epsilon, rtol=1e-6)
        rates.append(float(now.epsilon))
    np.testing.assert_allclose(rates, [1.0 - steps / 100 for steps in (27, 30, 33)], rtol=1e-5)
    workflow.close()


# Faults.


FAULTS = (9, 20, 31, 45)


def test_a_fault_costs_its_episode_and_everything_is_counted(
    workflow: Any, log: Log, collected: list[Experience]
) -> None:
    log.faults = FAULTS
    state, metrics = advance(workflow, workflow.init(workflow.make_key()), 8)
    report = workflow.training.environments.report()
    assert report["faults/total"] == report["faults/raised"] == log.num_faults == len(FAULTS)
    assert report["faults/restarts"] == log.num_made - 3 > 0
    assert report["faults/invalid"] == report["faults/lost_envs"] == 0
    assert log.num_steps == int(state.env_steps) + report["rollout/steps_discarded"]
    assert report["rollout/steps_discarded"] > 0
    assert metrics["rollout/ep_rew_mean"].weight == len(log.returns)
    np.testing.assert_allclose(metrics["rollout/ep_rew_mean"].value, np.mean(log.returns), rtol=1e-5)
    for experience in collected:
        trajectory, live = experience.trajectory, is_live(experience.trajectory)
        env_extras = trajectory.extras.env_extras
        rows = jax.tree.map(lambda leaf, live=live: leaf[live], trajectory)
        check_transitions(rows, env_extras.termination[live] > 0, rows.extras.env_extras.ori_obs)
        # The learner bootstraps where a lane ends before the others.
        before_a_dead_row = live[:-1] & ~live[1:]
        assert (trajectory.dones[:-1][before_a_dead_row] == 1).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent_state.params))
    assert len(set(log.seeds)) == len(log.seeds)


@pytest.mark.parametrize("rollout_length", [1, 4])
def test_replayed_windows_never_cross_a_fault(begin: Callable[..., Any], log: Log, rollout_length: int) -> None:
    log.faults = FAULTS
    workflow = begin(DDPGWorkflow, rollout_length=rollout_length)
    state, _ = advance(workflow, workflow.init(workflow.make_key()), 24 // rollout_length)
    rows = joined(stored(state))
    assert log.num_faults == len(FAULTS)
    assert (
        int(state.env_steps)
        == len(rows.rewards)
        == log.num_steps - workflow.training.environments.report()["rollout/steps_discarded"]
    )
    check_windows(stored(state))
    check_transitions(rows, rows.extras.env_extras.termination > 0, rows.next_obs)


def test_the_first_fault_of_each_kind_is_logged_once(
    workflow: Any, log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.faults = FAULTS
    notices = FaultNotices()
    monkeypatch.setattr(workflow.training.collector, "_notices", notices)
    advance(workflow, workflow.init(workflow.make_key()), 8)
    assert log.num_faults == len(FAULTS)
    (message,) = caplog.messages
    assert re.match(r"env \d \(gymnasium/TellTale-v0, seed \d+\) raised at step \d on action .*bad leg", message)
    assert "episode discarded, restart 1 of 5" in message
    assert "faults/raised" in message
    invalid = Failed(FaultKind.INVALID, Phase.RESET, "two\nlines")
    notices.notice(Fault(invalid, "Other-v0", 2, seed=1, episode=0, step=0, action=None))
    assert caplog.messages[1].startswith("env 2 (Other-v0, seed 1) invalid at reset: two lines.")
    assert "faults/invalid" in caplog.messages[1]


def test_when_all_environments_are_lost_training_ends_with_the_first_traceback() -> None:
    workflow = make(env={"kwargs": {"fails_always": True}, "runner": {"max_restarts": 0}})
    with pytest.raises(EnvFaultError, match="bad leg"):
        workflow.step(workflow.init(workflow.make_key()))
    workflow.close()


def test_environments_that_fail_on_nan_actions_mean_that_training_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    step = TellTale.step

    def picky_step(self: TellTale, action: Any) -> Any:
        if np.isnan(action).any():
            raise ValueError("bad action")
        return step(self, action)

    monkeypatch.setattr(TellTale, "step", picky_step)
    workflow = make(env={"runner": {"max_restarts": 0}})
    state = workflow.init(workflow.make_key())
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, state.agent_state.params)
    state = state.replace_learner(agent_state=state.agent_state.replace(params=params))
    with pytest.raises(DivergedError, match="seed 0 diverged at 0 env steps: the environments failed on the actions"):
        workflow.learn(state)
    workflow.close()


# Staleness.


def test_with_staleness_the_next_batch_is_collected_with_the_parameters_of_before_the_update(
    collected: list[Experience], log: Log
) -> None:
    workflow = make(max_staleness=1, agent={"learning_rate": 0.1})
    state = workflow.init(workflow.make_key())
    params = [jax.tree.map(np.asarray, state.agent_state)]
    for number in range(3):
        state, metrics = advance(workflow, state, 1)
        params.append(jax.tree.map(np.asarray, state.agent_state))
        assert bool(metrics["rollout/staleness"].value) is (number > 0)
    for experience, acting in zip(collected, [params[0], *params[:-2]], strict=True):
        check_replay(workflow, acting, experience)
    assert int(state.env_steps) == log.num_steps - workflow.training.collector.num_steps_queued
    # A batch that was collected ahead belongs to one state; for another state it is discarded.
    advance(workflow, jax.tree.map(jnp.copy, state), 1)
    assert workflow.training.environments.report()["rollout/steps_discarded"] == 18
    workflow.close()


def test_with_staleness_nothing_is_collected_ahead_of_the_last_update(tmp_path: Path) -> None:
    workflow = make(max_staleness=1, run_dir=str(tmp_path / "run"), recorders=["jsonl"])
    state = workflow.learn(workflow.init(workflow.make_key()))
    num_taken = workflow.training.collector.group.runner(0).ledger.env_steps.taken
    workflow.close()
    rows = RunDirectory(tmp_path / "run").read_metrics()
    assert rows[-1]["time/total_timesteps"] == int(state.env_steps) == num_taken
    assert {row["rollout/steps_discarded"] for row in rows} == {0}
    assert [row["rollout/staleness"] for row in rows] == [0.0] + [1.0] * (len(rows) - 1)
    assert {2.0, 4.0} & {row.get("rollout/last_count") for row in rows}


class SimulatedThread:
    """Replaces `ThreadPoolExecutor`: it runs a call at once, and simulates by the clock when it would end."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def __enter__(self) -> "SimulatedThread":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def submit(self, function: Callable, *args: Any) -> Any:
        start = self.time.now
        result = function(*args)
        end, self.time.now = self.time.now, start

        def wait() -> Any:
            self.time.now = max(self.time.now, end)
            return result

        return SimpleNamespace(result=wait, done=lambda: self.time.now >= end)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize(("collecting", "updating"), [(5.0, 2.0), (2.0, 5.0)])
def test_records_time_the_steps_that_they_count_and_the_timing_file_the_whole_run(
    collecting: float, updating: float, max_staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime()
    monkeypatch.setattr(HostEvaluator, "evaluate", lambda self, *args: EvaluateMetric(**ONE_EPISODE))
    monkeypatch.setattr("rookery.workflows.workflow.RunLog", functools.partial(RunLog, clock=time.clock))
    monkeypatch.setattr("rookery.workflows.host.training.ThreadPoolExecutor", lambda size: SimulatedThread(time))

    def taking(seconds: float, function: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            time.now += seconds
            return function(*args, **kwargs)

        return timed

    monkeypatch.setattr(HostedRunner, "sample_within", taking(collecting, HostedRunner.sample_within))
    run_settings: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "recorders": ["jsonl"], "record_interval": 36}
    workflow = make(max_staleness=max_staleness, total_timesteps=108, **run_settings)
    program = workflow.training.advance._update
    specialized = program.specialized
    monkeypatch.setattr(workflow.training.advance, "_clock", time.clock)
    monkeypatch.setattr(program, "specialized", lambda *args: taking(updating, specialized(*args)))
    workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()

    alone = collecting + updating
    together = max(collecting, updating) if max_staleness else alone
    run = RunDirectory(tmp_path / "run")
    speeds = [row["time/fps"] for row in run.read_metrics()]
    # The first batch is collected alone, and the last update runs alone.
    seconds = [collecting + 2 * together, 2 * together, together + updating] if max_staleness else [2 * alone] * 3
    np.testing.assert_allclose(speeds, [36 / spent for spent in seconds])
    timing = run.read_timing()
    assert timing is not None
    assert timing["train_seconds"] == alone + 5 * together
    np.testing.assert_allclose(timing["collect_share"], 6 * collecting / timing["train_seconds"])


# Runs.

ONE_EPISODE = {"episode_returns": jnp.ones(1), "episode_lengths": jnp.ones(1, jnp.int32)}


def test_a_resumed_run_continues_with_new_seeds_and_old_counts(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostEvaluator, "evaluate", lambda self, *args: EvaluateMetric(**ONE_EPISODE))
    log.faults = FAULTS
    settings: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "recorders": ["jsonl"],
        "checkpoint": {"interval": 100, "keep": None},
        "record_interval": 100,
    }
    workflow = make(DDPGWorkflow, **settings)
    workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()
    assert log.num_open == 0
    run = RunDirectory(tmp_path / "run")
    before = run.read_metrics()
    seeds, num_faults = set(log.seeds), log.num_faults
    assert num_faults == len(FAULTS)
    assert before[-1]["faults/raised"] == num_faults
    assert before[-1]["time/env_wait_ms"] > 0
    assert 0 < run.read_timing()["collect_share"] < 1

    again = make(DDPGWorkflow, **settings)
    log.seeds.clear()
    step = Checkpoints(run.checkpoints_path).steps()[2]
    saved = again.restore(step)
    state = again.resume(step)
    again.close()
    after = run.read_metrics()
    assert len(after) == len(before)
    assert after[-1]["faults/raised"] == num_faults
    assert not seeds & set(log.seeds)
    assert int(state.env_steps) == after[-1]["time/total_timesteps"] >= 400
    check_windows(stored(state))
    assert any(rows.dones[-1] == 0 for rows in stored(saved))


def test_training_from_the_command_line_leaves_a_video_and_closes_its_environments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Log
) -> None:
    run = tmp_path / "run"
    overrides = ["agent=a2c", "env=gymnasium/TellTale-v0", f"env.episode_length={TIME_LIMIT}", f"run_dir={run}"]
    sizes = ["agent.num_envs=3", "agent.rollout_length=6", "agent.network.hidden_sizes=[8]", "total_timesteps=90"]
    assert cli.main(["train", *overrides, *sizes, "evaluation.num_episodes=5", "recorders=[jsonl]"]) == 0
    assert log.num_open == 0
    assert RunDirectory(run).episode_path.exists()
    assert cli.main(["resume", str(run)]) == 0
    assert (
        "gymnasium/TellTale-v0 restarts with new episodes and new seeds: simulator state is not checkpointed"
        in capsys.readouterr().out
    )
    assert cli.main(["evaluate", str(run), "--episodes", "4", "--video", str(tmp_path / "video.gif")]) == 0
    assert (tmp_path / "video.gif").exists()
    assert log.num_open == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["faults/total"] == 0
    assert "faults" not in capsys.readouterr().out


def test_training_from_the_command_line_prints_faults_when_they_happen_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Log
) -> None:
    log.faults = (9, 12)
    run = tmp_path / "run"
    overrides = ["agent=a2c", "env=gymnasium/TellTale-v0", f"env.episode_length={TIME_LIMIT}", f"run_dir={run}"]
    sizes = ["agent.num_envs=3", "agent.rollout_length=6", "agent.network.hidden_sizes=[8]", "total_timesteps=90"]
    assert cli.main(["train", *overrides, *sizes, "evaluation.num_episodes=5", "env.runner.max_restarts=0"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert "bad leg" not in captured.err
    (fault_line,) = [number for number, line in enumerate(lines) if "bad leg" in line]
    assert fault_line < next(number for number, line in enumerate(lines) if "steps/s" in line)
    num_discarded = RunDirectory(run).read_metrics()[-1]["rollout/steps_discarded"]
    assert log.num_faults == 2
    assert f"  faults      2 ({num_discarded} steps discarded, envs given up: 2)" in lines


# Evaluation.


def test_an_evaluation_does_not_depend_on_the_number_of_environments(workflow: Any, log: Log) -> None:
    state = workflow.init(workflow.make_key())
    results = {}
    for num_envs in (1, 2, 5):
        evaluator = make(agent={"num_envs": num_envs, "rollout_length": 3}).evaluator
        log.seeds.clear()
        log.returns.clear()
        results[num_envs] = evaluator.evaluate(state.agent_state, jax.random.key(3), 9)
        assert len(log.seeds) == len(set(log.seeds)) == 9
        np.testing.assert_allclose(sorted(results[num_envs].episode_returns), sorted(log.returns), rtol=1e-5)
    for other in (2, 5):
        jax.tree.map(np.testing.assert_array_equal, results[1], results[other])
    assert len(set(results[1].episode_lengths.tolist())) > 1
    another = workflow.evaluator.evaluate(state.agent_state, jax.random.key(4), 9)
    assert another.episode_returns.tolist() != results[1].episode_returns.tolist()


def test_an_environment_that_fails_plays_its_episode_again(workflow: Any, log: Log) -> None:
    state = workflow.init(workflow.make_key())
    log.faults = (1, 2, 11)
    faulty = make(env={"runner": {"max_restarts": 2}})
    result = faulty.evaluator.evaluate(state.agent_state, jax.random.key(3), 9)
    assert log.num_faults == 3
    assert result.episode_returns.shape == (9,)
    np.testing.assert_allclose(sorted(result.episode_returns), sorted(log.returns), rtol=1e-5)
    assert result.num_left_out == 0
    hopeless = make(env={"kwargs": {"fails_always": True}, "runner": {"max_restarts": 0}})
    result = hopeless.evaluator.evaluate(state.agent_state, jax.random.key(3), 3)
    assert np.isnan(result.episode_returns).all()
    assert result.num_left_out == 3


def test_an_evaluation_reports_the_number_of_episodes_left_out(workflow: Any, log: Log) -> None:
    state = workflow.init(workflow.make_key())
    log.faults = (1, 11)
    faulty = make(env={"runner": {"max_restarts": 0}}, evaluation={"num_episodes": 9})
    metrics, _ = faulty.evaluate(state)
    assert metrics["eval/episodes_left_out"] == log.num_faults == 2
    np.testing.assert_allclose(metrics["eval/mean_reward"], np.mean(log.returns), rtol=1e-5)


def test_an_episode_counts_although_its_observations_leave_their_bounds(workflow: Any, log: Log) -> None:
    state = workflow.init(workflow.make_key())
    escaping = make(env={"name": "gymnasium/Escaping-v0"})
    log.seeds.clear()
    log.returns.clear()
    result = escaping.evaluator.evaluate(state.agent_state, jax.random.key(3), 9)
    assert len(log.seeds) == 9
    np.testing.assert_allclose(sorted(result.episode_returns), sorted(log.returns), rtol=1e-5)


def test_an_evaluation_episode_without_end_is_cut_and_counts(
    workflow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("host", "evaluation_player"):
        monkeypatch.setattr(f"rookery.evaluators.{module}.MAX_EPISODE_STEPS", 20)
    endless = make(env={"episode_length": None})
    agent_state = workflow.init(workflow.make_key()).agent_state
    result = endless.evaluator.evaluate(agent_state, jax.random.key(0), 9)
    is_cut = np.asarray(result.episode_lengths) == 20
    assert set(np.asarray(result.episode_lengths)[~is_cut]) <= {2, 4}
    assert 0 < is_cut.sum() == int(result.summary("eval/")["eval/episodes_cut"]) < 9
    assert result.num_left_out == 0
    endless.evaluator.evaluate(agent_state, jax.random.key(0), 9)
    (message,) = caplog.messages
    assert f"{is_cut.sum()} of 9 episodes" in message
    assert message.endswith("were cut after 20 steps: set env.episode_length.")


def test_a_run_goes_on_if_its_evaluations_cannot_finish_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_training_envs = group.make_envs
    monkeypatch.setattr(
        "rookery.evaluators.evaluation_player.make_envs",
        lambda env, num_envs, **options: make_training_envs(
            replace(env, kwargs={"fails_always": True}), num_envs, **options
        ),
    )
    run_settings: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "recorders": ["jsonl"], "record_interval": 36}
    workflow = make(total_timesteps=72, env={"runner": {"max_restarts": 0}}, **run_settings)
    workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()
    run = RunDirectory(tmp_path / "run")
    rows = run.read_metrics()
    assert [row["time/total_timesteps"] for row in rows] == [36, 72]
    assert not any(name.startswith("eval/") for row in rows for name in row)
    assert Checkpoints(run.checkpoints_path).steps()[-1] == 72
    assert len(caplog.messages) == 2
    assert all("5 of 5 episodes of gymnasium/TellTale-v0 failed" in message for message in caplog.messages)


def test_with_processes_evaluation_keeps_its_own_at_most_one_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.runners.host_envs.NUM_CORES", 2)
    started: list[range] = []
    start = WorkerProcess.__init__

    def watched(self: WorkerProcess, slots: range, *args: Any) -> None:
        started.append(slots)
        start(self, slots, *args)

    workflow = make(env={"runner": {"processes": True}})
    state = workflow.init(workflow.make_key())
    monkeypatch.setattr(WorkerProcess, "__init__", watched)
    _, state = workflow.evaluate(state)
    again = workflow.evaluator.evaluate(state.agent_state, jax.random.key(7), 5)
    assert len(started) == 2
    workflow.close()
    here = make().evaluator.evaluate(state.agent_state, jax.random.key(7), 5)
    np.testing.assert_array_equal(again.episode_lengths, here.episode_lengths)
    np.testing.assert_allclose(again.episode_returns, here.episode_returns, rtol=1e-6)


def test_an_episode_is_rendered_from_its_start_to_its_end(workflow: Any, log: Log) -> None:
    agent_state = workflow.init(workflow.make_key()).agent_state
    frames = list(workflow.play(agent_state, jax.random.key(0), 100))
    assert len(frames) in (3, 5)
    assert [int(frame[0, 0, 0]) for frame in frames] == list(range(len(frames)))
    assert len(list(workflow.play(agent_state, jax.random.key(0), 1))) == 2
    unrendered = make(env={"name": "gymnasium/Unrendered-v0"})
    with pytest.raises(RenderError, match=r"gymnasium/Unrendered-v0"):
        next(unrendered.play(agent_state, jax.random.key(0), 100))
    screenless = make(env={"name": "gymnasium/Screenless-v0"})
    with pytest.raises(RenderError, match=r"mujoco has no screen.* try egl or osmesa\.$"):
        next(screenless.play(agent_state, jax.random.key(0), 100))


def test_a_run_whose_environment_ends_the_process_that_renders_it_has_a_report_without_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    overrides = ["agent=a2c", "env=gymnasium/Deadly-v0", f"env.episode_length={TIME_LIMIT}", f"run_dir={run.path}"]
    sizes = ["agent.num_envs=3", "agent.rollout_length=6", "agent.network.hidden_sizes=[8]", "total_timesteps=18"]
    assert cli.main(["train", *overrides, *sizes, "evaluation.num_episodes=2", "recorders=[jsonl]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("no episode was recorded:")]
    assert "gymnasium/Deadly-v0 cannot be rendered" in line
    assert run.report_path.exists()
    assert not run.episode_path.exists()
    assert cli.main(["evaluate", str(run.path), "--episodes", "2", "--video", str(tmp_path / "video.gif")]) == 2
    assert "exited with code 1" in capsys.readouterr().err


def test_an_environment_may_return_jax_arrays() -> None:
    states = []
    for name in ("SinglePrecision", "JaxArrays"):
        workflow = make(env={"name": f"gymnasium/{name}-v0"})
        states.append(workflow.step(workflow.init(workflow.make_key()))[1])
        assert workflow.training.environments.report()["faults/total"] == 0
        workflow.close()
    jax.tree.map(np.testing.assert_array_equal, *(state.agent_state.params for state in states))


@pytest.mark.parametrize(("max_restarts", "num_resets"), [(0, 1), (2, 3)])
def test_an_environment_whose_episodes_cannot_begin_is_an_error_before_anything_is_compiled(
    max_restarts: int, num_resets: int, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TellTale, "obs", lambda self: [0.0, 0.0])
    with pytest.raises(EnvFaultError, match=r"no episode can begin: env 0 .* of type list; expected an array"):
        make(env={"runner": {"max_restarts": max_restarts}})
    assert len(log.seeds) == num_resets
    assert log.num_open == 0


def test_an_environment_that_fails_in_its_first_reset_is_restarted_before_training(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = TellTale.reset

    def fails_once(self: TellTale, **options: Any) -> Any:
        if not log.seeds:
            log.seeds.append(None)
            raise ValueError("bad leg")
        return reset(self, **options)

    monkeypatch.setattr(TellTale, "reset", fails_once)
    make().close()
    assert log.seeds == [None, TRIAL_SEED]


def test_a_process_that_renders_does_not_load_jax() -> None:
    with contextlib.closing(make_rendered_env(EnvConfig("gymnasium/CartPole-v1"))) as base_env:
        base_env.poll()
        assert base_env.try_render(0).shape == (400, 600, 3)  # type: ignore[union-attr]
        assert not base_env.vector_env.transport.apply(0, lambda env: "jax" in sys.modules)  # type: ignore[attr-defined]


def test_an_environment_that_cannot_be_made_is_one_line_with_its_traceback_below(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["train", "agent=a2c", "env=gymnasium/Unmade-v0", f"run_dir={tmp_path / 'run'}"]) == 2
    error, first, *others, last = capsys.readouterr().err.splitlines()
    assert error.startswith("rookery: error: ")
    assert error.endswith("ValueError('bad\\nleg').")
    assert first == "  Traceback (most recent call last):"
    assert any("in __init__" in line for line in others)
    assert last == "  leg"


# Devices and settings.

TWO_DEVICES = """
import jax, sys
import numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from rookery.registry import build_workflow

workflow = build_workflow({
    "agent": {"name": "a2c", "num_envs": 4, "rollout_length": 30, "network": {"hidden_sizes": [8]}},
    "env": {"name": "gymnasium/CartPole-v1", "episode_length": 10},
    "evaluation": {"num_episodes": 3}, "total_timesteps": 240, "recorders": [], "devices": 2,
})
state = workflow.init(workflow.make_key())
metrics, state = workflow.step(state)
assert float(metrics["rollout/ep_len_mean"]) <= 10.0, metrics
assert int(state.env_steps) == 120
state = workflow.learn(state)
assert int(state.env_steps) == 240
assert float(workflow.evaluate(state)[0]["eval/mean_ep_length"]) <= 10.0
workflow.close()
print("well")
"""


def test_a_batch_is_split_over_two_devices() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=240)
    assert done.stdout.endswith("well\n"), done.stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_seeds": 4, "seed": 3}, "one after the other with --multirun 'seed=range(3,7)'"),
        ({"env": {"autoreset_mode": "envpool"}}, "env.autoreset_mode=envpool is for environments on the device"),
        ({"env": {"runner": {"step_timeout": 3}}}, "env.runner.step_timeout=3 has no effect without processes=true"),
        ({"env": {"runner": {"step_timeout": None}}}, "env.runner.step_timeout=null has no effect without"),
        ({"env": {"runner": {"start_timeout": 3}}}, "env.runner.start_timeout=3 has no effect without processes=true"),
        ({"env": {"runner": {"max_memory": 3}}}, "env.runner.max_memory=3 has no effect without processes=true"),
        (
            {"env": {"runner": {"processes": True, "max_memory": 0}}},
            "env.runner.max_memory=0 must be more than 0 megabytes, or null",
        ),
        ({"env": {"runner": {"envs_per_process": 2}}}, "env.runner.envs_per_process=2 has no effect without"),
        ({"env": {"runner": {"max_restarts": -1}}}, "env.runner.max_restarts=-1 must be an integer of at least 0"),
        ({"env": {"runner": {"on_invalid": "ignore"}}}, "env.runner.on_invalid='ignore': expected one of abort, raise"),
        ({"env": {"runner": {"proceses": True}}}, "env.runner: unknown key 'proceses'. Did you mean 'processes'?"),
        (
            {"env": {"name": "classic/cartpole", "runner": {"processes": True}}},
            "env: runner.processes=True is for environments on the host, such as gymnasium/CartPole-v1",
        ),
        ({"env": {"name": "gymnasium/TellTail-v0"}}, "unknown environment 'gymnasium/TellTail-v0'. Did you mean"),
    ],
)
def test_invalid_settings_are_one_clear_error_at_build(config: dict, message: str) -> None:
    with pytest.raises((InvalidInputError, LookupError), match=re.escape(message)):
        make(**config)
