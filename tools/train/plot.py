"""Draw the loss curve of a state: ``python plot.py STATE_DIR OUT.png``."""
from __future__ import annotations

import json
import os
import sys


def main() -> None:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    meta = json.load(open(os.path.join(sys.argv[1], "state.json")))
    fig, ax = plt.subplots(1, 2, figsize=(9, 3.4), dpi=90)
    for T, color in (("1024", "#4477aa"), ("2048", "#228833"), ("8192", "#cc3311")):
        pts = [(r["tokens"] / 1e6, *r["rows"][T]) for r in meta["curve"] if T in r["rows"]]
        x = [p[0] for p in pts]
        ax[0].plot(x, [p[2] for p in pts], color=color, lw=0.9, label=f"rows of {T}")
        ax[1].plot(x, [1 - p[3] for p in pts], color=color, lw=0.9, label=f"rows of {T}")
    for a, t in zip(ax, ("cross entropy of model turns", "share of wrong tokens in model turns")):
        a.set_yscale("log")
        a.set_xlabel("million tokens")
        a.set_title(t, fontsize=10)
        a.grid(alpha=0.3, which="both", lw=0.4)
        a.legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(sys.argv[2])
    print(os.path.getsize(sys.argv[2]), "bytes")


if __name__ == "__main__":
    main()
