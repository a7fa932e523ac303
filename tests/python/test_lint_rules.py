"""The rules that `make lint` checks by scripts of its own: the repository keeps them, and each slip is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import SECONDS

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


check_folders = script("check_folders")
check_columns = script("check_columns")
check_sizes = script("check_sizes")

# A small repository that keeps all rules: folder -> (what its CMakeLists.txt uses, what its header includes).
TREE = {
    "base": ("", '"slackwater/api.hpp"'),
    "os": ("base", '"base/base.hpp" <liburing.h>'),
    "device": ("base", '"base/base.hpp" <cuda.h>'),
    "stage": ("device", '"device/device.hpp" "base/base.hpp"'),
    "store": ("os", '"os/os.hpp"'),
    "engine": ("stage store", '"stage/stage.hpp" "store/store.hpp" "os/os.hpp"'),
    "cli": ("engine", '"engine/engine.hpp" <CLI/CLI.hpp>'),
    "mpi": ("base", '"base/base.hpp" <mpi.h>'),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    rows = [f"| `{folder}/` | what it does | `{folder}.hpp` |" for folder in TREE]
    write(tmp_path / "src/README.md", "# Folders", "", "| folder | what | start |", "|---|---|---|", *rows)
    folders = " ".join(folder for folder in TREE if folder != "mpi")
    write(
        tmp_path / "CMakeLists.txt",
        f"foreach(folder {folders})",
        "  add_subdirectory(src/${folder})",
        "endforeach()",
        "if(MPI_CXX_FOUND)",
        "  add_subdirectory(src/mpi)",
        "endif()",
    )
    for folder, (uses, included) in TREE.items():
        write(
            tmp_path / "src" / folder / "CMakeLists.txt",
            f"slackwater_library({folder}",
            f"  SOURCES {folder}.cpp",
            f"  USES {uses}",
            "  LIBRARIES )",
        )
        write(tmp_path / "src" / folder / f"{folder}.hpp", *(f"#include {name}" for name in included.split()))
    write(tmp_path / "include/slackwater/api.hpp", "#include <cstdint>")
    write(tmp_path / "include/slackwater/mpi.hpp", "#include <mpi.h>", '#include "slackwater/api.hpp"')
    return tmp_path


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def add(path: Path, line: str) -> None:
    write(path, *path.read_text().splitlines(), line) if path.exists() else write(path, line)


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


def test_folders_of_this_repository_keep_their_order() -> None:
    assert check_folders.check(ROOT) == []


def test_tree_that_keeps_all_rules_is_accepted(tree: Path) -> None:
    assert check_folders.check(tree) == []


def test_script_ends_with_an_error_when_a_rule_is_broken(tree: Path) -> None:
    assert run("check_folders", tree).returncode == 0
    add(tree / "src/base/base.hpp", '#include "engine/engine.hpp"')
    refused = run("check_folders", tree)
    assert refused.returncode == 1
    assert "src/base/base.hpp:2: includes engine/engine.hpp, but base may use only folders above it" in refused.stdout


@pytest.mark.parametrize(
    ("file", "line", "problem"),
    [
        ("base/base.hpp", '#include "engine/engine.hpp"', "engine is below it"),
        ("store/new.cpp", '#  include "engine/engine.hpp"  // why not', "engine is below it"),
        ("store/deep/new.hpp", '#include "engine/engine.hpp"', "engine is below it"),
        ("mpi/mpi.hpp", '#include "cli/cli.hpp"', "no folder may use cli"),
        ("store/store.hpp", '#include "stage/stage.hpp"', "only engine may see both"),
        ("store/store.hpp", '#include "stage/stage.hpp"', "does not reach stage"),
        ("cli/cli.hpp", '#include "stage/stage.hpp"\n#include "store/store.hpp"', "only engine may see both"),
        ("cli/cli.hpp", '#include "mpi/mpi.hpp"', "no folder may use mpi"),
        ("os/os.hpp", '#include "os.hpp"', "say which folder"),
        ("os/os.hpp", '#include "tests/support/bytes.hpp"', "say which folder"),
        ("engine/engine.hpp", "#include <liburing.h>", "belongs to src/os only"),
        ("engine/engine.cpp", "io_uring_sqe* entry = nullptr;", "belongs to src/os only"),
        ("engine/engine.hpp", "#include <cuda_runtime.h>", "belongs to src/device only"),
        ("engine/engine.cpp", "CUstream stream = nullptr;", "belongs to src/device only"),
        ("engine/engine.cpp", "  driver.cuMemAlloc_v2(&address, 1);", "belongs to src/device only"),
        ("engine/engine.hpp", "#include <curl/curl.h>", "belongs to src/store only"),
        ("engine/engine.hpp", "#include <CLI/CLI.hpp>", "belongs to src/cli only"),
        ("engine/engine.hpp", "#include <mpi.h>", "belongs to src/mpi"),
        ("engine/engine.hpp", "#include <torch/extension.h>", "no C++ of the engine may"),
        ("engine/engine.hpp", "#include <Python.h>", "no C++ of the engine may"),
        ("base/base.cpp", "PyObject* object = nullptr;", "no C++ of the engine may"),
        ("../include/slackwater/api.hpp", "#include <fmt/format.h>", "a public header includes"),
        ("../include/slackwater/api.hpp", "#include <mpi.h>", "belongs to src/mpi"),
        ("../include/slackwater/api.hpp", '#include "base/base.hpp"', "a public header includes"),
        ("newcomer/newcomer.hpp", "#include <string>", "does not have this folder in its table"),
    ],
)
def test_line_that_breaks_a_rule_is_refused(tree: Path, file: str, line: str, problem: str) -> None:
    add(tree / "src" / file, line)
    assert any(problem in found for found in check_folders.check(tree))


@pytest.mark.parametrize(
    "line",
    [
        "// CUstream and io_uring_sqe are spoken of, and torch::Tensor too",
        '  fail("cuMemAlloc_v2 failed; see MPI_Init");',
        "CudaDevice device; /* a CUcontext\n of the driver */",
    ],
)
def test_names_of_libraries_in_comments_and_texts_are_no_use_of_them(tree: Path, line: str) -> None:
    add(tree / "src/engine/engine.cpp", line)
    assert check_folders.check(tree) == []


def test_cuda_belongs_to_its_inner_folder_as_soon_as_there_is_one(tree: Path) -> None:
    add(tree / "src/device/cuda/driver.hpp", "#include <cuda.h>")
    assert any("belongs to src/device/cuda only" in found for found in check_folders.check(tree))
    write(tree / "src/device/device.hpp", '#include "device/cuda/driver.hpp"')
    assert check_folders.check(tree) == []


def test_uses_that_reaches_upward_or_nowhere_is_refused(tree: Path) -> None:
    replace(tree / "src/os/CMakeLists.txt", "USES base", "USES base engine nowhere")
    problems = check_folders.check(tree)
    assert any("src/os/CMakeLists.txt: os may use only folders above it" in found for found in problems)
    assert any("uses nowhere, which is not a folder" in found for found in problems)


def test_uses_of_a_target_made_by_hand_counts(tree: Path) -> None:
    write(tree / "src/cli/CMakeLists.txt", "target_link_libraries(sw_cli_parts PUBLIC sw_engine PRIVATE sw_flags)")
    assert check_folders.check(tree) == []
    write(tree / "src/cli/CMakeLists.txt", "target_link_libraries(sw_cli_parts PUBLIC sw_store PRIVATE sw_flags)")
    assert any("does not reach engine" in found for found in check_folders.check(tree))


def test_cmake_must_add_the_folders_in_the_order_of_the_table(tree: Path) -> None:
    replace(tree / "CMakeLists.txt", "base os device", "os base device")
    assert any("adds the folders of src as 'os base device" in found for found in check_folders.check(tree))


def test_folder_of_the_table_without_sources_is_refused(tree: Path) -> None:
    replace(tree / "src/README.md", "| `base/`", "| `gone/` | was here | `gone.hpp` |\n| `base/`")
    assert any("there are no sources in src/gone" in found for found in check_folders.check(tree))


def test_rule_about_a_folder_that_was_renamed_is_refused(tree: Path) -> None:
    replace(tree / "src/README.md", "| `stage/`", "| `staging/`")
    assert any("names the folder stage" in found for found in check_folders.check(tree))


def test_readme_without_a_table_is_refused(tree: Path) -> None:
    write(tree / "src/README.md", "# Folders", "", "- base/: errors")
    assert any("there is no table" in found for found in check_folders.check(tree))


def test_no_line_of_this_repository_is_too_long() -> None:
    assert check_columns.check(ROOT) == []


LONG = "word " * 24 + "x"  # 121 columns


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], timeout=SECONDS, check=True)
    write(tmp_path / ".gitignore", "/build/")
    return tmp_path


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "docs/guide.md",
        "src/base/error.hpp",
        "src/base/error.cpp",
        "sim/sim_cuda.h",
        "python/slackwater/names.py",
        "python/slackwater/_core.pyi",
        "CMakeLists.txt",
        "tests/unit/CMakeLists.txt",
        "cmake/Targets.cmake",
        "Makefile",
        "scripts/lint.sh",
        ".ci/run",
        "pyproject.toml",
        "requirements-dev.txt",
        "tests/fixtures/make.py",
    ],
)
def test_line_of_121_columns_is_refused_wherever_it_is(repository: Path, file: str) -> None:
    write(repository / file, LONG[:-1], LONG)
    assert check_columns.check(repository) == [f"{file}:2: 121 columns"]


@pytest.mark.parametrize(
    "file",
    ["tests/mutations/cpp/pool.patch", "tests/fixtures/0.1.0/one-rank/notes.md", "tests/fuzz/corpus/x.md", "build/x.md",
     "docs/figure.svg", "LICENSE"],
)  # fmt: skip
def test_data_is_not_checked(repository: Path, file: str) -> None:
    write(repository / file, LONG)
    assert check_columns.check(repository) == []


def test_script_ends_with_an_error_when_a_line_is_too_long(repository: Path) -> None:
    assert run("check_columns", repository).returncode == 0
    write(repository / "README.md", LONG)
    refused = run("check_columns", repository)
    assert refused.returncode == 1 and refused.stdout == "README.md:1: 121 columns\n"


def test_columns_are_counted_in_characters(repository: Path) -> None:
    write(repository / "README.md", "\u00e9" * 120, "\u2026" * 121, "\u6c34" * 61)
    assert check_columns.check(repository) == ["README.md:2: 121 columns", "README.md:3: 122 columns"]


def test_what_cannot_be_broken_is_left_alone(repository: Path) -> None:
    link = "https://example.org/" + "x" * 120
    write(
        repository / "a.md", link, f"- {link}", f"[guide]: {link}", f"<{link}>", f"| {LONG} |", "```text", LONG, "```"
    )
    write(repository / "a.hpp", f"// {link}")
    assert check_columns.check(repository) == []
    assert check_columns.check(repository, tables=True) == ["a.md:5: 125 columns"]


def test_exceptions_reach_no_further_than_their_reason(repository: Path) -> None:
    link = "https://example.org/" + "x" * 120
    write(repository / "a.md", f"See {link}", "```python", LONG, "```", "````text", "```", LONG, "````", LONG)
    write(repository / "a.hpp", f"| {LONG} |")
    assert [found.split(": ")[0] for found in check_columns.check(repository)] == [
        "a.hpp:1",
        "a.md:1",
        "a.md:3",
        "a.md:9",
    ]


# 26 methods and much that is none of them.
LARGE_CLASS = """
class Large final : public Base<int()> {
 public:
  explicit Large(int value) : value_(value) {}
  ~Large();
  Large& operator=(const Large&) = delete;
  bool operator()(int) const { return true; }
  friend void help(Large&);
  using Call = std::function<void(int)>;
  static_assert(sizeof(int) == 4);
  struct Inner {
    int first() const { return 1; }
  };
  template <class T>
  [[nodiscard]] T method_0(const std::map<int, int>& map = {{1, 2}}) const { return map.at(f(1)); }
METHODS
  // int commented_out();
  const char* text_ = "int in_text();";
  std::function<void()> call_ = [] { nothing(); };
  int value_{size_of(3)};
};
"""


def large_class(methods: int) -> str:
    declared = "\n".join(f"  [[nodiscard]] virtual int method_{i}(int (*call)(int)) = 0;" for i in range(1, methods))
    return LARGE_CLASS.replace("METHODS", declared)


def test_files_and_classes_of_this_repository_are_not_too_large() -> None:
    assert check_sizes.check(ROOT) == []


def test_a_class_with_too_many_methods_is_named(tmp_path: Path) -> None:
    write(tmp_path / "src/large.hpp", large_class(25))
    assert check_sizes.check(tmp_path) == []
    write(tmp_path / "src/large.hpp", large_class(26))
    refused = run("check_sizes", tmp_path)
    assert refused.returncode == 1
    assert refused.stdout == "src/large.hpp: Large has 26 methods; 25 is the limit\n"


def test_methods_of_a_python_class_are_counted(tmp_path: Path) -> None:
    lines = ["class Large:", "    def __init__(self): ...", "    def __len__(self): ..."]
    lines += [f"    def method_{i}(self): ..." for i in range(25)]
    write(tmp_path / "python/large.py", *lines)
    assert check_sizes.check(tmp_path) == []
    write(tmp_path / "python/large.py", *lines, "    async def _private(self): ...")
    assert check_sizes.check(tmp_path) == ["python/large.py: Large has 26 methods; 25 is the limit"]


def test_a_file_that_is_too_long_is_named(tmp_path: Path) -> None:
    write(tmp_path / "bench/long.cpp", *["int x;"] * 501)
    write(tmp_path / "tests/long.cpp", *["int x;"] * 501)
    assert check_sizes.check(tmp_path) == ["bench/long.cpp: has 501 lines; 500 is the limit"]
