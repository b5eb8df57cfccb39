#!/usr/bin/env bash
# Builds and runs every test.
#   scripts/test.sh [--preset release|dev|fuzz] [--full] [--fixtures DIR] [ctest arguments]
# --full           also every combination of drafting, cache type, model and prompt (minutes)
# --fixtures DIR   also check every model of a folder of golden fixtures (dense/, moe/, edge/ with model-*.gguf)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
preset=release
fixtures=
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --fixtures) fixtures=$(cd "$2" && pwd); shift 2 ;;
    --full) export FACET_TEST_FULL=1; shift ;;
    -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) break ;;
  esac
done
facet_install "${facet_packages[@]}"
[ "$preset" != fuzz ] || facet_install "${facet_clang[@]}"
facet_build "$preset" -DFACET_TESTS=ON
export FACET_TEST_FIXTURES=$fixtures
ctest --test-dir "build/$preset" --output-on-failure -j2 "$@"
if [ -n "$fixtures" ]; then
  echo "fixtures in $fixtures:"
  "build/$preset/facet_test_golden" --gtest_filter='*Fixture*' | grep '^|'
fi
