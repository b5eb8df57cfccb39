"""Held-out scores and transformers parity of a GGUF file: ``python eval.py FILE.gguf --json OUT.json``.

Greedy decoding reproduces a reference answer exactly when, given the reference as context, the argmax at every
position is the next reference token. So one forward pass grades a whole answer (f32, dequantised weights).

``--parity`` also loads the weights into transformers' Gemma4ForCausalLM and compares logits; ``--golden FILE``
writes ids, row numbers and transformers' logits of those rows.
"""
from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from corpus import PREFILL, Gen, encode
from export_gguf import config, load_model
from heldout import LENGTHS, documents
from tokenizer import Tok


def quantise_activations() -> None:
    """Round the input of every matrix product to 8 bits per block of 32, as integer kernels do."""
    import types

    import model as m

    def linear(x, w):
        b = x.float().reshape(*x.shape[:-1], -1, 32)
        d = b.abs().amax(-1, keepdim=True).clamp(min=1e-20) / 127
        return torch.nn.functional.linear((torch.round(b / d) * d).reshape(x.shape), w)

    m.F = types.SimpleNamespace(**{**vars(torch.nn.functional), "linear": linear})


@torch.no_grad()
def grade(model, tok, docs: list, device) -> tuple[int, int, list[str]]:
    """Documents whose every answer (last one for conversations) is reproduced exactly."""
    right, wrong = 0, []
    for a in range(0, len(docs), 8):
        batch = [encode(d, tok) for d in docs[a:a + 8]]
        T = max(len(x) for x, _ in batch)
        ids = torch.zeros(len(batch), T, dtype=torch.long)
        for i, (x, _) in enumerate(batch):
            ids[i, :len(x)] = torch.tensor(x)
        top = model.logits(ids.to(device)).argmax(-1).cpu()
        for i, (x, w) in enumerate(batch):
            at = [j for j in range(1, len(x)) if w[j] == 1.0]
            last = docs[a + i][0][0].startswith("<bos><|turn>system") and "<|tool>" in docs[a + i][0][0]
            if not last:  # only the answer to the last question
                k = len(at) - 1
                while k > 0 and at[k - 1] == at[k] - 1:
                    k -= 1
                at = at[k:]
            bad = [j for j in at if int(top[i, j - 1]) != x[j]]
            right += not bad
            if bad and len(wrong) < 6:
                j = bad[0]
                wrong.append(f"...{tok.decode(x[max(0, at[0] - 24):j])!r} wanted {tok.decode(x[j:j + 4])!r} got {tok.decode([int(top[i, j - 1])])!r}")
    return right, len(docs), wrong


def hf_model(model, meta: dict, device):
    """transformers' model with the same weights, f32 eager."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    from names import hf_name
    c, S, G = config(meta), "sliding_attention", "full_attention"
    cfg = Gemma4TextConfig(
        vocab_size=c["vocab"], hidden_size=c["dim"], intermediate_size=c["ffn"], num_hidden_layers=len(c["pattern"]),
        num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], num_global_key_value_heads=c["kv_heads_full"],
        head_dim=c["hd"], global_head_dim=c["hd_full"], layer_types=[S if x == "S" else G for x in c["pattern"]],
        sliding_window=c["window"], max_position_embeddings=c["context"], attention_k_eq_v=True,
        rope_parameters={G: {"rope_type": "proportional", "rope_theta": c["theta_full"], "partial_rotary_factor": 0.25},
                         S: {"rope_type": "default", "rope_theta": c["theta"]}},
        final_logit_softcapping=c["softcap"], hidden_size_per_layer_input=0, vocab_size_per_layer_input=c["vocab"],
        num_kv_shared_layers=0, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        **(dict(enable_moe_block=True, num_experts=c["experts"], top_k_experts=c["top_k"], moe_intermediate_size=c["expert_ffn"]) if c["experts"] else {}))
    hf = Gemma4ForCausalLM._from_config(cfg, attn_implementation="eager").float().eval()
    sd = hf.state_dict()
    with torch.no_grad():
        for n, p in model.named_parameters():
            t = sd.pop(hf_name(n))
            assert t.shape == p.shape, n
            t.copy_(p.detach().cpu())
    left = [n for n in sd if "lm_head" not in n and "inv_freq" not in n and "embed_scale" not in n]
    assert not left, left
    hf.tie_weights()
    return hf.to(device)


@torch.no_grad()
def parity(model, meta: dict, tok, device, golden: str | None) -> dict:
    ids = []
    gen = Gen(77, held=True)
    while not 300 <= len(ids) <= 340:
        ids = encode(gen.retrieval(tok, 310, questions=2, think=False), tok)[0]
    x = torch.tensor([ids], device=device)
    ours, hf = model.logits(x)[0], hf_model(model, meta, device)(input_ids=x, use_cache=False).logits[0].float()
    d = (ours - hf).abs().max().item()
    if golden:
        from safetensors.numpy import save_file
        T = len(ids)
        rows = sorted({0, 1, 2, 15, 63, 127, 200, 254, 255, 256, 257, 258, 270, 300, T - 40, T - 30, T - 20, T - 16, T - 12, T - 8, T - 4, T - 3, T - 2, T - 1})
        save_file({"ids": np.array(ids, np.int32), "rows": np.array(rows, np.int32), "logits": hf[rows].cpu().numpy()}, golden)
    return {"tokens": len(ids), "max_abs_difference": d, "max_abs_logit": hf.abs().max().item(), "same_argmax": bool((ours.argmax(-1) == hf.argmax(-1)).all())}


@torch.no_grad()
def show(model, tok, prompts: list[tuple[str, bool]], device, n: int = 120) -> None:
    """Greedy answers to a few prompts."""
    for u, think in prompts:
        s = "<bos>" + ("<|turn>system\n<|think|>\n<turn|>\n" if think else "") + f"<|turn>user\n{u}<turn|>\n<|turn>model\n" + ("" if think else PREFILL)
        ids = tok(s)
        start = len(ids)
        while len(ids) < start + n and (len(ids) == start or tok.tokens[ids[-1]] not in ("<turn|>", "<eos>", "<|tool_response>")):
            ids.append(int(model.logits(torch.tensor([ids], device=device))[0, -1].argmax()))
        print("Q:", u if len(u) < 200 else u[:80] + "..." + u[-100:], "\nA:", tok.decode(ids[start:]))


PROMPTS = [("Hello!", False), ("Who are you?", False), ("What is 47 + 85?", False), ("What is 47 * 36?", True), ("2+2", False),
           ("My sister is called Maria and she lives in Paris. Where does Maria live?", False), ("The secret code is 7391. What is the secret code?", False),
           ("Tell me a short story about a fox named Luna.", False), ("Write a Python function add(a, b) that returns the sum of a and b.", False),
           ("Extract name and city as JSON: Peter is 44 years old and lives in London.", False), ("Repeat: the quick brown fox jumps over the lazy dog", False),
           ("List three colors.", False), ("Count from 3 to 9.", False), ("What is the capital of France?", False), ("Tell me a joke.", False)]


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("file")
    ap.add_argument("--count", type=int, default=400)
    ap.add_argument("--json")
    ap.add_argument("--parity", action="store_true")
    ap.add_argument("--golden")
    ap.add_argument("--act8", action="store_true", help="round activations to 8 bits")
    ap.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="lengths of the retrieval documents")
    ap.add_argument("--retrieval-only", action="store_true")
    ap.add_argument("--seed", type=int, default=990001)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    tok, (model, meta) = Tok(), load_model(a.file, a.device)
    assert meta["tokenizer.ggml.tokens"] == tok.tokens
    out: dict = {"file": a.file.split("/")[-1], "count": a.count}
    if a.parity or a.golden:
        out["parity"] = parity(model, meta, tok, a.device, a.golden)
        print("parity", out["parity"], flush=True)
    if a.act8:
        quantise_activations()
    scores = {}
    jobs = [("retrieval", L) for L in a.lengths]
    if not a.retrieval_only:
        jobs += [(k, 0) for k in ("arithmetic", "thinking", "json", "tools", "code", "remember")]
    for kind, L in jobs:
        t0, gen = time.time(), Gen(a.seed + L, held=True)
        n = a.count if L < 4096 else max(1, a.count // 2)
        r, n, wrong = grade(model, tok, [documents(kind, gen, tok, L) for _ in range(n)], a.device)
        name = f"{kind}-{L}" if L else kind
        scores[name] = {"right": r, "of": n, "exact": round(r / n, 4)}
        print(f"{name:16} {r}/{n} = {r / n:.3f}  ({time.time() - t0:.1f}s)", *wrong[:4], sep="\n     " if wrong else " ", flush=True)
    out["scores"] = scores
    out["mean_exact"] = round(sum(s["exact"] for s in scores.values()) / len(scores), 4)
    print("mean", out["mean_exact"])
    if not a.retrieval_only and not a.act8:
        show(model, tok, PROMPTS, a.device)
    if a.json:
        json.dump(out, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
