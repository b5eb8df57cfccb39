#!/usr/bin/env bash
# Parses the sources of the program with compilers newer than the one that builds it here (tools/check_syntax.py):
# clang-19 of Debian 12, which build/fuzz has compiled most of them with, and GCC of Debian 13 in a root folder that
# debootstrap makes, as root, in at most 4 minutes. The second is skipped, with its reason, where src/ and cmake/ are as
# they were when it last passed.
# FACET_ROOTS: where the root is kept (build/roots); FACET_MIRROR: where packages come from.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
facet_install "${facet_clang[@]}" debootstrap
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
cmake --build build/release --target facet_server facet_commit >/dev/null  # headers that are generated
root=$(realpath -m "${FACET_ROOTS:-build/roots}")/trixie
tree=$(git rev-parse HEAD:src HEAD:cmake | sha256sum)

make_root() {
  local packages
  packages=$(printf '%s\n' "${facet_packages[@]}" | grep -E -- '-dev$|^g\+\+$' | paste -sd,)
  # One that was made before a package was added is made again.
  [ "$(cat "$root/facet.packages" 2>/dev/null)" != "$packages" ] || return 0
  rm -rf "$root" && mkdir -p "$root"
  timeout 240 debootstrap --variant=minbase --include="$packages" trixie "$root" \
    "${FACET_MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 &&
    echo "$packages" >"$root/facet.packages"
}

skip=
if [ "$(id -u)" -ne 0 ]; then
  skip="a root folder needs root"
elif [ "$(cat "$root/facet.checked" 2>/dev/null)" = "$tree" ]; then
  skip="src and cmake are as they were when it last passed"
else
  make_root & # mostly waits for the network
  making=$!
fi
tools/check_syntax.py --not-in build/fuzz clang-19
if [ -z "$skip" ] && ! wait "$making"; then
  skip="no root of Debian 13 in 4 minutes: $(tail -n 1 "$root.log")"
  rm -rf "$root"
fi
if [ -n "$skip" ]; then
  echo "GCC of Debian 13: skipped, $skip"
else
  tools/check_syntax.py --root "$root" g++
  echo "$tree" >"$root/facet.checked"
fi
