"""`rookery train`."""

import json
import logging
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import gymnasium
import jax
import pytest
import scipy.stats
import yaml
from PIL import Image

from rookery import cli, trust
from rookery.algorithms.ppo import PPOWorkflow
from rookery.cli import training
from rookery.cli.train import EPILOG
from rookery.cli.training import describe_results, describe_returns
from rookery.configs import compose, sweep
from rookery.cores import NUM_CORES
from rookery.distributed import memory
from rookery.envs import Env
from rookery.envs.classic.cartpole import CartPole
from rookery.evolution.optimizer import max_same_devices
from rookery.runs.directory import RunDirectory
from rookery.testing.misbehaving_envs import FaultyEnv, raise_error
from tests.report_runs import learning_rows, write_run


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands where they can leave things."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_training_leaves_everything_in_the_run_directory(finished_run: Any) -> None:
    run = finished_run.directory
    assert run.config["agent"]["name"] == "a2c"
    assert [row["time/total_timesteps"] for row in run.read_metrics()] == [16, 32, 48, 64]
    assert run.read_timing()["env_steps"] == 64
    assert any(run.tensorboard_path.iterdir())
    assert sorted(path.name for path in run.checkpoints_path.iterdir())[-1] == f"{64:012d}"
    assert Image.open(run.episode_path).n_frames > 5
    assert run.report_path.read_text().startswith("<!doctype html>")


def test_the_last_lines_say_where_things_are_how_good_it_is_and_what_to_do_next(finished_run: Any) -> None:
    last = finished_run.directory.read_metrics()[-1]["eval/mean_reward"]
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in finished_run.output.splitlines()[-5:]]
    assert rows == [
        ["run", finished_run.path],
        ["evaluation", f"{last:.2f}"],
        ["report", f"{finished_run.path}/report.html"],
        ["next", f"rookery evaluate {finished_run.path} --episodes 100 --video episode.gif"],
        [f"rookery report {finished_run.path}"],
    ]
    assert finished_run.output.startswith(f"preparing a2c on classic/cartpole ...\nrun directory {finished_run.path}\n")


def test_several_seeds_are_summed_up_by_their_interquartile_mean(seeds_run: Any) -> None:
    last = {
        row["seed"]: row["eval/mean_reward"] for row in seeds_run.directory.read_metrics() if "eval/mean_reward" in row
    }
    assert list(last) == [5, 6, 7]
    found = re.search(r"evaluation  IQM (\S+), 95 % interval (\S+) to (\S+), 3 seeds\n", seeds_run.output)
    assert found is not None
    mean, low, high = map(float, found.groups())
    assert mean == pytest.approx(scipy.stats.trim_mean(list(last.values()), 0.25), abs=0.01)
    assert min(last.values()) - 0.01 <= low <= mean <= high <= max(last.values()) + 0.01


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=pppo"], "unknown agent 'pppo'. Did you mean 'ppo'?"),
        (["env=classic/cartpol"], "unknown environment 'classic/cartpol'. Did you mean 'classic/cartpole'"),
        (["agent.lerning_rate=1"], "unknown key 'agent.lerning_rate'. Did you mean 'agent.learning_rate'?"),
        (["+agent.lerning_rate=1"], "agent: unknown key 'lerning_rate'. Did you mean 'learning_rate'"),
        (["agent.num_envs=0"], "agent.num_envs=0 must be an integer of at least 1."),
        (["agent.num_envs=many"], "agent.num_envs='many': expected an integer."),
        (["agent.discount=99"], "agent.discount=99 must lie between 0 and 1."),
        (["~preset@_global_", "agent.learning_rate={start: 1}"], "agent.learning_rate={'start': 1}: a schedule is"),
        (
            ["~preset@_global_", "agent.num_minibatches=3"],
            "agent.num_minibatches=3 does not divide 8192 samples: use 2 or 4.",
        ),
        (["agent.network.activation=tan"], "agent.network: unknown activation 'tan'. Did you mean 'tanh'?"),
        (["env.autoreset_mode=nrmal"], "env.autoreset_mode='nrmal': expected one of normal, fast, envpool, disabled."),
        (["env.kwargs.gravity=3"], "classic/cartpole: unknown argument 'gravity'"),
        (["total_timesteps=2.5"], "total_timesteps=2.5: expected an integer."),
        (["+agent._target_=os.system"], "agent._target_: a config cannot name Python objects"),
        (["=1"], "=1: expected key=value"),
        (["a" * 10_000 + "=1"], "unknown key 'aaaa"),
        (["seed=" + "9" * 5_000], "cannot read the override 'seed=9999"),
        (["agent.network.hidden_sizes=" + "[" * 500 + "]" * 500], "cannot read the override 'agent.network"),
        (["agent={a: 1}"], "agent={a: 1}: expected agent=NAME"),
        (["env=pettingzoo/os"], "pettingzoo/os: the module os has neither parallel_env nor env"),
        (["devices=1000000"], "devices=1000000: one host has at most 256."),
        (["num_seeds=1e9"], "num_seeds=1000000000 must lie between 1 and 65536."),
        (
            ["agent.num_envs=1e12", "agent.rollout_length=1"],
            "agent.num_envs=1000000000000 with agent.rollout_length=1: ",
        ),
        (["agent=dqn", "agent.batch_size=1e12"], "agent.batch_size=1000000000000: at least 8 TB of memory needed"),
        (["devices=7", "agent.num_envs=7"], "devices=7: JAX has already started with 1; set the environment"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_compiled_or_written(
    overrides: list[str],
    message: str,
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    jax.devices()  # JAX has started, which decides what can still be set
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        assert cli.main(["train", *overrides]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rookery: error: {message}")
    assert captured.err.count("\n") == 1
    assert not [record.message for record in caplog.records if "ompil" in record.message]
    assert list(working_directory.iterdir()) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent.network.hidden_sizes=[1000000000]"],
        ["agent=dqn", "agent.buffer_capacity=1e9", "total_timesteps=1e9"],
        ["agent=openes", "agent.population_size=1e9"],
        ["agent=openes", "agent.population_size=1e12"],
    ],
    ids=["parameters", "buffer", "population", "fitness"],
)
def test_a_run_that_needs_more_memory_than_there_is_says_how_much_and_leaves_nothing(
    overrides: list[str], working_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10**10)
    assert cli.main(["train", *overrides]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"rookery: error: .*: at least .* of memory needed, and 10 GB available\.\n", error)
    assert list(working_directory.iterdir()) == []


def test_a_run_directory_that_holds_a_run_is_refused_before_anything_is_compiled(
    finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = finished_run.directory.metrics_path.read_bytes()
    assert cli.main(["train", f"run_dir={finished_run.path}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"already contains a run: continue it with `rookery resume {finished_run.path}`." in captured.err
    assert finished_run.directory.metrics_path.read_bytes() == before


def test_run_directories_are_named_after_agent_env_and_time_and_never_shared(
    small: list[str], working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda format: "20250102-030405")
    config = compose(["agent=a2c", "env=brax/hopper"])
    name = "runs/a2c-brax-hopper-20250102-030405"
    at_once, mkdir = Barrier(4), Path.mkdir

    def mkdir_at_once(path: Path, *args: Any, **kwargs: Any) -> None:
        if str(path) == name:
            at_once.wait(timeout=30)
        mkdir(path, *args, **kwargs)

    Path("runs").mkdir()
    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as threads:
        patch.setattr(Path, "mkdir", mkdir_at_once)
        made = threads.map(lambda _: training.new_run_directory(config), range(4))
        assert sorted(made) == [name, f"{name}-2", f"{name}-3", f"{name}-4"]
    assert cli.main(["train", *small]) == 0
    assert (working_directory / "runs" / "a2c-classic-cartpole-20250102-030405" / "report.html").exists()


def test_show_config_prints_every_key_and_trains_nothing(
    working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "agent=impala", "--show-config", "agent.num_envs=12"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == compose(["agent=impala", "agent.num_envs=12"])
    assert "  num_envs: 12  # environments in parallel" in text
    assert list(working_directory.iterdir()) == []


def test_an_option_that_does_not_exist_is_refused_also_between_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "seed=1", "--sow-config", "seed=2"])
    assert exit_info.value.code == 2
    assert "unrecognized arguments: --sow-config seed=2" in capsys.readouterr().err


def test_words_that_are_no_overrides_are_refused_by_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "seed=1"])
    assert "unrecognized arguments: seed=1" in capsys.readouterr().err


def examples() -> list[str]:
    lines = [line.strip() for line in EPILOG.splitlines() if line.startswith("  rookery train")]
    return [re.split(r"\s{2,}", line)[0].replace(" --preset SEARCH/best.yaml", "") for line in lines]


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_help_are_valid(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_given", {"my_module:MyWorkflow": PPOWorkflow})
    overrides = [word for word in shlex.split(example)[2:] if not word.startswith("--")]
    jobs = sweep(overrides) if "--multirun" in example else [overrides]
    assert all(compose(job)["agent"]["num_envs"] > 0 for job in jobs)


def test_an_env_that_cannot_be_drawn_is_trained_all_the_same(
    small: list[str], working_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CartPole, "render", Env.render)
    assert cli.main(["train", *small, "run_dir=run"]) == 0
    output = capsys.readouterr().out
    assert "no episode was recorded: CartPole cannot be rendered" in output
    assert "  next        rookery evaluate run --episodes 100\n" in output
    assert (working_directory / "run" / "report.html").exists()


def test_devices_make_a_cpu_look_like_so_many(
    small: list[str], working_directory: Path, run_in_a_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = run_in_a_process("train", *small, "devices=2", "run_dir=run")
    assert (result.returncode, result.stderr) == (0, "")
    manifest = json.loads((working_directory / "run" / "manifest.json").read_text())
    assert len(manifest["devices"]) == 2


def test_evolution_uses_all_cores_unless_the_config_says_otherwise(
    working_directory: Path, run_in_a_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    evolution = ["agent=openes", "agent.population_size=32", "agent.network.hidden_sizes=[4]", "total_timesteps=1000"]
    task = ["env=classic/cartpole", "env.episode_length=20", "evaluation.num_episodes=4"]
    result = run_in_a_process("train", *evolution, *task, "run_dir=run")
    assert (result.returncode, result.stderr) == (0, "")
    run = working_directory / "run"
    num_devices = max_same_devices(32, NUM_CORES)
    assert len(json.loads((run / "manifest.json").read_text())["devices"]) == num_devices
    assert (f", {num_devices} devices ..." in result.stdout) == (num_devices > 1)
    assert RunDirectory.open(run).config["devices"] is None
    result = run_in_a_process("resume", "run", "total_timesteps=2000", "devices=1")
    assert (result.returncode, result.stderr) == (0, "")


MULTIPLY = """
import sys
import jax
import jax.numpy as jnp
from rookery.cli.training import prepare_jax
from rookery.configs import compose

prepare_jax(compose(sys.argv[1:]))
multiply = jax.jit(lambda matrix: matrix @ matrix @ matrix)
matrix = jnp.ones((1500, 1500))
multiply(matrix).block_until_ready()
print(multiply(matrix).is_ready())
"""


@pytest.mark.parametrize(("env", "waits"), [("gymnasium/CartPole-v1", "True"), ("classic/cartpole", "False")])
def test_calls_wait_for_their_programs_on_host_environments_alone(
    env: str, waits: str, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", MULTIPLY, "agent=ppo", f"env={env}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.stderr) == (waits, "")


def test_a_termination_saves_and_says_how_to_go_on(
    small: list[str], working_directory: Path, environment: dict[str, str]
) -> None:
    never = ["checkpoint.interval=1e9", "evaluation.interval=1e9"]  # the best policy would be saved, too
    overrides = [*small, *never, "total_timesteps=1e9", "record_interval=1000", "run_dir=a run"]
    command = [sys.executable, "-m", "rookery", "train", *overrides]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "steps/s" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        message = process.stderr.read()
    assert process.returncode == 143
    pattern = r"rookery: stopped by SIGTERM: saved at ([\d,]+) steps, continue with `rookery resume 'a run'`\.\n"
    stopped = re.fullmatch(pattern, message)
    assert stopped, message
    checkpoints = sorted(int(path.name) for path in (working_directory / "a run" / "checkpoints").iterdir())
    assert checkpoints == [0, int(stopped[1].replace(",", ""))]


def test_where_an_environment_failed_is_told_below_the_error(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("Faulty-v0", entry_point=lambda: FaultyEnv(raise_error, at_step=1))
    try:
        runner = ["env.runner.max_restarts=0", "env.runner.on_invalid=raise"]
        assert cli.main(["train", *small, "env=gymnasium/Faulty-v0", "recorders=[]", *runner]) == 2
    finally:
        gymnasium.registry.pop("Faulty-v0")
    first, second, *below = capsys.readouterr().err.splitlines()
    assert first.startswith("rookery: error: ")
    assert "raised at step 1 on action" in first
    assert first.count("ValueError") == 1
    assert second == "  Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in below[:-1])
    assert below[-1].startswith("  ValueError: ")


@pytest.mark.parametrize(
    ("returns", "num_diverged", "text"),
    [
        ([], 0, "not recorded"),
        ([100.0], 0, "100.00"),
        ([], 1, "diverged"),
        ([100.0, 100.0], 2, "IQM 100.00, 95 % interval 100.00 to 100.00, 2 of 4 seeds; 2 of 4 seeds diverged"),
        ([100.0, float("nan")], 0, "IQM 100.00, 1 of 2 seeds; 1 of 2 returns are not finite"),
        ([], 3, "not recorded; 3 of 3 seeds diverged"),
    ],
)
def test_no_seed_vanishes_from_the_summary(returns: list[float], num_diverged: int, text: str) -> None:
    assert describe_returns(returns, num_diverged) == text


def test_the_last_return_of_a_seed_before_it_diverged_is_no_result(tmp_path: Path) -> None:
    rows = learning_rows(num_seeds=4)
    rows[-1]["train/diverged"] = 1.0
    result = describe_results(write_run(tmp_path / "run", rows, num_seeds=4))
    assert re.fullmatch(r"IQM 411\.00, 95 % interval \S+ to \S+, 3 of 4 seeds; 1 of 4 seeds diverged", result)


def test_the_result_of_several_policies_is_the_return_of_each(tmp_path: Path) -> None:
    of_policies = {"left/eval/mean_reward": 3.5, "right/eval/mean_reward": -3.5}
    row = {"seed": 0, "time/total_timesteps": 10, "eval/mean_reward": 0.0}
    assert describe_results(write_run(tmp_path / "game", [row | of_policies])) == "left 3.50, right -3.50"
    assert describe_results(write_run(tmp_path / "one", [row])) == "0.00"


TRAIN_AND_LIST_IMPORTS = """
import sys
from rookery import cli
code = cli.main(sys.argv[1:])
print([name for name in ("orbax", "tensorstore") if name in sys.modules], code)
"""


def test_a_new_run_does_not_import_the_reader_of_old_checkpoints(
    small: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TRAIN_AND_LIST_IMPORTS, "train", *small, f"run_dir={tmp_path / 'run'}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-1] == "[] 0", result.stderr
