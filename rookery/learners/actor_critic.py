"""Off-policy learners with a policy and critics, whose losses others can call: for several actors, for example."""

from abc import abstractmethod

from rookery.agents.replay import LossInfo, Transitions
from rookery.hyperparameters import HyperparameterValues
from rookery.learners.replay import LossFn, OffPolicyState, ReplayLearner
from rookery.types import Key


class ActorCriticLearner(ReplayLearner):
    """Learns the parts `policy` and `critics` of the parameters, and maybe others with `adapt`."""

    @abstractmethod
    def loss_of_critics(
        self, state: OffPolicyState, transitions: Transitions, hyperparameters: HyperparameterValues, key: Key
    ) -> LossFn:
        """Return the loss of the critics, for targets with the policy of the state."""

    @abstractmethod
    def loss_of_actor(
        self, state: OffPolicyState, transitions: Transitions, hyperparameters: HyperparameterValues, key: Key
    ) -> LossFn:
        """Return the loss of a policy, by the critics of the state."""

    def adapt(
        self, state: OffPolicyState, transitions: Transitions, of_actor: LossInfo, hyperparameters: HyperparameterValues
    ) -> OffPolicyState:
        """Update what else is learned, given the metrics of the loss of the policy."""
        return state
