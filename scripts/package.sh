#!/usr/bin/env bash
# Builds packages: a .deb and a .tar.zst in build/package/. Build them on Debian 12, whose glibc is the oldest that they
# are for; scripts/package_check.sh tries them in bare systems.
#   scripts/package.sh [--cuda]
# --cuda: of the program for GPUs, with machine code for 8.0, 8.6, 8.9, 9.0 and 12.0, and PTX that newer ones compile.
# Needs nvcc; takes most of an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
facet_install "${facet_packages[@]}"
case "$*" in
  "") preset=release options=(-DFACET_TESTS=OFF -DFACET_CUDA=OFF) ;;
  --cuda) preset=cuda-package options=() ;;
  *) echo "usage: scripts/package.sh [--cuda]" >&2; exit 2 ;;
esac
facet_build "$preset" "${options[@]}" | tail -n 1
rm -rf build/package
(cd "build/$preset" && cpack -G 'DEB;TZST' -B "$PWD/../package") | grep 'generated' || true
rm -rf build/package/_CPack_Packages
python3 tests/package/elf.py "build/$preset/facet"
ls -l build/package
