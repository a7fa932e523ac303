"""What adapters that write files of their own share."""

from __future__ import annotations

import os


def sync_directory(path: str) -> None:
    """Afterwards the names in this directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
