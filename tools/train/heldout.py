"""Held-out documents by kind, and the set that `facet eval` grades:

    python heldout.py ../../models/facet-nano-eval.jsonl

One JSON object a line: kind, length (of retrieval), context (prompt text with special tokens) and answer (text that greedy
decoding must reproduce). Another seed, names and values than training.
"""
from __future__ import annotations

import json
import sys

from corpus import Gen
from tokenizer import Tok

LENGTHS = (1024, 2048, 4096, 8192)
COUNTS = {("retrieval", 1024): 40, ("retrieval", 2048): 20, ("retrieval", 4096): 10, ("retrieval", 8192): 6,
          ("arithmetic", 0): 60, ("thinking", 0): 60, ("json", 0): 60, ("tools", 0): 40, ("code", 0): 60, ("remember", 0): 60}


def documents(kind: str, gen: Gen, tok, L: int = 0):
    """One held-out document of a kind."""
    if kind == "retrieval":
        while True:
            d = gen.retrieval(tok, L - 10, questions=1, think=False)
            if L * 0.9 <= sum(len(tok(t)) for t, _ in d) <= L:
                return d
    if kind == "arithmetic":
        return gen.chat([gen.arithmetic()], False, "")
    if kind == "thinking":
        return gen.twohop(tok) if gen.R() < 0.4 else gen.chat([gen.arithmetic(True)], True, "")
    if kind == "json":
        return gen.chat([gen.json()], False, "")
    if kind == "code":
        return gen.chat([gen.source()], False, "")
    if kind == "tools":
        while True:
            d = gen.tools(False)
            if sum(w == 1.0 for _, w in d) == 2 and any("<|tool_call>" in t for t, _ in d):
                return d
    if kind == "remember":
        return gen.remember(tok)
    raise ValueError(kind)


def question(doc) -> tuple[str, str]:
    """Context and answer: the answer is the last run of segments that carry full weight (for tools, the call)."""
    runs, i = [], 0
    while i < len(doc):
        if doc[i][1] == 1.0:
            j = i
            while j < len(doc) and doc[j][1] == 1.0:
                j += 1
            runs.append((i, j))
            i = j
        else:
            i += 1
    first, last = runs[0] if "<|tool>" in doc[0][0] else runs[-1]
    return "".join(t for t, _ in doc[:first]), "".join(t for t, _ in doc[first:last])


def main() -> None:
    tok = Tok()
    with open(sys.argv[1], "w") as f:
        for (kind, length), n in COUNTS.items():
            gen = Gen(771001 + length, held=True)
            for _ in range(n):
                context, answer = question(documents(kind, gen, tok, length))
                f.write(json.dumps({"kind": kind, "length": length, "context": context, "answer": answer}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
