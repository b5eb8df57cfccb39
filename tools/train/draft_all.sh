#!/bin/bash
# Trains the drafters of both shipped models side by side on one GPU, in about eight minutes:
#   [KINDS="dflash mtp"] draft_all.sh OUT NANO.gguf MOE.gguf [SECONDS [more arguments of draft.py]]
# The targets must be F32, BF16 or Q8_0 (facet quantize --allow-requantize makes a Q8_0 of the mixture of experts).
# OUT/nano-dflash, nano-mtp, moe-dflash and moe-mtp get state, drafter.gguf and log.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1 nano=$(realpath "$2") moe=$(realpath "$3") seconds=${4:-400}
shift $(($# < 4 ? $# : 4))
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p "$out"; out=$(realpath "$out")
cd "$here" || exit 1
for model in nano moe; do
  for kind in ${KINDS:-dflash mtp}; do
    mkdir -p "$out/$model-$kind"
    python3 draft.py $kind "${!model}" --out "$out/$model-$kind" --seconds "$seconds" "$@" >"$out/$model-$kind/log" 2>&1 &
  done
done
wait
failed=0
for d in "$out"/*-*; do
  echo "== ${d##*/}"; tail -n 4 "$d/log"
  [ -f "$d/drafter.gguf" ] || failed=1
done
exit $failed
