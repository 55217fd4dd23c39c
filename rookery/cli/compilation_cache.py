"""Where compiled programs are kept between two runs of the command."""

import os
from pathlib import Path


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
