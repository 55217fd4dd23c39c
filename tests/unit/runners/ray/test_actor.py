"""The actor on Ray, before it is one."""

import os
import subprocess
import sys

CODE = """
import os, sys
from rookery.runners.ray.actor import RunnerActor

actor = RunnerActor()
assert "jax" not in sys.modules
answer = actor.hello({"JAX_PLATFORMS": "cpu"}, {})
import jax
assert jax.config.jax_platforms == "cpu", jax.config.jax_platforms
assert answer.value.versions["jaxlib"]
assert answer.seconds > 0.0
"""


def test_an_actor_imports_jax_after_the_variables_that_jax_reads() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", CODE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
