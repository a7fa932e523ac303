#!/usr/bin/env bash
# Installs the wheel into a bare system and uses it there: this machine's release of Debian or Ubuntu as debootstrap
# makes it (minbase), with Python and nothing of what Slackwater is built with, and without a network.
#   scripts/wheel_chroot.sh <folder of the wheel> <cache folder>
# The bare system is made once and kept as a tar file in the cache folder. It is unpacked into memory, in a mount
# namespace of its own: when this ends, however it ends, the kernel takes the system and all mounts away.
set -euo pipefail

wheels=$(realpath "$1")
cache=$2
scripts=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

fail() {
  echo "wheel-smoke: $*" >&2
  exit 1
}

if [[ ${WHEEL_CHROOT_INSIDE:-} != yes ]]; then
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "this needs root, for debootstrap and chroot, and there is no sudo"
    as_root=(sudo --preserve-env=PATH)
  fi
  command -v apt-get >/dev/null || fail "this needs Debian or Ubuntu: the bare system comes from apt's mirror"
  command -v debootstrap >/dev/null || fail "debootstrap is not installed; 'apt-get install debootstrap' brings it"
  mkdir -p "$cache/root"
  exec "${as_root[@]}" unshare --mount --propagation private \
    env WHEEL_CHROOT_INSIDE=yes bash "${BASH_SOURCE[0]}" "$wheels" "$(realpath "$cache")"
fi

root=$cache/root
shopt -s nullglob
found=("$wheels"/slackwater-*.whl)
((${#found[@]} == 1)) || fail "there must be one wheel in $wheels, and there are ${#found[@]}"
wheel=${found[0]}
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[[ -n $release ]] || fail "/etc/os-release does not name the release of this system (VERSION_CODENAME)"
system=$cache/$release.tar

mount -t tmpfs -o size=2g,mode=755 tmpfs "$root" ||
  fail "cannot mount a tmpfs; in a container, this needs CAP_SYS_ADMIN"

if [[ ! -e $system ]]; then
  # From the mirror that apt is set up with on this machine.
  mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="$release" '$1 == release && $2 == "main" { print $3; exit }')
  [[ -n $mirror ]] || fail "apt knows no mirror of $release main; 'apt-get update' may help"
  echo "Making a bare $release (once; kept in $system)"
  debootstrap --variant=minbase --include=python3-venv "$release" "$root" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
    {
      tail -n 20 "$cache/debootstrap.log" >&2
      fail "debootstrap failed; all of its output is in $cache/debootstrap.log"
    }
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
  tar -C "$root" --one-file-system -cf "$system.part" .
  mv "$system.part" "$system"
else
  tar -C "$root" -xpf "$system"
fi

# The newest fixture with tensors: this smoke test has no torch to save some.
fixture=$(find "$scripts/../tests/fixtures" -mindepth 2 -maxdepth 2 -name dtypes | sort -V | tail -n 1)
[[ -n $fixture ]] || fail "there is no fixture named dtypes in tests/fixtures"
mkdir -p "$root/smoke"
cp -r "$wheel" "$scripts/wheel_smoke.py" "$fixture" "$root/smoke/"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"

version=$(basename "$wheel" | cut -d - -f 2)
# --net: nothing can be downloaded. env -i: nothing of this machine's settings reaches the bare system.
unshare --net chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 bash -euo pipefail -c '
  ! command -v g++ cmake || { echo "wheel-smoke: the bare system has a compiler" >&2; exit 1; }
  python3 -m venv /smoke/venv
  /smoke/venv/bin/pip install --quiet --no-index --no-deps /smoke/slackwater-*.whl
  cd /
  /smoke/venv/bin/python /smoke/wheel_smoke.py "$0" /smoke/scratch /smoke/dtypes' "$version"
echo "$(basename "$wheel"): installed and used in a bare $release"
