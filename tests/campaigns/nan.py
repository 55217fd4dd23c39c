"""Runs that meet NaN: they stop, warn or go on as documented, with the right exit code and message.

python -m tests.campaigns.nan --count 24
"""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rookery import cli
from rookery.envs.libraries import LIBRARIES, Library
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DIVERGED
from tests.campaigns import run_campaign

SMALL_NETWORK = "agent.network.hidden_sizes=[8]"
TRAIN = ["total_timesteps=2560", "record_interval=256", "checkpoint.interval=256", "evaluation.num_episodes=2"]
ON_POLICY = ["agent.num_envs=8", "agent.rollout_length=16"]
PPO = ["agent=ppo", *ON_POLICY, "agent.num_epochs=2", "agent.num_minibatches=2", SMALL_NETWORK]
A2C = ["agent=a2c", *ON_POLICY, SMALL_NETWORK]
IMPALA = ["agent=impala", *ON_POLICY, SMALL_NETWORK]
REPLAY = ["agent.num_envs=4", "agent.rollout_length=4", "agent.warmup_steps=128", "agent.batch_size=32", SMALL_NETWORK]
DQN, SAC, DDPG = (["agent=" + name, *REPLAY] for name in ("dqn", "sac", "ddpg"))
OPENES = ["agent=openes", "agent.population_size=8", "agent.num_lanes=8", "agent.network.hidden_sizes=[4]"]

NAN_REWARD = ["env=poisoned/cartpole", "env.kwargs.part=reward", "env.kwargs.value=nan"]
NAN_OBS = ["env=poisoned/cartpole", "env.kwargs.part=obs", "env.kwargs.value=nan"]
INFINITE_REWARD = ["env=poisoned/cartpole", "env.kwargs.part=reward", "env.kwargs.value=inf"]
PENDULUM = ["env=poisoned/pendulum", "env.episode_length=50"]
HOST = "gymnasium/campaign/"

STOPS = "stops"
"""Exit code 2 with metric or parameters, seed, step and last good checkpoint; nothing is saved after it."""
WARNS = "warns"
"""Exit code 0, one warning for each seed, and the rows are marked."""
IS_FAULT = "is a fault"
"""Exit code 0 and a fault of the environment, or training stops: the host may find NaN before training does."""
GOES_ON = "goes on"
"""Exit code 0 without divergence."""


@dataclass(frozen=True)
class Case:
    """A run, what it should do, and a text that it should print."""

    name: str
    overrides: Sequence[str]
    outcome: str
    text: str = ""


CASES = (
    Case("PPO, NaN reward", [*PPO, *NAN_REWARD], STOPS),
    Case(
        "several seeds, one diverges", [*PPO, *NAN_REWARD, "env.kwargs.period=6000", "num_seeds=4"], WARNS, "of 4 seeds"
    ),
    Case("evolution, NaN reward", [*OPENES, *NAN_REWARD], GOES_ON),
    Case("PPO, NaN observation", [*PPO, *NAN_OBS], STOPS),
    Case("PPO, infinite reward", [*PPO, *INFINITE_REWARD], STOPS),
    Case("PPO, learning rate", [*PPO, "env=classic/cartpole", "agent.learning_rate=1e30"], STOPS),
    Case("PPO, recurrent", [*PPO, *NAN_OBS, "agent.network.core=gru"], STOPS),
    Case("A2C, normalized observations", [*A2C, *NAN_OBS, "agent.normalize_obs=true"], STOPS),
    Case("IMPALA, NaN observation", [*IMPALA, *NAN_OBS], STOPS),
    Case("DQN, NaN reward", [*DQN, *NAN_REWARD], STOPS),
    Case("DQN, learning rate", [*DQN, "env=classic/cartpole", "agent.learning_rate=1e30"], STOPS),
    Case("SAC, NaN reward", [*SAC, *PENDULUM], STOPS),
    Case("DDPG, infinite reward", [*DDPG, *PENDULUM, "env.kwargs.value=inf"], STOPS),
    Case("on_nan=warn", [*PPO, *NAN_REWARD, "on_nan=warn"], WARNS, "evaluation  diverged"),
    Case("all seeds diverge", [*PPO, *NAN_REWARD, "num_seeds=3"], STOPS, "all 3 seeds diverged, the last: seed"),
    Case("all seeds, on_nan=warn", [*PPO, *NAN_REWARD, "num_seeds=2", "on_nan=warn"], WARNS, "2 of 2 seeds diverged"),
    Case("evolution, NaN observation", [*OPENES, *NAN_OBS, "agent.normalize_obs=true"], GOES_ON),
    Case("evolution, learning rate", [*OPENES, "env=classic/cartpole", "agent.learning_rate=3e38"], STOPS),
    Case("host, learning rate", [*PPO, "env=gymnasium/CartPole-v1", "agent.learning_rate=1e30"], STOPS),
    Case("host, NaN actions", [*PPO, "env=gymnasium/Pendulum-v1", "agent.learning_rate=1e30"], STOPS),
    Case("host, NaN reward", [*PPO, f"env={HOST}NaNReward-v0"], IS_FAULT),
    Case("host, NaN observation", [*PPO, f"env={HOST}NaNObs-v0"], IS_FAULT),
    Case("host, reward beyond float32", [*PPO, f"env={HOST}HugeReward-v0"], IS_FAULT),
    Case("host, evolution, NaN reward", [*OPENES, f"env={HOST}NaNReward-v0", "total_timesteps=1280"], IS_FAULT),
)


class PoisonedGymnasiumEnv(gymnasium.Wrapper):
    """Replaces the reward or the observation of one step in a hundred."""

    def __init__(self, env: gymnasium.Env, part: str, value: float) -> None:
        super().__init__(env)
        self.part = part
        self.value = value

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.unwrapped.np_random.random() < 0.01:
            obs = np.full_like(obs, self.value) if self.part == "obs" else obs
            reward = self.value if self.part == "reward" else reward
        return obs, reward, terminated, truncated, info


def make_poisoned(part: str, value: float, **options: Any) -> gymnasium.Env:
    """Make a poisoned CartPole."""
    return PoisonedGymnasiumEnv(gymnasium.make("CartPole-v1", **options).unwrapped, part, value)


def provide_envs() -> None:
    """Register the environments of the campaign in this process."""
    LIBRARIES["poisoned"] = Library("tests.campaigns.poisoned_envs")
    nan = float("nan")
    for name, part, value in [("NaNReward", "reward", nan), ("NaNObs", "obs", nan), ("HugeReward", "reward", 1e300)]:
        if f"campaign/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                f"campaign/{name}-v0",
                entry_point=make_poisoned,
                kwargs={"part": part, "value": value},
                max_episode_steps=500,
            )


def run_case(case: Case, folder: Path, seed: int = 0) -> str | None:
    """Train a case in a new folder; return what did not hold, or None."""
    run, output = RunDirectory(folder / "run"), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        exit_code = cli.main(
            ["train", *TRAIN, *case.overrides, "recorders=[console,jsonl]", f"run_dir={run.path}", f"seed={seed}"]
        )
    text = output.getvalue()
    problem = check_outcome(case.outcome, run, exit_code, text)
    if not problem and case.text not in text:
        problem = f"it did not print {case.text!r}"
    return f"{problem}; output:\n{text[-2000:]}" if problem else None


def check_outcome(outcome: str, run: RunDirectory, exit_code: int, text: str) -> str:
    """Return what differs from the outcome of a case, or nothing."""
    rows = run.read_metrics()
    diverged = {row["seed"] for row in rows if DIVERGED in row}
    match outcome:
        case "stops":
            return check_stop(run, exit_code, text)
        case "warns":
            is_told = text.count("training goes on") == len(diverged) > 0
            return "" if exit_code == 0 and is_told else f"exit code {exit_code}, diverged seeds: {diverged}"
        case "is a fault":
            num_faults = sum(row.get("faults/total", 0) for row in rows)
            if exit_code == 2:
                return check_stop(run, exit_code, text)
            return (
                "" if exit_code == 0 and num_faults and not diverged else f"exit code {exit_code}, {num_faults} faults"
            )
        case _:
            return "" if exit_code == 0 and not diverged else f"exit code {exit_code}, diverged seeds: {diverged}"


def check_stop(run: RunDirectory, exit_code: int, text: str) -> str:
    """Return what is wrong with a run that should have stopped because of NaN, or nothing."""
    steps = Checkpoints(run.checkpoints_path).steps() or [-1]
    wanted = ["diverged at ", " env steps: ", f"last good checkpoint is at {steps[-1]:,} env steps", "rookery resume "]
    missing = [part for part in wanted if part not in text]
    if exit_code != 2 or missing:
        return f"exit code {exit_code}, without {missing}"
    found = max((row["time/total_timesteps"] for row in run.read_metrics()), default=0)
    return "" if steps[-1] < max(found, 1) else f"a checkpoint at {steps[-1]}, but training diverged before {found}"


def run_cases(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Train the first `count` cases, each in a folder of its own; `seed` is that of the runs."""
    provide_envs()
    for case in CASES[:count]:
        with tempfile.TemporaryDirectory() as folder:
            yield case.name, run_case(case, Path(folder), seed)


if __name__ == "__main__":
    run_campaign(__doc__ or "", len(CASES), run_cases)
