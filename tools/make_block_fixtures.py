#!/usr/bin/env python3
"""Small golden drafters of the families beside DFlash: ``make_block_fixtures.py OUT [--check] [--deepspec DIR]``.

Long: a recipe for each family, and its maths a second time.

A folder a family: config.json, weights.json (names, shapes and spreads; "V" is the target's vocabulary) and
expected.safetensors. Weights, features and tokens are not stored: both sides make them of their names (values()), as
tests/support/random_drafter.h does, exact in BF16.

* dspark_gemma/: layers of Gemma's form, by the forward pass below. --deepspec compares it, and does no more, with its
  authors' code in DIR, a clone of github.com/deepseek-ai/DeepSpec (afdfa7c; torch, transformers 5.10.2, float32).
* dspark/, dflash2/: layers of Qwen's form, by speculators' own code (0.9.0, float32, eager); dspark/ in both
  alignments. --check compares the forward pass below with it.
* eagle3/: a chain of one layer, by speculators' own layer; its flags in three settings, and with norms of queries and
  keys (Qwen's layer).

Needs numpy; dspark/, eagle3/ and dflash2/ need torch and speculators.
"""
import json
import os
import struct
import sys

import numpy as np

D, V = 64, 128
T, TAPS = 28, [0, 2, 3]


def values(name, shape, mean, sd):
    """float32 values of a tensor, exact in BF16: a hash of the name and the index."""
    seed = 0xCBF29CE484222325
    for c in name.encode():
        seed = ((seed ^ c) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    u = (x >> np.uint64(40)).astype(np.float64) * 2.0**-24
    v = (mean + sd * 3.4641016151377544 * (u - 0.5)).astype(np.float32)
    b = v.view(np.uint32)
    b = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return b.view(np.float32).reshape(shape)


def ids(name, n):
    return 5 + (values(name, (n,), 0, 1).view(np.uint32) >> 16).astype(np.int64) % (V - 5)


def write(path, tensors):
    head, data = {}, b""
    for k, a in tensors.items():
        a = np.asarray(a)
        kind = {"float32": "F32", "float64": "F32", "int32": "I32", "int64": "I32"}[str(a.dtype)]
        raw = np.ascontiguousarray(a, "<f4" if kind == "F32" else "<i4").tobytes()
        head[k] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Weights:
    """What weights.json lists: name -> shape, mean, spread."""

    def __init__(self):
        self.rows = []

    def add(self, name, shape, mean, sd):
        self.rows.append([name, [shape] if isinstance(shape, (int, str)) else list(shape), mean, round(sd, 6)])

    def matrix(self, name, out, n_in, gain=1.0):
        self.add(name, (out, n_in), 0, gain * n_in**-0.5)

    def make(self):
        w = {}
        for name, shape, mean, sd in self.rows:
            w[name] = values(name, tuple(V if s == "V" else s for s in shape), mean, sd)
        return w


def base_weights(n_layer, n_q, n_kv, E, F, gemma):
    w = Weights()
    w.matrix("fc.weight", D, len(TAPS) * D)
    for n in ("hidden_norm.weight", "norm.weight"):
        w.add(n, D, 1, 0.25)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for l in range(n_layer):
        p = f"layers.{l}."
        for n in norms:
            w.add(p + n + ".weight", D, 1, 0.25)
        for n, out, n_in in (("q", n_q * E, D), ("k", n_kv * E, D), ("v", n_kv * E, D), ("o", D, n_q * E)):
            if n != "v" or not gemma:
                w.matrix(p + f"self_attn.{n}_proj.weight", out, n_in, 2)
        for n in ("q_norm", "k_norm"):
            w.add(p + f"self_attn.{n}.weight", E, 0.5 if gemma else 2, 0.1 if gemma else 0.3)
        for n, out, n_in in (("gate", F, D), ("up", F, D), ("down", D, F)):
            w.matrix(p + f"mlp.{n}_proj.weight", out, n_in, 2)
        if gemma:
            w.add(p + "layer_scalar", 1, 0.8, 0.1)
    return w


def add_heads(w, rows, rank):
    w.add("markov_head.markov_w1.weight", ("V", rank), 0, 0.7)
    w.add("markov_head.markov_w2.weight", (rows, rank), 0, 0.7)
    w.add("confidence_head.proj.weight", (1, D + rank), 0, 0.15)
    w.add("confidence_head.proj.bias", 1, 0.3, 0.1)


# --- the second writing of the maths, float64


def rms(x, w=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return y if w is None else y * w


def rope(x, pos, theta, part=1.0):
    E = x.shape[-1]
    f = theta ** (-2.0 * np.arange(E // 2) / E)
    f[int(E // 2 * part):] = 0
    a = pos[:, None] * f
    co, si = np.cos(a)[:, None], np.sin(a)[:, None]
    u, v = x[..., :E // 2], x[..., E // 2:]
    return np.concatenate((u * co - v * si, v * co + u * si), -1)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def conv(x, base, delta):
    """x [slots, D] with the rows before it: base [taps, D], delta [slots, taps, groups]."""
    out = np.zeros_like(x)
    for t in range(base.shape[0]):
        before = np.concatenate((np.zeros((t, x.shape[1])), x[:len(x) - t]))
        out += before * (base[t] + np.repeat(delta[:, t], x.shape[1] // delta.shape[2], axis=1))
    return out


def block(w, c, features, tokens, at, embedding, head):
    """States [slots, D] and logits [slots, rows] of a block whose known token is tokens[at]."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    E, n, gemma = c["E"], c["block"], c["gemma"]
    g = rms(features[:at].astype(np.float64) @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embedding[[tokens[at]] + [c["mask"]] * (n - 1)].astype(np.float64) * c["scale"]
    pos, old = np.arange(at, at + n), np.arange(at)
    heads = lambda t: t.reshape(len(t), -1, E)
    turn = lambda t, p: rope(t, p, c["theta"], 0.25 if gemma else 1)
    for l in range(c["layers"]):
        p = lambda name: w[f"layers.{l}.{name}.weight"]
        y = rms(x, p("input_layernorm"))

        def around(kind):
            """The two convolutions around a branch with this input."""
            if f"layers.{l}.{kind}_conv.base_kernel" not in w:
                return lambda t: t, lambda t: t
            base = w[f"layers.{l}.{kind}_conv.base_kernel"]
            delta = (branch @ p(f"{kind}_conv.kernel_projection").T).reshape(n, 2, base.shape[1], -1)
            return lambda t: conv(t, base[0], delta[:, 0]), lambda t: conv(t, base[1], delta[:, 1])

        branch = y
        before, behind = around("attention")
        y = before(y)
        q = turn(rms(heads(y @ p("self_attn.q_proj").T), p("self_attn.q_norm")), pos)
        raw = [heads(s @ p("self_attn.k_proj").T) for s in (g, y)]
        k = np.concatenate([turn(rms(r, p("self_attn.k_norm")), at_) for r, at_ in zip(raw, (old, pos))])
        v = np.concatenate([rms(r) for r in raw] if gemma else [heads(s @ p("self_attn.v_proj").T) for s in (g, y)])
        d = pos[:, None] - np.arange(at + n)[None]
        ok = d >= 0 if c["causal"][l] else np.ones_like(d, bool)
        o = []
        for h in range(q.shape[1]):
            kv = h // (q.shape[1] // k.shape[1])
            s = np.where(ok, q[:, h] @ k[:, kv].T * (1 if gemma else E**-0.5), -np.inf)
            s = np.exp(s - s.max(-1, keepdims=True))
            o.append(s / s.sum(-1, keepdims=True) @ v[:, kv])
        a = behind(np.concatenate(o, -1) @ p("self_attn.o_proj").T)
        x = x + (rms(a, p("post_attention_layernorm")) if gemma else a)
        z = rms(x, p("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"))
        branch = z
        before, behind = around("mlp")
        z = before(z)
        m = ((gelu if gemma else silu)(z @ p("mlp.gate_proj").T) * (z @ p("mlp.up_proj").T)) @ p("mlp.down_proj").T
        m = behind(m)
        x = x + (rms(m, p("post_feedforward_layernorm")) if gemma else m)
        if gemma:
            x = x * w[f"layers.{l}.layer_scalar"]
    H = rms(x, w["norm.weight"])
    z = H @ head.astype(np.float64).T
    return H, c["cap"] * np.tanh(z / c["cap"]) if c["cap"] else z


def chain(w, c, H, base, known, d2t):
    """Logits of each step, tokens and confidences of the greedy chain."""
    w1, w2 = w["markov_head.markov_w1.weight"].astype(np.float64), w["markov_head.markov_w2.weight"].astype(np.float64)
    first = 0 if c["anchor"] else 1
    steps, out, sure, prev = [], [], [], known
    for i in range(first, c["block"]):
        z = base[i] + w2 @ w1[prev]
        f = np.concatenate((H[i], w1[prev]))
        s = w["confidence_head.proj.weight"][0].astype(np.float64) @ f + w["confidence_head.proj.bias"][0]
        prev = int(d2t[int(z.argmax())])
        steps.append(z), out.append(prev), sure.append(1 / (1 + np.exp(-s)))
    return np.array(steps), np.array(out), np.array(sure)


def common():
    tokens = ids("golden.ids", T)
    features = values("golden.features", (T, len(TAPS) * D), 0, 3)
    return tokens, features, values("golden.embedding", (V, D), 0, 0.5)


def save(out, config, w, expected):
    os.makedirs(out, exist_ok=True)
    json.dump(config, open(out + "/config.json", "w"), indent=1)
    with open(out + "/weights.json", "w") as f:
        f.write("[" + ",\n ".join(json.dumps(r) for r in w.rows) + "]\n")
    write(out + "/expected.safetensors", {k: np.asarray(v, np.float32 if np.asarray(v).dtype.kind == "f" else np.int32)
                                          for k, v in expected.items()})


def make_dspark_gemma(out):
    w = base_weights(2, 2, 1, 64, 64, True)
    add_heads(w, "V", 16)
    config = {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "hidden_size": D, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
              "head_dim": 32, "global_head_dim": 64, "attention_k_eq_v": True, "hidden_activation": "gelu_pytorch_tanh",
              "rms_norm_eps": 1e-6, "vocab_size": V, "layer_types": ["full_attention"] * 2, "sliding_window": 1024,
              "final_logit_softcapping": 30.0, "tie_word_embeddings": False, "max_position_embeddings": 4096,
              "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25},
                                  "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}},
              "block_size": 5, "mask_token_id": 4, "target_layer_ids": TAPS, "markov_rank": 16, "markov_head_type": "vanilla",
              "enable_confidence_head": True, "confidence_head_with_markov": True}
    tokens, features, embedding = common()
    made = w.make()
    c = {"E": 64, "block": 5, "gemma": True, "layers": 2, "theta": 1e6, "mask": 4, "scale": D**0.5, "cap": 30.0,
         "causal": [False, False], "anchor": True}
    g = {}
    for at in (9, 22):
        H, base = block(made, c, features, tokens, at, embedding, embedding)
        steps, chosen, sure = chain(made, c, H, base, tokens[at], np.arange(V))
        g[f"base_{at}"], g[f"steps_{at}"], g[f"ids_{at}"], g[f"sure_{at}"] = base, steps, chosen, sure
    save(out, config, w, g)


def compare_deepspec(out, clone):
    """The drafter in out/dspark_gemma by its authors' code: two rounds over one cache, as their evaluation has them."""
    sys.path.insert(0, clone)
    import torch
    from deepspec.modeling.dspark.gemma4.modeling import Gemma4DSparkModel
    from transformers import DynamicCache
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    config = json.load(open(out + "/dspark_gemma/config.json"))
    c = Gemma4TextConfig(hidden_size_per_layer_input=0, enable_moe_block=False,
                         **{k: v for k, v in config.items() if k not in ("architectures", "model_type")})
    c.layer_types, c.num_anchors, c._attn_implementation = config["layer_types"], 1, "sdpa"
    m = Gemma4DSparkModel(c).float().eval()
    tokens, features, embedding = common()
    rows = json.load(open(out + "/dspark_gemma/weights.json"))
    state = {n: values(n, tuple(V if s == "V" else s for s in shape), mean, sd) for n, shape, mean, sd in rows}
    state.update({"embed_tokens.weight": embedding, "lm_head.weight": embedding})
    m.load_state_dict({k: torch.tensor(v) for k, v in state.items()}, strict=True)
    raw = open(out + "/dspark_gemma/expected.safetensors", "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head, cache, held = json.loads(raw[8:8 + n]), DynamicCache(), 0
    for at in (9, 22):
        ids_ = torch.tensor([[int(tokens[at])] + [c.mask_token_id] * (c.block_size - 1)])
        with torch.no_grad():
            H = m._forward_backbone(position_ids=torch.arange(held, at + c.block_size)[None], is_causal=False,
                                    noise_embedding=m.embed_tokens(ids_), past_key_values=cache, use_cache=True,
                                    target_hidden_states=torch.tensor(features[held:at])[None])
            base = m.compute_logits(H)
            chosen, steps = m.sample_draft_tokens(base, first_prev_token_ids=ids_[:, 0], hidden_states=H)
            sure = m.predict_confidence_step(H, torch.cat((ids_[:, :1], chosen[:, :-1]), 1)).sigmoid()
        cache.crop(at)
        held = at
        for name, got in (("base", base), ("steps", steps), ("ids", chosen), ("sure", sure)):
            of = head[f"{name}_{at}"]
            a, b = of["data_offsets"]
            want = np.frombuffer(raw[8 + n + a:8 + n + b], "<f4" if of["dtype"] == "F32" else "<i4").reshape(of["shape"])
            d = np.abs(got[0].numpy().astype(np.float64) - want)
            print(f"{name}_{at}: max {d.max():.2g}, rms {np.sqrt((d * d).mean()):.2g}, of {np.abs(want).max():.3g}")


def speculators_config(kind, block, anchor, rows, extra):
    return {"architectures": [kind], "speculators_model_type": kind, "speculators_version": "0.9.0", "block_size": block,
            "draft_vocab_size": rows, "aux_hidden_state_layer_ids": [t + 1 for t in TAPS], "mask_token_id": 4,
            "sample_from_anchor": anchor, **extra,
            "speculators_config": {"algorithm": kind, "default_proposal_method": "greedy",
                                   "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": block - (not anchor)}],
                                   "verifier": {"architectures": [], "name_or_path": None}}}


def layer_config(**more):
    return {"model_type": "qwen3", "hidden_size": D, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": V,
            "max_position_embeddings": 4096, "attention_bias": False, "attention_dropout": 0.0, "sliding_window": 64,
            "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, **more}


def authors_model(config, made, embedding, d2t):
    """The speculators model of a config.json, in float32, with these weights."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch
    from speculators import SpeculatorModelConfig
    from speculators.model import SpeculatorModel
    kind = config["speculators_model_type"]
    config_cls = SpeculatorModelConfig.registry[kind]
    c = config_cls(**{k: v for k, v in config.items() if k not in ("architectures", "speculators_version")})
    c.transformer_layer_config._attn_implementation = "eager"
    m = SpeculatorModel.registry[kind](c).float().eval()
    state = {k: torch.tensor(np.array(v)) for k, v in made.items()}
    state["embed_tokens.weight"] = torch.tensor(np.array(embedding))
    for k in ("verifier_lm_head.weight", "verifier_norm.weight"):
        if k in m.state_dict():
            state[k] = torch.ones_like(m.state_dict()[k])
    if "lm_head.weight" not in state:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    if d2t is not None:
        state["d2t"] = torch.tensor(d2t - np.arange(len(d2t)))
        state["t2d"] = torch.zeros(V, dtype=torch.bool)
        state["t2d"][torch.tensor(d2t)] = True
    m.load_state_dict(state, strict=True)
    return m


def authors_block(m, features, tokens, at):
    """States and logits of the block at `at`, by _backbone_forward with that one anchor."""
    import torch
    n = m.block_size
    total = at + 2 * n
    mask = torch.zeros(1, total)
    mask[0, at] = 1
    f = torch.zeros(1, total, features.shape[1])
    f[0, :at] = torch.tensor(features[:at])
    t = torch.zeros(1, total, dtype=torch.long)
    t[0, :at + 1] = torch.tensor(tokens[:at + 1])
    with torch.no_grad():
        H, z, *_ = m._backbone_forward(f, t, mask, torch.zeros(1, total, D), torch.zeros(1, total, dtype=torch.long), max_anchors=1)
    return H[0], z[0]


def make_dspark(out, check):
    import torch
    rows, rank = 48, 16
    d2t = np.arange(rows) * V // rows
    w = base_weights(2, 4, 2, 32, 64, False)
    w.matrix("lm_head.weight", rows, D, 3)
    add_heads(w, rows, rank)
    made, (tokens, features, embedding) = w.make(), common()
    g = {}
    for anchor in (False, True):
        config = speculators_config("dspark", 6, anchor, rows, {
            "transformer_layer_config": layer_config(), "markov_rank": rank, "markov_head_type": "vanilla",
            "enable_confidence_head": True, "confidence_head_with_markov": True, "sliding_window_non_causal": False})
        m = authors_model(config, made, embedding, d2t)
        c = {"E": 32, "block": 6, "gemma": False, "layers": 2, "theta": 1e4, "mask": 4, "scale": 1, "cap": 0,
             "causal": [True, False], "anchor": anchor}
        for at in (9, 22):
            H, base = authors_block(m, features, tokens, at)
            steps, chosen, sure, prev = [], [], [], int(tokens[at])
            with torch.no_grad():
                for i in range(0 if anchor else 1, 6):
                    p = torch.tensor([[prev]])
                    z = base[i] + m.markov_head.block_bias(prev_token_ids=p, hidden_states=H[i][None, None])[0, 0]
                    f = torch.cat((H[i], m.markov_head.prev_embeddings(p)[0, 0]))
                    best = int(z.argmax())
                    prev = best + int(m.d2t[best])
                    steps.append(z.numpy()), chosen.append(prev), sure.append(float(torch.sigmoid(m.confidence_head(f))))
            if check:
                H2, base2 = block(made, c, features, tokens, at, embedding, made["lm_head.weight"])
                s2, i2, u2 = chain(made, c, H2, base2, int(tokens[at]), d2t)
                print("dspark", anchor, at, np.abs(base2 - base.numpy()).max(), np.abs(s2 - np.array(steps)).max(), (i2 == chosen).all(),
                      np.abs(u2 - sure).max())
            kind = "anchor" if anchor else "own"
            g[f"base_{at}"] = base.numpy()
            g[f"steps_{kind}_{at}"], g[f"ids_{kind}_{at}"], g[f"sure_{kind}_{at}"] = np.array(steps), np.array(chosen), np.array(sure)
        if not anchor:
            first = config
    w.rows.append(["d2t", [rows], 0, 0])  # the target's token of row i is i V / rows
    save(out, first, w, g)


def make_dflash2(out, check):
    import torch
    rank, top = 16, 8
    w = base_weights(2, 4, 2, 32, 64, False)
    for l in range(2):
        for kind in ("attention", "mlp"):
            w.add(f"layers.{l}.{kind}_conv.base_kernel", (2, 2, D), 0.5, 0.5)
            w.matrix(f"layers.{l}.{kind}_conv.kernel_projection.weight", 2 * 2 * D // 16, D, 0.5)
    for n in ("predecessor", "successor"):
        w.add(f"candidate_selector.{n}_codebook", ("V", rank), 0, 0.9)
    w.matrix("candidate_selector.hidden_projection.weight", rank, D, 1)
    made, (tokens, features, embedding) = w.make(), common()
    config = speculators_config("dflash2", 6, False, V, {
        "transformer_layer_config": layer_config(), "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": rank,
        "selector_top_k": top})
    m = authors_model(config, made, embedding, None)
    c = {"E": 32, "block": 6, "gemma": False, "layers": 2, "theta": 1e4, "mask": 4, "scale": 1, "cap": 0, "causal": [False, False]}
    g = {}
    for at in (9, 22):
        H, base = authors_block(m, features, tokens, at)
        scores, candidates, chosen, prev = [], [], [], int(tokens[at])
        with torch.no_grad():
            for i in range(1, 6):
                some, z = m.candidate_selector.select(base[i][None], H[i][None], torch.tensor([prev]))
                order = torch.argsort(z[0], descending=True)
                candidates.append(some[0][order].numpy()), scores.append(z[0][order].numpy())
                prev = int(candidates[-1][0])
                chosen.append(prev)
        if check:
            H2, base2 = block(made, c, features, tokens, at, embedding, embedding)
            P, S, Hp = (made["candidate_selector." + n].astype(np.float64)
                        for n in ("predecessor_codebook", "successor_codebook", "hidden_projection.weight"))
            prev, worst = int(tokens[at]), 0
            for i in range(1, 6):
                some = candidates[i - 1]
                z = base2[i][some] + S[some] @ (P[prev] * (Hp @ H2[i]))
                worst, prev = max(worst, np.abs(z - scores[i - 1]).max()), int(some[z.argmax()])
                assert prev == chosen[i - 1]
            print("dflash2", at, np.abs(base2 - base.numpy()).max(), worst)
        g[f"base_{at}"], g[f"scores_{at}"], g[f"top_{at}"], g[f"ids_{at}"] = base.numpy(), np.array(scores), np.array(candidates), np.array(chosen)
    save(out, config, w, g)


EAGLE3_WAYS = {  # flags of each, and the layer's form
    "plain": ({"norm_before_residual": True}, "llama"),
    "output": ({"norm_output": True, "fc_norm": True}, "llama"),
    "qwen": ({"norm_before_fc": True, "norm_before_residual": True}, "qwen3"),
}


def eagle3_has(name, way):
    """Whether the file of a way has the tensor."""
    flags, form = EAGLE3_WAYS[way]
    if name.startswith("fc_norm."):
        return flags.get("fc_norm", False)
    if name.startswith("input_norm."):
        return flags.get("norm_before_fc", False)
    return "self_attn.q_norm" not in name and "self_attn.k_norm" not in name or form == "qwen3"


def eagle3_chain(w, flags, features, tokens, at, n, embedding, d2t):
    """Logits of n steps and their tokens; the second writing."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    E, emb = 32, embedding.astype(np.float64)
    f = features[:at].astype(np.float64)
    if flags.get("norm_before_fc"):
        f = rms(f, w["input_norm.weight"])
    if flags.get("fc_norm"):
        f = np.concatenate([rms(f[:, i * D:(i + 1) * D], w[f"fc_norm.{i}.weight"]) for i in range(3)], -1)
    g = f @ w["fc.weight"].T
    p = lambda name: w[f"layers.0.{name}.weight"]
    K, Val = np.zeros((0, 2, E)), np.zeros((0, 2, E))
    heads = lambda t: t.reshape(len(t), -1, E)
    maybe = lambda t, name: rms(t, p(name)) if f"layers.0.{name}.weight" in w else t
    steps, out = [], []
    s, ids_, pos = g, tokens[1:at + 1], np.arange(at)
    for i in range(n):
        u = rms(s, p("hidden_norm"))
        x = np.concatenate((rms(emb[ids_], p("input_layernorm")), u), -1)
        q = rope(maybe(heads(x @ p("self_attn.q_proj").T), "self_attn.q_norm"), pos, 1e4)
        K = np.concatenate((K, rope(maybe(heads(x @ p("self_attn.k_proj").T), "self_attn.k_norm"), pos, 1e4)))
        Val = np.concatenate((Val, heads(x @ p("self_attn.v_proj").T)))
        ok = np.arange(len(K))[None] <= pos[:, None]
        o = []
        for h in range(4):
            z = np.where(ok, q[:, h] @ K[:, h // 2].T * E**-0.5, -np.inf)
            z = np.exp(z - z.max(-1, keepdims=True))
            o.append(z / z.sum(-1, keepdims=True) @ Val[:, h // 2])
        y = (u if flags.get("norm_before_residual") else s) + np.concatenate(o, -1) @ p("self_attn.o_proj").T
        t = rms(y, p("post_attention_layernorm"))
        y = y + (silu(t @ p("mlp.gate_proj").T) * (t @ p("mlp.up_proj").T)) @ p("mlp.down_proj").T
        normed = rms(y[-1:], w["norm.weight"])
        logits = (normed @ w["lm_head.weight"].T)[0]
        steps.append(logits), out.append(int(d2t[logits.argmax()]))
        s, ids_, pos = normed if flags.get("norm_output") else y[-1:], np.array(out[-1:]), np.array([at + i])
    return np.array(steps), np.array(out)


def authors_chain(m, features, tokens, at, n):
    import torch
    from transformers import DynamicCache
    with torch.no_grad():
        f = torch.tensor(features[:at])[None]
        if m.input_norm is not None:
            f = m.input_norm(f)
        if m.fc_norm is not None:
            f = torch.cat([norm(x) for norm, x in zip(m.fc_norm, f.chunk(3, dim=-1))], dim=-1)
        s, ids_, pos, cache = m.fc(f), torch.tensor(tokens[1:at + 1])[None], torch.arange(at)[None], DynamicCache()
        steps, out = [], []
        for i in range(n):
            x = torch.cat([m.embed_tokens(ids_), s], dim=-1)
            rows = pos.shape[1]
            mask = torch.full((1, 1, rows, at + i if i else at), float("-inf")).triu(1) if i == 0 else None
            y = m.layers[0](x, attention_mask=mask, position_ids=pos, past_key_values=cache, cache_position=pos[0],
                            position_embeddings=m.rotary_emb(x, pos))[:, -1:]
            normed = m.norm(y)
            logits = m.lm_head(normed)[0, 0]
            best = int(logits.argmax())
            steps.append(logits.numpy()), out.append(best + int(m.d2t[best]))
            s, ids_, pos = normed if m.config.norm_output else y, torch.tensor([[out[-1]]]), torch.tensor([[at + i]])
    return np.array(steps), np.array(out)


def make_eagle3(out, check):
    rows = 48
    d2t = np.arange(rows) * V // rows
    w = Weights()
    w.matrix("fc.weight", D, 3 * D)
    w.add("input_norm.weight", 3 * D, 1, 0.25)
    for n in [f"fc_norm.{i}.weight" for i in range(3)] + ["norm.weight"]:
        w.add(n, D, 1, 0.25)
    for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        w.add(f"layers.0.{n}.weight", D, 1, 0.25)
    for n, o, i in (("q", 128, 2 * D), ("k", 64, 2 * D), ("v", 64, 2 * D), ("o", D, 128)):
        w.matrix(f"layers.0.self_attn.{n}_proj.weight", o, i, 2)
    for n in ("q_norm", "k_norm"):
        w.add(f"layers.0.self_attn.{n}.weight", 32, 2, 0.3)
    for n, o, i in (("gate", 64, D), ("up", 64, D), ("down", D, 64)):
        w.matrix(f"layers.0.mlp.{n}_proj.weight", o, i, 2)
    w.matrix("lm_head.weight", rows, D, 3)
    made, (tokens, features, embedding) = w.make(), common()
    layer = {k: v for k, v in layer_config(num_hidden_layers=1).items() if "layer_types" not in k and "sliding" not in k}
    g = {}
    for way, (flags, form) in EAGLE3_WAYS.items():
        config = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
                  "draft_vocab_size": rows, "eagle_aux_hidden_state_layer_ids": [t + 1 for t in TAPS], "target_hidden_size": None,
                  "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
                  "embed_requires_grad": False, "transformer_layer_config": {**layer, "model_type": form},
                  "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                                         "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                                         "verifier": {"architectures": [], "name_or_path": None}}, **flags}
        some = {k: v for k, v in made.items() if eagle3_has(k, way)}
        m = authors_model(config, some, embedding, d2t)
        for at in (9, 22):
            steps, chosen = authors_chain(m, features, tokens, at, 5)
            if check:
                s2, i2 = eagle3_chain(some, flags, features, tokens, at, 5, embedding, d2t)
                print("eagle3", way, at, np.abs(s2 - steps).max(), (i2 == chosen).all())
            g[f"steps_{way}_{at}"], g[f"ids_{way}_{at}"] = steps, chosen
        if way == "plain":
            first = config
    w.rows.append(["d2t", [rows], 0, 0])
    save(out, first, w, g)


def main():
    out, check = sys.argv[1], "--check" in sys.argv
    if "--deepspec" in sys.argv:
        return compare_deepspec(out, sys.argv[sys.argv.index("--deepspec") + 1])
    make_dspark_gemma(out + "/dspark_gemma")
    make_dspark(out + "/dspark", check)
    make_dflash2(out + "/dflash2", check)
    make_eagle3(out + "/eagle3", check)


if __name__ == "__main__":
    main()
