#!/usr/bin/env bash
# The checks behind `make lint`, `make tidy` and `make format`.
#   lint.sh format <bin folder> | format-check <bin folder> | ruff <bin folder> | tidy-all | tidy-changed <commit>
# clang-tidy reads the compile commands of build/tidy, which is only configured: one command per source, no unity build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folders=()
for folder in include src sim tests bench python/bindings examples; do
  [[ -d $folder ]] && folders+=("$folder")
done

# clang-format lays text out differently from version to version: the first name is the one the rules are written for.
tool() {
  command -v "$1-19" || command -v "$1" || { echo "lint: $1 is not installed" >&2; exit 1; }
}

sources() { find "${folders[@]}" -name '*.[ch]pp' | sort; }

tidy() {
  cmake -S . -B build/tidy -G Ninja -DSLACKWATER_UNITY=OFF -DSLACKWATER_PYTHON=ON \
    -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
  local clang_tidy
  clang_tidy=$(tool clang-tidy)
  # Flags only g++ knows are in the compile commands; clang-tidy need not complain about them.
  xargs --no-run-if-empty -P "$(nproc)" -n 1 "$clang_tidy" --quiet -p build/tidy \
    --extra-arg=-Wno-unknown-warning-option 2> >(grep -v ' warnings generated\.$' >&2 || true)
}

case ${1:-} in
  format)
    sources | xargs "$(tool clang-format)" -i
    "$2/ruff" check --quiet --select I --fix .
    "$2/ruff" format --quiet .
    ;;
  format-check)
    sources | xargs "$(tool clang-format)" --dry-run --Werror
    "$2/ruff" format --check .
    ;;
  ruff) "$2/ruff" check . ;;
  tidy-all) find src python/bindings -name '*.cpp' | sort | tidy ;;
  tidy-changed)
    {
      git diff --name-only --diff-filter=d "$2" -- '*.cpp' '*.hpp'
      git ls-files --others --exclude-standard -- '*.cpp' '*.hpp'
    } | { grep -E '^(src|python/bindings)/' || true; } | xargs --no-run-if-empty dirname | sort -u |
      while read -r folder; do find "$folder" -maxdepth 1 -name '*.cpp'; done | tidy
    ;;
  *) echo "usage: lint.sh format|format-check|ruff <bin folder> | tidy-all | tidy-changed <commit>" >&2; exit 2 ;;
esac
