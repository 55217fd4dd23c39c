"""The cache of compiled programs between two runs of the command."""

import os
from pathlib import Path

MAX_BYTES = 2**30
"""The cache is halved when it has grown larger."""


class NoHomeError(OSError):
    """The user has no home folder: neither HOME nor an entry in the table of users."""


def enable_compilation_cache() -> Path | None:
    """Cache compiled programs in the user's cache folder; return the folder, or None if it cannot be created.

    `ROOKERY_CACHE_DIR` overrides the folder; a folder set by JAX's own option is kept, with JAX's own rules.
    """
    import jax

    chosen: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    is_ours = not chosen or "ROOKERY_CACHE_DIR" in os.environ
    try:
        folder = cache_folder() / "jax" if is_ours else Path(str(chosen))
        folder.mkdir(parents=True, exist_ok=True)
        if is_ours:
            delete_oldest(folder, MAX_BYTES)
    except OSError:
        return None
    if is_ours:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            # JAX leaves out what compiles in less than a second: in a short run, that is nearly everything.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


def delete_oldest(folder: Path, max_bytes: int) -> None:
    """Delete the programs that were not used for longest until half of `max_bytes` is left, if there are more."""
    with os.scandir(folder) as entries:
        files = [(entry.path, entry.stat()) for entry in entries if entry.is_file(follow_symlinks=False)]
    size = sum(found.st_size for _, found in files)
    if size <= max_bytes:
        return
    for path, found in sorted(files, key=lambda file: max(file[1].st_atime, file[1].st_mtime)):
        Path(path).unlink(missing_ok=True)
        size -= found.st_size
        if size <= max_bytes // 2:
            return


def cache_folder() -> Path:
    """Return the cache folder of Rookery; raise `NoHomeError` if it is in a home that the user does not have."""
    try:
        if chosen := os.environ.get("ROOKERY_CACHE_DIR"):
            return Path(chosen).expanduser()
        user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(user_cache).expanduser() / "rookery"
    except RuntimeError:
        raise NoHomeError("there is no home folder") from None
