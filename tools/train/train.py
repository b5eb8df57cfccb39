"""Train facet-nano: ``python train.py --out DIR --seconds 480 [--resume DIR] [--total 960] [--moe]``.

Worker processes generate packed rows without end; the row length follows a curriculum (1K, then 2K, then 8K).
Muon for matrices, Adam for the embedding and the gains; the learning rate falls linearly to zero at ``--total`` seconds, counted over
all runs. State is written as several .npz parts of less than 15 MB and can be resumed from.
"""
from __future__ import annotations

import argparse
import glob
import json
import math
import multiprocessing as mp
import os
import queue
import time

import numpy as np


# facet-nano-moe: as many active parameters as facet-nano; rows of 352 and 96 columns, which 256 does not divide
MOE = dict(ffn=352, experts=16, top_k=4, expert_ffn=96, fake_quant=True)


def mix(p: float) -> dict[int, float]:
    """Share of steps by row length at progress p."""
    if p < 0.12:
        return {1024: 1.0}
    if p < 0.3:
        return {1024: 0.65, 2048: 0.35}
    return {1024: 0.5, 2048: 0.2, 8192: 0.3}


def worker(seed: int, tokens: int, progress, out) -> None:
    import random

    from corpus import Gen, pack
    from tokenizer import Tok
    tok, gen, rng = Tok(), Gen(seed), random.Random(seed)
    while True:
        m = mix(progress.value)
        T = rng.choices(list(m), list(m.values()))[0]
        out.put((T, *pack(gen, tok, tokens // T, T)))


def newton_schulz(g):
    """Orthogonalise a batch of matrices [n, rows, cols]."""
    import torch
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return (x.transpose(1, 2) if tall else x).float()


class Optimizer:
    """Muon for the matrices of the blocks, Adam for everything else."""

    def __init__(self, model, lr_muon: float, lr_adam: float, wd: float):
        import torch
        self.lr_muon, self.lr_adam, self.wd, self.t = lr_muon, lr_adam, wd, 0
        named = list(model.named_parameters())
        is_mat = lambda n, p: n.startswith("blk.") and p.ndim >= 2 and "gate_inp" not in n
        self.mats = [(n, p) for n, p in named if is_mat(n, p)]
        self.rest = [(n, p) for n, p in named if not is_mat(n, p)]
        self.state = {"m." + n: torch.zeros_like(p) for n, p in named} | {"v." + n: torch.zeros_like(p) for n, p in self.rest}
        groups: dict = {}
        for n, p in self.mats:
            groups.setdefault(tuple(p.shape), []).append((n, p))
        self.groups = list(groups.values())

    def step(self, scale: float) -> None:
        import torch
        self.t += 1
        with torch.no_grad():
            mom = 0.85 + 0.10 * min(1.0, self.t / 300)
            for g in self.groups:
                ps, ms, gs = [p for _, p in g], [self.state["m." + n] for n, _ in g], [p.grad for _, p in g]
                torch._foreach_mul_(ms, mom)
                torch._foreach_add_(ms, gs, alpha=1 - mom)
                u = torch.stack(torch._foreach_add(torch._foreach_mul(gs, 1 - mom), ms, alpha=mom))
                sh = u.shape
                u = newton_schulz(u.reshape(-1, *sh[-2:])).reshape(sh)
                lr = self.lr_muon * scale * max(1.0, sh[-2] / sh[-1]) ** 0.5
                torch._foreach_mul_(ps, 1 - self.lr_muon * scale * self.wd)
                torch._foreach_add_(ps, list(u.unbind(0)), alpha=-lr)
            ps, gs = [p for _, p in self.rest], [p.grad for _, p in self.rest]
            ms, vs = [self.state["m." + n] for n, _ in self.rest], [self.state["v." + n] for n, _ in self.rest]
            b1, b2 = 0.9, 0.98
            torch._foreach_lerp_(ms, gs, 1 - b1)
            torch._foreach_mul_(vs, b2)
            torch._foreach_addcmul_(vs, gs, gs, 1 - b2)
            den = torch._foreach_sqrt(vs)
            torch._foreach_div_(den, math.sqrt(1 - b2 ** self.t))
            torch._foreach_add_(den, 1e-8)
            torch._foreach_addcdiv_(ps, ms, den, -self.lr_adam * scale / (1 - b1 ** self.t))


def save(path: str, model, opt: Optimizer, meta: dict) -> None:
    """Weights in f32, optimizer state in f16-safe bf16 bits, as parts of less than 15 MB."""
    import torch
    os.makedirs(path, exist_ok=True)
    arrays = {"w." + n: p.detach().cpu().numpy() for n, p in model.named_parameters()}
    for k, t in opt.state.items():
        arrays["o." + k] = t.bfloat16().view(torch.int16).cpu().numpy()
    part, size, k = {}, 0, 0
    for n, a in [*arrays.items(), (None, None)]:
        if n is None or size + a.nbytes > 15_000_000:
            np.savez(os.path.join(path, f"state-{k}.npz"), **part)
            part, size, k = {}, 0, k + 1
        if n is not None:
            part[n] = a
            size += a.nbytes
    json.dump(meta | {"t": opt.t}, open(os.path.join(path, "state.json"), "w"))


def load(path: str) -> tuple[dict, dict]:
    arrays: dict = {}
    for f in sorted(glob.glob(os.path.join(path, "state-*.npz"))):
        arrays |= dict(np.load(f))
    return arrays, json.load(open(os.path.join(path, "state.json")))


def load_model(path: str, device="cuda"):
    """The trained model alone."""
    import torch
    from model import Config, Model
    arrays, meta = load(path)
    model = Model(Config(**meta["config"])).to(device)
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.from_numpy(arrays["w." + n]))
    return model, meta


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--resume")
    ap.add_argument("--seconds", type=float, default=480)
    ap.add_argument("--total", type=float, default=960)
    ap.add_argument("--tokens", type=int, default=65536)
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--lr-adam", type=float, default=0.003)
    ap.add_argument("--wd", type=float, default=0.05)
    ap.add_argument("--moe", action="store_true", help="facet-nano-moe, a mixture of 16 experts")
    ap.add_argument("--restart", action="store_true", help="with --resume: its weights, a new schedule and optimizer")
    ap.add_argument("--device", default="cuda", help="cpu: for a look at a few steps")
    ap.add_argument("--probe", action="store_true", help="cycle through all row lengths, to measure speed")
    a = ap.parse_args()
    t_start = time.time()
    arrays, meta = load(a.resume) if a.resume else ({}, {})
    trained = meta.get("done", 0.0)               # seconds, in all
    done = 0.0 if a.restart else trained          # of this schedule
    base = trained - done
    step0 = meta.get("step", 0)
    curve = meta.get("curve", [])
    ctx = mp.get_context("fork")
    progress, q = ctx.Value("d", 0.5 if a.probe else done / a.total), ctx.Queue(maxsize=96)
    procs = [ctx.Process(target=worker, args=(1000 * (step0 + 1) + i, a.tokens, progress, q), daemon=True) for i in range(a.workers)]
    for p in procs:
        p.start()

    import torch
    from model import Config, Model
    from tokenizer import Tok
    torch.manual_seed(1 + step0)
    torch.set_float32_matmul_precision("high")
    c = Config(**meta["config"]) if meta else Config(vocab=len(Tok()), **(MOE if a.moe else {}))
    dev = a.device
    model = Model(c).to(dev)
    opt = Optimizer(model, a.lr, a.lr_adam, a.wd)
    if arrays:
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(torch.from_numpy(arrays["w." + n]))
            for k, t in opt.state.items() if not a.restart else ():
                t.copy_(torch.from_numpy(arrays["o." + k]).view(torch.bfloat16))
        opt.t = 0 if a.restart else meta["t"]
    if dev == "cuda":
        model.compile()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {a.workers} workers, start {time.time() - t_start:.1f}s", flush=True)

    recent: dict[int, list] = {}
    step, seen, reused, begin = step0, meta.get("tokens", 0), 0, time.time()
    acc: dict[int, list] = {}
    speed: dict[int, list] = {}
    while True:
        elapsed = time.time() - begin
        p = (done + elapsed) / a.total
        if elapsed >= a.seconds or p >= 1:
            break
        if not a.probe:
            progress.value = p
        try:
            b = q.get(timeout=0.002 if recent else 120)
            keep = recent.setdefault(b[0], [])
            keep.append(b)
            if len(keep) > 200:
                keep.pop(0)
        except queue.Empty:  # generation is behind: use a recent batch once more
            m = {t: s for t, s in mix(p).items() if t in recent}
            T = list(m)[np.random.choice(len(m), p=np.array(list(m.values())) / sum(m.values()))]
            b = recent[T][np.random.randint(len(recent[T]))]
            reused += 1
        T, ids, w, seg = b
        t0 = time.time()
        ids = torch.from_numpy(ids.astype(np.int64)).to(dev, non_blocking=True)
        w = torch.from_numpy(w).to(dev, non_blocking=True).float() / 100
        seg = torch.from_numpy(seg).to(dev, non_blocking=True)
        with torch.autocast(dev, torch.bfloat16):
            loss, ce, hit = model.loss(ids, w, seg)
        loss.backward()
        scale = min(1.0, (opt.t + 1) / 200) * (1.0 if p < 0.3 else max(0.0, (1 - p) / 0.7))
        opt.step(scale)
        for x in model.parameters():
            x.grad = None
        step, seen = step + 1, seen + a.tokens
        acc.setdefault(T, []).append(torch.stack((loss.detach(), ce.detach(), hit.detach())))
        if a.probe:
            torch.cuda.synchronize()
            speed.setdefault(T, []).append(time.time() - t0)
        if step % 100 == 0:
            row = {"step": step, "seconds": round(base + done + time.time() - begin, 1), "tokens": seen,
                   "rows": {T: [round(v, 4) for v in torch.stack(x).mean(0).tolist()] for T, x in sorted(acc.items())}}
            curve.append(row)
            acc = {}
            if step % 500 == 0 or a.probe or step < 1000:
                print(json.dumps(row), f"reused {reused} queue {q.qsize()} lr {scale:.3f}", flush=True)
    done += base + time.time() - begin
    for T, x in speed.items():
        print(T, f"{len(x)} steps, median {1000 * float(np.median(x)):.1f} ms, {a.tokens / float(np.median(x)):.0f} tokens/s")
    print(f"step {step}, {seen:,} tokens, {done:.0f}s of training, reused {reused}", flush=True)
    for p in procs:
        p.terminate()
    save(a.out, model, opt, {"config": c.to_dict(), "done": done, "step": step, "tokens": seen, "curve": curve})


if __name__ == "__main__":
    main()
