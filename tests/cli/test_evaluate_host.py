"""`rookery evaluate` on host environments starts the environments that it plays, and no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest

from rookery import cli
from rookery.testing.misbehaving_envs import CountingEnv


class CountedEnv(CountingEnv):
    """Counts how many were made, and how many of them were reset."""

    num_made: ClassVar[int] = 0
    num_resets: ClassVar[int] = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(length=4)
        CountedEnv.num_made += 1

    def reset(self, **options: object) -> tuple:
        CountedEnv.num_resets += 1
        return super().reset(**options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gymnasium.register("Counted-v0", entry_point=CountedEnv)
    yield
    gymnasium.registry.pop("Counted-v0")


METHODS = {
    "a2c": ["agent.num_envs=3", "agent.rollout_length=4"],
    "dqn": ["agent.num_envs=3", "agent.warmup_steps=12", "agent.batch_size=4", "agent.updates_per_step=1"],
    "openes": ["agent.population_size=4", "agent.num_lanes=3"],
}


@pytest.mark.parametrize("agent", METHODS)
@pytest.mark.parametrize("num_episodes", [2, 5])
def test_an_evaluation_makes_the_environments_that_it_plays_and_no_others(
    agent: str, num_episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    common = ["env=gymnasium/Counted-v0", f"run_dir={run}", "recorders=[]", "total_timesteps=36"]
    small = ["agent.network.hidden_sizes=[8]", "evaluation.num_episodes=1"]
    assert cli.main(["train", f"agent={agent}", *common, *small, *METHODS[agent]]) == 0
    monkeypatch.setattr(CountedEnv, "num_made", 0)
    monkeypatch.setattr(CountedEnv, "num_resets", 0)
    assert cli.main(["evaluate", str(run), "--episodes", str(num_episodes)]) == 0
    assert CountedEnv.num_made == min(num_episodes, 3)
    assert CountedEnv.num_resets == num_episodes
