#!/usr/bin/env bash
# Runs a command, without address space randomisation where ThreadSanitizer cannot live with it.
#
# Kernels with more than 28 random bits (vm.mmap_rnd_bits, 32 by default since Linux 6.6) put mappings where the
# runtime of g++ 12 and 13 does not expect them: "FATAL: ThreadSanitizer: unexpected memory mapping".
set -euo pipefail

bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)
((bits > 28)) || exec "$@"
if setarch "$(uname -m)" -R true 2>/dev/null; then
  exec setarch "$(uname -m)" -R "$@"
fi
echo "note: vm.mmap_rnd_bits is $bits and setarch -R is not permitted here; if ThreadSanitizer stops with" >&2
echo "      'unexpected memory mapping', run: sudo sysctl vm.mmap_rnd_bits=28" >&2
exec "$@"
