"""Training goes on, and learns, while a part of its environments fails again and again."""

from typing import Any

import gymnasium
import pytest

from rookery.configs.composition import compose
from rookery.registry import build_workflow
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv
from rookery.runners.groups import group
from rookery.runners.runner import EnvRunner

NUM_ENVS = 64


class FailingCartPole(gymnasium.Wrapper):
    """CartPole that raises in any step with a probability of 0.01."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 0.01:
            raise RuntimeError("the pole broke")
        return self.env.step(action)


def is_failing(env_index: int) -> bool:
    return env_index % 4 == 0


def make_cartpole(env_index: int) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    return FailingCartPole(env) if is_failing(env_index) else env


@pytest.mark.usefixtures("fast_programs")
def test_cartpole_is_learned_although_a_quarter_of_the_envs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    make_envs, made = group.make_envs, []

    def make_training_envs(env: Any, num_envs: int, **options: Any) -> Any:
        if num_envs != NUM_ENVS:
            return make_envs(env, num_envs, **options)
        made.append(VectorBaseEnv(VectorEnv.wrap(make_cartpole, num_envs=num_envs), env.name))
        return made[-1]

    monkeypatch.setattr(group, "make_envs", make_training_envs)
    config = compose(
        [
            "agent=ppo",
            "env=gymnasium/CartPole-v1",
            f"agent.num_envs={NUM_ENVS}",
            "agent.rollout_length=32",
            "agent.num_epochs=10",
            "agent.num_minibatches=8",
            "agent.learning_rate={start: 1e-3, end: 0}",
            "total_timesteps=120_000",
            "evaluation.num_episodes=16",
            "recorders=[]",
        ]
    )
    workflow = build_workflow(config | {"run_dir": None})
    samples: list[Any] = []
    runners: set[EnvRunner] = set()
    sample = EnvRunner.sample

    def watched(runner: EnvRunner, *args: Any, **kwargs: Any) -> Any:
        runners.add(runner)
        samples.append(sample(runner, *args, **kwargs))
        return samples[-1]

    monkeypatch.setattr(EnvRunner, "sample", watched)
    state = workflow.learn(workflow.init(workflow.make_key()))
    metrics, _ = workflow.evaluate(state)
    workflow.close()
    assert len(made) == 1
    assert float(metrics["eval/mean_reward"]) >= 450.0
    faults = [fault for sample in samples for fault in sample.faults]
    assert len(faults) > 100
    assert all(is_failing(fault.env_index) for fault in faults)
    (runner,) = runners
    assert runner.ledger.is_exact
    assert runner.num_lost_envs == 0
    for sample in samples:
        is_dead = sample.batch.batches.default.extras.env_extras.autoreset > 0
        assert not any(is_dead[:, env].any() for env in range(NUM_ENVS) if not is_failing(env))
