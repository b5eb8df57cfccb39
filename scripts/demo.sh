#!/usr/bin/env bash
# From a fresh clone to a chat: installs what is missing, builds, and talks with the model in models/.
# scripts/demo.sh            a short scripted chat, then yours if this is a terminal
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
facet_install "${facet_packages[@]}"
facet_build release -DFACET_TESTS=OFF --log-level=WARNING | tail -n 1
facet=build/release/facet

"$facet" --version
"$facet" plan -c 8192
printf '%s\n' 'Hello' 'Remember that my name is Mira.' 'What is my name?' 'What is 17 + 25?' \
  'Write a Python function total(a, b) that returns the sum of a and b.' '/clear' \
  'Extract name, age and city as JSON: Nora is 31 years old, lives in Lisbon and works as a baker.' |
  "$facet" chat --temp 0 -c 8192
if [ -t 0 ] && [ -t 1 ]; then
  echo "Your turn."
  exec "$facet" chat -c 8192
fi
