"""Modules and files that a config names: the user's are imported, a stranger's are not."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from rookery.envs import make_env
from rookery.runners.envs.libraries import make_host_env
from rookery.trust import UntrustedError, import_named, needs_trust, strangers_config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module `their_env`, which is not on the import path."""
    (tmp_path / "their_env.py").write_text("from pathlib import Path\n\nPath('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*path])
    yield tmp_path
    sys.modules.pop("their_env", None)


def test_a_module_that_the_user_names_is_imported_from_the_current_folder(here: Path) -> None:
    assert import_named("their_env", "gymnasium/their_env:X-v0").__file__ == str(here / "their_env.py")
    assert sys.path[-1] == str(here)  # later imports of the module find their files
    assert needs_trust({"env": {"name": "gymnasium/their_env:X-v0"}})
    assert not needs_trust({"env": {"name": "gymnasium/CartPole-v1"}})


def test_the_current_folder_leaves_the_path_if_the_module_is_elsewhere(here: Path) -> None:
    import_named("colorsys", "gymnasium/colorsys:X-v0")
    assert str(here) not in sys.path
    with pytest.raises(ImportError):
        import_named("nowhere", "gymnasium/nowhere:X-v0")
    assert str(here) not in sys.path


@pytest.mark.parametrize("name", ["gymnasium/their_env:X-v0", "pettingzoo/their_env", "pettingzoo/utils.conversions"])
def test_a_module_that_a_run_names_is_not_imported(here: Path, name: str) -> None:
    with strangers_config(), pytest.raises(UntrustedError, match=rf"env\.name={name} imports .* add --trust"):
        make_host_env(name, 1)
    assert not Path("imported").exists()


def test_a_module_is_imported_if_the_command_line_names_its_environment(here: Path) -> None:
    name = "gymnasium/their_env:X-v0"
    with strangers_config({name}):
        import_named("their_env", name)
    assert Path("imported").exists()


def test_threads_that_end_in_another_order_stay_distrustful(here: Path) -> None:
    name, first_is_inside, second_is_inside, first_left = "gymnasium/their_env:X-v0", Event(), Event(), Event()

    def first() -> None:
        with strangers_config():
            first_is_inside.set()
            assert second_is_inside.wait(10)
        first_left.set()

    def second() -> bool:
        assert first_is_inside.wait(10)
        with strangers_config():
            second_is_inside.set()
            assert first_left.wait(10)
            with pytest.raises(UntrustedError):
                import_named("their_env", name)
        return not Path("imported").exists()

    with ThreadPoolExecutor(2) as threads:
        threads.submit(first)
        assert threads.submit(second).result()
    import_named("their_env", name)


def test_environments_of_the_libraries_need_no_trust() -> None:
    with strangers_config():
        make_host_env("gymnasium/CartPole-v1", 1).close()
        make_env("classic/cartpole")


@pytest.mark.parametrize(
    "value", ["/etc/passwd", "../model.xml", "~/model.xml", ".model.xml", ["a/b"], {"xml": "a/b"}, "a\\b"]
)
def test_options_that_name_files_need_trust(value: object) -> None:
    with strangers_config(), pytest.raises(UntrustedError, match=r"env\.kwargs\.xml_file=.* names a file.*--trust"):
        make_host_env("gymnasium/CartPole-v1", 1, xml_file=value)
    with strangers_config(), pytest.raises(UntrustedError, match=r"env\.kwargs\.xml_file"):
        make_env("classic/cartpole", xml_file=value)
