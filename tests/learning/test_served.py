"""Methods learn from simulators in other processes. The full tasks are in `tests/campaigns/clients.py`."""

import pytest

from tests.campaigns.clients import CARTPOLE, mean_return, train

pytestmark = pytest.mark.usefixtures("fast_programs")


def test_ppo_learns_cartpole_that_two_processes_play() -> None:
    run = train("ppo", "CartPole-v1", 12_288, 2, CARTPOLE | {"env.kwargs.max_episodes": 2})
    assert mean_return(run.policy, "CartPole-v1") >= 100.0
