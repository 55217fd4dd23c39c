"""The package as a whole: what importing it costs and needs."""

import subprocess
import sys
import textwrap

OPTIONAL = ("brax", "mujoco", "gymnax", "jumanji", "optuna", "ray", "wandb", "matplotlib")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)


def test_importing_rookery_imports_no_optional_library() -> None:
    done = run(
        f"""
        import sys
        import rookery, rookery.envs, rookery.rollout, rookery.evaluators, rookery.agents.policy, rookery.cli
        print([name for name in {OPTIONAL!r} if name in sys.modules])
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_rookery_alone_does_not_import_the_network_library() -> None:
    done = run("import rookery, sys; print('flax' in sys.modules, 'gymnasium' in sys.modules)")
    assert done.stdout.strip() == "False False", done.stderr


def test_every_module_but_the_adapters_imports_with_the_core_dependencies_alone() -> None:
    done = run(
        f"""
        import importlib, pkgutil, sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {OPTIONAL!r}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Missing())
        import rookery
        of_envs = ("rookery.envs.brax", "rookery.envs.gymnax", "rookery.envs.jumanji")
        adapters = (*of_envs, "rookery.runners.ray.group", "rookery.__main__")
        names = [module.name for module in pkgutil.walk_packages(rookery.__path__, "rookery.")]
        for name in names:
            if name not in adapters:
                importlib.import_module(name)
        print(len(names) > 30, all(adapter in names for adapter in adapters))
        """
    )
    assert done.stdout.strip() == "True True", done.stderr
