"""Checks that no line is longer than 120 columns, in Markdown, in code and in comments: `make lint` runs it.

    python3 scripts/check_columns.py [--tables] [root of the repository]

Every text file that git knows is checked, and every new one that it does not ignore. Left out are data, patches, and
lines that cannot be broken: a link alone on its line, a row of a Markdown table (unless --tables is given), and the
output of a program in a Markdown code block without a language or with the language text.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

COLUMNS = 120
CHECKED = re.compile(
    r"\.(md|[ch]pp|c|h|cu|cuh|inc|py|pyi|cmake|sh|mk|toml|ya?ml)$"
    r"|(^|/)(CMakeLists\.txt|requirements[^/]*\.txt|Makefile|\.clang-tidy|\.ci/run)$"
)
DATA = re.compile(r"^tests/(fixtures/[0-9]|fuzz/corpus/|mutations/)")  # written by programs, or with the text of others
LINK_ALONE = re.compile(r"^\W*(\[[^\]]*\]:?\s*)?[(<]?\w+://\S+$")


def main() -> None:
    words = sys.argv[1:]
    roots = [word for word in words if word != "--tables"]
    root = Path(roots[0] if roots else Path(__file__).resolve().parents[1])
    problems = check(root, tables="--tables" in words)
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems:
        sys.exit(f"check_columns: {len(problems)} lines are longer than {COLUMNS} columns")


def check(root: Path, tables: bool = False) -> list[str]:
    """One line for each line that is too long."""
    return [
        f"{name}:{number}: {columns} columns"
        for name in files(root)
        for number, columns in long_lines((root / name).read_text(encoding="utf-8"), name.endswith(".md"), tables)
    ]


def files(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = sorted(set(listed.stdout.split("\0")))
    return [name for name in names if CHECKED.search(name) and not DATA.match(name) and (root / name).is_file()]


def long_lines(text: str, markdown: bool, tables: bool) -> Iterator[tuple[int, int]]:
    fence = ""  # what ends the code block that we are in
    output = False  # and whether it shows what a program printed
    for number, line in enumerate(text.split("\n"), start=1):
        if markdown and (found := re.match(r"\s*(`{3,}|~{3,})\s*(\w*)", line)):
            if not fence:
                fence, output = found[1], found[2] in ("", "text")
            elif found[1].startswith(fence) and not found[2]:
                fence, output = "", False
        columns = width(line)
        if columns <= COLUMNS or LINK_ALONE.match(line):
            continue
        row = markdown and not fence and line.lstrip().startswith("|")
        if not output and (tables or not row):
            yield number, columns


def width(line: str) -> int:
    """In columns of a terminal: a character, not a byte, is one; East Asian wide ones are two; accents are none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in line) if not line.isascii() else 0
    return len(line) + wide - sum(unicodedata.combining(character) != 0 for character in line if character > "\x7f")


if __name__ == "__main__":
    main()
