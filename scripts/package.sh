#!/usr/bin/env bash
# Builds packages: a .deb and a .tar.zst in build/package/. Build them on Debian 12, whose glibc is the oldest that they
# are for; scripts/package_check.sh tries them in bare systems.
#   scripts/package.sh [--cuda | --wheel]
# --cuda: of the program for GPUs, with machine code for 8.0, 8.6, 8.9, 9.0 and 12.0, and PTX that newer ones compile.
# Needs nvcc; takes most of an hour on two cores.
# --wheel: the Python package for CPUs, in build/package/, with the manylinux tag of the glibc that it needs. Takes
# scikit-build-core and wheel from PyPI, and tries the wheel in an environment that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
facet_install "${facet_packages[@]}"
wheel() {
  facet_build release -DFACET_TESTS=OFF -DFACET_CUDA=OFF --target facet_shared | tail -n 1
  local tools=build/wheel-tools library tag
  library=$(readlink -f build/release/libfacet.so)
  tag=$(python3 tests/package/elf.py --tag "$library")
  [ -x $tools/bin/pip ] || python3 -m venv $tools
  $tools/bin/pip install -q 'scikit-build-core>=0.10' wheel
  mkdir -p build/package && rm -f build/package/facet-*.whl
  $tools/bin/pip wheel -q --no-deps --no-build-isolation -w build/package ./python \
    -C cmake.define.FACET_LIBRARY="$library" -C build-dir=build/wheel-tools/build -C install.strip=true
  $tools/bin/wheel tags --remove --platform-tag "$tag" build/package/facet-*.whl >/dev/null
  python3 tests/package/wheel_test.py build/package/facet-*.whl
  ls -l build/package/facet-*.whl
}

case "$*" in
  "") preset=release options=(-DFACET_TESTS=OFF -DFACET_CUDA=OFF) ;;
  --cuda) preset=cuda-package options=() ;;
  --wheel) facet_install python3-venv && wheel && exit ;;
  *) echo "usage: scripts/package.sh [--cuda | --wheel]" >&2; exit 2 ;;
esac
facet_build "$preset" "${options[@]}" | tail -n 1
rm -rf build/package
(cd "build/$preset" && cpack -G 'DEB;TZST' -B "$PWD/../package") | grep 'generated' || true
rm -rf build/package/_CPack_Packages
python3 tests/package/elf.py "build/$preset/facet"
ls -l build/package
