"""The settings of a search."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rookery.configuration import check_settings, from_mapping, setting
from rookery.errors import InvalidInputError

RANDOM, HALVING, OPTUNA = "random", "halving", "optuna"
OPTUNA_ROUND = 8
"""The default number of trials that Optuna proposes at a time."""


@dataclass(frozen=True)
class TuneConfig:
    """How settings are searched."""

    trials: int = setting(32, low=1, high=10_000, help="settings to try")
    search: str = setting(
        RANDOM,
        choices=(RANDOM, HALVING, OPTUNA),
        help="random: draw all settings at the start; halving: stop the worse half early; optuna: learn from results",
    )
    rungs: int = setting(
        3,
        low=2,
        high=32,
        help="halving: equal parts of total_timesteps; after each, the worse half of the trials stops",
    )
    trials_at_once: int | None = setting(
        None, low=1, help=f"trials side by side in one program; null: all that fit into memory, optuna: {OPTUNA_ROUND}"
    )
    search_dir: str | None = setting(None, help="null: searches/<agent>-<env>-<time>")

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def num_rungs(self) -> int:
        """The number of parts of the budget."""
        return self.rungs if self.search == HALVING else 1


def tune_config(values: Mapping[str, Any]) -> TuneConfig:
    """Build the settings of a search from those that were given."""
    config = from_mapping(TuneConfig, values, "")
    if "rungs" in values and config.search != HALVING:
        raise InvalidInputError(f"rungs={config.rungs} is for search={HALVING}, and search={config.search}.")
    return config
