"""The cache of compiled programs between two runs of the command."""

import os
from pathlib import Path


class NoHomeError(OSError):
    """The user has no home folder: neither HOME nor an entry in the table of users."""


def enable_compilation_cache() -> Path | None:
    """Cache compiled programs in the user's cache folder; return the folder, or None if it cannot be created.

    `ROOKERY_CACHE_DIR` overrides the folder; a folder set by JAX's own option is kept.
    """
    import jax

    chosen: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    try:
        folder = Path(chosen) if chosen and "ROOKERY_CACHE_DIR" not in os.environ else cache_folder() / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def cache_folder() -> Path:
    """Return the cache folder of Rookery; raise `NoHomeError` if it is in a home that the user does not have."""
    try:
        if chosen := os.environ.get("ROOKERY_CACHE_DIR"):
            return Path(chosen).expanduser()
        user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(user_cache).expanduser() / "rookery"
    except RuntimeError:
        raise NoHomeError("there is no home folder") from None
