"""Where this machine keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Choose the cache folder.

    Args:
        cache_dir: the folder asked for; None for the default.

    Returns:
        `cache_dir`, else $JAXATTN_CACHE, else $XDG_CACHE_HOME/jaxattn, else ~/.cache/jaxattn.
    """
    if chosen := cache_dir or os.environ.get("JAXATTN_CACHE"):
        return Path(os.path.expanduser(chosen))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jaxattn")
