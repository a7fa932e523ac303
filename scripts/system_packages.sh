#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Slackwater is built with. If they are there, it does nothing and needs no
# network.
#   scripts/system_packages.sh [python|build|lint|fuzz|chroot] [python]
set -euo pipefail

group=${1:-build}
python=${2:-python3}
wished=()

case $group in
  build)
    packages=(g++ cmake ninja-build ccache pkg-config
      libfmt-dev nlohmann-json3-dev libxxhash-dev liburing-dev libcli11-dev
      libgtest-dev libgmock-dev libbenchmark-dev)
    # For the store over MPI, which is built and tested where MPI is found: no reason to fail where it cannot be had.
    wished=(libopenmpi-dev openmpi-bin)
    # Loaded at run time for s3:// locations, and by their tests.
    wished+=(libcurl4-openssl-dev)
    # Only a system Python takes its headers and venv from packages; pyenv, conda and uv bring their own.
    "$python" -c 'import os, sysconfig
os.stat(os.path.join(sysconfig.get_paths()["include"], "Python.h"))' 2>/dev/null || packages+=(python3-dev)
    ;;
  python)
    packages=()
    command -v "$python" >/dev/null || packages+=(python3)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
    ;;
  lint) packages=(clang-format-19 clang-tidy-19) ;;
  fuzz) packages=(clang-19 libclang-rt-19-dev) ;;
  chroot) packages=(debootstrap) ;;
  *) echo "system_packages.sh: unknown group '$group' (python, build, lint, fuzz or chroot)" >&2; exit 2 ;;
esac

((${#packages[@]})) || exit 0
if ! command -v dpkg-query >/dev/null; then
  echo "make: this is not Debian or Ubuntu; the build needs what these packages hold: ${packages[*]}" >&2
  exit 0
fi

# Sets `missing` to those of the packages named that are not installed.
find_missing() {
  local package status
  missing=()
  for package in "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
  done
}

find_missing "${wished[@]}"
missing_wished=("${missing[@]}")
find_missing "${packages[@]}"
((${#missing[@]} + ${#missing_wished[@]})) || exit 0
# Nobody is asked for his password for what is only wished for.
((${#missing[@]})) || ((EUID == 0)) || exit 0

echo "Installing: ${missing[*]} ${missing_wished[*]}"
as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "make: missing packages, and no sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y -qq --no-install-recommends)
# The package lists may be absent or stale: refresh them once, when the first try fails.
if ((${#missing[@]})); then
  "${install[@]}" "${missing[@]}" >/dev/null 2>&1 ||
    { "${as_root[@]}" apt-get update -qq && "${install[@]}" "${missing[@]}"; }
fi
if ((${#missing_wished[@]})); then
  "${install[@]}" "${missing_wished[@]}" >/dev/null 2>&1 ||
    { "${as_root[@]}" apt-get update -qq && "${install[@]}" "${missing_wished[@]}"; } >/dev/null 2>&1 ||
    echo "make: ${missing_wished[*]} could not be installed; what needs them is left out" >&2
fi
