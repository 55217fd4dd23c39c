"""What Gymnasium itself has to say when an env is made for its checks."""

import warnings

import gymnasium
import pytest

from rookery.testing.check_env import check_env_by_name
from rookery.testing.check_gymnasium import GYMNASIUM_OWN_CHECK
from rookery.testing.check_report import CheckReport, Outcome


def checked(name: str) -> tuple[CheckReport, list[str]]:
    """Check an env; return the report, and the warnings that would be printed beside it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = check_env_by_name(f"gymnasium/{name}")
    return report, [str(warning.message) for warning in caught]


def own_warnings(report: CheckReport) -> list[str]:
    own = (check for check in report.checks if check.name == GYMNASIUM_OWN_CHECK)
    return [check.finding for check in own if check.outcome is Outcome.WARNING]


def test_warnings_of_gymnasium_at_making_are_not_printed() -> None:
    for name in ("FrozenLake", "CartPole-v0"):
        report, printed = checked(name)
        assert report.passed, report
        assert printed == []


def test_an_older_version_of_an_env_is_told_of_the_newest() -> None:
    assert "there is a newer version: CartPole-v1." in own_warnings(checked("CartPole-v0")[0])
    assert not any("newer version" in text for text in own_warnings(checked("CartPole-v1")[0]))


def test_what_the_env_itself_warns_of_is_still_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_with_a_warning() -> gymnasium.Env:
        warnings.warn("the physics are made up", stacklevel=1)
        return gymnasium.make("CartPole-v1")

    spec = gymnasium.envs.registration.EnvSpec("Invented-v0", make_with_a_warning)
    monkeypatch.setitem(gymnasium.registry, "Invented-v0", spec)
    assert "the physics are made up" in checked("Invented-v0")[1]
