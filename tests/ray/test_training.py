"""Training on Ray: the numbers of as many runners in this process, and runs that survive the death of runners."""

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.configs import compose
from rookery.evaluators.evaluation_player import EvaluationPlayer
from rookery.registry import build_workflow
from rookery.runners.envs.own import name_own_env
from rookery.runners.group import Delivery, LocalRunners
from rookery.runners.ray import group as ray_group
from rookery.runners.ray.group import RayRunners
from rookery.workflows.collector import Collector
from tests.ray_envs import CommandedEnv, MaskedEnv, give_command, seeds_in

PPO = ["agent=ppo", "agent.num_envs=8", "agent.rollout_length=16", "agent.network.hidden_sizes=[16]"]
SAC = ["agent=sac", "env=gymnasium/Pendulum-v1", "agent.num_envs=4", "agent.rollout_length=8", "agent.warmup_steps=64"]
EVOLUTION = [
    "env=gymnasium/CartPole-v1",
    "env.episode_length=20",
    "agent.population_size=8",
    "agent.num_lanes=2",
    "agent.network.hidden_sizes=[8]",
    "total_timesteps=400",
]
EQUAL = {
    "normalized observations and rewards": [
        *PPO,
        "env=gymnasium/CartPole-v1",
        "agent.normalize_obs=true",
        "agent.normalize_rewards=true",
        "total_timesteps=1024",
    ],
    "recurrent, with dicts and masks": [
        *PPO,
        f"env={name_own_env(MaskedEnv)}",
        "agent.network.core=gru",
        "total_timesteps=512",
    ],
    "replay with warm-up": [*SAC, "agent.network.hidden_sizes=[16]", "total_timesteps=160"],
    "two policies": [
        *PPO,
        "env=pettingzoo/mpe2.simple_speaker_listener_v4",
        "env.policies=per_agent",
        "total_timesteps=512",
    ],
    "individuals by recipe": ["agent=openes", *EVOLUTION, "agent.normalize_obs=true"],
    "individuals that are sent": ["agent=nsga2", *EVOLUTION],
    "steps of individuals": [
        "agent=erl",
        "agent.gradient=dqn",
        "agent.warmup_steps=40",
        "agent.learner.network.hidden_sizes=[8]",
        *(option for option in EVOLUTION if "network" not in option),
    ],
}


def train(overrides: list[str], on_record: Any = None) -> tuple[list[dict], Any]:
    """Train without a run directory; return the records, without times, and the last agent state."""
    records: list[dict] = []

    def keep(event: Any) -> None:
        records.append({name: value for name, value in event.metrics.items() if not name.startswith("time/")})
        if on_record is not None:
            on_record(event)

    workflow = build_workflow(compose([*overrides, "evaluation.interval=null", "recorders=[]"]))
    try:
        state = workflow.learn(workflow.init(workflow.make_key()), keep)
    finally:
        workflow.close()
    return records, jax.tree.map(np.asarray, state.agent_state)


@pytest.mark.parametrize("overrides", EQUAL.values(), ids=EQUAL.keys())
def test_runners_on_ray_train_to_the_numbers_of_as_many_runners_here(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as during:
        during.delattr(EvaluationPlayer, "play")  # runners play the evaluations, too
        on_ray, agent_on_ray = train([*overrides, "num_env_runners=2"])
    monkeypatch.setattr(ray_group, "RayRunners", lambda spec, num_runners, settings: LocalRunners(spec, num_runners))
    here, agent_here = train([*overrides, "num_env_runners=2"])
    jax.tree.map(np.testing.assert_array_equal, agent_on_ray, agent_here)
    of_runners = {name for name in on_ray[-1] if name.startswith("runners/")} | {"rollout/steps_queued"}
    assert [{name: value for name, value in record.items() if name not in of_runners} for record in on_ray] == here
    assert (on_ray[-1]["runners/ready"], on_ray[-1]["faults/total"]) == (2, 0)
    assert on_ray[-1]["eval/mean_ep_length"] > 0


class Killer:
    """Kills a runner that is up, a little after a round, until it has killed as many as it should."""

    def __init__(self, num_kills: int) -> None:
        self.num_left = num_kills
        self.killed: Counter[int] = Counter()
        self.rebuilt: Counter[int] = Counter()
        self.num_sampled = self.num_taken = 0
        self._random = random.Random(7)
        self._pids: set[int] = set()
        self._timer: threading.Timer | None = None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        note, take, rebuild = Collector._note, Collector.take, RayRunners.rebuild

        def noted(collector: Any, index: int, reply: Any) -> None:
            note(collector, index, reply)
            if isinstance(reply, Delivery):
                self.num_sampled += reply.sample.env_steps
                assert reply.report.ledger.is_exact

        def taken(collector: Any, is_asking: bool = True) -> Any:
            batch = take(collector, is_asking)
            if batch is not None:
                self.num_taken += batch[1]
                assert self.num_sampled == self.num_taken + collector.num_steps_queued
                self._after_round(collector)
            return batch

        def rebuilt(group: Any, index: int, *args: Any) -> None:
            self.rebuilt[index] += 1
            rebuild(group, index, *args)

        monkeypatch.setattr(Collector, "_note", noted)
        monkeypatch.setattr(Collector, "take", taken)
        monkeypatch.setattr(RayRunners, "rebuild", rebuilt)

    def _after_round(self, collector: Any) -> None:
        pids = {index: slot.greeting.pid for index, slot in enumerate(collector.group._slots) if slot.greeting}
        up = [index for index, pid in pids.items() if collector._rounds.slots[index].is_up and pid not in self._pids]
        if self.num_left and len(up) > 1 and (self._timer is None or not self._timer.is_alive()):
            index = self._random.choice(up)
            pid = pids[index]
            self.num_left -= 1
            self.killed[index] += 1
            self._pids.add(pid)
            self._timer = threading.Timer(self._random.uniform(0.0, 0.05), os.kill, (pid, signal.SIGKILL))
            self._timer.start()


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_runners_are_killed_at_random_and_no_step_is_lost_doubled_or_seeded_twice(
    max_staleness: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killer = Killer(num_kills=15)
    killer.watch(monkeypatch)
    folder = str(tmp_path)

    def stop_when_all_are_back(event: Any) -> None:
        if killer.rebuilt.total() == 15 and event.metrics["runners/ready"] == 4:
            event.stop("all were killed and are back")

    records, _ = train(
        [
            "agent=impala",
            f"env={name_own_env(lambda: CommandedEnv(folder))}",
            "agent.num_envs=8",
            "agent.rollout_length=16",
            "agent.network.hidden_sizes=[16]",
            "num_env_runners=4",
            f"max_staleness={max_staleness}",
            "total_timesteps=10000000",
            "record_interval=512",
        ],
        stop_when_all_are_back,
    )
    last = records[-1]
    assert killer.killed.total() == 15
    assert killer.rebuilt == killer.killed
    assert last["runners/restarts"] == last["faults/killed"] == 15
    assert last["runners/lost"] == 0
    assert max(record["rollout/staleness_max"] for record in records) <= max_staleness
    seeds = seeds_in(tmp_path)
    assert len(seeds) == len(set(seeds))


def test_a_generation_has_the_same_result_if_a_runner_is_killed_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    overrides = [
        "agent=openes",
        *EVOLUTION[1:],
        f"env={name_own_env(lambda: CommandedEnv(folder))}",
        "num_env_runners=2",
        "record_interval=1",
    ]
    num_records = 0

    def kill_in_the_next_generation(event: Any) -> None:
        nonlocal num_records
        num_records += 1
        if num_records == 2:
            give_command(tmp_path, "kill")

    killed, agent_with_kill = train(overrides, kill_in_the_next_generation)
    undisturbed, agent_without = train(overrides)
    assert killed[-1]["runners/restarts"] == killed[-1]["runners/chunks_lost"] == killed[-1]["faults/killed"] == 1
    assert undisturbed[-1]["runners/restarts"] == 0
    jax.tree.map(np.testing.assert_array_equal, agent_with_kill, agent_without)
    assert [record["rollout/ep_rew_mean"] for record in killed] == [
        record["rollout/ep_rew_mean"] for record in undisturbed
    ]
