#!/usr/bin/env python3
"""Small golden drafters for tests/data/drafters: ``make_drafter_fixtures.py OUT`` or ``--check FOLDER``.

Random weights, exact in BF16, for a target of width 64 and 128 tokens that exists only as an embedding and as K/V rows.

* mtp/: transformers' Gemma4Assistant (float32, eager): chains of four greedy passes at P = 6, 10 and 40, with a head over
  clusters and with the head over all tokens. Beyond the window of 8 its eager masks see two keys more than the model's
  definition, so P = 10 and 40 are for a window of 10.
* dflash/: the forward pass below, which ``--check`` compares with goldens of the DFlash authors' own model (a folder
  with config.json, model.safetensors, golden.safetensors and the target's embedding in --embedding TARGET.gguf).

Needs numpy; mtp/ needs torch and transformers >= 5.17 too, --check gguf.
"""
import json
import os
import struct
import sys

import numpy as np

D, V, CHANNEL = 64, 128, np.float64


def read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    out = {}
    for k, v in head.items():
        if k == "__metadata__":
            continue
        raw = data[v["data_offsets"][0]:v["data_offsets"][1]]
        if v["dtype"] == "BF16":
            raw = (np.frombuffer(raw, "<u2").astype("<u4") << 16).tobytes()
        out[k] = np.frombuffer(raw, {"F32": "<f4", "BF16": "<f4", "I32": "<i4", "I64": "<i8"}[v["dtype"]]).reshape(v["shape"])
    return out


def write(path, tensors):
    """tensors: name -> array; float16 marks what is written as BF16."""
    head, data = {}, b""
    for k, a in tensors.items():
        a = np.asarray(a)
        kind = {"float32": "F32", "float64": "F32", "int32": "I32", "int64": "I64", "uint16": "BF16"}[str(a.dtype)]
        raw = np.ascontiguousarray(a, {"F32": "<f4", "I32": "<i4", "I64": "<i8", "BF16": "<u2"}[kind]).tobytes()
        head[k] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def bf16(a):
    """The bits of a rounded to BF16, and the rounded values."""
    u = np.asarray(a, np.float32).view(np.uint32)
    bits = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def rms(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def rope(x, pos, theta):
    """x [T, heads, E], halves rotated together."""
    E = x.shape[-1]
    a = pos[:, None] * theta ** (-2.0 * np.arange(E // 2) / E)
    co, si = np.cos(a)[:, None], np.sin(a)[:, None]
    u, v = x[..., :E // 2], x[..., E // 2:]
    return np.concatenate((u * co - v * si, v * co + u * si), -1)


def dflash(w, c, embedding, features, ids, at, causal):
    """Logits [block, V] of the block whose newest token is ids[at]; features of the tokens before it."""
    w = {k: v.astype(CHANNEL) for k, v in w.items()}
    E, theta, n = c["head_dim"], c["rope_theta"], c["block_size"]
    g = rms(features[:at].astype(CHANNEL) @ w["fc.weight"].T, w["hidden_norm.weight"])
    row = [ids[at]] + [c["dflash_config"]["mask_token_id"]] * (n - 1)
    x = embedding[row].astype(CHANNEL) * np.sqrt(c["hidden_size"])
    pos, old = np.arange(at, at + n), np.arange(at)
    for l, kind in enumerate(c["layer_types"]):
        p = lambda name: w[f"layers.{l}.{name}.weight"]
        y = rms(x, p("input_layernorm"))
        heads = lambda t: t.reshape(len(t), -1, E)
        q = rope(rms(heads(y @ p("self_attn.q_proj").T), p("self_attn.q_norm")), pos, theta)
        k = np.concatenate([rope(rms(heads(s @ p("self_attn.k_proj").T), p("self_attn.k_norm")), at_, theta) for s, at_ in ((g, old), (y, pos))])
        v = np.concatenate([heads(s @ p("self_attn.v_proj").T) for s in (g, y)])
        d = pos[:, None] - np.arange(at + n)[None]
        ok = np.ones_like(d, bool)
        if kind == "sliding_attention":
            ok = (d < c["sliding_window"]) & ((d >= 0) if causal else (-d < c["sliding_window"]))
        o = []
        for h in range(q.shape[1]):
            kv = h // (q.shape[1] // k.shape[1])
            s = np.where(ok, q[:, h] @ k[:, kv].T / np.sqrt(E), -np.inf)
            s = np.exp(s - s.max(-1, keepdims=True))
            o.append(s / s.sum(-1, keepdims=True) @ v[:, kv])
        x = x + np.concatenate(o, -1) @ p("self_attn.o_proj").T
        z = rms(x, p("post_attention_layernorm"))
        u = z @ p("mlp.gate_proj").T
        x = x + (u / (1 + np.exp(-u)) * (z @ p("mlp.up_proj").T)) @ p("mlp.down_proj").T
    z = rms(x, w["norm.weight"]) @ embedding.astype(CHANNEL).T
    cap = c["final_logit_softcapping"]
    return cap * np.tanh(z / cap)


def check(folder, target):
    from gguf import GGUFReader
    from gguf.quants import dequantize
    e = next(t for t in GGUFReader(target).tensors if t.name == "token_embd.weight")
    c, w, g = json.load(open(folder + "/config.json")), read(folder + "/model.safetensors"), read(folder + "/golden.safetensors")
    worst = 0
    for at in (12, 40, 43):
        for mask in ("causal", "bidir"):
            got = dflash(w, c, dequantize(e.data, e.tensor_type), g["features"], g["ids"], at, mask == "causal")
            worst = max(worst, np.abs(got - g[f"logits_{mask}_c{at}"]).max())
    print(f"largest difference from the authors' model: {worst:.2e}")
    return worst < 1e-4


def make_dflash(out):
    rng = np.random.default_rng(11)
    os.makedirs(out, exist_ok=True)
    c = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": D, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
         "max_position_embeddings": 4096, "vocab_size": V, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
         "sliding_window": 16, "block_size": 8, "num_target_layers": 6, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
         "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 2, 3]}}
    bits, w = {}, {}

    def add(name, shape, mean, sd):
        bits[name], w[name] = bf16(mean + sd * rng.standard_normal(shape))

    add("fc.weight", (D, 3 * D), 0, (3 * D) ** -0.5)
    for n in ("hidden_norm.weight", "norm.weight"):
        add(n, D, 1, 0.25)
    for l in range(3):
        p = f"layers.{l}."
        for n in ("input_layernorm", "post_attention_layernorm"):
            add(p + n + ".weight", D, 1, 0.25)
        for n, s in (("q_proj", (128, D)), ("k_proj", (64, D)), ("v_proj", (64, D)), ("o_proj", (D, 128))):
            add(p + f"self_attn.{n}.weight", s, 0, 2 * s[1] ** -0.5)
        for n in ("q_norm", "k_norm"):
            add(p + f"self_attn.{n}.weight", 32, 2, 0.3)
        for n, s in (("gate_proj", (96, D)), ("up_proj", (96, D)), ("down_proj", (D, 96))):
            add(p + f"mlp.{n}.weight", s, 0, 2 * s[1] ** -0.5)
    embedding = bf16(rng.standard_normal((V, D)) * 0.5)[1]
    ids, features = rng.integers(5, V, 52).astype(np.int32), rng.standard_normal((52, 3 * D)).astype(np.float32) * 3
    g = {"ids": ids, "embedding": embedding, "features": features}
    for at in (12, 40, 43):
        for mask in ("causal", "bidir"):
            g[f"logits_{mask}_c{at}"] = dflash(w, c, embedding, features, ids, at, mask == "causal").astype(np.float32)
    json.dump(c, open(out + "/config.json", "w"), indent=1)
    write(out + "/model.safetensors", bits)
    write(out + "/golden.safetensors", g)


def make_mtp(out):
    import torch
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig
    torch.manual_seed(12)
    os.makedirs(out, exist_ok=True)
    S, A, W = "sliding_attention", "full_attention", 8
    text = Gemma4TextConfig(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        num_global_key_value_heads=1, head_dim=32, global_head_dim=64, attention_k_eq_v=True, layer_types=[S, S, S, A], sliding_window=W,
        max_position_embeddings=4096, hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, num_kv_shared_layers=4,
        final_logit_softcapping=None, tie_word_embeddings=True, pad_token_id=0, bos_token_id=2, eos_token_id=1,
        rope_parameters={A: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=.25), S: dict(rope_type="default", rope_theta=1e4)})
    models = {}
    for head in ("clustered", "dense"):
        c = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=D, use_ordered_embeddings=head == "clustered", num_centroids=16, centroid_intermediate_top_k=3)
        models[head] = Gemma4AssistantForCausalLM._from_config(c, attn_implementation="eager").float().eval()
    m = models["clustered"]
    with torch.no_grad():
        for name, p in m.named_parameters():
            mean = 0.5 if "q_norm" in name else 1.0 if p.ndim == 1 else 0.0
            sd = 0.2 if p.ndim == 1 else p.shape[-1] ** -0.5 * (1.0 if "embed" in name else 2.0)
            p.copy_((mean + sd * torch.randn_like(p)).bfloat16().float())
        for name, b in m.named_buffers():
            if name.endswith("layer_scalar"):
                b.copy_(torch.tensor([0.85]).bfloat16().float() + 0.0)
        m.masked_embedding.token_ordering.copy_(torch.randperm(V))
    models["dense"].load_state_dict({k: v for k, v in m.state_dict().items() if "masked_embedding" not in k}, strict=True)
    m.save_pretrained(out)
    state = read(out + "/model.safetensors")
    write(out + "/model.safetensors", {k: v if v.dtype == np.int64 else bf16(v)[0] for k, v in state.items()})
    c = json.load(open(out + "/config.json"))
    json.dump(c, open(out + "/config.json", "w"), indent=1)
    for junk in ("generation_config.json",):
        if os.path.exists(f"{out}/{junk}"):
            os.remove(f"{out}/{junk}")

    gen = torch.Generator().manual_seed(13)
    rand = lambda *s: torch.randn(*s, generator=gen)
    E = rand(V, D).mul(0.5).bfloat16().float()
    ids = torch.randint(5, V, (52,), generator=gen)
    unit = lambda t: t / t.pow(2).mean(-1, keepdim=True).sqrt()
    kv = {S: (rand(2, 52, 32) * 0.7, unit(rand(2, 52, 32))), A: (rand(1, 52, 64) * 0.7, unit(rand(1, 52, 64)))}
    before = rand(52, D) * 4          # the target's stream at its end, and its output norm
    norm = 1 + 0.3 * rand(D)
    final = unit(before) * norm
    g = {"ids": ids.int().numpy(), "embedding": E.numpy(), "before_norm": before.numpy(), "final_hidden": final.numpy()}
    for kind, (k, v) in kv.items():
        g["k_" + kind], g["v_" + kind] = k.numpy(), v.numpy()
    with torch.no_grad():
        for head, a in models.items():
            for P in (6, 10, 40):
                tok, h, rows = ids[P], final[P - 1], []
                for _ in range(4):
                    z = torch.cat((E[tok] * D ** 0.5, h))[None, None]
                    past = {t: (k[None, :, :P], v[None, :, :P]) for t, (k, v) in kv.items()}
                    y = a(inputs_embeds=z, position_ids=torch.tensor([[P]]), attention_mask=None, shared_kv_states=past)
                    rows.append(y.logits[0, 0])
                    tok, h = int(y.logits.argmax()), y.last_hidden_state[0, 0]
                rows = torch.stack(rows)
                if head == "clustered":  # transformers fills with the least score less one
                    rows = torch.where(rows == rows.amin(-1, keepdim=True), torch.tensor(float("-inf")), rows)
                g[f"{head}_P{P}"] = rows.numpy()
    write(out + "/golden.safetensors", g)


def main():
    if sys.argv[1] == "--check":
        sys.exit(not check(sys.argv[2], sys.argv[3]))
    make_dflash(sys.argv[1] + "/dflash")
    make_mtp(sys.argv[1] + "/mtp")


if __name__ == "__main__":
    main()
