"""Environments by name, and what is said about names that do not exist."""

import importlib
import subprocess
import sys

import pytest

from rookery.envs import make_env
from rookery.envs.libraries import LIBRARIES, Library, find_host_library, is_on_host
from rookery.envs.registration import check_env_name
from rookery.errors import InvalidInputError, UnknownNameError

OPTIONAL = ("ale_py", "brax", "envpool", "gymnax", "jumanji", "matplotlib", "mujoco", "pettingzoo")


def test_a_misspelt_name_is_answered_without_importing_the_libraries_of_environments() -> None:
    program = f"""
import sys
from rookery.envs import make_env
from rookery.errors import UnknownNameError

for name in ("cartpol", "hoper", "snake"):
    try:
        make_env(name)
    except UnknownNameError as error:
        print(error)
print([library for library in {OPTIONAL!r} if library in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    *errors, imported = done.stdout.splitlines()
    assert len(errors) == 3
    assert errors[0].startswith("unknown environment 'cartpol'. Did you mean 'classic/cartpole'")
    assert imported == "[]"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("hoper", "brax/hopper"),
        ("CartPol-v1", "gymnasium/CartPole-v1"),
        ("snake", "jumanji/Snake-v1"),
        ("MOUNTAIN_CAR", "classic/mountain_car"),
    ],
)
def test_the_nearest_name_is_found_in_every_installed_library_whatever_its_prefix_and_case(
    name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "installed", True)
    with pytest.raises(UnknownNameError, match=rf"unknown environment '{name}'\. Did you mean '{nearest}'"):
        make_env(name)


def test_names_of_libraries_that_are_not_installed_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "installed", property(lambda library: library.requires is None))
    with pytest.raises(UnknownNameError, match=r"unknown environment 'Catch-bsuite'\. Names look like"):
        check_env_name("Catch-bsuite")


def test_names_that_look_like_nothing_get_an_example() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown environment 'zzz'\. Names look like 'classic/cartpole'; "):
        check_env_name("zzz")


@pytest.mark.parametrize(
    ("name", "suggestions"),
    [
        ("CartPole-v1", r"'gymnasium/CartPole-v1' or 'gymnax/CartPole-v1'"),
        ("cartpole", r"'classic/cartpole' or 'gymnasium/CartPole-v1'"),
        ("LunarLander-v3", r"'gymnasium/LunarLander-v3'"),
        ("my_module:MyEnv-v0", r"'gymnasium/my_module:MyEnv-v0'"),
    ],
)
def test_an_id_of_gymnasium_is_suggested_with_its_library(
    name: str, suggestions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "installed", True)
    with pytest.raises(UnknownNameError, match=rf"^unknown environment '{name}'\. Did you mean {suggestions}"):
        check_env_name(name)


@pytest.mark.parametrize("library", ["classic", "gymnasium"])
def test_a_library_is_no_environment(library: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^'{library}' is the name of a library: add that of an environment"):
        check_env_name(library)


def test_a_misspelt_library_is_compared_with_those_of_the_device_and_of_the_host() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown environment library 'petingzoo'\. Did you mean 'pettingzoo'\?"
    ):
        make_env("petingzoo/mpe2.simple_spread_v3")


@pytest.mark.parametrize("library", [*filter(is_on_host, LIBRARIES)])
def test_the_functions_that_the_table_names_are_in_the_module_of_the_library(library: str) -> None:
    found = find_host_library(library)
    assert found is not None
    module = importlib.import_module(found.module)
    for function in filter(None, (found.names_fn, found.make_fn)):
        assert callable(getattr(module, function))
