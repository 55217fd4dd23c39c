"""Workflows of on-policy methods."""

from typing import ClassVar

from rookery.learners.on_policy import OnPolicyLearner
from rookery.workflows.choice import make_gradient_training
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class OnPolicyWorkflow(Workflow):
    """Trains an on-policy learner on device environments, host environments, or several policies."""

    learner_class: ClassVar[type[OnPolicyLearner]]

    def make_training(self) -> Training:
        return make_gradient_training(
            self.settings, self.layout, self.learner_class.of(self.config), self.evaluation_episodes
        )
