"""CMake refuses a library that is too old, with one sentence: each one in turn is faked in an old version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support import SECONDS

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "cmake" / "SlackwaterLibraries.cmake"
# name -> the oldest version that will do, out of the table itself
OLDEST = dict(re.findall(r'^  "(\S+) +([0-9.]+) +[^"]+"', TABLE.read_text(), flags=re.MULTILINE))
# How the project asks for the libraries that have no CMake package.
ASKS = {
    "g++": "slackwater_check_compiler()",
    "clang": "slackwater_check_compiler()",
    "liburing": "slackwater_find_liburing()",
    "xxHash": "slackwater_find_xxhash()",
    "MPI": 'slackwater_check(MPI "${MPI_CXX_VERSION}")',
}


def older(version: str) -> str:
    """9.1 -> 9.0.99, 12 -> 11.99, 0.8.1 -> 0.8.0: a version that just will not do."""
    *front, last = (int(part) for part in version.split("."))
    return ".".join(map(str, [*front, last - 1, 99][:3]))


def configure(name: str, version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Configures a project of two lines that asks for this library, which is faked in this version."""
    prefix = folder / "prefix"
    package = prefix / "lib" / "cmake" / name
    package.mkdir(parents=True)
    (package / f"{name}Config.cmake").write_text("")
    (package / f"{name}ConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
    (prefix / "include").mkdir()
    major, minor, release = ([*version.split("."), "0", "0"])[:3]
    (prefix / "include" / "xxhash.h").write_text(
        f"#define XXH_VERSION_MAJOR    {major}\n"
        f"#define XXH_VERSION_MINOR    {minor}\n"
        f"#define XXH_VERSION_RELEASE  {release}\n"
        "#define XXH_VERSION_NUMBER  (XXH_VERSION_MAJOR *100*100 + XXH_VERSION_MINOR *100 + XXH_VERSION_RELEASE)\n"
    )
    (prefix / "include" / "liburing.h").write_text("")
    (prefix / "lib" / "liburing.a").write_text("")
    (prefix / "lib" / "pkgconfig").mkdir()
    (prefix / "lib" / "pkgconfig" / "liburing.pc").write_text(
        f"Name: liburing\nDescription: faked\nVersion: {version}\nLibs: -luring\n"
    )
    # No compiler is looked for, which keeps this quick; what it would be is said by hand.
    settings = {
        "CMAKE_PREFIX_PATH": prefix,
        "CMAKE_FIND_PACKAGE_PREFER_CONFIG": "ON",
        "CMAKE_CXX_COMPILER_ID": {"g++": "GNU", "clang": "Clang"}.get(name, ""),
        "CMAKE_CXX_COMPILER_VERSION": version,
        "MPI_CXX_VERSION": version,
        "XXHASH_INCLUDE_DIR": prefix / "include",
        "LIBURING_INCLUDE_DIR": prefix / "include",
        "LIBURING_STATIC": prefix / "lib" / "liburing.a",
    }
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES NONE)\n"
        f"include({TABLE})\n{ASKS.get(name, f'slackwater_find({name})')}\n"
    )
    return subprocess.run(
        [shutil.which("cmake") or "cmake", "-S", folder, "-B", folder / "build"]
        + [f"-D{key}={value}" for key, value in settings.items()],
        env={**os.environ, "PKG_CONFIG_LIBDIR": str(prefix / "lib" / "pkgconfig")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_table_names_every_library_that_cmake_looks_for() -> None:
    """No library is found behind the table's back: find_package is for Threads, PkgConfig and an optional MPI only."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(("CMakeLists.txt", ".cmake"))]
    found = {name for path in files for name in re.findall(r"\bfind_package\((\w+)", path.read_text())}
    assert found <= {"Threads", "PkgConfig", "MPI"}
    asked = {name for path in files for name in re.findall(r"\bslackwater_(?:find|check)\(([\w+]+)", path.read_text())}
    assert set(OLDEST) == asked | set(ASKS)


def test_pip_asks_for_the_same_versions_as_cmake() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"nanobind>={OLDEST['nanobind']}" in project["build-system"]["requires"]
    assert project["project"]["requires-python"] == f">={OLDEST['Python']}"


@pytest.mark.parametrize("name", OLDEST)
def test_library_that_is_too_old_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    old = older(OLDEST[name])
    refused = configure(name, old, tmp_path)
    assert refused.returncode != 0
    sentence = f"Slackwater needs {name} {OLDEST[name]} or newer, and found {old} ("
    assert sentence in " ".join(refused.stderr.split())


@pytest.mark.parametrize("name", OLDEST)
def test_oldest_version_named_will_do(name: str, tmp_path: Path) -> None:
    taken = configure(name, OLDEST[name], tmp_path)
    assert taken.returncode == 0, taken.stderr


def test_library_that_is_not_there_is_named_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES NONE)\ninclude({TABLE})\n"
        "set(CMAKE_DISABLE_FIND_PACKAGE_fmt ON)\nslackwater_find(fmt)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert refused.returncode != 0
    words = " ".join(refused.stderr.split())
    assert f"Slackwater needs fmt {OLDEST['fmt']} or newer, which was not found (the package libfmt-dev)." in words
