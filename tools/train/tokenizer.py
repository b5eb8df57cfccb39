"""Tokenizer of facet-nano: training, the files it is kept in, and two encoders that must agree.

``python tokenizer.py train`` learns the merges from the generated corpus and writes ``tokenizer.json.gz`` (a small
format of this repository: tokens, types, merges). ``python tokenizer.py check`` compares

* ``Tok``: the fast encoder used for training, which cuts text into word pieces and caches each piece;
* ``encode_spec``: the Gemma 4 algorithm on whole lines (special tokens, space -> U+2581, newline runs, merges by
  rank over code points, byte fallback), exactly what an inference engine does.

They agree because merges are learnt inside the pieces only and the pieces are cut at character-class changes.
"""
from __future__ import annotations

import gzip
import heapq
import json
import os
import re
import sys

SP = "\u2581"
HERE = os.path.dirname(os.path.abspath(__file__))
FIRST = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
USER = ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>", "<channel|>"]
CONTROL = ["<|tool>", "<tool|>", "<|think|>", "<|turn>", "<turn|>", "<|image>", "<|audio>", "<|image|>", "<|audio|>",
           "<image|>", "<audio|>", "<|video|>"]
SPECIAL = FIRST + CONTROL + USER
NORMAL_T, UNKNOWN_T, CONTROL_T, USER_T, BYTE_T = 1, 2, 3, 4, 6
PIECES = (rf"{SP}{{2,}}|\n+|\t+|{SP}?[A-Za-z]+|[0-9]|{SP}?[!-/:-@\[-`{{-~]+|{SP}|[^\n\t{SP}!-~]")
RUNS = {"\n": 8, SP: 8, "\t": 4}


def vocabulary(words: dict[str, int], size: int) -> tuple[list[str], list[int], list[tuple[str, str]]]:
    """Tokens, types and merges: specials, runs, bytes, ASCII, then merges learnt from counted pieces."""
    from tokenizers import Tokenizer, models, trainers
    ascii_ = [chr(i) for i in range(33, 127)]
    tokens = SPECIAL + [ch * i for ch, n in RUNS.items() for i in range(1, n + 1)]
    merges = [(ch * i, ch * (t - i)) for ch, n in RUNS.items() for t in range(2, n + 1) for i in sorted(range(1, t), key=lambda i: abs(2 * i - t))]
    tokens += [f"<0x{b:02X}>" for b in range(256)] + ascii_
    left = size - len(tokens)
    tk = Tokenizer(models.BPE())
    chars = set(ascii_) | {SP}
    it = [p for p, n in words.items() if all(c in chars for c in p) and not p.startswith(SP * 2) and len(p) > 1
          for _ in range(max(1, n // 4))]
    tk.train_from_iterator(it, trainers.BpeTrainer(vocab_size=left + len(chars), initial_alphabet=sorted(chars), show_progress=False,
                                                   limit_alphabet=len(chars)))
    learnt = [tuple(m) for m in json.loads(tk.to_str())["model"]["merges"]]
    for a, b in learnt:
        if a + b not in tokens:
            tokens.append(a + b)
        merges.append((a, b))
    types = [UNKNOWN_T if t == "<unk>" else CONTROL_T if t in FIRST + CONTROL else USER_T if t in USER else
             BYTE_T if re.fullmatch(r"<0x[0-9A-F]{2}>", t) else NORMAL_T for t in tokens]
    return tokens, types, merges


def bpe(s: str, rank: dict[tuple[str, str], int]) -> list[str]:
    """Merge code points by rank, leftmost first on equal rank."""
    sym: list[str | None] = list(s)
    n = len(sym)
    nxt, prv = list(range(1, n + 1)), list(range(-1, n - 1))
    heap = []

    def push(i: int) -> None:
        j = nxt[i]
        if j < n and (r := rank.get((sym[i], sym[j]))) is not None:
            heapq.heappush(heap, (r, i, sym[i], sym[j]))

    for i in range(n - 1):
        push(i)
    while heap:
        _, i, a, b = heapq.heappop(heap)
        j = nxt[i] if sym[i] is not None else n
        if j >= n or sym[i] != a or sym[j] != b:
            continue
        sym[i], sym[j], nxt[i] = a + b, None, nxt[j]
        if nxt[j] < n:
            prv[nxt[j]] = i
        if prv[i] >= 0:
            push(prv[i])
        push(i)
    return [x for x in sym if x is not None]


class Tok:
    """Loaded vocabulary. Calling it encodes text (special tokens recognised, no BOS added)."""

    def __init__(self, path: str = os.path.join(HERE, "tokenizer.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as f:
            d = json.load(f)
        self.tokens: list[str] = d["tokens"]
        self.types: list[int] = d["types"]
        self.merges = [tuple(m) for m in d["merges"]]
        self.id = {t: i for i, t in enumerate(self.tokens)}
        self.rank = {m: i for i, m in reversed(list(enumerate(self.merges)))}
        special = sorted((re.escape(t) for t in SPECIAL), key=len, reverse=True)
        self._find = re.compile(PIECES).findall
        self._special = re.compile("(" + "|".join(special) + ")")
        self._cache: dict[str, list[int]] = {t: [self.id[t]] for t in SPECIAL}

    def __len__(self) -> int:
        return len(self.tokens)

    def _piece(self, p: str) -> list[int]:
        out: list[int] = []
        if p in self.id and p[0] == "\n":
            return [self.id[p]]
        for s in bpe(p, self.rank):
            if s in self.id:
                out.append(self.id[s])
            else:
                out += [self.id[f"<0x{b:02X}>"] for b in s.encode()]
        return out

    def __call__(self, text: str) -> list[int]:
        out: list[int] = []
        cache = self._cache
        for k, frag in enumerate(self._special.split(text.replace(" ", SP))):
            if k & 1:
                out += cache[frag]
                continue
            for p in self._find(frag):
                t = cache.get(p)
                if t is None:
                    t = self._piece(p)
                    if len(cache) < 400000:
                        cache[p] = t
                out += t
        return out

    def encode_spec(self, text: str) -> list[int]:
        """The reference algorithm on whole lines."""
        out: list[int] = []
        for frag in self._special.split(text):
            if frag in SPECIAL:
                out.append(self.id[frag])
            else:
                for p in re.findall(r"[^\n]+|\n+", frag.replace(" ", SP)):
                    out += self._piece(p)
        return out

    def decode(self, ids) -> str:
        b = bytearray()
        for i in ids:
            b += bytes([int(self.tokens[i][3:5], 16)]) if self.types[i] == BYTE_T else self.tokens[i].replace(SP, " ").encode()
        return b.decode("utf-8", "replace")


def sample(seed: int, docs: int):
    from corpus import Gen
    g = Gen(seed)
    for _ in range(docs):
        yield "".join(t for t, _ in g.short(str.split))


def main() -> None:
    path = os.path.join(HERE, "tokenizer.json.gz")
    if sys.argv[1] == "train":
        size, docs = int(sys.argv[2]) if len(sys.argv) > 2 else 3072, 60000
        special = re.compile("|".join(sorted((re.escape(t) for t in SPECIAL), key=len, reverse=True)))
        find, words = re.compile(PIECES).findall, {}
        for text in sample(11, docs):
            for frag in special.split(text):
                for p in find(frag.replace(" ", SP)):
                    words[p] = words.get(p, 0) + 1
        tokens, types, merges = vocabulary(words, size)
        with gzip.open(path, "wt", encoding="utf-8") as f:
            json.dump({"tokens": tokens, "types": types, "merges": merges}, f, ensure_ascii=True, separators=(",", ":"))
        print(len(tokens), "tokens,", len(merges), "merges")
    tok, n, bad, chars = Tok(path), 0, 0, 0
    extra = ["    x = 1\n\n\n\n\n\n\n\n\n\ny", "a  b   c    d          e", "\t\t\t\t\t\tz", "it's <b>bold</b>... #$%^&*()__--==", "héllo Ωmega 😀 3.14e-5",
             " lead", "trail ", "x\ty \t z", "a_b__c", "A  \n  B", "the-quick,brown;fox!?"]
    for text in list(sample(12, 3000)) + extra:
        a, b = tok(text), tok.encode_spec(text)
        n, bad, chars = n + len(a), bad + (a != b), chars + len(text)
        if a != b and bad < 5:
            print("differs:", [(tok.tokens[x]) for x in a][:50], [(tok.tokens[x]) for x in b][:50])
        assert tok.decode(a) == text, text
    print(f"{bad} of {3000 + len(extra)} texts differ; {chars / n:.2f} characters a token; largest id {len(tok) - 1}")


if __name__ == "__main__":
    main()
