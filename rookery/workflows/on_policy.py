"""Workflows of on-policy methods."""

from typing import Any, ClassVar

from rookery.learners.on_policy import OnPolicyLearner
from rookery.workflows.choice import check_learner, make_gradient_training
from rookery.workflows.config import Settings
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class OnPolicyWorkflow(Workflow):
    """Trains an on-policy learner on device environments, host environments, or several policies."""

    learner_class: ClassVar[type[OnPolicyLearner]]

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        settings = super().check_config(config, agent_name)
        check_learner(settings, cls.learner_class.of(settings.method))
        return settings

    def make_training(self) -> Training:
        return make_gradient_training(
            self.settings, self.layout, self.learner_class.of(self.config), self.evaluation_episodes
        )
