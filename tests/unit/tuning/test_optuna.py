"""Optuna as a sampler."""

import sys

import numpy as np
import pytest

from rookery.configs import compose
from rookery.errors import MissingExtraError
from rookery.runs.trial_results import DIVERGED, FINISHED, TrialResult
from rookery.tuning.optuna import OptunaSampler
from rookery.tuning.samplers import Trial
from rookery.tuning.space import TuneSpace

SPACE = TuneSpace.of(
    compose(["agent=ppo", "agent.learning_rate=1e-3"]),
    {
        "agent.learning_rate": {"low": 1e-5, "high": 1e-1, "scale": "log"},
        "agent.num_minibatches": [2, 4, 8],
    },
)


def results_of(trials: list[Trial]) -> list[TrialResult]:
    """Let trials be the better, the closer the rate is to 1e-3; a rate above 1e-2 diverges."""
    rates = [trial.values["agent.learning_rate"] for trial in trials]
    return [
        TrialResult(trial.number, 1, trial.values, DIVERGED)
        if rate > 1e-2
        else TrialResult(trial.number, 1, trial.values, FINISHED, fitness=-abs(np.log10(rate) + 3.0))
        for trial, rate in zip(trials, rates, strict=True)
    ]


def proposed(num_trials: int) -> list[Trial]:
    sampler, trials = OptunaSampler(SPACE, num_trials, round_size=8, seed=0), []
    while round_of_trials := sampler.ask():
        trials += round_of_trials
        sampler.tell(results_of(round_of_trials))
    return trials


def test_it_proposes_better_trials_with_more_results_and_the_same_again_from_the_same_seed() -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    trials = proposed(60)
    assert [trial.number for trial in trials] == list(range(60))
    assert proposed(20) == trials[:20]
    distances = [abs(np.log10(trial.values["agent.learning_rate"]) + 3.0) for trial in trials]
    assert np.median(distances[-20:]) < 0.5  # of random trials, 1
    assert {trial.values["agent.num_minibatches"] for trial in trials} == {2, 4, 8}


def test_without_optuna_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rookery\[tune\]'"):
        OptunaSampler(SPACE, 4, 2, 0)
