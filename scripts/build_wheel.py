"""Builds the wheel through the same PEP 517 hook as `pip wheel .`, in a build directory that is kept.

Called directly rather than through pip for two reasons: the compiler's progress stays visible, and only what changed is
compiled again. The directory is configured with the tests, so that `make test` finds its objects already built.
"""

import shutil
import sys
from pathlib import Path

from scikit_build_core.build import build_wheel


def main() -> None:
    build_dir, wheel_dir = sys.argv[1:]
    shutil.rmtree(wheel_dir, ignore_errors=True)
    Path(wheel_dir).mkdir(parents=True)
    settings = {"build-dir": build_dir, "cmake.define.SLACKWATER_TESTS": "ON"}
    if Path("bench/CMakeLists.txt").exists():
        settings["cmake.define.SLACKWATER_BENCH"] = "ON"
    print(build_wheel(wheel_dir, settings))


if __name__ == "__main__":
    main()
