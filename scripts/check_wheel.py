"""Checks the wheel `make build` made: what is in it, what it links to, and that it works where there is no torch."""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

# Present on any Linux with Python. Everything else (liburing, fmt, xxHash) is linked in.
SYSTEM_LIBRARIES = {
    "linux-vdso.so.1",
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
}

SMOKE_TEST = """
import sys
import slackwater as sw
assert "torch" not in sys.modules and "numpy" not in sys.modules, "import slackwater must not import torch or numpy"
for name in ("Checkpointer", "Snapshot", "Rng", "open", "load", "__version__"):
    assert hasattr(sw, name), f"slackwater.{name} is missing"
with sw.Checkpointer(sys.argv[1]) as ckpt:
    ckpt.save(1, {"answer": 42, "words": ["slack", "water"]})
assert sw.load(sys.argv[1]) == {"answer": 42, "words": ["slack", "water"]}
print(sw.__version__)
"""


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("slackwater-*.whl")
    version = wheel.name.split("-")[1]
    check_contents(wheel)
    with tempfile.TemporaryDirectory(prefix="slackwater-wheel-") as folder:
        check_installed(wheel, version, Path(folder))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, contents, linkage and a save without torch are good")


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for what, ending in {
        "the package": "slackwater/__init__.py",
        "the mark that it is typed": "slackwater/py.typed",
        "the stubs of the extension": "slackwater/_core.pyi",
        "the command": ".data/scripts/slackwater",
        "the licence": "/LICENSE",
    }.items():
        expect(any(name.endswith(ending) for name in names), f"{what} ({ending}) is not in {wheel.name}")
    expect(
        any(name.startswith("slackwater/_core.") and name.endswith(".so") for name in names),
        f"the extension slackwater/_core is not in {wheel.name}",
    )
    strays = [name for name in names if not name.startswith(("slackwater/", "slackwater-"))]
    expect(not strays, f"{wheel.name} holds files it should not: {strays}")
    bench = [name for name in names if "bench" in name.lower()]
    expect(not bench, f"{wheel.name} holds benchmarks: {bench}")


def check_installed(wheel: Path, version: str, folder: Path) -> None:
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    # The pip of this environment installs into the other one, which saves that one a pip of its own.
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        str(wheel),
    )

    command = environment / "bin" / "slackwater"
    expect(version in run(str(command), "--version"), f"slackwater --version does not say {version}")
    expect("bench" not in run(str(command), "--help"), "slackwater --help names benchmarks, which must stay out")
    imported = run(str(python), "-c", SMOKE_TEST, str(folder / "run")).strip()
    expect(imported == version, f"slackwater.__version__ is {imported}, the wheel is {version}")
    run(str(command), "verify", str(folder / "run"))

    (extension,) = environment.glob("lib/python*/site-packages/slackwater/_core.*.so")
    for binary in (command, extension):
        for line in run("ldd", str(binary)).splitlines():
            library = os.path.basename(line.split()[0])
            expect(
                library in SYSTEM_LIBRARIES or library.startswith("ld-linux"),
                f"{binary.name} links to {library}, which a user's machine may not have",
            )


def run(*command: str) -> str:
    # Away from the repository, so that nothing is imported from it by accident.
    result = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    expect(result.returncode == 0, f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"check_wheel: {message}")


if __name__ == "__main__":
    main()
