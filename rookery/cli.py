"""The command `rookery`: a line of text in, a line of text out, an exit code.

0 is success, 1 a verdict that is not good, 2 an error. Each command has a function that declares its arguments and
one that runs it; what a command needs is imported when it runs, so `rookery --help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rookery
from rookery.errors import InvalidInputError, RookeryError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from rookery.testing.check_report import Check

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the package: in a source checkout, the benchmarks are beside it."""

AGENTS = {
    "random": "rookery.agent:RandomAgent",
    "policy": "rookery.algorithms.policy_agent:PolicyAgent",
}

SUCCESS, NOT_GOOD, ERROR, INTERRUPTED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; `argv=None` is the command line."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return ERROR
    try:
        enable_compilation_cache()
        exit_code: int = arguments.run_fn(arguments)
        sys.stdout.flush()
        return exit_code
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone: nothing more can be said, not even when Python closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except KeyboardInterrupt:
        print("rookery: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        else:
            hint = "" if isinstance(error, RookeryError) else " (--debug shows where)"
            print(f"rookery: error: {one_line(error)}{hint}", file=sys.stderr)
        return ERROR


def make_parser() -> argparse.ArgumentParser:
    """Declare all commands."""
    parser = argparse.ArgumentParser(prog="rookery", description=rookery.__doc__)
    parser.add_argument("-V", "--version", action="version", version=f"rookery {rookery.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add_command in (add_list, add_check_env, add_bench, add_doctor):
        add_command(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def enable_compilation_cache() -> Path | None:
    """Let JAX keep compiled programs between runs, in the user's cache folder; return the folder if it can be used.

    `ROOKERY_CACHE_DIR` names another one; a folder that was chosen by JAX's own setting is kept.
    """
    import jax

    chosen: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    folder = Path(chosen) if chosen and "ROOKERY_CACHE_DIR" not in os.environ else cache_folder() / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def cache_folder() -> Path:
    """Where Rookery keeps what it can make again."""
    if chosen := os.environ.get("ROOKERY_CACHE_DIR"):
        return Path(chosen).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user_cache).expanduser() / "rookery"


# rookery list


def add_list(commands: Any) -> None:
    command = commands.add_parser("list", help="show the environments and agents there are")
    command.add_argument("kind", nargs="?", choices=("envs", "agents"), help="what to list (default: both)")
    command.add_argument("libraries", nargs="*", metavar="LIBRARY", help="only the environments of these libraries")
    command.set_defaults(run_fn=run_list)


def run_list(arguments: argparse.Namespace) -> int:
    if arguments.libraries and arguments.kind != "envs":
        raise InvalidInputError(f"only environments come from a library: rookery list envs {arguments.libraries[0]}")
    console = make_console()
    if arguments.kind != "agents":
        list_envs(console, arguments.libraries)
    if arguments.kind != "envs":
        list_agents(console)
    return SUCCESS


def list_envs(console: Console, libraries: list[str]) -> None:
    """Print the names of the environments, library by library."""
    from rookery.envs import env_names, is_installed, library_names

    known = library_names()
    for library in libraries:
        if library not in known:
            raise unknown_name("environment library", library, known)
    for library in libraries or known:
        if not is_installed(library):
            print_heading(console, library, f"not installed: {install_command(library)}")
            continue
        try:
            with console.status(f"importing {library}"):
                names = env_names(library)
        except Exception as error:
            print_heading(console, library, f"cannot be imported: {one_line(error)}")
            continue
        print_heading(console, library, f"{len(names)} environments")
        print_columns(console, names)


def list_agents(console: Console) -> None:
    """Print the agents with the first line of what they say about themselves."""
    print_heading(console, "agents", "")
    rows = []
    for name, target in AGENTS.items():
        module, _, class_name = target.partition(":")
        documentation = getattr(importlib.import_module(module), class_name).__doc__
        rows.append((name, documentation.splitlines()[0]))
    print_rows(console, rows)


# rookery check-env


def add_check_env(commands: Any) -> None:
    command = commands.add_parser("check-env", help="check that an environment keeps the rules")
    command.add_argument("name", metavar="NAME", help="classic/cartpole, gymnasium/CartPole-v1 or CartPole-v1")
    command.set_defaults(run_fn=run_check_env)


def run_check_env(arguments: argparse.Namespace) -> int:
    from rookery.testing.check_env import check_env_by_name

    console = make_console()
    with console.status(f"checking {arguments.name}"):
        report = check_env_by_name(arguments.name, show_fn=lambda check: print_check(console, check))
    print_line(console, report.verdict, style="bold green" if report.passed else "bold red")
    return SUCCESS if report.passed else NOT_GOOD


def print_check(console: Console, check: Check) -> None:
    """Print one check: on a terminal with a coloured outcome, its text in a column of its own."""
    from rookery.testing.check_report import NAME_WIDTH, Outcome

    if not console.is_terminal:
        print(check, flush=True)
        return
    from rich.table import Table
    from rich.text import Text

    styles = {Outcome.PASSED: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "bold red", Outcome.SKIPPED: "dim"}
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=7)
    row.add_column(width=NAME_WIDTH)
    row.add_column(overflow="fold")
    finding_style = "dim" if check.outcome in (Outcome.PASSED, Outcome.SKIPPED) else ""
    row.add_row(Text(check.outcome.value, styles[check.outcome]), Text(check.name), Text(check.finding, finding_style))
    console.print(row)


# rookery bench


def add_bench(commands: Any) -> None:
    command = commands.add_parser("bench", help="run the benchmarks of a source checkout")
    command.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    command.set_defaults(run_fn=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    if not (SOURCE_ROOT / "bench").is_dir():
        raise InvalidInputError(
            f"the benchmarks are part of the source tree, and there is no folder {SOURCE_ROOT / 'bench'}: clone the "
            "repository and run `make bench` there."
        )
    return subprocess.run([sys.executable, "-m", "bench", *arguments.names], cwd=SOURCE_ROOT, check=False).returncode


# rookery doctor


def add_doctor(commands: Any) -> None:
    command = commands.add_parser("doctor", help="show versions and devices, and what is missing")
    command.set_defaults(run_fn=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    import jax

    console = make_console()
    print_heading(console, "Rookery", rookery.__version__)
    print_rows(
        console,
        [
            ("python", f"{platform.python_version()} ({sys.executable})"),
            ("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"),
            ("location", str(Path(rookery.__file__).parent)),
        ],
    )
    print_heading(console, "JAX", jax.__version__)
    try:
        backend, devices = jax.default_backend(), [str(device) for device in jax.devices()]
        problems = backend_problems(backend)
    except RuntimeError as error:
        backend, devices, problems = "none", [], [f"JAX finds no device: {one_line(error)}"]
    print_rows(
        console,
        [
            ("jaxlib", importlib.metadata.version("jaxlib")),
            ("backend", backend),
            ("devices", ", ".join(devices) or "none"),
            ("64 bit floats", "on" if jax.config.read("jax_enable_x64") else "off"),
            ("compile cache", cache_text(enable_compilation_cache())),
        ],
    )
    print_heading(console, "Extras", "")
    print_rows(console, [(extra, extra_text(extra, package)) for extra, package in extras().items()])
    for problem in problems:
        print_line(console, f"problem: {problem}", style="bold yellow")
    if not problems:
        print_line(console, "no problems found", style="bold green")
    return SUCCESS if devices else NOT_GOOD


def backend_problems(backend: str) -> list[str]:
    """Say what to do about an accelerator that is there and not used."""
    if backend != "cpu":
        return []
    accelerators = {
        "an NVIDIA GPU": (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"), "jax[cuda13]"),
        "an AMD GPU": (Path("/dev/kfd").exists(), "jax[rocm7-local]"),
        "a TPU": (Path("/dev/accel0").exists(), "jax[tpu]"),
    }
    chosen = os.environ.get("JAX_PLATFORMS")
    return [
        f"{accelerator} seems to be here, but JAX runs on the CPU: "
        + (f"unset JAX_PLATFORMS={chosen}." if chosen else f"pip install -U '{requirement}'")
        for accelerator, (is_there, requirement) in accelerators.items()
        if is_there
    ]


def cache_text(folder: Path | None) -> str:
    """Describe the compilation cache: where, how much."""
    if folder is None:
        return f"off, {cache_folder()} cannot be made: set ROOKERY_CACHE_DIR to a folder that can"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{folder} ({len(sizes)} files, {sum(sizes) / 1e6:.1f} MB)"


def extras() -> dict[str, str]:
    """The optional extras, each with the package that tells whether it is installed."""
    from rookery.envs.registration import BUILTIN_LIBRARIES

    libraries = {name: library.requires for name, library in BUILTIN_LIBRARIES.items() if library.requires is not None}
    return libraries | {"export": "flatbuffers"}


def extra_text(extra: str, package: str) -> str:
    """Give the version of an extra, or the command that installs it."""
    if importlib.util.find_spec(package) is None:
        return f"not installed: {install_command(extra)}"
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "installed"


# What the commands print: aligned on a terminal with colours, plain elsewhere.


def make_console() -> Console:
    """Make the terminal, which knows whether it is one."""
    from rich.console import Console

    return Console(highlight=False)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is, in a style if there is a terminal."""
    if console.is_terminal:
        console.print(text, style=style, markup=False)
    else:
        print(text, flush=True)


def print_heading(console: Console, name: str, remark: str) -> None:
    """Print the name of a group and a remark on it."""
    if console.is_terminal:
        from rich.text import Text

        console.print(Text.assemble((name, "bold cyan"), "  ", (remark, "dim")))
    else:
        print(f"{name}  {remark}".rstrip())


def print_columns(console: Console, names: list[str]) -> None:
    """Print names side by side, one per line where no terminal tells the width."""
    if console.is_terminal:
        from rich.columns import Columns
        from rich.padding import Padding

        console.print(Padding(Columns(names, padding=(0, 3), column_first=True), (0, 0, 1, 2)))
    else:
        for name in names:
            print(f"  {name}")


def print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and what there is to say about each, aligned."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_line(console, f"  {name:<{width}}  {text}")
    if console.is_terminal:
        console.print()


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'rookery[{extra}]'"


def one_line(error: Exception) -> str:
    """Return the message of an error in one line; an error that was not raised on purpose is named."""
    message = " ".join(str(error).split())
    return message if isinstance(error, RookeryError) else f"{type(error).__name__}: {message}"
