"""Workflows of off-policy methods."""

from typing import Any, ClassVar

from rookery.envs import AutoresetMode
from rookery.errors import InvalidInputError
from rookery.learners.replay import ReplayLearner
from rookery.workflows.choice import check_learner, make_gradient_training
from rookery.workflows.config import Settings
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class OffPolicyWorkflow(Workflow):
    """Trains a replay learner; `init` takes the `warmup_steps`, so that every iteration can learn."""

    learner_class: ClassVar[type[ReplayLearner]]
    iterations_per_round = 1024
    is_split_by_devices = True  # the replay buffer is

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        settings = super().check_config(config, agent_name)
        check_learner(settings, cls.learner_class.of(settings.method))
        return settings

    def make_training(self) -> Training:
        config, train = self.config, self.settings.train
        check_warmup(config.warmup_steps, train.total_timesteps, config.num_envs)
        # One rollout more than the run, since the last one may pass the end.
        max_rows = self.settings.max_timesteps + config.num_envs * (config.rollout_length + config.window_length)
        if train.env.autoreset_mode is AutoresetMode.ENVPOOL:
            max_rows *= 2  # in the worst case every other row is a reset
        learner = self.learner_class.of(config).replace(max_rows=max_rows)
        return make_gradient_training(self.settings, self.layout, learner, self.evaluation_episodes)


def check_warmup(warmup_steps: int, total_timesteps: int, num_envs: int = 1) -> None:
    """Raise if a run would end before its learner begins to learn."""
    taken = -(-warmup_steps // num_envs) * num_envs
    if taken >= total_timesteps:
        rounded = f", rounded up to {taken} for num_envs={num_envs}," if taken != warmup_steps else ""
        raise InvalidInputError(
            f"agent.warmup_steps={warmup_steps}{rounded} must be less than total_timesteps={total_timesteps}."
        )
