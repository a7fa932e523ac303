"""Uses an installed wheel as its user would, where nothing else is installed: neither torch nor numpy, no compiler.

    python wheel_smoke.py <version> <scratch folder> [checkpoints ...]

Run by the Python that the wheel is installed into: in an empty environment by check_wheel.py, in a bare Debian by
wheel_chroot.sh. The checkpoints named are verified. They hold tensors, which a state without torch and numpy cannot.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import slackwater as sw

# Present on any Linux with Python. Everything else (liburing, fmt, xxHash) is linked in.
SYSTEM_LIBRARIES = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
# manylinux allows these to an extension: whoever has torch has them. The command must do without.
CXX_LIBRARIES = {"libgcc_s.so.1", "libstdc++.so.6"}

STATE = {"answer": 42, "words": ["slack", "water"], "bytes": bytes(range(256)) * 64}


def main() -> None:
    version, scratch, *checkpoints = sys.argv[1:]
    command = Path(sysconfig.get_path("scripts"), "slackwater")
    check_import(version)
    check_linkage(command, SYSTEM_LIBRARIES)
    check_linkage(Path(sw._core.__file__), SYSTEM_LIBRARIES | CXX_LIBRARIES)
    expect(version in run(command, "--version"), f"slackwater --version does not say {version}")
    expect("bench" not in run(command, "--help"), "slackwater --help names benchmarks, which must stay out")
    check_save_and_restore(command, Path(scratch, "run"))
    for checkpoint in checkpoints:
        run(command, "ls", checkpoint)
        run(command, "show", checkpoint)
        run(command, "verify", checkpoint)
    print("wheel_smoke: save, restore, ls, show, verify and linkage are good")


def check_import(version: str) -> None:
    brought = {"torch", "numpy"} & set(sys.modules)
    expect(not brought, f"import slackwater must not import {brought}")
    for name in ("Checkpointer", "Snapshot", "Rng", "open", "load", "__version__"):
        expect(hasattr(sw, name), f"slackwater.{name} is missing")
    expect(sw.__version__ == version, f"slackwater.__version__ is {sw.__version__}, the wheel is {version}")


def check_save_and_restore(command: Path, folder: Path) -> None:
    with sw.Checkpointer(folder) as ckpt:
        ckpt.save(1, STATE)
        ckpt.save(2, {**STATE, "answer": 43})
    expect(sw.load(folder) == {**STATE, "answer": 43}, "what was restored is not what was saved")
    restored = dict.fromkeys(STATE)
    with sw.Checkpointer(folder) as ckpt:
        report = ckpt.restore(restored, step=1)
    expect(restored == STATE, f"restore(step=1) gave {restored} ({report})")
    expect(len(run(command, "ls", folder, "--json").splitlines()) > 0, "slackwater ls --json shows nothing")
    expect("words" in run(command, "show", folder), "slackwater show does not show the values")
    run(command, "verify", folder)


def check_linkage(binary: Path, allowed: set[str]) -> None:
    expect(binary.read_bytes()[:4] == b"\x7fELF", f"{binary} is not a program of its own: auditwheel put a shim there")
    for line in run("ldd", binary).splitlines():
        library = Path(line.split()[0]).name
        known = library in allowed or library.startswith("ld-linux")
        expect(known, f"{binary.name} links to {library}, which a user's machine may not have")
        expect("not found" not in line, f"{binary.name} does not find {library} here")


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    words = " ".join(map(str, command))
    expect(result.returncode == 0, f"{words} failed ({result.returncode}):\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"wheel_smoke: {message}")


if __name__ == "__main__":
    main()
