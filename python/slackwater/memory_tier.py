"""Where the keeper's program is: the slackwater command, which pip installs beside the interpreter."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def keeper_program(given: str | os.PathLike[str] | None) -> str:
    """The path of the command. If it cannot be found, its name: the engine then says that there is no memory tier."""
    if given is not None:
        return os.fspath(given)
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder or "", "slackwater")
        if os.access(path, os.X_OK):
            return path
    return shutil.which("slackwater") or "slackwater"
