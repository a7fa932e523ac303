"""Checks who may include whom: `make lint` and the tests run it.

    python3 scripts/check_folders.py [root of the repository]

The order of the folders is the table of src/README.md, and only that. A folder may include from itself and from the
folders above it. CMakeLists.txt must add the folders in the same order, and USES in a folder's CMakeLists.txt must
reach every folder that its files include from. Which folder may use which library is in the two tables below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# What is included with <...>, and the places where it may stand. A place is a folder of src, or a path.
HEADERS = {
    r"liburing(\.h|/)": ["os"],
    r"cuda|nv(ml|toolsext)|cufile": ["device/cuda"],
    r"curl/": ["store"],
    r"CLI/": ["cli"],
    r"mpi\.h": ["mpi", "include/slackwater/mpi.hpp"],
    r"(torch|ATen|c10|nanobind|pybind11|numpy)/|Python\.h": [],
}
# What those headers declare, in case somebody declares it again elsewhere.
NAMES = {
    r"io_uring_\w+|IORING_\w+": ["os"],
    r"cu[A-Z]\w+|CU[a-z]\w*|CUDA_[A-Z]\w*|CU_[A-Z]\w*": ["device/cuda"],
    r"(curl|CURL)_\w+|CURL[EM]?": ["store"],
    r"MPI_\w+": ["mpi", "include/slackwater/mpi.hpp"],
    r"Py_\w+|PyObject|at::\w+|torch::\w+": [],
}
# Copying and writing know nothing of each other: they meet in one folder. The object store in store/s3 is a FileSystem
# and writes no slabs, so whoever reads or writes tiers may see it.
APART = ("stage", "store")
NOT_APART = "store/s3/"
MEET_IN = "engine"
# Programs, and what is beside the path: no folder includes from these.
LEAVES = ("cli", "mpi")

PUBLIC = "a public header includes the standard library and slackwater/ only"
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    problems = check(root)
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems:
        sys.exit(
            f"check_folders: {len(problems)} problems; the rules are in src/README.md and scripts/check_folders.py"
        )


def check(root: Path) -> list[str]:
    """One line for each problem."""
    order = folders_in_table(root / "src" / "README.md")
    if not order:
        return ["src/README.md: there is no table with a row such as | `base/` | ... | for each folder"]
    return [
        *check_rules(order),
        *check_table(root, order),
        *check_order_in_cmake(root, order),
        *check_uses(root, order),
        *check_files(root, order),
        *check_public_headers(root),
    ]


def folders_in_table(readme: Path) -> list[str]:
    return re.findall(r"^\|\s*`(\w+)/`\s*\|", readme.read_text(encoding="utf-8"), flags=re.MULTILINE)


def check_rules(order: list[str]) -> Iterator[str]:
    """A rule about a folder that was renamed would hold for nobody."""
    for folder in sorted({*APART, MEET_IN, *LEAVES, "os", "device"} - set(order)):
        yield f"scripts/check_folders.py: a rule names the folder {folder}, which src/README.md does not have"


def check_table(root: Path, order: list[str]) -> Iterator[str]:
    there = {path.name for path in (root / "src").iterdir() if path.is_dir() and sources(path)}
    for folder in sorted(there - set(order)):
        yield f"src/{folder}: src/README.md does not have this folder in its table"
    for folder in order:
        if folder not in there:
            yield f"src/README.md: its table has {folder}/, and there are no sources in src/{folder}"
        if order.count(folder) > 1:
            yield f"src/README.md: its table has {folder}/ twice"


def check_order_in_cmake(root: Path, order: list[str]) -> Iterator[str]:
    text = (root / "CMakeLists.txt").read_text(encoding="utf-8")
    loop = re.search(r"foreach\(folder ([\w\s]+)\)\s*add_subdirectory\(src/\$\{folder\}\)", text)
    added = loop[1].split() if loop else []
    # Some are added by themselves, under a condition: those may stand anywhere.
    alone = re.findall(r"add_subdirectory\(src/(\w+)\)", text)
    expected = [folder for folder in order if folder not in alone]
    if added != expected:
        yield (
            f"CMakeLists.txt: adds the folders of src as '{' '.join(added)}', "
            f"and the table of src/README.md says '{' '.join(expected)}'"
        )


def check_uses(root: Path, order: list[str]) -> Iterator[str]:
    for folder in order:
        for used in uses(root, folder):
            if used not in order:
                yield f"src/{folder}/CMakeLists.txt: uses {used}, which is not a folder in the table of src/README.md"
            elif reaches_up(folder, used, order):
                yield f"src/{folder}/CMakeLists.txt: {why(folder, used)}"


def check_files(root: Path, order: list[str]) -> Iterator[str]:
    for folder in order:
        reachable = reach(root, folder)
        # Of the folders that must stay apart: where one was included first.
        seen = {folder: "itself"} if folder in APART else {}
        for path in sources(root / "src" / folder):
            place = str(path.relative_to(root / "src"))
            yield from check_libraries(root, path)
            for where, header in quoted_includes(root, path):
                used = header.split("/")[0]
                if used == "slackwater":
                    continue
                if "/" not in header or used not in order:
                    yield f'{where}: includes "{header}"; say which folder of src, or slackwater/, it is from'
                elif reaches_up(folder, used, order):
                    yield f"{where}: includes {header}, but {why(folder, used)}"
                elif used != folder and used not in reachable:
                    yield f"{where}: includes {header}, but USES in src/{folder}/CMakeLists.txt does not reach {used}"
                if used in APART and folder != MEET_IN and not header.startswith(NOT_APART):
                    seen.setdefault(used, place)
        if len(seen) == len(APART):
            both = " and ".join(f"{used} ({place})" for used, place in sorted(seen.items()))
            yield f"src/{folder}: includes from {both}; only {MEET_IN} may see both"


def check_libraries(root: Path, path: Path) -> Iterator[str]:
    for where, header in angled_includes(root, path):
        for pattern, places in HEADERS.items():
            if re.match(pattern, header, flags=re.IGNORECASE if "cuda" in pattern else 0) and not at(
                root, path, places
            ):
                yield f"{where}: includes <{header}>, {allowed(root, places)}"
    code = COMMENT_OR_TEXT.sub(lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8"))
    for pattern, places in NAMES.items():
        if at(root, path, places):
            continue
        for number, line in enumerate(code.split("\n"), start=1):
            if found := re.search(rf"(?<![\w:])(?:{pattern})(?!\w)", line):
                yield f"{path.relative_to(root)}:{number}: says {found[0]}, {allowed(root, places)}"


def check_public_headers(root: Path) -> Iterator[str]:
    for path in sources(root / "include"):
        yield from check_libraries(root, path)
        for where, header in quoted_includes(root, path):
            if not header.startswith("slackwater/"):
                yield f"{where}: includes {header}; {PUBLIC}"
        for where, header in angled_includes(root, path):
            standard = re.fullmatch(r"[a-z_0-9]+", header) is not None
            named = any(re.match(pattern, header) and at(root, path, places) for pattern, places in HEADERS.items())
            if not standard and not named:
                yield f"{where}: includes <{header}>; {PUBLIC}"


def reaches_up(folder: str, used: str, order: list[str]) -> bool:
    return used != folder and (used in LEAVES or order.index(used) > order.index(folder))


def why(folder: str, used: str) -> str:
    if used in LEAVES:
        return f"no folder may use {used}"
    return f"{folder} may use only folders above it in the table of src/README.md, and {used} is below it"


def uses(root: Path, folder: str) -> list[str]:
    """USES of a slackwater_library; of other targets, what they link that begins with sw_ and is a folder."""
    file = root / "src" / folder / "CMakeLists.txt"
    text = re.sub(r"#[^\n]*", "", file.read_text(encoding="utf-8")) if file.exists() else ""
    named = re.findall(r"\bUSES\s+((?:[a-z]\w*\s*)*)", text)
    linked = re.findall(r"\bsw_(\w+)", " ".join(re.findall(r"target_link_libraries\(([^)]*)\)", text)))
    folders = {path.name for path in (root / "src").iterdir()}
    return [*" ".join(named).split(), *(name for name in linked if name in folders and name != folder)]


def reach(root: Path, folder: str) -> set[str]:
    reached: set[str] = set()
    ahead = uses(root, folder)
    while ahead:
        used = ahead.pop()
        if used not in reached:
            reached.add(used)
            ahead += uses(root, used)
    return reached


def at(root: Path, path: Path, places: list[str]) -> bool:
    return any(path.is_relative_to(root / place) for place in places_in(root, places))


def allowed(root: Path, places: list[str]) -> str:
    named = " and ".join(places_in(root, places))
    return f"which belongs to {named} only" if named else "which no C++ of the engine may"


def places_in(root: Path, places: list[str]) -> list[str]:
    """With src/ in front. As long as there is no src/device/cuda, src/device stands for it."""
    full = []
    for place in places:
        inner = place if (root / "src" / place).exists() else place.split("/")[0]
        full.append(place if place.startswith("include/") else f"src/{inner}")
    return full


def quoted_includes(root: Path, path: Path) -> Iterator[tuple[str, str]]:
    return ((where, quoted) for where, quoted, _ in includes(root, path) if quoted)


def angled_includes(root: Path, path: Path) -> Iterator[tuple[str, str]]:
    return ((where, angled) for where, _, angled in includes(root, path) if angled)


def includes(root: Path, path: Path) -> Iterator[tuple[str, str | None, str | None]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if found := INCLUDE.match(line):
            yield f"{path.relative_to(root)}:{number}", found[1], found[2]


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".cpp", ".hpp", ".h", ".inc"})


if __name__ == "__main__":
    main()
