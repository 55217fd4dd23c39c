"""One Ray for all tests in this folder: it takes seconds to start."""

import os
from collections.abc import Iterator

import pytest

from rookery.runners.ray.cluster import LOOPBACK_VARIABLE, Cluster, connect
from rookery.runners.ray.settings import RaySettings

os.environ[LOOPBACK_VARIABLE] = "0"  # the tests import ray before it is started
NUM_CPUS = 10
"""Groups of a module keep up to four while another group asks for six."""


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Cluster]:
    with connect(RaySettings(), num_env_runners=NUM_CPUS) as cluster:
        yield cluster
