"""An engineer with a simulator of their own, which has dict observations and fails now and then."""

from typing import Any

LANDER = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Lander(gymnasium.Env):
    """Come down; the engine costs fuel."""

    observation_space = Dict({"height": Box(0.0, 20.0, (1,), np.float32), "engine": Discrete(2)})
    action_space = Discrete(2)

    def __init__(self, is_fragile=False):
        self.is_fragile = is_fragile

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.engine = float(self.np_random.uniform(5.0, 10.0)), 0
        return self.observation(), {}

    def step(self, action):
        if self.is_fragile and self.np_random.random() < 0.01:
            raise RuntimeError("the simulator lost its connection")
        self.engine = int(action)
        self.height = max(0.0, self.height + (0.5 if self.engine else -1.0))
        return self.observation(), -0.1 * self.engine, self.height == 0.0, False, {}

    def observation(self):
        return {"height": np.array([self.height], np.float32), "engine": self.engine}


gymnasium.register("Lander-v0", entry_point=Lander, max_episode_steps=30)
'''

SMALL = ["agent.num_envs=4", "agent.rollout_length=32", "agent.network.hidden_sizes=[8]", "record_interval=128"]

TRAIN_THE_CLASS = """
import gymnasium
import rookery
from lander import Lander

run = rookery.train(
    "ppo",
    lambda: gymnasium.wrappers.TimeLimit(Lander(is_fragile=True), 30),
    total_timesteps=512,
    num_envs=4,
    rollout_length=32,
    config={"agent.network.hidden_sizes": [8]},
)
assert run.metrics["faults/raised"][-1] > 0
print("action", run.policy(Lander().reset()[0]))
"""

USE_THE_BEST = """
import rookery
from lander import Lander

policy = rookery.load("run", best=True)
env = Lander()
obs, _ = env.reset(seed=0)
terminated, num_steps = False, 0
while not terminated and num_steps < 200:
    action, _ = policy.predict(obs)
    obs, _, terminated, _, _ = env.step(action)
    num_steps += 1
last = int(rookery.open_run("run").metrics["time/total_timesteps"][-1])
print(num_steps, policy.num_steps, last)
"""


def test_a_simulator_that_fails_is_checked_trained_killed_resumed_trained_longer_and_used(folder: Any) -> None:
    folder.write("lander.py", LANDER)
    name = "gymnasium/lander:Lander-v0"
    assert f"{name}: passed" in folder.rookery("check-env", name)
    assert "action" in folder.python(TRAIN_THE_CLASS)

    metrics = folder.path / "run" / "metrics.jsonl"
    folder.killed_when(
        lambda: metrics.exists() and metrics.read_text().count("\n") > 2,
        *("train", f"env={name}", "env.kwargs.is_fragile=true", *SMALL, "total_timesteps=100000", "run_dir=run"),
        *("checkpoint.interval=128", "evaluation.interval=128"),
    )
    longer = folder.rookery("resume", "run", "--trust", "total_timesteps=2000", "checkpoint.interval=1000")
    assert "simulator state is not checkpointed" in longer
    assert "faults" in longer

    num_steps, trained_for, last = map(int, folder.python(USE_THE_BEST).split())
    assert 0 < num_steps <= 200
    assert (folder.path / "run" / "checkpoints" / f"{trained_for:012d}").is_dir()
    assert last >= 2000
    best = folder.rookery("evaluate", "run", "--trust", "--best", "--episodes", "2")
    assert f"after {trained_for:,} env steps" in best
