"""`rookery.train` and `Run`: from three lines to a policy, its metrics, its report, and more training."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trust
from rookery.algorithms.a2c import A2CWorkflow
from rookery.api.run import Evaluation, RunMetrics
from rookery.envs import own
from rookery.envs.classic import CartPole
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.metrics import EvaluateMetric
from rookery.registry import build_workflow
from rookery.runs.directory import RunDirectory
from rookery.trust import UntrustedError

SMALL: dict[str, Any] = {
    "total_timesteps": 640,
    "num_envs": 4,
    "rollout_length": 16,
    "network": {"hidden_sizes": [8]},
    "recorders": ["jsonl"],
    "config": {"evaluation.num_episodes": 2, "evaluation.interval": 128, "record_interval": 64},
}


class Corridor(gymnasium.Env):
    """Walk to the right: the reward is the action."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.length = length
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place += 1
        return np.full(1, self.place / self.length, np.float32), float(action), self.place == self.length, False, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 255 * self.place // self.length, np.uint8)


@pytest.fixture(scope="module")
def run() -> rookery.Run:
    return rookery.train("ppo", "classic/cartpole", **SMALL)


def test_training_returns_a_run_whose_policy_acts(run: rookery.Run) -> None:
    obs, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    action, state = run.policy.predict(obs)
    assert action in (0, 1)
    assert state is None
    assert run.policy.num_steps == 640


def test_metrics_are_columns_with_one_value_per_record(run: rookery.Run) -> None:
    metrics = run.metrics
    assert metrics["time/total_timesteps"].tolist() == list(range(64, 641, 64))
    assert np.isnan(metrics["eval/mean_reward"]).tolist() == [True, False] * 5
    with pytest.raises(KeyError, match="Did you mean 'eval/mean_reward'"):
        metrics["eval/mean_rewards"]
    assert metrics.get("nonsense") is None


def test_the_best_policy_is_the_one_of_the_best_evaluation(run: rookery.Run) -> None:
    best = np.nanargmax(run.metrics["eval/mean_reward"])
    assert run.best_policy.num_steps == run.metrics["time/total_timesteps"][best]


def test_nothing_is_written_without_a_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert rookery.train("ppo", "classic/cartpole", **SMALL).path is None
    assert not list(tmp_path.iterdir())


def test_a_run_in_three_lines_is_the_run_of_the_command_line(tmp_path: Path, run: rookery.Run) -> None:
    """The same defaults and presets, the same numbers."""
    overrides = ["total_timesteps=640", "agent.num_envs=4", "agent.rollout_length=16", "evaluation.num_episodes=2"]
    overrides += [
        "agent.network.hidden_sizes=[8]",
        "evaluation.interval=128",
        "record_interval=64",
        "recorders=[jsonl]",
    ]
    command = [sys.executable, "-m", "rookery", "train", "agent=ppo", "env=classic/cartpole", *overrides, "run_dir=run"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    rows = RunDirectory(tmp_path / "run").read_metrics()
    for name in ("rollout/ep_rew_mean", "train/loss", "eval/mean_reward"):
        np.testing.assert_array_equal(run.metrics[name], [row.get(name, np.nan) for row in rows])


def test_a_key_is_one_of_the_run_or_one_of_the_agent_and_others_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown key 'learning_rat'\. Did you mean 'agent.learning_rate'\?"):
        rookery.train("ppo", "classic/cartpole", learning_rat=1e-3)
    with pytest.raises(UnknownNameError, match=r"unknown key 'env.episode_lenght'"):
        rookery.train("ppo", "classic/cartpole", config={"env.episode_lenght": 3})
    with pytest.raises(InvalidInputError, match=r"agent.learning_rate=-1"):
        rookery.train("ppo", "classic/cartpole", learning_rate=-1.0)


@pytest.mark.parametrize(
    "env",
    [
        Corridor,
        Corridor(),
        lambda: Corridor(3),
        CartPole,
        lambda num_envs: gymnasium.vector.SyncVectorEnv([Corridor] * num_envs),
    ],
    ids=["class", "object", "function", "device class", "vector"],
)
def test_environments_without_a_name_are_trained_on(env: Any) -> None:
    run = rookery.train("a2c", env, **SMALL | {"total_timesteps": 64, "config": {"evaluation.num_episodes": 2}})
    assert run.evaluate(3).returns.shape == (3,)


def test_an_own_environment_is_learned_and_shown(tmp_path: Path) -> None:
    run = rookery.train("ppo", Corridor, **SMALL | {"total_timesteps": 4096, "learning_rate": 1e-2})
    evaluation = run.evaluate(8)
    assert evaluation.mean == 5.0
    assert evaluation.lengths.tolist() == [5] * 8
    assert run.video(tmp_path / "walk.gif").read_bytes().startswith(b"GIF8")


def test_the_report_of_a_run_in_memory_is_a_page(run: rookery.Run, tmp_path: Path) -> None:
    page = run.report(tmp_path / "report.html").read_text()
    assert "ppo on classic/cartpole" in page
    assert "Learning curves" in page


def test_a_notebook_shows_the_learning_curve(run: rookery.Run) -> None:
    frame = run._repr_html_()
    assert frame.startswith("<iframe")
    assert "Learning curves" in frame
    assert "Versions" not in frame


def test_the_repr_is_one_line(run: rookery.Run) -> None:
    assert repr(run).startswith("Run(ppo on classic/cartpole, 640 env steps, evaluation ")
    assert "\n" not in repr(run)
    assert repr(run.metrics).startswith("RunMetrics(")


def test_the_parts_of_a_run_print_one_short_line(run: rookery.Run) -> None:
    """Weights on the screen are the reason to print nothing."""
    workflow, state = run.workflow, run.state
    env, settings = workflow.evaluator.env, workflow.settings
    parts = (workflow, workflow.agent, workflow.training.learner, state, state.learner, state.agent_state, env)
    for part in (*parts, state.source_state.env_state, settings, settings.train, run.policy, run.metrics):
        assert repr(part).startswith(type(part).__name__)
        assert len(repr(part)) <= 220, repr(part)
        assert "\n" not in repr(part)
    assert repr(workflow) == "PPOWorkflow(classic/cartpole, 640 steps, seed 0)"
    assert repr(env) == "VmapWrapper(EpisodeWrapper(CartPole()))"


def test_a_run_in_memory_goes_on_with_a_larger_budget() -> None:
    """As the run that had the budget from the start: its learning rate is constant."""
    settings = SMALL | {"learning_rate": 1e-3}
    whole = rookery.train("a2c", "classic/cartpole", **settings)
    half = rookery.train("a2c", "classic/cartpole", **settings | {"total_timesteps": 320})
    continued = half.resume(total_timesteps=640)
    for name in ("train/loss", "time/total_timesteps"):
        np.testing.assert_array_equal(continued.metrics[name], whole.metrics[name])
    assert half.metrics["train/loss"].shape == (5,)


def test_a_schedule_spans_the_larger_budget() -> None:
    settings = SMALL | {"total_timesteps": 320, "learning_rate": {"start": 1.0, "end": 0.0}}
    half = rookery.train("a2c", "classic/cartpole", **settings)
    rates = half.resume(total_timesteps=640).metrics["train/learning_rate"]
    assert rates[4:6].tolist() == pytest.approx([0.2, 0.5], abs=0.01)


def test_a_run_directory_is_opened_with_the_same_calls(tmp_path: Path) -> None:
    trained = rookery.train("a2c", "classic/cartpole", **SMALL, run_dir=tmp_path / "run")
    opened = rookery.open_run(tmp_path / "run")
    assert opened.path == trained.path == tmp_path / "run"
    np.testing.assert_array_equal(opened.metrics["train/loss"], trained.metrics["train/loss"])
    np.testing.assert_array_equal(opened.evaluate(5).returns, trained.evaluate(5).returns)
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(opened.policy(obs), trained.policy(obs))
    assert opened.best_policy.num_steps == trained.best_policy.num_steps
    assert opened.report(tmp_path / "report.html").is_file()
    assert int(opened.state.env_steps) == 640
    assert rookery.open_run(tmp_path / "run").resume(total_timesteps=768).metrics["time/total_timesteps"][-1] == 768


class Wide(Corridor):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(2, np.float32), {}


def test_an_environment_of_the_program_is_passed_again_to_use_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SMALL["config"] | {"env.kwargs": {"length": 3}}
    trained = rookery.train("a2c", Corridor, **(SMALL | {"config": config}), run_dir=tmp_path / "run")
    monkeypatch.setattr(own, "_MAKERS", {})  # as in a new process
    with pytest.raises(InvalidInputError, match=r"rookery.open_run\(path, env=MyEnv\)"):
        rookery.open_run(tmp_path / "run").evaluate(2)
    opened = rookery.open_run(tmp_path / "run", env=Corridor)
    assert opened.evaluate(4).lengths.tolist() == [3] * 4
    np.testing.assert_array_equal(opened.evaluate(4).returns, trained.evaluate(4).returns)
    assert opened.video(tmp_path / "episode.gif").is_file()
    assert opened.resume(total_timesteps=704).metrics["time/total_timesteps"][-1] == 704


def test_a_run_is_evaluated_on_another_environment_with_the_same_spaces(tmp_path: Path) -> None:
    rookery.train("a2c", "classic/cartpole", **SMALL, run_dir=tmp_path / "run")
    on_host = rookery.open_run(tmp_path / "run", env="gymnasium/CartPole-v1")
    assert on_host.evaluate(3).returns.shape == (3,)
    assert on_host._workflow is None, "no training is built"


@pytest.mark.parametrize("use", [lambda run: run.evaluate(2), lambda run: run.resume(total_timesteps=704)])
def test_an_environment_with_other_spaces_is_refused(tmp_path: Path, use: Any) -> None:
    rookery.train("a2c", Corridor, **SMALL, run_dir=tmp_path / "run")
    with pytest.raises(InvalidInputError, match=r"^the policy has observations in .*\(1,\).*Wide in .*\(2,\)"):
        use(rookery.open_run(tmp_path / "run", env=Wide))


def test_seeds_with_failed_episodes_are_evaluated_by_the_others() -> None:
    """A host environment that fails leaves out episodes, not the same number of all seeds."""
    returns, lengths = [np.array([1.0, 2.0, 6.0], np.float32), np.array([3.0], np.float32)], [[4, 5, 6], [7]]
    results = [
        EvaluateMetric(episode_returns=jnp.asarray(of_seed), episode_lengths=jnp.asarray(steps))
        for of_seed, steps in zip(returns, lengths, strict=True)
    ]
    evaluation = Evaluation(results)
    np.testing.assert_array_equal(evaluation.returns, [[1.0, 2.0, 6.0], [3.0, np.nan, np.nan]])
    assert evaluation.lengths.tolist() == [[4, 5, 6], [7, 0, 0]]
    assert (evaluation.mean, evaluation.std) == pytest.approx((3.0, np.std([1, 2, 6, 3])))
    assert repr(evaluation) == "Evaluation(mean return 3.00, std 1.87, 4 episodes)"
    nothing = Evaluation([EvaluateMetric(episode_returns=jnp.zeros(0), episode_lengths=jnp.zeros(0, int))])
    assert np.isnan(nothing.mean)


def test_a_seed_without_a_row_has_nan_in_that_record() -> None:
    rows = [
        {"seed": seed, "loss": 10.0 * record + seed}
        for record, seed in [(0, 5), (0, 6), (1, 6), (2, 5), (3, 5), (3, 6)]
    ]
    metrics = RunMetrics(rows)
    np.testing.assert_array_equal(metrics["loss"], [[5, 6], [np.nan, 16], [25, np.nan], [35, 36]])
    assert repr(metrics) == "RunMetrics(1 metrics of 4 records)"


def test_several_seeds_have_a_column_each() -> None:
    run = rookery.train("a2c", "classic/cartpole", num_seeds=2, seed=5, **SMALL)
    assert run.metrics["train/loss"].shape == (10, 2)
    assert run.evaluate(3).returns.shape == (2, 3)
    obs = np.linspace(-0.2, 0.2, 400, dtype=np.float32).reshape(100, 4)
    assert (run.policy_of(seed=5)(obs) == run.policy(obs)).all()
    with pytest.raises(InvalidInputError, match=r"no policy 'policy.seed-9'"):
        run.policy_of(seed=9)


def test_an_interrupted_run_in_memory_is_not_lost() -> None:
    def interrupt(event: rookery.RecordEvent) -> None:
        if event.env_steps == 128:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        rookery.train("a2c", "classic/cartpole", **SMALL, on_record=interrupt)
    run = stopped.value.run
    assert run.policy.num_steps == 128
    assert run.resume().metrics["time/total_timesteps"].tolist() == list(range(64, 641, 64))


def test_own_classes_are_trained_and_named_again_to_resume_a_run(tmp_path: Path) -> None:
    class OwnTorso(nn.Module):
        @nn.compact
        def __call__(self, obs: Any) -> Any:
            return nn.Dense(3)(obs)

    class OwnWorkflow(A2CWorkflow):
        pass

    small = {"num_envs": 2, "rollout_length": 8, "evaluation": {"num_episodes": 2}, "recorders": ["jsonl"]}
    run = rookery.train(
        OwnWorkflow, "classic/cartpole", network=OwnTorso, total_timesteps=32, run_dir=tmp_path / "run", **small
    )
    agent = RunDirectory.open(tmp_path / "run").config["agent"]
    assert agent["name"].endswith("<locals>.OwnWorkflow")
    assert agent["network"]["encoder"].endswith("<locals>.OwnTorso")
    assert run.policy.agent_state.params["trunk"]["layers"]["encoder"]["own"]["Dense_0"]["kernel"].shape == (4, 3)
    trust._given.clear()  # as in a new process
    opened = rookery.open_run(tmp_path / "run")
    with pytest.raises(UntrustedError, match=r"^agent=.*OwnWorkflow imports a module of its own"):
        opened.resume(total_timesteps=64)
    with pytest.raises(InvalidInputError, match="trust=True"):
        _ = opened.policy
    longer = opened.resume(total_timesteps=64, agent=OwnWorkflow, network=OwnTorso)
    assert longer.metrics["time/total_timesteps"][-1] == 64


def test_a_trusted_run_imports_its_own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torsos.py").write_text(
        "import flax.linen as nn\n\n\nclass Torso(nn.Module):\n    @nn.compact\n    def __call__(self, obs):\n"
        "        return nn.Dense(3)(obs)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    settings = SMALL | {"network": {"encoder": "torsos:Torso", "hidden_sizes": [8]}}
    trained = rookery.train("a2c", "classic/cartpole", **settings, run_dir=tmp_path / "run")
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(rookery.open_run(tmp_path / "run", trust=True).policy(obs), trained.policy(obs))
    with pytest.raises(InvalidInputError, match="trust=True"):
        _ = rookery.open_run(tmp_path / "run").policy


def test_what_a_run_names_is_not_trusted_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"agent": {"name": "a2c"}, "env": {"name": "classic/cartpole"}, "total_timesteps": 64}
    RunDirectory.create(tmp_path / "run", build_workflow(config).settings.to_mapping())
    named: list[Any] = []
    monkeypatch.setattr(A2CWorkflow, "resume", lambda self, step, hooks: named.append(trust.names_given_by_user()))
    for is_trusted in (False, True):
        rookery.open_run(tmp_path / "run", trust=is_trusted).resume()
    assert named == [(), None]


def test_a_run_in_memory_that_goes_on_keeps_its_best_policy() -> None:
    half = rookery.train("a2c", "classic/cartpole", **SMALL | {"total_timesteps": 320})
    assert half._best is not None
    half._best = half._best._replace(value=1e9)
    longer = half.resume(total_timesteps=640)
    assert longer.best_policy.num_steps == half.best_policy.num_steps


def test_a_resumed_run_on_disk_is_whole_goes_on_with_its_last_settings_and_asks_before_it_deletes(
    tmp_path: Path,
) -> None:
    settings = SMALL | {"total_timesteps": 128, "learning_rate": 1e-3, "checkpoint": {"interval": 64}}
    run = rookery.train("a2c", "classic/cartpole", **settings, run_dir=tmp_path / "run")
    assert run.resume(total_timesteps=192, learning_rate=1e-4).metrics["train/loss"].shape == (3,)
    rates = run.resume(total_timesteps=256).metrics["train/learning_rate"]
    assert rates.tolist() == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
    with pytest.raises(InvalidInputError, match=r"step=192 deletes 1 later checkpoint .*: pass discard_later=True"):
        run.resume(step=192)
    assert run.resume(step=192, discard_later=True).metrics["time/total_timesteps"][-1] == 256


def test_a_policy_without_a_name_is_called_policy(run: rookery.Run) -> None:
    assert run.policy_of("policy").num_steps == run.policy.num_steps
