"""What runners on other machines know of the program that asks them."""

import pickle
from collections.abc import Collection

import pytest

from rookery.envs.config import EnvConfig
from rookery.runners.passed import PassedParts
from rookery.trust import names_given_by_user, strangers_config


@pytest.mark.parametrize("named", [(), ("my_module:MyWrapper",)])
def test_a_runner_elsewhere_imports_no_more_than_the_program_that_asks_it(named: Collection[str]) -> None:
    env = EnvConfig("gymnasium/CartPole-v1")
    with strangers_config(named):
        passed = pickle.loads(pickle.dumps(PassedParts.of(env)))
    assert names_given_by_user() is None
    with passed.known_here(env):
        assert names_given_by_user() == named
