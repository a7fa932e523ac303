"""Checks that no file and no class grows too large to be read: `make lint` and the tests run it.

    python3 scripts/check_sizes.py [root of the repository]

A product file has at most 500 lines, and a class at most 25 methods. Constructors, destructors and operators do not
count, nor do Python's methods of the form __x__. What has more is two files, or two classes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "include", "python", "sim", "bench")
MAX_LINES = 500
MAX_METHODS = 25

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
CLASS = re.compile(r"\b(?:class|struct)\s+(?:\[\[[^\]]*\]\]\s*)?((?:\w+::)*\w+)\s*(?:final\s*)?(?::(?!:)[^{};]*)?\{")
NOT_METHODS = re.compile(r"^(?:friend|using|typedef|static_assert|class|struct|union|enum|namespace)\b")


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    problems = check(root)
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems:
        sys.exit(f"check_sizes: {len(problems)} problems; the limits are in scripts/check_sizes.py")


def check(root: Path) -> list[str]:
    """One line for each problem."""
    return [problem for path in sources(root) for problem in check_file(path, path.relative_to(root).as_posix())]


def sources(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).rglob("*") if path.suffix in {".cpp", ".hpp", ".h", ".py"})


def check_file(path: Path, name: str) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{name}: has {lines} lines; {MAX_LINES} is the limit"
    count = count_in_python if path.suffix == ".py" else count_in_cpp
    for type_name, methods in count(text):
        if methods > MAX_METHODS:
            yield f"{name}: {type_name} has {methods} methods; {MAX_METHODS} is the limit"


def count_in_python(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        # A property and its setter share a name, and so do overloads.
        yield node.name, len({each for each in methods if not re.fullmatch(r"__\w+__", each)})


def count_in_cpp(text: str) -> Iterator[tuple[str, int]]:
    code = DIRECTIVE.sub("", COMMENT_OR_TEXT.sub(lambda found: '""' if found[0][0] in "\"'R" else " ", text))
    for found in CLASS.finditer(code):
        if not re.search(r"\benum\s*$", code[: found.start()]):
            name = found[1]
            yield name, sum(is_method(each, name.split("::")[-1]) for each in members(code, found.end()))


def members(code: str, start: int) -> Iterator[str]:
    """The declarations of a class whose body begins at `start`, without the bodies of its functions."""
    depth = 0
    declaration = ""
    for letter in code[start:]:
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth < 0:
                return
            # The end of a function, or of a nested class or an initial value, which go on up to a semicolon.
            if depth == 0 and "(" in without_templates(declaration):
                yield declaration
                declaration = ""
        elif depth == 0 and letter == ";":
            yield declaration
            declaration = ""
        elif depth == 0:
            declaration += letter


def is_method(declaration: str, type_name: str) -> bool:
    text = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", declaration)
    text = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^)]*\)|\bexplicit\s*\([^)]*\)", " ", text)
    text = re.sub(r"^\s*template\s*", "", without_templates(text)).strip()
    text = re.sub(r"^requires\s*(?:\([^)]*\)|[\w:]+)", "", text).strip()
    before, bracket, after = text.partition("(")
    if not bracket or NOT_METHODS.match(text) or "operator" in before or after.lstrip().startswith("*"):
        return False
    if "=" in before:  # an initial value
        return False
    name = re.search(r"(~?\w+)\s*$", before)
    return name is not None and name[1].lstrip("~") != type_name


def without_templates(text: str) -> str:
    """Without what is in <...>, from the inside out."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", " ", text)
    return text


if __name__ == "__main__":
    main()
