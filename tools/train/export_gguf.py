"""Write a trained state as GGUF (Gemma 4 keys and tensor names, matrices Q8_0 or BF16, gains F32), and read such a file back.

``python export_gguf.py STATE_DIR OUT.gguf [--bf16] [--safetensors OUT.safetensors]`` needs numpy only. The second file has
the same matrices in BF16 under transformers' names.
"""
from __future__ import annotations

import argparse
import json
import struct

import numpy as np

from names import gguf_name, hf_name

U32, I32, F32, BOOL, STR, ARR = 4, 5, 6, 7, 8, 9
PACK = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", 10: "Q", 11: "q", 12: "d"}
ALIGN = 32

TEMPLATE = r"""{{- bos_token -}}
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{%- set rest = messages -%}
{%- if thinking or (messages and messages[0]['role'] in ['system', 'developer']) -%}
{{- '<|turn>system\n' -}}
{%- if thinking -%}{{- '<|think|>\n' -}}{%- endif -%}
{%- if messages and messages[0]['role'] in ['system', 'developer'] -%}
{{- messages[0]['content'] | trim -}}
{%- set rest = messages[1:] -%}
{%- endif -%}
{{- '<turn|>\n' -}}
{%- endif -%}
{%- for message in rest -%}
{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + message['content'] | trim + '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\n' -}}
{%- if not thinking -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""


def q8_0(w: np.ndarray) -> bytes:
    """Rows of w (a multiple of 32 long) as Q8_0 blocks: f16 scale and 32 int8."""
    b = np.ascontiguousarray(w, np.float32).reshape(-1, 32)
    d = np.abs(b).max(1) / 127
    inv = np.divide(1, d, out=np.zeros_like(d), where=d > 0)
    out = np.empty(len(b), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"] = d
    out["q"] = np.rint(b * inv[:, None])
    return out.tobytes()


def bf16(w: np.ndarray) -> np.ndarray:
    """The upper halves of f32, to the nearest even."""
    u = np.ascontiguousarray(w, "<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


def un_q8_0(raw: bytes, shape) -> np.ndarray:
    b = np.frombuffer(raw, np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    return (b["d"].astype(np.float32)[:, None] * b["q"]).reshape(shape)


def _string(s: str) -> bytes:
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def _value(t: int, v) -> bytes:
    if t == STR:
        return _string(v)
    if isinstance(t, tuple):
        return struct.pack("<iQ", t[1], len(v)) + b"".join(_value(t[1], x) for x in v)
    return struct.pack("<" + PACK[t], v)


def metadata(c: dict, tok, file_type: int = 7) -> list[tuple]:
    """(key, type, value) of everything a Gemma 4 loader reads."""
    L, swa, name = len(c["pattern"]), [ch == "S" for ch in c["pattern"]], "facet-nano-moe" if c["experts"] else "facet-nano"
    ia, sa = (ARR, I32), (ARR, STR)
    kv = [("general.architecture", STR, "gemma4"), ("general.type", STR, "model"), ("general.name", STR, name),
          ("general.basename", STR, name), ("general.size_label", STR, "12.4M" if c["experts"] else "7.2M"),
          ("general.license", STR, "apache-2.0"), ("general.description", STR, "A tiny demonstration model of the Gemma 4 shape, trained from scratch on generated text"),
          ("general.languages", sa, ["en"]), ("general.file_type", U32, file_type), ("general.quantization_version", U32, 2),
          ("general.sampling.top_k", I32, 64), ("general.sampling.top_p", F32, 0.95), ("general.sampling.temp", F32, 1.0)]
    g = "gemma4."
    kv += [(g + "block_count", U32, L), (g + "context_length", U32, c["context"]), (g + "embedding_length", U32, c["dim"]),
           (g + "feed_forward_length", U32, c["ffn"]), (g + "attention.head_count", U32, c["heads"]),
           (g + "attention.head_count_kv", ia, [c["kv_heads"] if s else c["kv_heads_full"] for s in swa]),
           (g + "attention.layer_norm_rms_epsilon", F32, c["eps"]),
           (g + "attention.key_length", U32, c["hd_full"]), (g + "attention.value_length", U32, c["hd_full"]),
           (g + "attention.key_length_swa", U32, c["hd"]), (g + "attention.value_length_swa", U32, c["hd"]),
           (g + "attention.sliding_window", U32, c["window"]), (g + "attention.sliding_window_pattern", (ARR, BOOL), swa),
           (g + "attention.shared_kv_layers", U32, 0), (g + "embedding_length_per_layer_input", U32, 0),
           (g + "final_logit_softcapping", F32, c["softcap"]), (g + "rope.freq_base", F32, c["theta_full"]),
           (g + "rope.freq_base_swa", F32, c["theta"]), (g + "rope.dimension_count", U32, c["hd_full"]),
           (g + "rope.dimension_count_swa", U32, c["hd"])]
    if c["experts"]:
        kv += [(g + "expert_count", U32, c["experts"]), (g + "expert_used_count", U32, c["top_k"]),
               (g + "expert_feed_forward_length", U32, c["expert_ffn"])]
    t = "tokenizer."
    kv += [(t + "ggml.model", STR, "gemma4"), (t + "ggml.tokens", sa, tok.tokens), (t + "ggml.scores", (ARR, F32), [-1000.0] * len(tok)),
           (t + "ggml.token_type", ia, tok.types), (t + "ggml.merges", sa, [f"{a} {b}" for a, b in tok.merges]),
           (t + "ggml.bos_token_id", U32, 2), (t + "ggml.eos_token_id", U32, 1), (t + "ggml.unknown_token_id", U32, 3),
           (t + "ggml.padding_token_id", U32, 0), (t + "ggml.mask_token_id", U32, 4), (t + "ggml.add_bos_token", BOOL, True),
           (t + "ggml.add_space_prefix", BOOL, False), (t + "chat_template", STR, TEMPLATE)]
    return kv


def write(path: str, weights: dict[str, np.ndarray], c: dict, tok, half: bool = False) -> int:
    tensors = {gguf_name(n): a for n, a in weights.items()}
    rf = np.full(c["hd_full"] // 2, 1e30, np.float32)
    rf[:int(c["rotary_full"] * c["hd_full"] // 2)] = 1
    tensors["rope_freqs.weight"] = rf
    order = ["token_embd.weight", "output_norm.weight", "rope_freqs.weight"]
    order += [n for n in tensors if n not in order]
    kinds = [("F32" if tensors[n].ndim == 1 or "gate_inp" in n else "BF16" if half else "Q8_0") for n in order]
    return write_file(path, metadata(c, tok, 32 if half else 7), [(n, k, tensors[n]) for n, k in zip(order, kinds)])


def write_file(path: str, kv: list[tuple], tensors: list[tuple[str, str, np.ndarray]]) -> int:
    """A GGUF file of (key, type, value) and (name, type, values); its bytes."""
    forms = {"F32": (0, lambda a: np.ascontiguousarray(a, "<f4").tobytes()), "F16": (1, lambda a: np.ascontiguousarray(a, "<f2").tobytes()),
             "BF16": (30, lambda a: bf16(a).tobytes()), "Q8_0": (8, q8_0)}
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(kv))
    for k, ty, v in kv:
        head += _string(k) + struct.pack("<i", ARR if isinstance(ty, tuple) else ty) + _value(ty, v)
    off, data = 0, []
    for n, form, a in tensors:
        code, packed = forms[form]
        raw = packed(a)
        head += _string(n) + struct.pack("<I", a.ndim) + struct.pack(f"<{a.ndim}q", *a.shape[::-1]) + struct.pack("<iQ", code, off)
        raw += b"\0" * (-len(raw) % ALIGN)
        data.append(raw)
        off += len(raw)
    head += b"\0" * (-len(head) % ALIGN)
    with open(path, "wb") as f:
        f.write(head)
        f.writelines(data)
    return len(head) + off


def read(path: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Metadata and dequantised tensors (F32, F16, BF16 and Q8_0) of a GGUF file."""
    b, p = open(path, "rb").read(), 0

    def take(fmt: str):
        nonlocal p
        v = struct.unpack_from("<" + fmt, b, p)
        p += struct.calcsize("<" + fmt)
        return v[0] if len(v) == 1 else v

    def string() -> str:
        nonlocal p
        n = take("Q")
        p += n
        return b[p - n:p].decode()

    def value(t: int):
        if t == STR:
            return string()
        if t == ARR:
            e, n = take("i"), take("Q")
            return [value(e) for _ in range(n)]
        return take(PACK[t])

    p = 8
    nt, nk = take("q"), take("q")
    meta = {}
    for _ in range(nk):
        k = string()
        meta[k] = value(take("i"))
    infos = []
    for _ in range(nt):
        n = string()
        ne = [take("q") for _ in range(take("I"))]
        infos.append((n, ne[::-1], take("i"), take("Q")))
    base = -(-p // ALIGN) * ALIGN
    out = {}
    for n, shape, ty, off in infos:
        size = int(np.prod(shape))
        size = {0: size * 4, 1: size * 2, 30: size * 2, 8: size // 32 * 34}[ty]
        raw = b[base + off:base + off + size]
        if ty == 30:
            raw = (np.frombuffer(raw, "<u2").astype("<u4") << 16).tobytes()
        flat = un_q8_0(raw, shape) if ty == 8 else np.frombuffer(raw, "<f2" if ty == 1 else "<f4").astype(np.float32)
        out[n] = flat.reshape(shape)
    return meta, out


def config(meta: dict) -> dict:
    """Model configuration of a file's metadata."""
    g = {k[7:]: v for k, v in meta.items() if k.startswith("gemma4.")}
    kv, swa = g["attention.head_count_kv"], g["attention.sliding_window_pattern"]
    return dict(vocab=len(meta["tokenizer.ggml.tokens"]), dim=g["embedding_length"], pattern="".join("S" if s else "F" for s in swa),
                heads=g["attention.head_count"], kv_heads=kv[swa.index(True)], kv_heads_full=kv[-1], hd=g["attention.key_length_swa"],
                hd_full=g["attention.key_length"], ffn=g["feed_forward_length"], window=g["attention.sliding_window"],
                theta=g["rope.freq_base_swa"], theta_full=g["rope.freq_base"], softcap=g["final_logit_softcapping"],
                context=g["context_length"], experts=g.get("expert_count", 0), top_k=g.get("expert_used_count", 0),
                expert_ffn=g.get("expert_feed_forward_length", 0))


def load_model(path: str, device: str = "cuda"):
    """The file as a Model holding the dequantised weights."""
    import torch
    from model import Config, Model
    meta, w = read(path)
    m = Model(Config(**config(meta))).to(device).eval()
    with torch.no_grad():
        for n, p in m.named_parameters():
            p.copy_(torch.from_numpy(w[gguf_name(n)].copy()))
    return m, meta


def write_safetensors(path: str, weights: dict[str, np.ndarray]) -> None:
    head, data = {}, b""
    for n, a in weights.items():
        f32 = a.ndim == 1 or "gate_inp" in n
        raw = np.ascontiguousarray(a, "<f4").tobytes() if f32 else bf16(a).tobytes()
        head[hf_name(n)] = {"dtype": "F32" if f32 else "BF16", "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main() -> None:
    from tokenizer import Tok
    from train import load
    ap = argparse.ArgumentParser()
    ap.add_argument("state")
    ap.add_argument("out")
    ap.add_argument("--bf16", action="store_true", help="matrices in BF16, for facet quantize")
    ap.add_argument("--safetensors")
    a = ap.parse_args()
    arrays, meta = load(a.state)
    w = {n[2:]: x for n, x in arrays.items() if n.startswith("w.")}
    size = write(a.out, w, meta["config"], Tok(), a.bf16)
    if a.safetensors:
        write_safetensors(a.safetensors, w)
    back, t = read(a.out)
    worst = max(float(np.abs(t[k] - v).max() / np.abs(v).max()) for k, v in
                ((gguf_name(n), x) for n, x in w.items()))
    print(f"{a.out}: {size:,} bytes, {len(t)} tensors, largest rounding {worst:.4f} of a tensor's maximum")


if __name__ == "__main__":
    main()
