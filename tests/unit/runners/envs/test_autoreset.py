import functools
import itertools
from typing import Any

import gymnasium
import gymnasium.spaces as gym_spaces
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rookery.errors import InvalidInputError
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, BaseEnv, End, EnvOutputs
from rookery.runners.envs.gymnasium_vector import VectorInfo, autoreset_mode_of
from rookery.runners.envs.validation import CALLS_PER_CHECK
from rookery.runners.faults import FaultKind, Phase
from rookery.testing.misbehaving_envs import (
    CountingEnv,
    FaultyEnv,
    LyingEnv,
    ReusedBufferEnv,
    raise_error,
    with_nan_reward,
)

MODES = list(AutoresetMode)
Transition = tuple[list, int, float, list, End]


def action_of(env: int, index: int) -> int:
    """The action of an env at this step: twenty times the same, then twenty times in turn."""
    return (env + (index if index // 20 % 2 else 0)) % 2


def drive(base_env: BaseEnv, num_actions: int) -> list[list[Transition]]:
    """Let every env make this number of steps, resetting each that is over at once; return their transitions."""
    num_envs = base_env.num_envs
    obs: dict[int, list] = {}
    transitions: list[list[Transition]] = [[] for _ in range(num_envs)]
    while min(map(len, transitions)) < num_actions:
        over: list[int] = []
        for polled in (base_env.poll(), None):
            if polled is None:
                for env in over:
                    base_env.try_reset(env, seed=None)
                polled = base_env.poll(timeout=0)
            assert polled.failed == {}
            over += polled.over
            for env, row, reward, end, is_reset in zip(
                polled.envs.tolist(), polled.obs, polled.rewards, polled.ends, polled.is_reset, strict=True
            ):
                if not is_reset:
                    action = action_of(env, len(transitions[env]))
                    transitions[env].append((obs.pop(env), action, float(reward), row.tolist(), End(int(end))))
                if end == End.RUNNING:
                    obs[env] = row.tolist()
        if obs:
            envs = sorted(obs)
            base_env.send_actions(
                Actions(np.array(envs), np.array([action_of(env, len(transitions[env])) for env in envs]))
            )
    return [some[:num_actions] for some in transitions]


def step_by_hand(envs: list[gymnasium.Env], seeds: list[int], num_actions: int) -> list[list[Transition]]:
    """Step envs one by one: seeds are given to their first episode only."""
    transitions: list[list[Transition]] = [[] for _ in envs]
    for index, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
        obs, _ = env.reset(seed=seed)
        for count in range(num_actions):
            action = action_of(index, count)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            end = End.TERMINATED if terminated else End.TRUNCATED if truncated else End.RUNNING
            transitions[index].append((obs.tolist(), action, float(reward), next_obs.tolist(), end))
            obs = next_obs if end == End.RUNNING else env.reset()[0]
    return transitions


make_cart_pole = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)


@pytest.mark.parametrize("mode", MODES)
def test_transitions_are_those_of_the_envs_stepped_one_by_one(mode: AutoresetMode) -> None:
    base_env = AutoresetBaseEnv(SyncVectorEnv([make_cart_pole] * 3, autoreset_mode=mode))
    seeds = [11, 12, 13]
    for env, seed in enumerate(seeds):
        base_env.try_reset(env, seed)
    transitions = drive(base_env, num_actions=60)
    assert transitions == step_by_hand([make_cart_pole() for _ in seeds], seeds, num_actions=60)
    assert {end for some in transitions for *_, end in some} == {End.RUNNING, End.TERMINATED, End.TRUNCATED}


@pytest.mark.parametrize("mode", MODES)
def test_processes_of_gymnasium_give_the_same_transitions(mode: AutoresetMode) -> None:
    base_env = AutoresetBaseEnv(AsyncVectorEnv([make_cart_pole] * 2, context="spawn", autoreset_mode=mode))
    try:
        base_env.try_reset(0, 4)
        base_env.try_reset(1, 5)
        assert drive(base_env, num_actions=30) == step_by_hand([make_cart_pole() for _ in range(2)], [4, 5], 30)
    finally:
        base_env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_observations_of_envs_that_reuse_their_memory_are_true(mode: AutoresetMode) -> None:
    envs = [lambda: ReusedBufferEnv(length=3)] * 2
    for copy in (True, False):
        base_env = AutoresetBaseEnv(SyncVectorEnv(envs, copy=copy, autoreset_mode=mode))
        rows = [(before, after, end) for before, _, _, after, end in drive(base_env, num_actions=6)[0]]
        assert (
            rows
            == [
                ([0.0], [1.0], End.RUNNING),
                ([1.0], [2.0], End.RUNNING),
                ([2.0], [3.0], End.TERMINATED),
            ]
            * 2
        )


def counting(mode: AutoresetMode, *lengths: int) -> AutoresetBaseEnv:
    return AutoresetBaseEnv(SyncVectorEnv([lambda n=n: CountingEnv(n) for n in lengths], autoreset_mode=mode), "test")


def act(base_env: AutoresetBaseEnv, *envs: int) -> EnvOutputs:
    base_env.send_actions(Actions(np.array(envs), np.zeros(len(envs), np.int64)))
    return base_env.poll()


def test_the_first_poll_gives_the_resets_of_all_and_then_there_is_nothing_to_say() -> None:
    for mode in MODES:
        base_env = counting(mode, 3, 3)
        polled = base_env.poll()
        assert (polled.envs.tolist(), polled.is_reset.tolist(), polled.obs.tolist()) == (
            [0, 1],
            [True, True],
            [[0], [0]],
        )
        assert len(base_env.poll().envs) == 0


class DiaryEnv(CountingEnv):
    """Writes down the seeds of its resets."""

    def __init__(self, diary: list[int | None], length: int) -> None:
        super().__init__(length)
        self._diary = diary

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self._diary.append(seed)
        return super().reset(seed=seed)


def diaries_of(mode: AutoresetMode, *lengths: int) -> tuple[AutoresetBaseEnv, list[list[int | None]]]:
    diaries: list[list[int | None]] = [[] for _ in lengths]
    envs = [functools.partial(DiaryEnv, diary, length) for diary, length in zip(diaries, lengths, strict=True)]
    return AutoresetBaseEnv(SyncVectorEnv(envs, autoreset_mode=mode)), diaries


@pytest.mark.parametrize("mode", MODES)
def test_no_env_is_reset_before_the_first_poll_which_uses_their_seeds(mode: AutoresetMode) -> None:
    base_env, diaries = diaries_of(mode, 3, 3)
    base_env.try_reset(0, seed=5)
    base_env.try_reset(1, seed=6)
    assert diaries == [[], []]
    base_env.poll()
    assert diaries == [[5], [6]]


def test_envs_that_do_not_reset_themselves_begin_every_episode_with_its_own_seed() -> None:
    base_env, diaries = diaries_of(AutoresetMode.DISABLED, 1, 2)
    base_env.try_reset(0, seed=5)
    base_env.try_reset(1, seed=6)
    base_env.poll()
    for seed in (7, 8):
        assert 0 in act(base_env, 0, 1).over
        base_env.try_reset(0, seed)
        assert list(base_env.poll(timeout=0).resets) == [0]
    assert diaries == [[5, 7, 8], [6]]


def test_a_seed_is_kept_while_an_env_goes_on_unseen() -> None:
    base_env, diaries = diaries_of(AutoresetMode.DISABLED, 1, 5)
    base_env.poll()
    act(base_env, 0, 1)
    base_env.try_reset(0, seed=7)
    act(base_env, 1)  # resets env 0 too, to step it with the other
    assert list(base_env.poll(timeout=0).resets) == [0]
    assert diaries == [[None, None, 7], [None]]


def test_an_env_that_was_not_requested_when_all_were_restarted_still_gets_its_seed() -> None:
    diaries: list[list[int | None]] = [[], []]

    class FailingEnv(DiaryEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 2:
                raise ValueError("bad leg")
            return super().step(action)

    def make_env() -> SyncVectorEnv:
        envs = [functools.partial(DiaryEnv, diaries[0], 1), functools.partial(FailingEnv, diaries[1], 9)]
        return SyncVectorEnv(envs, autoreset_mode=AutoresetMode.DISABLED)

    base_env = AutoresetBaseEnv(make_env(), make_env=make_env)
    base_env.poll()
    assert list(act(base_env, 0, 1).over) == [0]
    act(base_env, 1)
    assert list(act(base_env, 1).failed) == [1]
    base_env.try_restart(1, seed=4)
    assert list(base_env.poll().resets) == [1]
    base_env.try_reset(0, seed=3)
    assert list(base_env.poll().resets) == [0]
    assert (diaries[0][-1], diaries[1][-1]) == (3, 4)


def test_a_reset_in_the_next_step_comes_with_the_step_of_the_others() -> None:
    base_env = counting(AutoresetMode.NEXT_STEP, 1, 3)
    base_env.poll()
    assert list(act(base_env, 0, 1).over) == [0]
    base_env.try_reset(0, None)
    assert len(base_env.poll(timeout=0).envs) == 0
    polled = act(base_env, 1)
    assert (polled.envs.tolist(), polled.is_reset.tolist()) == ([1, 0], [False, True])
    assert polled.obs[:, 0].tolist() == [2.0, 0.0]
    assert (list(polled.stepped), list(polled.resets)) == ([1], [0])


def test_a_reset_in_the_same_step_or_on_demand_is_there_at_once() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        base_env = counting(mode, 1, 3)
        base_env.poll()
        polled = act(base_env, 0, 1)
        assert (polled.obs[:, 0].tolist(), list(polled.over)) == ([1.0, 1.0], [0])
        base_env.try_reset(0, None)
        polled = base_env.poll(timeout=0)
        assert (polled.envs.tolist(), polled.obs.tolist(), polled.is_reset.tolist()) == ([0], [[0.0]], [True])


def test_envs_that_are_all_over_are_reset_without_an_action() -> None:
    for mode in MODES:
        base_env = counting(mode, 1, 1)
        base_env.poll()
        assert list(act(base_env, 0, 1).over) == [0, 1]
        for env in range(2):
            base_env.try_reset(env, None)
        assert list(base_env.poll().resets) == [0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_is_asked_for_late_is_back_with_the_start_of_an_episode(mode: AutoresetMode) -> None:
    base_env = counting(mode, 2, 100)
    base_env.poll()
    act(base_env, 0, 1)
    assert list(act(base_env, 0, 1).over) == [0]
    for count in range(3, 8):
        polled = act(base_env, 1)
        assert (polled.envs.tolist(), polled.obs.tolist()) == ([1], [[float(count)]])
    base_env.try_reset(0, None)
    polled = base_env.poll(timeout=0)
    while 0 not in polled.envs:
        polled = act(base_env, 1)
    row = polled.envs.tolist().index(0)
    assert (polled.obs[row].tolist(), bool(polled.is_reset[row])) == ([0.0], True)
    assert act(base_env, 0, 1).obs[0].tolist() == [1.0]


def test_actions_must_go_to_all_envs_that_can_act_and_to_no_other() -> None:
    base_env = counting(AutoresetMode.NEXT_STEP, 1, 3)
    with pytest.raises(InvalidInputError, match="env 0 of test cannot act: call try_reset"):
        act(base_env, 0, 1)
    base_env.poll()
    with pytest.raises(InvalidInputError, match="env 1 of test can act and was sent no action"):
        act(base_env, 0)
    act(base_env, 0, 1)
    with pytest.raises(InvalidInputError, match="env 0 of test cannot act"):
        act(base_env, 0, 1)


def test_a_wrong_reward_fails_one_env_which_is_back_with_a_later_episode() -> None:
    envs = [lambda: LyingEnv(with_nan_reward, at_step=1, length=3), lambda: CountingEnv(length=100)]
    base_env = AutoresetBaseEnv(SyncVectorEnv(envs))
    base_env.poll()
    act(base_env, 0, 1)
    polled = act(base_env, 0, 1)
    assert {env: failed.kind for env, failed in polled.failed.items()} == {0: FaultKind.INVALID}
    assert (polled.envs.tolist(), polled.obs.tolist()) == ([1], [[2.0]])
    base_env.try_restart(0, None)
    assert act(base_env, 1).envs.tolist() == [1]
    polled = act(base_env, 1)
    assert (polled.obs[:, 0].tolist(), list(polled.resets)) == ([4.0, 0.0], [0])


def test_a_wrong_reward_of_an_env_that_nobody_follows_is_nobodys_concern() -> None:
    base_env = AutoresetBaseEnv(
        SyncVectorEnv([lambda: LyingEnv(with_nan_reward, length=2), lambda: CountingEnv(length=100)])
    )
    base_env.poll()
    assert list(act(base_env, 0, 1).failed) == [0]
    assert [act(base_env, 1).failed for _ in range(6)] == [{}] * 6


class NegativeEnv(CountingEnv):
    """Observes what its space does not hold."""

    def _obs(self) -> np.ndarray:
        return np.array([-1.0], np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sample_bounds", [True, False])
def test_the_bounds_of_every_env_are_checked_in_turn_unless_told_not_to(
    mode: AutoresetMode, sample_bounds: bool
) -> None:
    envs = [lambda: CountingEnv(length=100), lambda: NegativeEnv(length=100)]
    base_env = AutoresetBaseEnv(SyncVectorEnv(envs, autoreset_mode=mode), sample_bounds=sample_bounds)
    base_env.poll()
    assert all(act(base_env, 0, 1).failed == {} for _ in range(CALLS_PER_CHECK)), "it was the turn of the other"
    polled = act(base_env, 0, 1)
    if not sample_bounds:
        assert polled.failed == {}
        return
    assert {env: failed.kind for env, failed in polled.failed.items()} == {1: FaultKind.INVALID}
    assert "observation is -1.0 at [0], which is outside of Box" in polled.failed[1].error
    assert (polled.envs.tolist(), polled.obs.tolist()) == ([0], [[CALLS_PER_CHECK + 1.0]])


class NanStartEnv(CountingEnv):
    """Begins with an observation that is not finite."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        return np.full_like(obs, np.nan), info


@pytest.mark.parametrize("mode", MODES)
def test_a_first_observation_that_is_not_finite_fails_its_env_alone(mode: AutoresetMode) -> None:
    envs = [lambda: CountingEnv(length=5), lambda: NanStartEnv(length=5)]
    polled = AutoresetBaseEnv(SyncVectorEnv(envs, autoreset_mode=mode), sample_bounds=False).poll()
    assert polled.resets == [0]
    assert {env: failed.kind for env, failed in polled.failed.items()} == {1: FaultKind.INVALID}


def test_an_exception_fails_all_envs_which_are_restarted_once() -> None:
    num_made = 0

    def make_env() -> SyncVectorEnv:
        nonlocal num_made
        num_made += 1
        return SyncVectorEnv([lambda: CountingEnv(5), lambda: FaultyEnv(raise_error, at_step=1)])

    base_env = AutoresetBaseEnv(make_env(), make_env=make_env)
    base_env.poll()
    act(base_env, 0, 1)
    polled = act(base_env, 0, 1)
    assert {env: (failed.kind, failed.phase) for env, failed in polled.failed.items()} == dict.fromkeys(
        range(2), (FaultKind.RAISED, Phase.STEP)
    )
    assert "Traceback" in polled.failed[0].traceback
    with pytest.raises(InvalidInputError, match="try_restart"):
        act(base_env, 0, 1)
    for env in range(2):
        base_env.try_restart(env, seed=env)
    polled = base_env.poll()
    assert (polled.obs.tolist(), list(polled.resets), num_made) == ([[0.0], [0.0]], [0, 1], 2)
    assert act(base_env, 0, 1).obs.tolist() == [[1.0], [1.0]]


def test_without_a_way_to_restart_them_failed_envs_are_lost() -> None:
    base_env = AutoresetBaseEnv(SyncVectorEnv([lambda: FaultyEnv(raise_error, at_step=0)]))
    base_env.poll()
    assert list(act(base_env, 0).failed) == [0]
    base_env.try_restart(0, None)
    failed = base_env.poll().failed[0]
    assert (failed.kind, failed.phase) == (FaultKind.EXITED, Phase.MAKE)
    assert "make_env" in failed.error


class DictEnv(gymnasium.Env):
    """Observes the steps made and the last action, as a dict; acts on a dict."""

    observation_space = gym_spaces.Dict(count=gym_spaces.Discrete(100), last=gym_spaces.Box(-1, 1, (2,)))
    action_space = gym_spaces.Dict(move=gym_spaces.Box(-1, 1, (2,)), kind=gym_spaces.Discrete(2, start=3))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.count = 0
        return {"count": 0, "last": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> tuple:
        assert self.action_space.contains(action)
        self.count += 1
        obs = {"count": self.count, "last": np.array(action["move"])}
        return obs, 1.0, self.count == 2, False, {"kind": int(action["kind"])}


@pytest.mark.parametrize("mode", MODES)
def test_trees_of_observations_and_actions_keep_their_structure(mode: AutoresetMode) -> None:
    base_env = AutoresetBaseEnv(SyncVectorEnv([DictEnv] * 2, autoreset_mode=mode))
    base_env.poll()
    move = np.array([[0.5, -0.5], [1.0, 0.0]], np.float32)
    for count in (1, 2):
        base_env.send_actions(Actions(np.arange(2), {"move": move, "kind": np.array([3, 4], np.int32)}))
        polled = base_env.poll()
        assert polled.obs["count"].tolist() == [count, count]
        np.testing.assert_array_equal(polled.obs["last"], move)
        assert {env: dict(infos[SINGLE_AGENT]) for env, infos in polled.infos.items()} == {
            0: {"kind": 3},
            1: {"kind": 4},
        }
    assert polled.ends.tolist() == [End.TERMINATED] * 2


def test_the_mode_of_an_env_is_its_own_even_if_another_has_overwritten_the_shared_metadata() -> None:
    first = SyncVectorEnv([make_cart_pole], autoreset_mode=AutoresetMode.SAME_STEP)
    second = SyncVectorEnv([make_cart_pole], autoreset_mode=AutoresetMode.NEXT_STEP)
    assert first.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP, "Gymnasium has repaired it"
    assert autoreset_mode_of(first) is AutoresetMode.SAME_STEP
    assert autoreset_mode_of(second) is AutoresetMode.NEXT_STEP
    assert autoreset_mode_of(gymnasium.vector.VectorWrapper(first)) is AutoresetMode.SAME_STEP


class SilentVectorEnv(gymnasium.vector.VectorEnv):
    """Does not say how it resets."""

    num_envs = 1
    single_observation_space = gym_spaces.Box(0, 1, (1,))
    single_action_space = gym_spaces.Discrete(2)


def test_an_env_without_an_autoreset_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # What ALE does to all vector envs that have no metadata of their own.
    monkeypatch.setitem(gymnasium.vector.VectorEnv.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)
    with pytest.raises(InvalidInputError, match=r"has no autoreset mode.*metadata\['autoreset_mode'\].*NEXT_STEP"):
        AutoresetBaseEnv(SilentVectorEnv())
    silent = SilentVectorEnv()
    silent.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(InvalidInputError, match="autoreset_mode='sometimes'; expected one of"):
        AutoresetBaseEnv(silent)
    silent.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    assert AutoresetBaseEnv(silent).autoreset_mode is AutoresetMode.NEXT_STEP


def test_an_env_of_gymnasium_that_steps_as_arrays_is_accepted() -> None:
    base_env = AutoresetBaseEnv(gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"))
    ends = [end for some in drive(base_env, num_actions=40) for *_, end in some]
    assert ends.count(End.TERMINATED) >= 3


def test_the_info_of_one_env_is_read_out_of_those_of_all() -> None:
    infos = {
        "lives": np.array([3, 4]),
        "bonus": np.array([0.0, 2.0]),
        "_bonus": np.array([False, True]),
        "episode": {"r": np.array([1.0, 9.0]), "_r": np.array([True, True])},
        "_episode": np.array([False, True]),
        "final_obs": np.array([None, 1]),
    }
    assert dict(VectorInfo(infos, 0)) == {"lives": 3}
    info = VectorInfo(infos, 1)
    assert (info["lives"], info["bonus"], dict(info["episode"])) == (4, 2.0, {"r": 9.0})
    assert sorted(info) == ["bonus", "episode", "lives"]
    assert "bonus" not in VectorInfo(infos, 0)


def test_envpool_runs_as_it_is() -> None:
    envpool = pytest.importorskip("envpool")

    def make(**options: Any) -> Any:
        return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, seed=7, max_episode_steps=12, **options)

    base_env = AutoresetBaseEnv(make(), "envpool/CartPole-v1")
    assert base_env.autoreset_mode is AutoresetMode.NEXT_STEP
    transitions = drive(base_env, num_actions=40)
    peer = make()
    obs, _ = peer.reset()
    counts, expected = [0] * 3, [[] for _ in range(3)]
    was_over = np.zeros(3, bool)
    while min(counts) < 40:
        next_obs, rewards, terminated, truncated, infos = peer.step(
            np.array([action_of(env, counts[env]) for env in range(3)])
        )
        for env in range(3):
            if was_over[env]:
                assert infos["elapsed_step"][env] == 0
                continue
            end = End.TERMINATED if terminated[env] else End.TRUNCATED if truncated[env] else End.RUNNING
            expected[env].append(
                (obs[env].tolist(), action_of(env, counts[env]), float(rewards[env]), next_obs[env].tolist(), end)
            )
            counts[env] += 1
        obs, was_over = next_obs, terminated | truncated
    assert transitions == [some[:40] for some in expected]
    assert {end for some in transitions for *_, end in some} == {End.RUNNING, End.TERMINATED, End.TRUNCATED}
    with pytest.raises(InvalidInputError, match="batch_size=2 of its num_envs=3"):
        AutoresetBaseEnv(make(batch_size=2))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_vector_env_of_ale_runs_as_it_is(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    vector_env = pytest.importorskip("ale_py.vector_env")
    monkeypatch.setattr(gymnasium.vector.VectorEnv, "metadata", {})

    def make() -> BaseEnv:
        env = vector_env.AtariVectorEnv("breakout", 2, autoreset_mode=mode, max_num_frames_per_episode=60)
        base_env = AutoresetBaseEnv(env, "ale/Breakout-v5")
        base_env.try_reset(0, seed=1)
        base_env.try_reset(1, seed=2)
        return base_env

    transitions = drive(make(), num_actions=30)
    assert transitions == drive(make(), num_actions=30)
    for some in transitions:
        ends = [end for *_, end in some]
        assert ends.count(End.TRUNCATED) >= 2
        for (*_, after, end), (before, *_) in itertools.pairwise(some):
            assert (before == after) == (end == End.RUNNING)
