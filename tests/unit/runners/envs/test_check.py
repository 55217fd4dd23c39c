"""The verdict on host environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.errors import UnknownNameError
from rookery.runners.envs import check as check_module
from rookery.runners.envs.base_env import ALL
from rookery.runners.envs.check import check_host_env_by_name
from rookery.runners.envs.conversion import to_base_env
from rookery.testing.check_report import CheckReport, Outcome
from tests.runner_envs import Moment, ScriptedEnv


class Walk(gymnasium.Env):
    """A walk over ten steps from a random start; each test breaks one thing about it."""

    observation_space = gymnasium.spaces.Box(-20.0, 20.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place, self.num_steps = self.np_random.uniform(-1.0, 1.0), 0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.place += 2 * int(action) - 1
        self.num_steps += 1
        return self.obs(), 1.0, self.is_over(), False, {}

    def obs(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def is_over(self) -> bool:
        return self.num_steps == 10

    def render(self) -> Any:
        return np.zeros((4, 6, 3), np.uint8)


class Raising(Walk):
    def step(self, action: Any) -> Any:
        if self.num_steps == 3:
            raise ValueError("bad leg")
        return super().step(action)


class Asserting(Walk):
    def step(self, action: Any) -> Any:
        if self.num_steps == 3:
            raise AssertionError  # as `assert` does outside of tests
        return super().step(action)


class Paying(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float("inf"), *rest


class FarAway(Walk):
    """Leaves the space once, where the runner, which looks at bounds now and then, does not see it."""

    num_resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.num_resets += 1
        return super().reset(**kwargs)

    def obs(self) -> np.ndarray:
        is_away = (self.num_resets, self.num_steps) == (1, 7)
        return super().obs() + np.float32(100.0 if is_away else 0.0)


class Unseeded(Walk):
    def obs(self) -> np.ndarray:
        return np.random.default_rng().random(1, np.float32)


class SameStart(Walk):
    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        super().reset(**kwargs)
        self.place = 0.0
        return self.obs(), {}


class Endless(Walk):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

    def is_over(self) -> bool:
        return False


class Undrawn(Walk):
    def render(self) -> Any:
        raise RuntimeError("no ink")


class Gray(Walk):
    def render(self) -> Any:
        return np.zeros((4, 6), np.uint8)


def outcomes(report: CheckReport) -> dict[str, Outcome]:
    """The checks that did not pass."""
    return {check.name: check.outcome for check in report.checks if check.outcome is not Outcome.PASSED}


def finding(report: CheckReport, name: str) -> str:
    (text,) = [check.finding for check in report.checks if check.name == name]
    return text


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    def check_it(make_env: Any) -> CheckReport:
        def make_host_env(name: str, num_envs: int, render: bool) -> Any:
            return to_base_env(num_envs=num_envs, make_env=lambda index: make_env(), name=name)

        monkeypatch.setattr(check_module, "make_host_env", make_host_env)
        return check_host_env_by_name("walks/walk")

    return check_it


def test_a_good_environment_passes_and_each_check_says_what_it_saw(check: Any) -> None:
    report = check(Walk)
    assert outcomes(report) == {"all agents take part": Outcome.SKIPPED}
    assert finding(report, "random steps run") == "256 steps, 25 ends of episodes."
    assert finding(report, "episodes end") == "the first after 10 random steps."
    assert finding(report, "render returns an image") == "uint8[4, 6, 3]."
    assert report.verdict == "walks/walk: passed (7 checks, 0 warnings, 1 skipped)"


@pytest.mark.parametrize(
    ("make_env", "name", "outcome", "said"),
    [
        (Raising, "random steps run", Outcome.FAILED, "step failed after 3 steps (raised): ValueError('bad leg')."),
        (
            Asserting,
            "random steps run",
            Outcome.FAILED,
            "AssertionError() in test_check.py, line ",
        ),
        (Paying, "random steps run", Outcome.FAILED, "step failed after 0 steps (invalid)"),
        (FarAway, "observations are in the space", Outcome.FAILED, "at step 7 the observation[0] is "),
        (Unseeded, "same seed, same trajectory", Outcome.FAILED, "differ in the observation after reset"),
        (SameStart, "different seeds, other starts", Outcome.WARNING, "four seeds gave the same"),
        (Endless, "episodes end", Outcome.WARNING, "no end within 300 random steps"),
        (Undrawn, "render returns an image", Outcome.WARNING, "no ink"),
        (Gray, "render returns an image", Outcome.FAILED, "uint8[4, 6]; expected uint8[height, width, 3]"),
    ],
)
def test_what_is_wrong_is_found_and_named(
    check: Any, monkeypatch: pytest.MonkeyPatch, make_env: Any, name: str, outcome: Outcome, said: str
) -> None:
    monkeypatch.setattr(check_module, "MAX_STEPS_TO_AN_END", 300)
    report = check(make_env)
    assert outcomes(report)[name] is outcome, report
    assert said in finding(report, name)
    assert report.passed == (outcome is not Outcome.FAILED)


def test_an_agent_that_never_takes_part_is_a_warning(check: Any) -> None:
    moments = [Moment(obs={"a": 0.0}), Moment(obs={"a": 1.0}, rewards={"a": 1.0}, terminated=("a", ALL))]
    report = check(lambda: ScriptedEnv(moments, agents=("a", "b")))
    assert outcomes(report)["all agents take part"] is Outcome.WARNING
    assert finding(report, "all agents take part") == "b never took part in 256 random steps."


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("ale/Breakout-v5", "ale_py"),
        ("envpool/CartPole-v1", "envpool"),
        ("pettingzoo/mpe2.simple_spread_v3", "mpe2"),
        ("pettingzoo/classic.tictactoe_v3", "pettingzoo"),
        ("gymnasium/CartPole-v1", "gymnasium"),
    ],
)
def test_environments_of_every_host_library_pass(name: str, package: str) -> None:
    pytest.importorskip(package)
    report = check_host_env_by_name(name)
    assert report.passed, report
    assert report.subject == name
    assert outcomes(report).keys() <= {
        "all agents take part",
        "different seeds, other starts",
        "gymnasium's own check_env",
    }


def test_an_unknown_name_is_an_error_before_anything_is_checked() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'gymnasium/CartPole-v1'"):
        check_host_env_by_name("gymnasium/CartPol-v1", show_fn=pytest.fail)
