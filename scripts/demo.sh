#!/usr/bin/env bash
# From a fresh clone to a chat: installs what is missing, builds, and talks with the model in models/.
# scripts/demo.sh            a short scripted chat, then yours if this is a terminal
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

# What ninja says, as one line that counts: "building: 120 of 315 files, about 4 minutes left". In a log one line for
# every tenth; whatever is no step (an error) as it is.
progress() {
  local line tenth=-1 counted=0 since=$SECONDS done all left text start= end='\n'
  [ -t 1 ] && start='\r' end='\033[K'
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
      done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
      ((done > 0)) || continue  # the build itself is being looked at
      [ ! -t 1 ] && ((10 * done / all == tenth)) && continue
      ((tenth = 10 * done / all, left = ((SECONDS - since) * (all - done) / done + 59) / 60)) || true
      text="building: $done of $all files"
      ((SECONDS - since >= 5 && 20 * done >= all && done < all)) && text+=", about $left min left"
      printf "$start%s$end" "$text"
      counted=1
    elif [[ $line != "ninja: no work to do." ]]; then
      [ -t 1 ] && ((counted)) && echo
      counted=0
      printf '%s\n' "$line"
    fi
  done
  if [ -t 1 ] && ((counted)); then echo; fi
}

echo "1 of 3: packages of this system"
facet_install "${facet_packages[@]}"
echo "2 of 3: the program, once: about $((20 / $(nproc) + 1)) minutes on $(nproc) cores"
facet_build release -DFACET_TESTS=OFF --log-level=WARNING | progress
facet=build/release/facet
echo "3 of 3: a chat with facet-nano, a demonstration of 7.8 MB"
printf '%s\n' 'Hello' 'Remember that my name is Mira.' 'What is my name?' 'What is 17 + 25?' \
  'Write a Python function total(a, b) that returns the sum of a and b.' '/clear' \
  'Extract name, age and city as JSON: Nora is 31 years old, lives in Lisbon and works as a baker.' |
  "$facet" chat --temp 0 -c 8192
echo "And a picture of three red circles, by a tower of 0.6 MB:"
"$facet" run --temp 0 -c 2048 --mmproj models/vision/facet-nano-mmproj-Q8_0.gguf --image models/vision/circles.png -p "What is in the picture?"
if [ -t 0 ] && [ -t 1 ]; then
  echo "Your turn; /help lists commands, Ctrl-D ends."
  exec "$facet" chat -c 8192
fi
echo "What it needs with a context of 8,192 tokens:"
"$facet" plan -c 8192
echo "Yours: $facet chat, or $facet chat -m FILE"
