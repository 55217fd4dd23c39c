"""The space of a search."""

import re
from typing import Any

import numpy as np
import pytest

from rookery.configs import compose
from rookery.errors import InvalidInputError, RookeryError
from rookery.hyperparameters import LinearSchedule
from rookery.tuning.space import TuneSpace, full_space, settings_of
from rookery.types import make_key

BASE = compose(["agent=ppo", "env=classic/cartpole", "agent.learning_rate=1e-3"])
RATE = {"low": 1e-5, "high": 1e-1, "scale": "log"}


def space(**given: Any) -> TuneSpace:
    return TuneSpace.of(BASE, full_space(BASE, given))


def test_the_settings_of_a_trial_do_not_depend_on_the_other_trials_and_settings() -> None:
    key = make_key(0)
    many = space(learning_rate=RATE, num_minibatches=[2, 4]).sample(key, range(5))
    (alone,) = space(learning_rate=RATE).sample(key, range(3, 4))
    assert alone == {"agent.learning_rate": many[3]["agent.learning_rate"]}


def test_ranges_are_drawn_on_their_scale_and_choices_equally_often() -> None:
    drawn = space(learning_rate=RATE, num_minibatches=[2, 4, 8]).sample(make_key(1), range(3000))
    rates = np.array([values["agent.learning_rate"] for values in drawn])
    assert rates.min() >= 1e-5
    assert rates.max() <= 1e-1
    assert np.mean(rates < 1e-3) == pytest.approx(0.5, abs=0.03)
    for choice in (2, 4, 8):
        assert np.mean([values["agent.num_minibatches"] == choice for values in drawn]) == pytest.approx(
            1 / 3, abs=0.03
        )


def test_a_schedule_is_searched_by_its_start_and_its_end_keeps_its_ratio() -> None:
    base = compose(["agent.learning_rate={start: 1e-3, end: 1e-4}"])
    (values,) = TuneSpace.of(base, {"agent.learning_rate": RATE}).sample(make_key(0), range(1))
    schedule = settings_of(base, values).hyperparameters.learning_rate  # type: ignore[attr-defined]
    assert isinstance(schedule, LinearSchedule)
    assert schedule.end == pytest.approx(schedule.start / 10)


def test_combinations_are_listed_unless_there_are_more_than_trials_or_a_range() -> None:
    choices = space(num_minibatches=[2, 4], num_epochs=[1, 2, 3])
    combinations = choices.combinations(at_most=6)
    assert combinations is not None
    assert len({tuple(values.items()) for values in combinations}) == 6
    assert choices.combinations(at_most=5) is None
    assert space(num_minibatches=[2, 4], learning_rate=RATE).combinations(at_most=100) is None


def test_a_list_is_one_choice_of_a_setting_that_is_a_list() -> None:
    layers = space(**{"agent.network.hidden_sizes": [[4], [8, 8]]}).combinations(at_most=2)
    assert layers == [{"agent.network.hidden_sizes": [4]}, {"agent.network.hidden_sizes": [8, 8]}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to search: give a range"),
        ({"learning_rte": RATE}, "Did you mean 'agent.learning_rate'?"),
        ({"learning_rate": {"low": 1.0, "high": 0.1}}, "agent.learning_rate.low=1 must be less than high=0.1."),
        ({"learning_rate": RATE | {"low": 0}}, "agent.learning_rate.low=0 must be greater than 0 on the scale log."),
        ({"learning_rate": RATE | {"low": -1, "scale": "linear"}}, "agent.learning_rate.low=-1 must be at least 0."),
        ({"learning_rate": {"low": 0.1}}, "agent.learning_rate: missing key 'high'."),
        ({"learning_rate": 1e-3}, "agent.learning_rate=0.001: expected a range"),
        ({"num_epochs": {"low": 1, "high": 4}}, "give a list of choices, like agent.num_epochs=[...]."),
        ({"num_epochs": []}, "agent.num_epochs=[]: give at least one choice."),
        ({"num_epochs": [1, 0]}, "the choice 0 of agent.num_epochs does not fit: agent.num_epochs=0 must be"),
        ({"seed": [0, 1]}, "seed cannot be searched: all trials use the same seeds"),
    ],
)
def test_each_wrong_search_has_one_clear_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RookeryError, match=re.escape(message)):
        TuneSpace.of(BASE, full_space(BASE, given) if given else {})


def test_a_disabled_number_cannot_be_searched() -> None:
    base = compose(["agent.max_grad_norm=null"])
    with pytest.raises(InvalidInputError, match="max_grad_norm is null, which disables it"):
        TuneSpace.of(base, {"agent.max_grad_norm": {"low": 0.1, "high": 1.0}})


def test_without_a_space_that_of_the_method_is_searched_but_no_disabled_number() -> None:
    base = compose(["agent=ppo", "agent.entropy_coefficient=0.0"])
    names = [dimension.key for dimension in TuneSpace.of(base, full_space(base, {})).dimensions]
    assert {"agent.learning_rate", "agent.entropy_coefficient", "agent.discount"} <= set(names)
    with pytest.raises(InvalidInputError, match="nothing to search"):
        TuneSpace.of(base, {})
    base["agent"]["clip_ratio"] = None
    assert "agent.clip_ratio" not in full_space(base, {})
