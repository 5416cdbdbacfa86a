"""Where bpg keeps files on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where bpg keeps what it can compute again: `$BPG_CACHE`, or `bpg` in the user's cache folder."""
    if os.environ.get("BPG_CACHE"):
        return Path(os.path.expanduser(os.environ["BPG_CACHE"]))
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "bpg"
