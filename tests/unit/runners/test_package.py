import subprocess
import sys

import pytest

import rookery.runners


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import rookery.runners", "import rookery.runners.transports.worker"])
def test_the_processes_of_environments_start_without_jax(statement: str) -> None:
    modules = modules_after(statement)
    assert "rookery.runners" in modules
    assert not modules & {"jax", "jaxlib", "flax"}


def test_every_public_name_leads_to_something_of_that_name() -> None:
    for name in rookery.runners.__all__:
        assert getattr(rookery.runners, name).__name__ == name


def test_lazy_names_are_the_public_names() -> None:
    lazy = [name for names in rookery.runners._HOMES.values() for name in names]
    assert sorted(lazy) == rookery.runners.__all__


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="NoSuchThing"):
        rookery.runners.NoSuchThing  # noqa: B018
