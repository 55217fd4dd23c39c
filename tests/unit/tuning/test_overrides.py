"""Overrides of a search."""

from rookery.tuning.config import TuneConfig
from rookery.tuning.overrides import split_overrides


def test_ranges_and_choices_are_searched_and_everything_else_is_the_config_of_all_trials() -> None:
    base, space, config = split_overrides(
        [
            "agent=ppo",
            "agent.learning_rate={start: 1e-3, end: 1e-4}",
            "agent.learning_rate={low: 1e-5, high: 1e-2, scale: log}",
            "agent.num_minibatches=[2,4]",
            "agent.network.hidden_sizes=[8,8]",
            "agent.network.core=[null,'gru']",
            "trials=7",
            "search=halving",
        ]
    )
    assert space == {
        "agent.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "agent.num_minibatches": [2, 4],
        "agent.network.core": [None, "gru"],
    }
    assert base["agent"]["learning_rate"] == {"start": 1e-3, "end": 1e-4}
    assert base["agent"]["network"]["hidden_sizes"] == [8, 8]
    assert config == TuneConfig(trials=7, search="halving")


def test_a_list_of_lists_is_searched_where_the_config_has_a_list() -> None:
    base, space, _ = split_overrides(["agent.network.hidden_sizes=[[8],[16,16]]"])
    assert space == {"agent.network.hidden_sizes": [[8], [16, 16]]}
    assert base["agent"]["network"]["hidden_sizes"] != [[8], [16, 16]]
