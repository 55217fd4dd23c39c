"""`rookery doctor`: versions, devices, Ray, and missing extras."""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

import rookery
from rookery.cli.compilation_cache import NoHomeError, cache_folder, enable_compilation_cache
from rookery.cli.console import install_command, make_console, one_line, print_heading, print_line, print_rows
from rookery.cli.exit_codes import NOT_GOOD, SUCCESS
from rookery.errors import RookeryError


def add_doctor(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("doctor", help="show versions, devices, Ray and missing extras")
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
    if importlib.util.find_spec("ray") is not None:
        print_heading(console, "Ray", importlib.metadata.version("ray"))
        print_rows(console, ray_rows())
        problems += ray_problems()
    print_heading(console, "Extras", "")
    print_rows(console, [(extra, extra_text(extra, package)) for extra, package in extras().items()])
    for problem in problems:
        print_line(console, f"problem: {problem}", style="bold yellow")
    if not problems:
        print_line(console, "no problems found", style="bold green")
    return SUCCESS if devices else NOT_GOOD


def backend_problems(backend: str) -> list[str]:
    """Return advice for accelerators that JAX does not use."""
    if backend != "cpu":
        return []
    accelerators = {
        "an NVIDIA GPU": (
            Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"),
            f"{install_command('cuda13')}, or rookery[cuda12] if its driver is older than 580",
        ),
        "an AMD GPU": (Path("/dev/kfd").exists(), "pip install -U 'jax[rocm7-local]'"),
        "a TPU": (Path("/dev/accel0").exists(), install_command("tpu")),
    }
    chosen = os.environ.get("JAX_PLATFORMS")
    return [
        f"{accelerator} is present, but JAX uses only the CPU: "
        + (f"unset JAX_PLATFORMS={chosen}." if chosen else advice)
        for accelerator, (is_present, advice) in accelerators.items()
        if is_present
    ]


def ray_rows() -> list[tuple[str, str]]:
    """Return how runners on Ray are protected, and what they share."""
    from rookery.runners.ray import cluster

    mode, address = os.environ.get(cluster.MODE_VARIABLE), os.environ.get(cluster.ADDRESS_VARIABLE)
    tokens = "on, a new one for each run" + (f"; to join a cluster: {cluster.MODE_VARIABLE}={mode}" if mode else "")
    rows = [
        ("tokens", tokens),
        ("loopback", "a Ray of our own listens on 127.0.0.1 only"),
        (
            str(cluster.SHARED_MEMORY),
            f"{free_text(cluster.SHARED_MEMORY)}, {cluster.store_bytes() / 1e9:.1f} GB for Ray",
        ),
        ("niceness", f"{cluster.NICENESS} of runners"),
    ]
    return [*rows, ("address", f"{address} ({cluster.ADDRESS_VARIABLE}): runs join this cluster")] if address else rows


def ray_problems() -> list[str]:
    """Return advice for a Ray that does not check tokens, or that has little memory to share."""
    from rookery.runners.ray import cluster

    problems = []
    try:
        cluster.check_version()
    except RookeryError as error:
        problems.append(one_line(error))
    if cluster.SHARED_MEMORY.is_dir() and shutil.disk_usage(cluster.SHARED_MEMORY).free < cluster.MIN_STORE_BYTES:
        problems.append(
            f"{cluster.SHARED_MEMORY} has only {free_text(cluster.SHARED_MEMORY)}, and Ray falls back to slow files: "
            "start a container with --shm-size=2g"
        )
    return problems


def free_text(folder: Path) -> str:
    """Describe the free space of a folder."""
    return f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free" if folder.is_dir() else "none"


def cache_text(folder: Path | None) -> str:
    """Describe the folder and size of the compilation cache."""
    if folder is None:
        try:
            reason = f"{cache_folder()} cannot be created"
        except NoHomeError as error:
            reason = str(error)
        return f"off, {reason}: set ROOKERY_CACHE_DIR to a writable folder"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{folder} ({len(sizes)} files, {sum(sizes) / 1e6:.1f} MB)"


OTHER_EXTRAS = {
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "export": "flatbuffers",
    "wandb": "wandb",
    "tune": "optuna",
    "ray": "ray",
    "bench": "stable_baselines3",
    "cuda12": "jax_cuda12_plugin",
    "cuda13": "jax_cuda13_plugin",
    "tpu": "libtpu",
}
"""The extras that are not a library of environments with names of its own."""


def extras() -> dict[str, str]:
    """Return the optional extras, each with a package that it installs."""
    from rookery.envs.libraries import LIBRARIES

    libraries = {library.extra: library.requires for library in LIBRARIES.values()}
    return {extra: package for extra, package in libraries.items() if extra and package} | OTHER_EXTRAS


def extra_text(extra: str, package: str) -> str:
    """Return the version of an extra, or the command that installs it."""
    if importlib.util.find_spec(package) is None:
        return f"not installed: {install_command(extra)}"
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "installed"
