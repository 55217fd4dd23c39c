"""In one process, runs that differ in traced numbers share their compiled programs and change nothing else."""

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import rookery
from rookery.workflows import programs

TINY: dict[str, Any] = {
    "total_timesteps": 64,
    "network": {"hidden_sizes": [4]},
    "recorders": [],
    "config": {"evaluation.num_episodes": 2, "evaluation.interval": 32, "record_interval": 32},
}
PPO = {"num_envs": 4, "rollout_length": 8, "num_minibatches": 2}


def make_cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


@pytest.fixture(autouse=True)
def no_programs_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_shared", type(programs._shared)())


def compiled(caplog: pytest.LogCaptureFixture, agent: str, env: Any, **settings: Any) -> tuple[list[str], Any]:
    """Train; return what XLA compiled, and the metrics."""
    caplog.clear()
    with jax.log_compiles():
        run = rookery.train(agent, env, **TINY, **settings)
    finished = [record.getMessage() for record in caplog.records if "Finished XLA compilation" in record.getMessage()]
    metrics = {name: values for name, values in run.metrics.items() if not name.startswith("time/")}
    return [message.split(" in ")[0].split(" of ")[1] for message in finished], metrics


@pytest.mark.parametrize(
    ("agent", "env", "fixed", "first", "second"),
    [
        (
            "ppo",
            "classic/cartpole",
            PPO,
            {"learning_rate": 1e-3},
            {"learning_rate": 1e-4, "clip_ratio": 0.3, "seed": 7},
        ),
        ("ppo", "classic/cartpole", PPO | {"num_seeds": 2}, {"learning_rate": 1e-3}, {"learning_rate": 1e-4}),
        ("openes", "classic/cartpole", {"population_size": 4}, {"learning_rate": 0.1}, {"learning_rate": 0.2}),
        ("ppo", make_cartpole, PPO, {"learning_rate": 1e-3}, {"learning_rate": 1e-4}),
    ],
    ids=["device", "seeds", "evolution", "host"],
)
def test_a_second_trial_compiles_no_program_of_the_run_and_has_the_results_of_a_first(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    agent: str,
    env: Any,
    fixed: dict,
    first: dict,
    second: dict,
) -> None:
    names, _ = compiled(caplog, agent, env, **fixed, **first)
    assert "jit(_start)" in names
    names, metrics = compiled(caplog, agent, env, **fixed, **second)
    assert set(names) <= ({"jit(_act)", "jit(convert_element_type)"} if env is make_cartpole else set())
    programs._shared.clear()
    names, alone = compiled(caplog, agent, env, **fixed, **second)
    assert "jit(_start)" in names
    for name, values in alone.items():
        np.testing.assert_array_equal(metrics[name], values, err_msg=name)


def test_a_constant_of_an_environment_is_part_of_its_program(caplog: pytest.LogCaptureFixture) -> None:
    config = TINY["config"]
    lengths = {}
    for episode_length in (5, 7):
        settings = {**TINY, **PPO, "config": config | {"env.episode_length": episode_length}}
        lengths[episode_length] = rookery.train("ppo", "classic/cartpole", **settings).metrics["eval/mean_ep_length"]
    assert {length: values.max() for length, values in lengths.items()} == {5: 5.0, 7: 7.0}


def test_the_programs_of_a_process_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_SHARED", 3)
    for number in range(5):
        assert programs.Program(lambda x, number=number: x + number, enable_jit=True)(np.float32(1)) == 1 + number
    assert len(programs._shared) == 3


def test_programs_that_call_python_are_not_shared() -> None:
    """Their text does not say which function they call."""

    def calls(function: Any) -> programs.Program:
        shape = jax.ShapeDtypeStruct((), np.float32)
        return programs.Program(lambda x: jax.pure_callback(function, shape, x), enable_jit=True)

    assert calls(np.sin)(np.float32(1)) == np.sin(np.float32(1))
    assert calls(np.cos)(np.float32(1)) == np.cos(np.float32(1))
