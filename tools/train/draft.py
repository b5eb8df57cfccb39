"""Train a drafter for a target GGUF: ``python draft.py dflash|mtp TARGET.gguf --out DIR --seconds 400``.

The target is frozen. Rows are generated chats (corpus.py), a part of them with answers that the target itself wrote
greedily; where it would have written another token than the row holds, the rest of that draft does not count. State is
saved and resumed as in train.py, and export writes the GGUF: ``python draft.py export DIR OUT.gguf``.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import queue
import random
import struct
import time

import numpy as np

from corpus import Gen, encode
from heldout import documents, question

KINDS = {"code": 20, "json": 20, "talk": 14, "retrieval": 18, "arithmetic": 6, "thinking": 6, "tools": 8, "remember": 4, "misc": 4}
ROWS = {1024: 0.64, 4096: 0.18, 8192: 0.18}  # share of steps by row length
LATER = {"code": 20, "json": 20, "talk": 14, "arithmetic": 6, "misc": 4}  # what a conversation goes on with after a long text


def document(kind: str, g: Gen, tok, length: int):
    """A conversation of one kind; several turns half of the time."""
    k = g.n(2, 4) if g.R() < 0.5 else 1
    one = {"code": g.source, "json": g.json, "talk": g.talk, "misc": g.misc, "arithmetic": g.arithmetic}
    if kind == "retrieval":
        return g.retrieval(tok, length)
    if kind == "thinking":
        return g.chat([g.arithmetic(True)], True)
    if kind in ("tools", "remember"):
        return g.tools() if kind == "tools" else g.remember(tok)
    return g.chat([one[kind]() for _ in range(k)], False)


def pack(docs, rows: int, T: int):
    """Rows of T tokens from an endless iterator of (ids, weights): ids, whether a token counts, document numbers."""
    ids, on, seg = np.zeros((rows, T), np.int32), np.zeros((rows, T), bool), np.full((rows, T), -1, np.int16)
    left = None
    for r in range(rows):
        at = d = 0
        while at < T - 16:
            x, w = left or next(docs)
            left = None
            if at + len(x) > T:
                if at == 0:  # longer than a row: its end, where the answers are
                    x, w = x[-T:], w[-T:]
                else:
                    left = (x, w) if len(x) <= T else None
                    break
            # Answers, and the few tokens of syntax behind one, which a model that runs on writes too.
            near = np.convolve(np.array(w) > 0.9, np.ones(9))[:len(x)] > 0
            ids[r, at:at + len(x)], on[r, at:at + len(x)], seg[r, at:at + len(x)] = x, near, d
            at, d = at + len(x), d + 1
    return ids, on, seg


def worker(seed: int, tokens: int, out) -> None:
    from tokenizer import Tok
    tok, g, rng = Tok(), Gen(seed), random.Random(seed)

    def docs(T):
        def short(kinds):
            return encode(document(rng.choices(list(kinds), list(kinds.values()))[0], g, tok, rng.randint(60, 420)), tok)

        if T > 1024:  # one long text, then short ones, which half of the time are later turns of the same conversation
            later = rng.random() < 0.5
            ids, w = encode(g.retrieval(tok, int(T * (rng.uniform(0.1, 0.85) if later else rng.uniform(0.5, 0.9)))), tok)
            while later:
                x, v = short(LATER)
                if len(ids) + len(x) > T:
                    break
                ids, w = ids + x[1:], w + v[1:]  # without <bos>
            yield ids, w
        while True:
            yield short(KINDS)

    while True:
        T = rng.choices(list(ROWS), list(ROWS.values()))[0]
        rows = [pack(docs(T), 1, T) for _ in range(max(1, tokens // T))]
        out.put((T, *(np.concatenate(x) for x in zip(*rows))))


def write_greedily(target, tok, contexts: list[list[int]], n_new: int, device) -> list[tuple[list[int], list[float]]]:
    """The target's greedy answers, as (ids, weights). Recomputes rows instead of keeping K/V: they are short."""
    import torch
    stop = {tok.id["<turn|>"], tok.id["<|tool_response>"], tok.id["<eos>"]}
    out, contexts = [], sorted(contexts, key=len)
    for at in range(0, len(contexts), 1024):
        batch = contexts[at:at + 1024]
        T = -(-(len(batch[-1]) + n_new) // 256) * 256
        ids = torch.zeros(len(batch), T, dtype=torch.long, device=device)
        end = torch.tensor([len(c) for c in batch], device=device)
        for i, c in enumerate(batch):
            ids[i, :len(c)] = torch.tensor(c)
        seg = torch.zeros_like(ids)
        row, live = torch.arange(len(batch), device=device), torch.ones(len(batch), dtype=torch.bool, device=device)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            for _ in range(n_new):
                x = target.hidden(ids, seg)[0][row, end - 1]
                new = torch.nn.functional.linear(rms_out(target, x), target.token_embd).argmax(-1)
                ids[row, end] = torch.where(live, new, ids[row, end])
                end = end + live.long()
                for s in stop:
                    live &= new != s
                if not live.any():
                    break
        for c, x, e in zip(batch, ids.tolist(), end.tolist()):
            out.append((x[:e], [0.1] * len(c) + [1.0] * (e - len(c))))
    return out


def rms_out(target, x):
    from model import rms
    return rms(x, target.output_norm)


def prompts(g: Gen, tok, n: int, kinds: dict) -> list[list[int]]:
    out = []
    while len(out) < n:
        kind = g.rng.choices(list(kinds), list(kinds.values()))[0]
        ids = tok(question(document(kind, g, tok, 120))[0])
        if len(ids) <= 160:  # with an answer, one window
            out.append(ids)
    return out


def choose(on, seg, top, ids, n: int, ahead: int, device):
    """Anchors [B,n] (positions of a newest token) and labels [B,n,ahead] with their weights: 1 while the target would
    have written what the row holds."""
    import torch
    B, T = ids.shape
    agree = torch.zeros_like(on)
    agree[:, 1:] = on[:, 1:] & (top[:, :-1] == ids[:, 1:]) & (seg[:, 1:] == seg[:, :-1])
    score = torch.rand(B, T, device=device)
    score[:, :-1] += 10 * agree[:, 1:].float()       # the first token after it must count
    score[:, 1:] = score[:, 1:].where(seg[:, 1:] == seg[:, :-1], torch.full_like(score[:, 1:], -1))  # there must be a token before it
    score[:, 0] = -1
    score[:, T - ahead - 1:] = -1
    at = score.topk(n, 1).indices
    to = at[:, :, None] + 1 + torch.arange(ahead, device=device)
    flat = to.view(B, -1)
    label = ids.gather(1, flat).view_as(to)
    weight = agree.gather(1, flat).view_as(to) & (seg.gather(1, flat).view_as(to) == seg.gather(1, at)[:, :, None])
    return at, label, weight.float().cumprod(-1)


def accepted(drafter, target, kind: str, f, ids, seg, at):
    """Tokens that a round accepts at anchors [B,N], were the row the target's output: [B,N] in 0..ahead."""
    import torch
    if kind == "dflash":
        draft = drafter(target, f, ids, seg, at).argmax(-1)
    else:
        draft = drafter(target, f, ids, seg, at, drafter.c.chain).argmax(-1)
    to = (at[:, :, None] + 1 + torch.arange(draft.shape[2], device=ids.device)).clamp(max=ids.shape[1] - 1)
    hit = draft == ids.gather(1, to.view(len(ids), -1)).view_as(to)
    return hit.float().cumprod(-1).sum(-1)


def evaluate(drafter, target, kind: str, tok, device, n: int) -> dict:
    """Tokens per step on greedy answers to held-out prompts, by kind: rounds follow each other as in the engine."""
    import torch
    out, taps = {}, drafter.c.taps if kind == "dflash" else ()
    for name in ("code", "json", "talk", "retrieval", "arithmetic", "tools"):
        g = Gen(515151, held=True)
        docs = [documents(name, g, tok, 220) if name != "talk" else g.chat([g.talk()], False, "") for _ in range(n)]
        rounds = tokens = 0
        for x, w in write_greedily(target, tok, [tok(question(d)[0]) for d in docs], 96, device):
            start, T = w.index(1.0), -(-len(x) // 256) * 256
            ids = torch.zeros(1, T, dtype=torch.long, device=device)
            ids[0, :len(x)] = torch.tensor(x)
            seg = torch.full_like(ids, -1)
            seg[0, :len(x)] = 0
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                f = features(target, ids, seg, taps)
                at = torch.arange(start, len(x), device=device)[None]
                hits = accepted(drafter, target, kind, f, ids, seg, at)[0].tolist() if len(x) > start else []
            p = start
            while p < len(x) - 1:
                step = min(int(hits[p - start]), len(x) - 2 - p) + 1
                p, rounds, tokens = p + step, rounds + 1, tokens + step
        out[name] = round(tokens / max(1, rounds), 3)
    return out


def features(*a):
    from drafter import features as run
    return run(*a)


def train(a) -> None:
    t0 = time.time()
    ctx = mp.get_context("fork")
    q = ctx.Queue(maxsize=48)
    resumed = json.load(open(os.path.join(a.resume, "state.json"))) if a.resume else {}
    step0 = resumed.get("step", 0)
    procs = [ctx.Process(target=worker, args=(77000 + 1000 * step0 + i + (500 if a.kind == "mtp" else 0), a.tokens, q), daemon=True) for i in range(a.workers)]
    for p in procs:
        p.start()
    import torch
    import torch.nn.functional as F
    from drafter import Dflash, DflashConfig, Mtp, MtpConfig
    from export_gguf import load_model
    from tokenizer import Tok
    from train import Optimizer, load, save
    torch.manual_seed(7 + step0)
    torch.set_float32_matmul_precision("high")
    dev, tok = a.device, Tok()
    target, _ = load_model(a.target, dev)
    for p in target.parameters():
        p.requires_grad_(False)
    D = target.c.dim
    if a.kind == "dflash":
        drafter = Dflash(DflashConfig(dim=D)).to(dev)
        taps, ahead = drafter.c.taps, drafter.c.block - 1
        decay = torch.exp(-torch.arange(ahead, device=dev) / 4)
    else:
        drafter = Mtp(MtpConfig(target_dim=D, vocab=target.c.vocab), target).to(dev)
        taps, ahead = (), drafter.c.chain
        decay = 0.9 ** torch.arange(ahead, device=dev)
    opt = Optimizer(drafter, a.lr, a.lr_adam, 0.02)
    if a.resume:
        arrays, meta = load(a.resume)
        with torch.no_grad():
            for n, p in drafter.named_parameters():
                p.copy_(torch.from_numpy(arrays["w." + n]))
            for k, t in opt.state.items():
                t.copy_(torch.from_numpy(arrays["o." + k]).view(torch.bfloat16))
        opt.t = meta["t"]
    print(f"{a.kind}: {sum(p.numel() for p in drafter.parameters()):,} parameters, start {time.time() - t0:.1f}s", flush=True)

    own = Gen(123 + step0)
    kinds = {"talk": 5, "misc": 2, "code": 2, "json": 2, "arithmetic": 1, "tools": 1}
    pool = write_greedily(target, tok, prompts(own, tok, a.pool, kinds), 96, dev)
    print(f"{len(pool)} answers of the target's own, {time.time() - t0:.1f}s", flush=True)

    def from_pool():
        while True:
            yield random.choice(pool)

    done0, step, curve, acc = resumed.get("done", 0.0), step0, resumed.get("curve", []), []
    begin = fresh = time.time()
    while time.time() - begin < a.seconds:
        p = min(1.0, (done0 + time.time() - begin) / a.total)
        if time.time() - fresh > 100:
            pool += write_greedily(target, tok, prompts(own, tok, a.pool // 4, kinds), 96, dev)
            fresh = time.time()
        if step % 3 == 0:
            T, (ids, on, seg) = 1024, pack(from_pool(), max(1, a.tokens // 1024), 1024)
        else:
            T, ids, on, seg = q.get(timeout=120)
        ids, on, seg = (torch.from_numpy(np.ascontiguousarray(x)).to(dev) for x in (ids.astype(np.int64), on, seg.astype(np.int64)))
        with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
            f = features(target, ids, seg, taps)
            at, label, weight = choose(on, seg, f["top"], ids, a.anchors, ahead, dev)
            if a.kind == "dflash":
                z = drafter(target, f, ids, seg, at)
            else:
                z = drafter(target, f, ids, seg, at, ahead, torch.cat((ids.gather(1, at)[:, :, None], label[:, :, :-1]), -1))
            ce = F.cross_entropy(z.flatten(0, 2), label.flatten(), reduction="none").view_as(weight)
            loss = (ce * weight * decay).sum() / (weight * decay).sum().clamp(min=1)
        if not torch.isfinite(loss):
            raise SystemExit(f"step {step}: the loss is {loss.item()}")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        opt.step(min(1.0, (opt.t + 1) / 100) * (1.0 if p < 0.3 else max(0.0, (1 - p) / 0.7)))
        for x in drafter.parameters():
            x.grad = None
        step += 1
        with torch.no_grad():
            hit = ((z.argmax(-1) == label) * weight).sum((0, 1)) / weight.sum((0, 1)).clamp(min=1)
            acc.append(torch.cat((loss.detach()[None], hit)))
        if step % 100 == 0:
            row = [round(v, 3) for v in torch.stack(acc).mean(0).tolist()]
            curve.append([step, round(done0 + time.time() - begin, 1), *row])
            acc = []
            if step % 500 == 0 or step < 1000:
                print(f"{a.kind} step {step} {time.time() - begin:.0f}s loss {row[0]} slots {row[1:]} queue {q.qsize()} pool {len(pool)}", flush=True)
    done0 += time.time() - begin
    for p in procs:
        p.terminate()
    save(a.out, drafter, opt, {"config": drafter.c.to_dict(), "target": os.path.basename(a.target), "done": round(done0, 1), "step": step, "curve": curve})
    export(a.out, os.path.join(a.out, "drafter.gguf"), a.target)
    print(json.dumps({"kind": a.kind, "steps": step, "tokens_per_step": evaluate(drafter, target, a.kind, tok, dev, a.grade), "seconds": round(time.time() - t0, 1)}), flush=True)


def export(state: str, out: str, target: str) -> None:
    """Q8_0 GGUF in llama.cpp's dialects (dflash, gemma4-assistant), with the target's vocabulary."""
    import export_gguf as g
    from tokenizer import Tok
    from train import load
    arrays, meta = load(state)
    w, c, tc = {n[2:]: x for n, x in arrays.items() if n.startswith("w.")}, meta["config"], g.config(g.read(target)[0])
    flash = c["kind"] == "dflash"
    arch = "dflash" if flash else "gemma4-assistant"
    names = {"fc": "fc.weight", "hidden_norm": "enc.output_norm.weight"} if flash else {"pre": "nextn.pre_projection.weight", "post": "nextn.post_projection.weight"}
    tensors = {names.get(n, n + ".weight"): x for n, x in w.items()}
    swa, k, ib = [ch == "S" for ch in c["pattern"]], arch + ".", (g.ARR, g.BOOL)
    kv = [("general.architecture", g.STR, arch), ("general.type", g.STR, "model"), ("general.name", g.STR, f"{arch} for {os.path.basename(target)}"),
          ("general.license", g.STR, "apache-2.0"), ("general.file_type", g.U32, 7), ("general.quantization_version", g.U32, 2),
          (k + "block_count", g.U32, len(swa)), (k + "context_length", g.U32, tc["context"]), (k + "embedding_length", g.U32, c["dim"]),
          (k + "feed_forward_length", g.U32, c["ffn"]), (k + "attention.head_count", g.U32, c["heads"]),
          (k + "attention.layer_norm_rms_epsilon", g.F32, 1e-6), (k + "attention.sliding_window_pattern", ib, swa)]
    if flash:
        kv += [(k + "attention.head_count_kv", g.U32, c["kv_heads"]), (k + "attention.key_length", g.U32, c["hd"]), (k + "attention.value_length", g.U32, c["hd"]),
               (k + "attention.sliding_window", g.U32, c["window"]), (k + "rope.freq_base", g.F32, c["theta"]), (k + "block_size", g.U32, c["block"]),
               (k + "target_layers", (g.ARR, g.I32), [t + 1 for t in c["taps"]]), (k + "embedding_scale", g.F32, float(np.sqrt(c["dim"]))),
               (k + "final_logit_softcapping", g.F32, tc["softcap"]), ("facet.dflash.target_depth", g.U32, len(tc["pattern"]))]
    else:
        kv += [(k + "attention.head_count_kv", (g.ARR, g.I32), [tc["kv_heads"] if s else tc["kv_heads_full"] for s in swa]),
               (k + "attention.key_length", g.U32, tc["hd_full"]), (k + "attention.value_length", g.U32, tc["hd_full"]),
               (k + "attention.key_length_swa", g.U32, tc["hd"]), (k + "attention.value_length_swa", g.U32, tc["hd"]),
               (k + "attention.sliding_window", g.U32, tc["window"]), (k + "attention.shared_kv_layers", g.U32, len(swa)),
               (k + "rope.freq_base", g.F32, tc["theta_full"]), (k + "rope.freq_base_swa", g.F32, tc["theta"]),
               (k + "rope.dimension_count", g.U32, tc["hd_full"]), (k + "rope.dimension_count_swa", g.U32, tc["hd"]),
               (k + "embedding_length_out", g.U32, c["target_dim"]), (k + "nextn_predict_layers", g.U32, len(swa)),
               (k + "embedding_length_per_layer_input", g.U32, 0), (k + "use_ordered_embeddings", g.BOOL, False)]
        rf = np.full(tc["hd_full"] // 2, 1e30, np.float32)
        rf[:tc["hd_full"] // 8] = 1
        tensors["rope_freqs.weight"] = rf
    full = dict(tc, rotary_full=0.25, eps=1e-6)
    kv += [x for x in g.metadata(full, Tok()) if x[0].startswith("tokenizer.") and "chat_template" not in x[0]]
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(kv))
    for key, ty, v in kv:
        head += g._string(key) + struct.pack("<i", g.ARR if isinstance(ty, tuple) else ty) + g._value(ty, v)
    off, data = 0, []
    for n, x in tensors.items():
        raw = np.ascontiguousarray(x, "<f4").tobytes() if x.ndim == 1 else g.q8_0(x)
        head += g._string(n) + struct.pack("<I", x.ndim) + struct.pack(f"<{x.ndim}q", *x.shape[::-1]) + struct.pack("<iQ", 0 if x.ndim == 1 else 8, off)
        data.append(raw + b"\0" * (-len(raw) % g.ALIGN))
        off += len(data[-1])
    head += b"\0" * (-len(head) % g.ALIGN)
    with open(out, "wb") as f:
        f.write(head)
        f.writelines(data)
    print(f"{out}: {len(head) + off:,} bytes", flush=True)


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("kind", choices=["dflash", "mtp", "export"])
    ap.add_argument("target", help="the target's GGUF (F32, BF16, Q8_0); export: the state directory")
    ap.add_argument("gguf", nargs="?", help="export: the file to write")
    ap.add_argument("--for", dest="model", help="export: the target's GGUF")
    ap.add_argument("--out")
    ap.add_argument("--resume")
    ap.add_argument("--seconds", type=float, default=400)
    ap.add_argument("--total", type=float, help="seconds of the schedule over all runs; omitted: this run")
    ap.add_argument("--tokens", type=int, default=16384, help="tokens of the target a step")
    ap.add_argument("--anchors", type=int, default=96, help="drafts a row")
    ap.add_argument("--pool", type=int, default=2048, help="prompts that the target answers before training; a quarter more every 100 seconds")
    ap.add_argument("--grade", type=int, default=60, help="held-out prompts of each kind at the end")
    ap.add_argument("--workers", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--lr-adam", type=float, default=0.003)
    ap.add_argument("--device", default="cuda")
    a = ap.parse_args()
    a.total = a.total or a.seconds
    if a.kind == "export":
        export(a.target, a.gguf, a.model)
    else:
        train(a)


if __name__ == "__main__":
    main()
