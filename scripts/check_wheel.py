"""Checks a wheel: what is in it, and that it works in an environment of its own, without torch and numpy.

    python scripts/check_wheel.py <folder of the wheel> [--manylinux]

--manylinux also asks for the tag that `auditwheel repair` gives to a wheel that other machines can install.
"""

import platform
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

SMOKE_TEST = Path(__file__).resolve().with_name("wheel_smoke.py")


def main() -> None:
    folder, *options = sys.argv[1:]
    wheels = list(Path(folder).resolve().glob("slackwater-*.whl"))
    expect(len(wheels) == 1, f"there must be one wheel in {folder}, and there are {len(wheels)}")
    (wheel,) = wheels
    check_contents(wheel)
    if "--manylinux" in options:
        check_tag(wheel)
    with tempfile.TemporaryDirectory(prefix="slackwater-wheel-") as scratch:
        check_installed(wheel, Path(scratch))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, contents, linkage and a save without torch are good")


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for what, ending in {
        "the package": "slackwater/__init__.py",
        "the mark that it is typed": "slackwater/py.typed",
        "the stubs of the extension": "slackwater/_core.pyi",
        "the command": ".data/scripts/slackwater",
        "the package that DeepSpeed imports": "datastates/__init__.py",
        "the licence": "/LICENSE",
    }.items():
        expect(any(name.endswith(ending) for name in names), f"{what} ({ending}) is not in {wheel.name}")
    expect(
        any(name.startswith("slackwater/_core.") and name.endswith(".so") for name in names),
        f"the extension slackwater/_core is not in {wheel.name}",
    )
    # slackwater.libs, too, where auditwheel puts libraries that are not linked statically.
    strays = [name for name in names if not name.startswith(("slackwater/", "slackwater-", "datastates/"))]
    expect(not strays, f"{wheel.name} holds files it should not: {strays}")
    bench = [name for name in names if "bench" in name.lower()]
    expect(not bench, f"{wheel.name} holds benchmarks: {bench}")


def check_tag(wheel: Path) -> None:
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name.rsplit("-", 1)[1])
    expect(bool(tags), f"{wheel.name} has no manylinux tag, so only a machine like this one can install it")
    library, version = platform.libc_ver()
    here = tuple(int(part) for part in version.split(".")[:2])
    needed = max((int(major), int(minor)) for major, minor in tags)
    expect(library == "glibc" and needed <= here, f"{wheel.name} asks for a newer glibc than {library} {version}")


def check_installed(wheel: Path, folder: Path) -> None:
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    python = str(environment / "bin" / "python")
    # The pip of this environment installs into the other one, which saves that one a pip of its own.
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    run(python, str(SMOKE_TEST), wheel.name.split("-")[1], str(folder))


def run(*command: str) -> None:
    # Away from the repository, so that nothing is imported from it by accident.
    result = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    expect(result.returncode == 0, f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")


def expect(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"check_wheel: {message}")


if __name__ == "__main__":
    main()
