#!/usr/bin/env bash
# Builds packages of the CPU program: a .deb and a .tar.zst in build/package/. Build them on Debian 12, whose glibc is
# the oldest that they are for; scripts/package_check.sh tries them in bare systems.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
facet_install "${facet_packages[@]}"
facet_build release -DFACET_TESTS=OFF -DFACET_CUDA=OFF | tail -n 1
rm -rf build/package
(cd build/release && cpack -G 'DEB;TZST' -B "$PWD/../package") | grep 'generated' || true
rm -rf build/package/_CPack_Packages
python3 tests/package/elf.py build/release/facet
ls -l build/package
