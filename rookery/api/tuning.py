"""A search in one call."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rookery.configs import compose, split_values, with_values
from rookery.configuration import field_names
from rookery.registry import agent_name
from rookery.runners.envs.own import name_own_env
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import TrialResult, best_of
from rookery.tuning.config import TuneConfig, tune_config
from rookery.tuning.search import Search
from rookery.workflows.workflow import Workflow


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    trials: tuple[TrialResult, ...]
    """The last result of each trial, the best first."""

    @property
    def best(self) -> TrialResult | None:
        """The best trial; None if none has a fitness. `rookery.train` takes its `values` as `config`."""
        return best_of(self.trials)


def tune(
    agent: str | type[Workflow],
    env: Any,
    space: Mapping[str, Any],
    *,
    on_progress: Callable[[str], object] = lambda line: None,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> SearchResult:
    """Search the best setting, as `rookery tune` does.

    `space` has ranges `{low, high, scale}` and lists of choices by key; a key without a dot may also be one of the
    agent's. `settings` and `config` are those of `rookery.train` and of the search: `trials`, `search`, `rungs`,
    `trials_at_once`, `search_dir`. With a `search_dir`, a search that was stopped is continued. `on_progress` is called
    with lines about the progress.
    """
    name = env if isinstance(env, str) else name_own_env(env)
    values, ray = split_values(settings | dict(config or {}))
    own = {key: values.pop(key) for key in field_names(TuneConfig) if key in values}
    base = with_values(compose([f"agent='{agent_name(agent)}'", f"env={name}"]), values)
    search = Search(base, space, tune_config(own), ray)
    search.check()
    with _directory(search) as directory:
        return SearchResult(tuple(search.run(directory, on_progress)))


@contextlib.contextmanager
def _directory(search: Search) -> Iterator[SearchDirectory]:
    """Yield the configured directory of a search, or a temporary one."""
    path = search.config.search_dir
    if path is not None:
        yield search.directory(os.fspath(path))
        return
    with tempfile.TemporaryDirectory() as folder:
        yield SearchDirectory.create(folder, search.description)
