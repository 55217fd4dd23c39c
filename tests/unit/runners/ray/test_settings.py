"""The settings of Ray."""

import re
from typing import Any

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.ray.settings import RaySettings


@pytest.mark.parametrize("address", [None, "auto", "local", "10.0.0.1:6379", "head:6379", "[fd00::1]:6379"])
def test_an_address_is_one_of_a_cluster(address: str | None) -> None:
    assert RaySettings(address=address).address == address


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"address": "head"}, "address=head: expected auto, local or HOST:PORT, such as 10.0.0.1:6379."),
        ({"address": "head:http"}, "address=head:http: expected auto, local or HOST:PORT"),
        ({"address": "head:66000"}, "address=head:66000: expected auto, local or HOST:PORT"),
        ({"address": "ray://head:10001"}, "address=ray://head:10001: a run needs a place in the cluster."),
        ({"num_cpus_per_env_runner": -1}, "num_cpus_per_env_runner=-1 must lie between 0 and 4096."),
        ({"min_env_runners": 0}, "min_env_runners=0 must be an integer of at least 1."),
        ({"sample_timeout": 0.0}, "sample_timeout=0 must be more than 0 seconds, or null."),
        ({"resources_per_env_runner": {"disk": "much"}}, "disk must be a number of at least 0."),
        ({"resources_per_env_runner": {"GPU": 1}}, "GPU is set by ray.num_gpus_per_env_runner."),
    ],
)
def test_invalid_settings_are_errors_that_say_what_is_expected(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(error)):
        RaySettings(**settings)


def test_a_runner_reserves_what_it_needs_and_nothing_else() -> None:
    assert RaySettings().resources() == {"CPU": 1.0}
    settings = RaySettings(num_cpus_per_env_runner=0, num_gpus_per_env_runner=0.5, resources_per_env_runner={"disk": 2})
    assert settings.resources() == {"GPU": 0.5, "disk": 2}
