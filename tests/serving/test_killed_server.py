"""Clients and a training that is killed."""

from tests.campaigns.clients import kills


def test_clients_go_on_with_a_training_that_was_killed_and_resumed() -> None:
    kills(count=1)
