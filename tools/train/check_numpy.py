"""Independent check without a framework: ``python check_numpy.py FILE.gguf GOLDEN.safetensors [--act8 | --write]``.

A plain numpy forward pass over the dequantised file is compared with the golden logits, then held-out answers
are graded; ``--act8`` rounds the input of every matrix product to 8 bits per block of 32, as integer kernels do.
``--write`` computes the golden instead, in float64. A file of other types than F32, BF16 and Q8_0 needs PyPI's gguf.
"""
from __future__ import annotations

import json
import struct
import sys

import numpy as np

from corpus import Gen, encode
from export_gguf import config, read
from tokenizer import Tok

ACT8 = False


def rms(x, w=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return y if w is None else y * w


def lin(x, w):
    if ACT8:
        b = x.reshape(-1, 32)
        d = np.abs(b).max(1, keepdims=True) / 127 + 1e-30
        x = (np.rint(b / d) * d).reshape(x.shape).astype(np.float32)
    return x @ w.T


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def experts(x, w: dict, p: str, c: dict):
    logits = (rms(x) * c["dim"] ** -0.5 * w[p + "ffn_gate_inp.scale"]) @ w[p + "ffn_gate_inp.weight"].T
    n, out = rms(x, w[p + "pre_ffw_norm_2.weight"]), np.zeros_like(x)
    for t in range(len(x)):
        chosen = np.argsort(-logits[t], kind="stable")[:c["top_k"]]
        e = np.exp(logits[t, chosen] - logits[t, chosen[0]])
        for j, weight in zip(chosen, e / e.sum() * w[p + "ffn_down_exps.scale"][chosen]):
            g, u = np.split(lin(n[t:t + 1], w[p + "ffn_gate_up_exps.weight"][j]), 2, -1)
            out[t] += weight * lin(gelu(g) * u, w[p + "ffn_down_exps.weight"][j])[0]
    return out


def read_any(path: str) -> tuple[dict, dict]:
    """As export_gguf.read, for every type."""
    try:
        return read(path)
    except KeyError:
        from gguf import GGUFReader, dequantize
        r = GGUFReader(path)
        meta = {k: f.contents() for k, f in r.fields.items()}
        return meta, {t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in r.tensors}


def write_golden(w: dict, c: dict, tok, path: str) -> None:
    g, ids = Gen(77, held=True), []
    while not 300 <= len(ids) <= 340:
        ids = encode(g.retrieval(tok, 310, questions=2, think=False), tok)[0]
    T = len(ids)
    rows = sorted({0, 1, 2, 15, 63, 127, 200, 254, 255, 256, 257, 258, 270, 300, *(T - i for i in (40, 30, 20, 16, 12, 8, 4, 3, 2, 1))})
    z = forward({k: v.astype(np.float64) for k, v in w.items()}, c, ids)[rows]
    head, data = {}, b""
    for name, a, kind in (("ids", np.array(ids, "<i4"), "I32"), ("rows", np.array(rows, "<i4"), "I32"), ("logits", z.astype("<f4"), "F32")):
        head[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def forward(w: dict, c: dict, ids) -> np.ndarray:
    T = len(ids)
    x = w["token_embd.weight"][ids] * np.float32(np.sqrt(c["dim"]))
    dist = np.arange(T)[:, None] - np.arange(T)[None]
    for i, ch in enumerate(c["pattern"]):
        g = lambda n: w[f"blk.{i}.{n}.weight"]
        hd = c["hd_full"] if ch == "F" else c["hd"]
        k = np.arange(hd // 2)
        inv = (c["theta_full"] if ch == "F" else c["theta"]) ** (-2.0 * k / hd)
        if ch == "F":
            inv = inv / w["rope_freqs.weight"].astype(np.float64)
        a = np.arange(T)[:, None] * inv
        co, si = np.cos(a).astype(np.float32)[:, None], np.sin(a).astype(np.float32)[:, None]

        def rope(t):
            u, v = t[..., :hd // 2], t[..., hd // 2:]
            return np.concatenate((u * co - v * si, v * co + u * si), -1)

        n = rms(x, g("attn_norm"))
        q = rope(rms(lin(n, g("attn_q")).reshape(T, -1, hd), g("attn_q_norm")))
        k0 = lin(n, g("attn_k")).reshape(T, -1, hd)
        v = rms(k0 if ch == "F" else lin(n, g("attn_v")).reshape(T, -1, hd))[:, 0]
        kk = rope(rms(k0, g("attn_k_norm")))[:, 0]
        ok = (dist >= 0) if ch == "F" else (dist >= 0) & (dist < c["window"])
        o = []
        for h in range(q.shape[1]):
            s = np.where(ok, q[:, h] @ kk.T, -np.inf)
            p = np.exp(s - s.max(-1, keepdims=True))
            o.append((p / p.sum(-1, keepdims=True)) @ v)
        x = x + rms(lin(np.concatenate(o, -1).astype(x.dtype), g("attn_output")), g("post_attention_norm"))
        n = rms(x, g("ffn_norm"))
        f = lin(gelu(lin(n, g("ffn_gate"))) * lin(n, g("ffn_up")), g("ffn_down"))
        if c["experts"]:
            f = rms(f, g("post_ffw_norm_1")) + rms(experts(x, w, f"blk.{i}.", c), g("post_ffw_norm_2"))
        x = (x + rms(f, g("post_ffw_norm"))) * g("layer_output_scale")
    z = lin(rms(x, w["output_norm.weight"]), w["token_embd.weight"])
    return c["softcap"] * np.tanh(z / c["softcap"])


def main() -> None:
    global ACT8
    meta, w = read_any(sys.argv[1])
    c, tok = config(meta), Tok()
    if "--write" in sys.argv:
        return write_golden(w, c, tok, sys.argv[2])
    b = open(sys.argv[2], "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8:8 + n])
    arr = {k: np.frombuffer(b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], {"I32": "<i4", "F32": "<f4"}[v["dtype"]]).reshape(v["shape"])
           for k, v in h.items() if k != "__metadata__"}
    for ACT8 in ((False, True) if "--act8" in sys.argv else (False,)):
        z = forward(w, c, arr["ids"])
        d = np.abs(z[arr["rows"]] - arr["logits"])
        print(f"8-bit activations {ACT8}: largest difference from the golden {d.max():.2e}, same argmax "
              f"{(z[arr['rows']].argmax(-1) == arr['logits'].argmax(-1)).mean():.3f}", flush=True)
    for kind, count in (("retrieval", 40), ("arithmetic", 150), ("json", 80), ("thinking", 60)):
        g, right = Gen(31, held=True), 0
        for _ in range(count):
            doc = {"retrieval": lambda: g.retrieval(tok, 1000, 1, False), "arithmetic": lambda: g.chat([g.arithmetic()], False, ""),
                   "json": lambda: g.chat([g.json()], False, ""), "thinking": lambda: g.chat([g.arithmetic(True)], True, "")}[kind]()
            ids, wt = encode(doc, tok)
            top = forward(w, c, ids).argmax(-1)
            right += all(top[j - 1] == ids[j] for j in range(1, len(ids)) if wt[j] == 1.0)
        print(f"{kind}: {right}/{count}", flush=True)


if __name__ == "__main__":
    main()
