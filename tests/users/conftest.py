"""What the users have: an empty folder, the command and Python."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import rookery

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parent.parent)}


class UserFolder:
    """A folder in which a user writes files and runs commands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def rookery(self, *arguments: str, exit_code: int = 0) -> str:
        """Run the command and return what it prints."""
        return self._run(["-m", "rookery", *arguments], exit_code)

    def python(self, code: str) -> str:
        """Run a script and return what it prints."""
        self.write("script.py", code)
        return self._run(["script.py"], 0)

    def killed_when(self, is_time: Callable[[], bool], *arguments: str) -> None:
        """Start the command and end it by SIGKILL as soon as it is time."""
        command = [sys.executable, "-m", "rookery", *arguments]
        with subprocess.Popen(command, cwd=self.path, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
            while not is_time() and process.poll() is None:
                time.sleep(0.02)
            assert process.poll() is None, "it ended before it could be killed"
            process.kill()

    def _run(self, arguments: Sequence[str], exit_code: int) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=self.path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == exit_code, result.stdout + result.stderr
        return result.stdout + result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> UserFolder:
    return UserFolder(tmp_path)
