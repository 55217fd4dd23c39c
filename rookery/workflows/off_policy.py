"""Workflows of off-policy methods."""

from typing import ClassVar

from rookery.envs import AutoresetMode
from rookery.errors import InvalidInputError
from rookery.learners.replay import ReplayLearner
from rookery.workflows.choice import train_by_gradient
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class OffPolicyWorkflow(Workflow):
    """Trains a replay learner; `init` takes the `warmup_steps`, so that every iteration can learn."""

    learner_class: ClassVar[type[ReplayLearner]]

    def make_training(self) -> Training:
        config, train = self.config, self.settings.train
        warmup_steps = -(-config.warmup_steps // config.num_envs) * config.num_envs
        if warmup_steps >= train.total_timesteps:
            raise InvalidInputError(
                f"agent.warmup_steps={config.warmup_steps}, rounded up to {warmup_steps} for num_envs="
                f"{config.num_envs}, must be less than total_timesteps={train.total_timesteps}."
            )
        # One rollout more than total_timesteps, because the last rollout may exceed it.
        max_rows = train.total_timesteps + config.num_envs * (config.rollout_length + config.window_length)
        resets_in_a_row = train.env.autoreset_mode is AutoresetMode.ENVPOOL
        learner = self.learner_class.of(config).replace(
            # In the worst case every second row is a reset.
            max_rows=2 * max_rows if resets_in_a_row else max_rows,
            has_dead_rows=resets_in_a_row or train.env.is_on_host,
        )
        return train_by_gradient(self.settings, self.layout, learner, self.evaluation_episodes)
