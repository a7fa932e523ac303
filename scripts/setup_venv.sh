#!/usr/bin/env bash
# Makes the virtual environment `make` works in.
#   scripts/setup_venv.sh <directory> <python>
set -euo pipefail

venv=$1
python=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "make: Slackwater needs Python 3.11 or newer, and $python is $("$python" --version 2>&1)." >&2
  echo "hint: name another one with 'make PYTHON=/path/to/python3'." >&2
  exit 1
fi
"$python" -m venv --clear "$venv"
