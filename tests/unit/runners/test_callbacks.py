"""What callbacks see, and that those that nobody overrides are never called."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rookery.runners.callbacks import Callbacks, EpisodeEndEvent, EpisodeEvent, FaultEvent, SampleEvent
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import ALL, BaseEnv
from rookery.runners.sampling import Sample
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error
from tests.runner_envs import Moment, ScriptedEnv, everyone, in_dicts, make_runner, vectorized


def test_only_hooks_that_are_overridden_count() -> None:
    class Steps(Callbacks):
        def on_episode_step(self, event: EpisodeEvent) -> None: ...

    class MoreSteps(Steps):
        def on_sample_end(self, event: SampleEvent) -> None: ...

    assert Callbacks().overridden() == set()
    assert Steps().overridden() == {"on_episode_step"}
    assert MoreSteps().overridden() == {"on_episode_step", "on_sample_end"}


def test_hooks_that_nobody_overrides_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class SampleEnd(Callbacks):
        def on_sample_end(self, event: SampleEvent) -> None: ...

    for hook in ("created", "start", "step", "end"):
        monkeypatch.setattr(Callbacks, f"on_episode_{hook}", lambda self, event: pytest.fail("called for nothing"))
    make_runner(vectorized(lambda index: CountingEnv(3)), callbacks=SampleEnd()).sample(num_steps=10)


class Figures(Callbacks):
    """Keeps the figures of each event as they are when it comes."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, dict]] = []
        self.created: list[tuple[int, int | None, int]] = []

    def on_episode_created(self, event: EpisodeEvent) -> None:
        self.created.append((event.episode.number, event.episode.seed, event.episode.length))

    def on_episode_step(self, event: EpisodeEvent) -> None:
        self.steps.append((event.episode.length, event.episode.episode_return, dict(event.episode.infos)))


@pytest.mark.parametrize("is_multi_agent", [False, True])
def test_a_running_episode_is_up_to_date_in_every_hook(is_multi_agent: bool) -> None:
    figures = Figures()
    env = in_dicts(ScriptedEnv(everyone("a", 3))) if is_multi_agent else vectorized(lambda index: CountingEnv(3))
    sample = make_runner(env, callbacks=figures).sample(num_episodes=2)
    assert [step[:2] for step in figures.steps] == [(1, 1.0), (2, 2.0), (3, 3.0)] * 2
    assert figures.created == [(episode.number, episode.seed, 0) for episode in sample.episodes]


def test_infos_are_those_of_the_step() -> None:
    script = [
        Moment({"a": 0}, infos={"a": {"at": 0}}),
        Moment({"a": 1}, infos={"a": {"at": 1}, "__common__": {"shared": 1}}),
        Moment({"a": 2}),
        Moment({"a": 3}, infos={"a": {"at": 3}}, terminated=[ALL]),
    ]
    figures = Figures()
    make_runner(in_dicts(ScriptedEnv(script)), callbacks=figures).sample(num_episodes=1)
    assert [infos for *_, infos in figures.steps] == [
        {"a": {"at": 1}, "__common__": {"shared": 1}},
        {},
        {"a": {"at": 3}},
    ]


def test_infos_of_a_single_agent_are_those_of_the_step() -> None:
    class TellingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {"at": self.num_steps} if self.num_steps % 2 else {}

    figures = Figures()
    make_runner(vectorized(lambda index: TellingEnv(4)), callbacks=figures).sample(num_episodes=1)
    assert [infos.get("agent", {}) for *_, infos in figures.steps] == [{"at": 1}, {}, {"at": 3}, {}]


class StoryEnv(CountingEnv):
    """Tells with each reset how many there were before, but not with the first."""

    num_resets = -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        self.num_resets += 1
        return super().reset(seed=seed)[0], {"before": self.num_resets} if self.num_resets else {}


def stories_in(mode: AutoresetMode) -> AutoresetBaseEnv:
    return AutoresetBaseEnv(SyncVectorEnv([lambda: StoryEnv(3)], autoreset_mode=mode))


@pytest.mark.parametrize(
    "make_base_env",
    [
        lambda: vectorized(lambda index: StoryEnv(3)),
        *(functools.partial(stories_in, mode) for mode in AutoresetMode),
    ],
)
def test_an_episode_starts_with_the_infos_of_its_reset(make_base_env: Callable[[], BaseEnv]) -> None:
    class Starts(Callbacks):
        def __init__(self) -> None:
            self.infos: list[dict] = []

        def on_episode_start(self, event: EpisodeEvent) -> None:
            self.infos.append({agent: dict(info) for agent, info in event.episode.infos.items()})

    starts = Starts()
    make_runner(make_base_env(), callbacks=starts).sample(num_episodes=3)
    assert starts.infos == [{}, {"agent": {"before": 1}}, {"agent": {"before": 2}}]


def test_numbers_of_envs_and_over_them_those_of_callbacks_are_reported_with_the_episode() -> None:
    class GameEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {
                "episode_metrics": {"game_score": 7, "mean_height": 0}
            } if self.num_steps == self.length else {}

    class Heights(Callbacks):
        def on_episode_start(self, event: EpisodeEvent) -> None:
            event.episode.user_data["heights"] = []

        def on_episode_step(self, event: EpisodeEvent) -> None:
            event.episode.user_data["heights"].append(event.episode.length)

        def on_episode_end(self, event: EpisodeEndEvent) -> None:
            event.episode.metrics["mean_height"] = sum(event.episode.user_data["heights"]) / event.episode.length

    sample = make_runner(vectorized(lambda index: GameEnv(3)), callbacks=Heights()).sample(num_episodes=2)
    assert [episode.metrics for episode in sample.episodes] == [{"game_score": 7.0, "mean_height": 2.0}] * 2


def test_events_tell_the_env_and_the_sample() -> None:
    class Witness(Callbacks):
        def __init__(self) -> None:
            self.base_envs: list[Any] = []
            self.samples: list[Sample] = []
            self.fault_lengths: list[tuple[int, float]] = []

        def on_env_fault(self, event: FaultEvent) -> None:
            self.base_envs.append(event.base_env)
            self.fault_lengths.append((event.episode.length, event.episode.episode_return))

        def on_sample_end(self, event: SampleEvent) -> None:
            self.base_envs.append(event.base_env)
            self.samples.append(event.sample)

    witness = Witness()
    base_env = vectorized(lambda index: FaultyEnv(raise_error, at_step=2))
    runner = make_runner(base_env, callbacks=witness)
    sample = runner.sample(num_steps=3)
    assert witness.samples == [sample]
    assert witness.fault_lengths == [(2, 2.0)]
    assert all(env is base_env for env in witness.base_envs)
