"""Where the time of a runner goes, on a clock that we set."""

from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.acting.connectors import ActionConnector, ObsConnector, Rows
from rookery.runners.perf import Perf, Stage
from rookery.spaces import Space
from rookery.testing.misbehaving_envs import CountingEnv
from tests.runner_envs import FakeTime, make_runner, vectorized


def run_step(perf: Perf, time: FakeTime, **seconds: float) -> None:
    perf.start()
    for stage, duration in seconds.items():
        time.now += duration
        perf.mark(Stage(stage))
    perf.end_step()


def test_the_mean_is_over_steps_of_the_runner() -> None:
    time = FakeTime()
    perf = Perf(clock=time.clock)
    run_step(perf, time, env_wait=0.002, inference=0.001)
    time.now += 100.0  # between samples
    run_step(perf, time, env_wait=0.004)
    assert perf.milliseconds() == pytest.approx(
        {"observations": 0.0, "inference": 0.5, "actions": 0.0, "env_wait": 3.0, "render": 0.0}
    )


def test_a_phase_that_comes_twice_in_a_step_counts_twice() -> None:
    time = FakeTime()
    perf = Perf(clock=time.clock)
    perf.start()
    for stage in (Stage.ENV_WAIT, Stage.INFERENCE, Stage.ENV_WAIT):
        time.now += 0.001
        perf.mark(stage)
    perf.end_step()
    assert perf.milliseconds()["env_wait"] == pytest.approx(2.0)


def test_a_moving_average_weighs_later_steps_more_and_is_not_drawn_to_zero_at_first() -> None:
    time = FakeTime()
    perf = Perf(decay=0.5, clock=time.clock)
    run_step(perf, time, inference=0.008)
    assert perf.milliseconds()["inference"] == pytest.approx(8.0)
    run_step(perf, time, inference=0.002)
    assert perf.milliseconds()["inference"] == pytest.approx((0.5 * 8.0 + 2.0) / 1.5)


def test_nothing_was_measured_before_the_first_step() -> None:
    assert set(Perf().milliseconds().values()) == {0.0}


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, 1.5])
def test_a_decay_lies_between_0_and_1(decay: float) -> None:
    with pytest.raises(InvalidInputError, match=f"decay={decay}"):
        Perf(decay)


class SlowObs(ObsConnector):
    """Takes a second for each batch of observations."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def bind(self, obs_space: Space, action_space: Space) -> Space:
        return obs_space

    def __call__(self, obs: Any, rows: Rows) -> Any:
        self.time.now += 1.0
        return obs


class SlowActions(ActionConnector):
    """Takes two seconds for each batch of actions."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def bind(self, action_space: Space) -> Space:
        return action_space

    def __call__(self, actions: Any) -> Any:
        self.time.now += 2.0
        return np.array(actions)


class SlowEnv(CountingEnv):
    """Takes four seconds for each step."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__(1000)
        self.time = time

    def step(self, action: Any) -> Any:
        self.time.now += 4.0
        return super().step(action)


def test_a_runner_tells_which_phase_takes_how_long() -> None:
    time = FakeTime()
    runner = make_runner(
        vectorized(lambda index: SlowEnv(time)),
        obs_connectors=lambda policy: [SlowObs(time)],
        action_connectors=lambda policy: [SlowActions(time)],
    )
    runner.sample(num_steps=1)
    runner._engine.perf = Perf(clock=time.clock)
    runner.sample(num_steps=10)
    spent = runner.perf.milliseconds()
    assert spent["observations"] == pytest.approx(1000.0)
    assert spent["actions"] == pytest.approx(2000.0)
    assert spent["env_wait"] == pytest.approx(4000.0)
    assert spent["inference"] == pytest.approx(0.0)
