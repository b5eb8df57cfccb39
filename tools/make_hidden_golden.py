#!/usr/bin/env python3
"""Hidden states of a Gemma 4 text model in float64: make_hidden_golden.py FOLDER ...

Each FOLDER holds model.gguf and golden.safetensors (tools/make_fixtures.py). A plain numpy forward pass over the dequantised weights must
give the golden's logits, which are the official implementation's; then the residual stream behind every layer and the final row behind the
output norm, of a few tokens, go to FOLDER/hidden.safetensors (rows I32 [n], layers F32 [n_layer, n, D], final F32 [n, D]).

Needs numpy and gguf.
"""
import json
import struct
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

ROWS = [0, 7, 8, 9, 40, 63]  # around a window of 8, and the last
EPS = 1e-6


def rms(x, gain=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return y if gain is None else y * gain


def gelu(x):
    return .5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + .044715 * x ** 3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def read_safetensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    kinds = {"I32": "<i4", "F32": "<f4"}
    return {k: np.frombuffer(data[8 + n:][v["data_offsets"][0]:v["data_offsets"][1]], kinds[v["dtype"]]).reshape(v["shape"])
            for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


def write_safetensors(path, tensors):
    head, data = {}, b""
    for name, a in tensors.items():
        head[name] = {"dtype": "I32" if a.dtype == np.int32 else "F32", "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.meta = {k: f.contents() for k, f in reader.fields.items()}
        self.w = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64).reshape([int(n) for n in t.shape][::-1]) for t in reader.tensors}
        self.layers, self.heads = self.key("block_count"), self.key("attention.head_count")
        self.per_layer = self.key("embedding_length_per_layer_input", 0)

    def key(self, name, otherwise=None):
        return self.meta.get("gemma4." + name, otherwise)

    def of(self, name, layer):
        v = self.key(name)
        return v[layer] if isinstance(v, list) else v

    def rope(self, x, sliding):
        width = x.shape[-1]
        freqs = self.key("rope.freq_base_swa" if sliding else "rope.freq_base") ** (-2. * np.arange(width // 2) / width)
        if not sliding:
            freqs = freqs / self.w["rope_freqs.weight"]
        a = (np.arange(len(x))[:, None] * freqs)[:, None]
        u, v = x[..., :width // 2], x[..., width // 2:]
        return np.concatenate((u * np.cos(a) - v * np.sin(a), v * np.cos(a) + u * np.sin(a)), -1)

    def attention(self, h, layer, kept):
        g = lambda name: self.w.get(f"blk.{layer}.{name}.weight")
        sliding = bool(self.of("attention.sliding_window_pattern", layer))
        width, n_kv = self.key("attention.key_length_swa" if sliding else "attention.key_length"), self.of("attention.head_count_kv", layer)
        q = self.rope(rms((h @ g("attn_q").T).reshape(len(h), self.heads, width), g("attn_q_norm")), sliding)
        if layer < self.layers - self.key("attention.shared_kv_layers", 0):
            raw = (h @ g("attn_k").T).reshape(len(h), n_kv, width)
            v = raw if g("attn_v") is None else (h @ g("attn_v").T).reshape(len(h), n_kv, width)
            kept[sliding] = self.rope(rms(raw, g("attn_k_norm")), sliding), rms(v)
        k, v = kept[sliding]
        past = np.arange(len(h))[:, None] - np.arange(len(h))[None]
        seen = (past >= 0) & (past < (self.key("attention.sliding_window") if sliding else len(h)))
        out = []
        for head in range(self.heads):
            one = head * n_kv // self.heads
            out.append(softmax(np.where(seen, q[:, head] @ k[:, one].T, -np.inf)) @ v[:, one])
        return np.concatenate(out, -1) @ g("attn_output").T

    def experts(self, x, layer):
        p = f"blk.{layer}."
        scores = (rms(x) * x.shape[-1] ** -.5 * self.w[p + "ffn_gate_inp.scale"]) @ self.w[p + "ffn_gate_inp.weight"].T
        h, out = rms(x, self.w[p + "pre_ffw_norm_2.weight"]), np.zeros_like(x)
        for t in range(len(x)):
            chosen = np.argsort(-scores[t], kind="stable")[:self.key("expert_used_count")]
            for e, share in zip(chosen, softmax(scores[t, chosen]) * self.w[p + "ffn_down_exps.scale"][chosen]):
                gate, up = np.split(self.w[p + "ffn_gate_up_exps.weight"][e] @ h[t], 2)
                out[t] += share * (self.w[p + "ffn_down_exps.weight"][e] @ (gelu(gate) * up))
        return out

    def layer(self, x, layer, kept, extra):
        g = lambda name: self.w[f"blk.{layer}.{name}"]
        x = x + rms(self.attention(rms(x, g("attn_norm.weight")), layer, kept), g("post_attention_norm.weight"))
        h = rms(x, g("ffn_norm.weight"))
        y = (gelu(h @ g("ffn_gate.weight").T) * (h @ g("ffn_up.weight").T)) @ g("ffn_down.weight").T
        if self.key("expert_count", 0):
            y = rms(y, g("post_ffw_norm_1.weight")) + rms(self.experts(x, layer), g("post_ffw_norm_2.weight"))
        x = x + rms(y, g("post_ffw_norm.weight"))
        if self.per_layer:
            x = x + rms((gelu(x @ g("inp_gate.weight").T) * extra[:, layer]) @ g("proj.weight").T, g("post_norm.weight"))
        return x * self.w.get(f"blk.{layer}.layer_output_scale.weight", 1.)

    def forward(self, ids):
        w, width = self.w, self.w["token_embd.weight"].shape[1]
        x, extra = w["token_embd.weight"][ids] * np.sqrt(width), None
        if self.per_layer:
            shape = (len(ids), self.layers, self.per_layer)
            table = w["per_layer_token_embd.weight"][ids].reshape(shape) * np.sqrt(self.per_layer)
            made = rms((x @ w["per_layer_model_proj.weight"].T * width ** -.5).reshape(shape), w["per_layer_proj_norm.weight"])
            extra = (made + table) * np.sqrt(.5)
        states, kept = [], {}
        for layer in range(self.layers):
            x = self.layer(x, layer, kept, extra)
            states.append(x)
        final = rms(x, w["output_norm.weight"])
        cap = self.key("final_logit_softcapping")
        return np.array(states), final, cap * np.tanh(final @ w["token_embd.weight"].T / cap)


def main():
    for folder in sys.argv[1:]:
        golden = read_safetensors(f"{folder}/golden.safetensors")
        states, final, logits = Model(f"{folder}/model.gguf").forward(golden["ids"])
        worst = np.abs(logits - golden["logits"]).max()
        print(f"{folder}: {len(states)} layers, largest difference of a logit from the official one {worst:.1e}")
        if not worst < 1e-3:
            sys.exit("this is not the same model")
        write_safetensors(f"{folder}/hidden.safetensors", {"rows": np.array(ROWS, np.int32), "layers": states[:, ROWS].astype(np.float32), "final": final[ROWS].astype(np.float32)})


if __name__ == "__main__":
    main()
