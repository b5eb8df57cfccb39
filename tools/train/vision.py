"""A tower for pictures in front of facet-nano: ``python vision.py TEXT.gguf --out DIR --seconds 480 [--resume DIR]`` trains one and writes
``DIR/mmproj.gguf``; ``--grade N`` counts right answers on N held-out pictures.

The text model is the file's, dequantised, and stays as it is. Gradients of its answers (shapes.py) go through it into the tower and the
projection, which are Gemma 4's: sandwich norms, two-dimensional RoPE, means of 3 x 3 patches, a norm, a matrix. Most steps have pictures of
384 x 384 pixels (64 soft tokens, a budget of 70), others other shapes and 256 soft tokens.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shapes
from export_gguf import ARR, F32, STR, U32, BOOL, load_model, read, write_file
from model import rms, rope
from tokenizer import Tok
from train import Optimizer

SQUARE, OTHERS = (8, 8), [(9, 7), (7, 9), (11, 6), (6, 11), (10, 7), (7, 10)]          # in cells of 48 pixels: budget 70
LARGE = [(16, 16), (16, 16), (16, 16), (19, 14), (14, 19), (22, 12)]                    # budget 280
TALKS, TEXT = 48, 72   # conversations a picture's contents are given, most tokens of one


@dataclass
class Config:
    dim: int = 96
    ffn: int = 160
    layers: int = 4
    heads: int = 3
    positions: int = 96   # patches of 16 pixels on a side
    out: int = 256


def angles(at: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, 2, d / 4] of patches at columns and rows [N, 2]."""
    inv = 100.0 ** (-4 * torch.arange(d // 4, device=at.device, dtype=torch.float64) / d)
    a = at.double()[:, None, :, None] * inv
    return a.cos().float(), a.sin().float()


def rope2(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, N, H, d]: columns turn the first half of d, rows the second."""
    a, b = x.unflatten(-1, (2, 2, -1)).unbind(-2)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -2).flatten(-3)


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        D, d = c.dim, c.dim // c.heads
        self.heads = c.heads

        def mat(o: int, i: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(o, i) / math.sqrt(i))

        self.ln1, self.ln2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.attn_post_norm, self.ffn_post_norm = nn.Parameter(torch.full((D,), 0.5)), nn.Parameter(torch.full((D,), 0.5))
        self.attn_q_norm, self.attn_k_norm = (nn.Parameter(torch.full((d,), d ** -0.25)) for _ in range(2))
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (mat(D, D) for _ in range(4))
        self.ffn_gate, self.ffn_up, self.ffn_down = mat(c.ffn, D), mat(c.ffn, D), mat(D, c.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, N, D = x.shape
        n = rms(x, self.ln1)
        q, k, v = (F.linear(n, w).view(B, N, self.heads, -1) for w in (self.attn_q, self.attn_k, self.attn_v))
        dt = q.dtype
        q, k, v = rope2(rms(q, self.attn_q_norm), cos, sin), rope2(rms(k, self.attn_k_norm), cos, sin), rms(v)
        o = F.scaled_dot_product_attention(*(t.to(dt).transpose(1, 2) for t in (q, k, v)), scale=1.0)
        x = x + rms(F.linear(o.transpose(1, 2).reshape(B, N, D), self.attn_out), self.attn_post_norm)
        n = rms(x, self.ln2)
        f = F.linear(F.gelu(F.linear(n, self.ffn_gate), approximate="tanh") * F.linear(n, self.ffn_up), self.ffn_down)
        return x + rms(f, self.ffn_post_norm)


class Tower(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.patch = nn.Parameter(torch.randn(c.dim, 768) / math.sqrt(768))                      # columns: channel, row, column
        self.position = nn.Parameter(torch.randn(2, c.positions, c.dim) * 0.3)                   # of columns, of rows
        self.project = nn.Parameter(torch.randn(c.out, c.dim) * 4.2 / math.sqrt(c.dim))          # soft tokens as large as embeddings
        self.blk = nn.ModuleList(Layer(c) for _ in range(c.layers))

    def forward(self, img: Tensor, run=Layer.forward) -> Tensor:
        """Soft tokens [B, S, out] of pictures [B, 3, H, W] of values 0..255."""
        B, _, H, W = img.shape
        h, w = H // 16, W // 16
        p = (2 * (img / 255 - 0.5)).view(B, 3, h, 16, w, 16).permute(0, 2, 4, 1, 3, 5).reshape(B, h * w, 768)
        i = torch.arange(h * w, device=img.device)
        at = torch.stack((i % w, i // w), -1)
        x = F.linear(p, self.patch).float() + self.position[0][at[:, 0]] + self.position[1][at[:, 1]]
        cos, sin = angles(at, self.c.dim // self.c.heads)
        for layer in self.blk:
            x = run(layer, x, cos, sin)
        s = x.view(B, h // 3, 3, w // 3, 3, -1).mean((2, 4)).flatten(1, 2) * math.sqrt(self.c.dim)
        return F.linear(rms(s), self.project).float()


# ---- the text model, with a picture in its input

def text_layer(b, x: Tensor, cos: Tensor, sin: Tensor, ok: Tensor) -> Tensor:
    """A layer of model.Model on short rows. ok [R,1,T,T]: what sees what."""
    R, T, _ = x.shape
    n, cs = rms(x, b.attn_norm), (cos, sin)
    q, k0 = F.linear(n, b.attn_q).view(R, T, -1, b.hd), F.linear(n, b.attn_k).view(R, T, -1, b.hd)
    v0 = k0 if b.full else F.linear(n, b.attn_v).view(R, T, -1, b.hd)
    q, k, v = (t.to(k0.dtype).transpose(1, 2) for t in (rope(rms(q, b.attn_q_norm), cs), rope(rms(k0, b.attn_k_norm), cs), rms(v0)))
    p = (q @ k.transpose(-1, -2)).float().masked_fill(~ok, float("-inf")).softmax(-1).to(v.dtype)
    x = x + rms(F.linear((p @ v).transpose(1, 2).reshape(R, T, -1), b.attn_output), b.post_attention_norm)
    return b.ffn(x)[0]


def text_forward(m, ids: Tensor, hole: Tensor, soft: Tensor, run=text_layer) -> Tensor:
    """The last layer's stream [R, T, D]. ids [R, T - S] without soft tokens, which go in at hole [R]: they see each other in sliding
    layers, whatever their order; all else is causal."""
    R, S, D = soft.shape
    T = ids.shape[1] + S
    i = torch.arange(T, device=ids.device)
    a = hole[:, None]
    inside = (i >= a) & (i < a + S)
    src = torch.where(i < a, i, i - S).clamp(min=0).expand(R, T)
    x = F.embedding(ids.gather(1, src), m.token_embd).float() * math.sqrt(m.c.dim)
    x = x.scatter(1, (a + torch.arange(S, device=ids.device))[..., None].expand(R, S, D), soft)
    causal = (i[:, None] >= i)[None]
    near = (i[:, None] - i < m.c.window)[None]
    sliding = ((causal | (inside[:, :, None] & inside[:, None])) & near)[:, None]
    tables = m.tables(T, ids.device)
    for b in m.blk:
        x = run(b, x, *tables[b.full], causal[:, None] if b.full else sliding)
    return x


def text_logits(m, x: Tensor) -> Tensor:
    z = F.linear(rms(x, m.output_norm), m.token_embd).float()
    return m.c.softcap * torch.tanh(z / m.c.softcap)


# ---- conversations as tables on the device

class Talks:
    """For every kind, colour and count some conversations; `single`: one question each, those of graded pictures."""

    def __init__(self, tok, device, seed: int, single: bool = False):
        rng = random.Random(seed)
        n = 8 * 8 * shapes.MOST + 10 * 8
        ids, hole = np.zeros((n, TALKS, TEXT), np.int64), np.zeros((n, TALKS), np.int64)
        said = np.full((n, TALKS, TEXT // 2), -1, np.int64)
        self.asked: list[list[tuple[str, str]]] = []
        for row in range(n):
            kind, color, count = (row // 40, row // 5 % 8, row % 5 + 1) if row < 320 else (8 + (row - 320) // 8, row % 8, 1)
            ex = shapes.exchanges(kind, color, count)
            self.asked.append([])
            for t in range(TALKS):
                picked = [ex[t % len(ex)]] if single else rng.sample(ex, 1 if rng.random() < 0.7 else 2)
                turns = [(q[0] if single else q[0] if rng.random() < 0.4 else rng.choice(q), a) for q, a in picked]
                self.asked[-1].append(turns[-1])
                x, s, h = shapes.conversation(tok, rng, turns, single or rng.random() < 0.85)
                ids[row, t, :len(x)], said[row, t, :len(s)], hole[row, t] = x, s, h
        self.longest = int((said >= 0).sum(-1).max())
        self.ids, self.hole, self.said = (torch.from_numpy(v).to(device) for v in (ids, hole, said[..., :self.longest]))

    def row(self, p: shapes.Pictures) -> Tensor:
        return torch.where(p.kind < 8, (p.kind * 8 + p.color) * 5 + p.count - 1, 320 + (p.kind - 8) * 8 + p.color)

    def take(self, p: shapes.Pictures, which: Tensor):
        r = self.row(p)
        return self.ids[r, which], self.hole[r, which], self.said[r, which]


def answers(m, tower: Tower, img: Tensor, ids: Tensor, hole: Tensor, said: Tensor, tower_run=Layer.forward, text_run=text_layer):
    """Logits of every token the model says, those tokens, and which of them there are."""
    soft = tower(img, tower_run)
    x = text_forward(m, ids, hole, soft, text_run)
    there = said >= 0
    want = ids.gather(1, said.clamp(min=0))
    at = torch.where(said - 1 >= hole[:, None], said - 1 + soft.shape[1], said - 1).clamp(min=0)
    return text_logits(m, x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))), want, there


@torch.no_grad()
def grade(m, tower: Tower, tok, n: int, seed: int, dev: str, size=SQUARE, held: bool = True, show: int = 0) -> dict[str, tuple[int, int]]:
    """Answers that greedy decoding gives word for word, by first word of the question."""
    talks, out, gen = Talks(tok, dev, 5, single=True), {}, torch.Generator(dev)
    gen.manual_seed(seed)
    for a in range(0, n, 100):
        p = shapes.sample(min(100, n - a), gen, held, size[0] / size[1])
        img = shapes.draw(p, 48 * size[0], 48 * size[1], gen)
        for k in range(4):
            which = torch.full_like(p.kind, k)
            z, want, there = answers(m, tower, img, *talks.take(p, which))
            right = ((z.argmax(-1) == want) | ~there).all(1).tolist()
            for i, ok in enumerate(right):
                q, want_text = talks.asked[int(talks.row(p)[i])][k]
                key = " ".join(q.split()[:2])
                r, t = out.get(key, (0, 0))
                out[key] = (r + ok, t + 1)
                if not ok and show:
                    show -= 1
                    print("   ", q, "|", want_text, "|", tok.decode(z[i].argmax(-1)[there[i]].tolist()), flush=True)
    return out


# ---- files

def save(path: str, tower: Tower, opt: Optimizer | None, meta: dict) -> None:
    os.makedirs(path, exist_ok=True)
    arrays = {"w." + n: p.detach().cpu().numpy() for n, p in tower.named_parameters()}
    arrays |= {"o." + k: t.cpu().numpy() for k, t in opt.state.items()} if opt else {}
    np.savez(os.path.join(path, "tower.npz"), **arrays)
    json.dump(meta | {"config": asdict(tower.c), "t": opt.t if opt else 0}, open(os.path.join(path, "tower.json"), "w"))


def export(path: str, tower: Tower) -> int:
    """The mmproj file: matrices Q8_0, patches and positions F16, gains F32."""
    c, v = tower.c, "clip.vision."
    f3 = (ARR, F32)
    kv = [("general.architecture", STR, "clip"), ("general.type", STR, "mmproj"), ("general.name", STR, "facet-nano-mmproj"),
          ("general.basename", STR, "facet-nano"), ("general.license", STR, "apache-2.0"),
          ("general.description", STR, "A tiny tower for pictures of facet-nano: shapes, colours, counts and digits, trained from scratch on drawn pictures"),
          ("general.file_type", U32, 7), ("general.quantization_version", U32, 2), ("clip.has_vision_encoder", BOOL, True),
          (v + "projector_type", STR, "gemma4v"), (v + "projection_dim", U32, c.out), (v + "image_size", U32, 224),
          (v + "patch_size", U32, 16), (v + "embedding_length", U32, c.dim), (v + "feed_forward_length", U32, c.ffn),
          (v + "block_count", U32, c.layers), (v + "attention.head_count", U32, c.heads), (v + "image_mean", f3, [0.0] * 3),
          (v + "image_std", f3, [1.0] * 3), (v + "attention.layer_norm_epsilon", F32, 1e-6)]
    a = {n: p.detach().float().cpu().numpy() for n, p in tower.named_parameters()}
    tensors = [("v.patch_embd.weight", "F16", a["patch"].reshape(c.dim, 3, 16, 16)), ("v.position_embd.weight", "F16", a["position"]),
               ("mm.input_projection.weight", "Q8_0", a["project"])]
    tensors += [("v." + n + ".weight", "F32" if x.ndim == 1 else "Q8_0", x) for n, x in a.items() if n.startswith("blk.")]
    return write_file(path, kv, tensors)


def load(path: str, device: str) -> Tower:
    """The tower of an mmproj file that export wrote."""
    meta, w = read(path)
    v = {k[12:]: x for k, x in meta.items() if k.startswith("clip.vision.")}
    t = Tower(Config(v["embedding_length"], v["feed_forward_length"], v["block_count"], v["attention.head_count"],
                     w["v.position_embd.weight"].shape[1], v["projection_dim"])).to(device)
    names = {"patch": "v.patch_embd.weight", "position": "v.position_embd.weight", "project": "mm.input_projection.weight"}
    with torch.no_grad():
        for n, p in t.named_parameters():
            p.copy_(torch.from_numpy(w[names.get(n, f"v.{n}.weight")].copy()).view(p.shape))
    return t.eval()


def report(m, tower: Tower, tok, n: int, dev: str) -> dict:
    out = {}
    for name, size, held in (("held out, 8 x 8", SQUARE, True), ("trained, 8 x 8", SQUARE, False), ("held out, 16 x 16", LARGE[0], True),
                             ("held out, 9 x 7", OTHERS[0], True)):
        out[name] = grade(m, tower, tok, n, 7, dev, size, held, show=6 if held else 0)
        print(name, {k: f"{r}/{t}" for k, (r, t) in out[name].items()}, f"all {sum(r for r, _ in out[name].values()) / sum(t for _, t in out[name].values()):.4f}", flush=True)
    return out


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("text")
    ap.add_argument("--out")
    ap.add_argument("--resume")
    ap.add_argument("--seconds", type=float, default=480)
    ap.add_argument("--total", type=float, default=480)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--large", type=int, default=96)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--lr-adam", type=float, default=0.003)
    ap.add_argument("--steps", type=int, default=1 << 30)
    ap.add_argument("--eager", action="store_true")
    ap.add_argument("--grade", type=int, default=0)
    ap.add_argument("--mmproj", help="grade this file")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    dev, tok = a.device, Tok()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    m, _ = load_model(a.text, dev)
    m.requires_grad_(False)
    if a.mmproj:
        report(m, load(a.mmproj, dev), tok, a.grade or 100, dev)
        return
    tower = Tower(Config(out=m.c.dim)).to(dev)
    opt, meta = Optimizer(tower, a.lr, a.lr_adam, 0.02), {"step": 0, "seconds": 0.0, "pictures": 0}
    if a.resume:
        arrays, meta = np.load(os.path.join(a.resume, "tower.npz")), json.load(open(os.path.join(a.resume, "tower.json")))
        with torch.no_grad():
            for n, p in tower.named_parameters():
                p.copy_(torch.from_numpy(arrays["w." + n]))
            for k, t in opt.state.items():
                t.copy_(torch.from_numpy(arrays["o." + k]))
        opt.t = meta["t"]
    talks, gen = Talks(tok, dev, 1 + meta["step"]), torch.Generator(dev)
    gen.manual_seed(1000 + meta["step"])
    half = {n: p.data.to(torch.bfloat16) for n, p in m.named_parameters() if p.ndim == 2} if dev == "cuda" else {}
    fast = load_model(a.text, dev)[0].requires_grad_(False)      # the trained-through copy: matrices rounded to bf16, as autocast would
    for n, p in fast.named_parameters():
        if n in half:
            p.data = half[n]
    plain = (Layer.forward, text_layer)
    torch._dynamo.config.cache_size_limit = 64
    quick = plain if a.eager or dev != "cuda" else (torch.compile(Layer.forward, dynamic=False), torch.compile(text_layer, dynamic=False))
    print(f"{sum(p.numel() for p in tower.parameters()):,} parameters, {talks.longest} answer tokens at most", flush=True)
    rng, begin, step0, acc = random.Random(meta["step"]), time.time(), meta["step"], []
    step, done = step0, meta["seconds"]
    while step - step0 < a.steps:
        elapsed = time.time() - begin
        progress = (done + elapsed) / a.total
        if elapsed >= a.seconds or progress >= 1:
            break
        size, B, run = SQUARE, a.batch, quick
        if step % 4 == 3 and progress > 0.05:
            size, run = rng.choice(OTHERS), plain
        elif step % 4 == 1 and progress > 0.15:
            size, B, run = rng.choice(LARGE), a.large, plain
        with torch.no_grad():
            p = shapes.sample(B, gen, ratio=size[0] / size[1])
            img = shapes.draw(p, 48 * size[0], 48 * size[1], gen)
            batch = talks.take(p, torch.randint(TALKS, (B,), generator=gen, device=dev))
        with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
            z, want, there = answers(fast, tower, img, *batch, *run)
        ce = F.cross_entropy(z.flatten(0, 1), want.flatten(), reduction="none").view(want.shape) * there
        loss = (ce.sum(1) / there.sum(1)).mean()
        loss.backward()
        opt.step(min(1.0, (opt.t + 1) / 200) * (1.0 if progress < 0.3 else max(0.0, (1 - progress) / 0.7)))
        for x in tower.parameters():
            x.grad = None
        step, meta["pictures"] = step + 1, meta["pictures"] + B
        if size == SQUARE:
            acc.append(torch.stack((loss.detach(), ((z.argmax(-1) == want) | ~there).all(1).float().mean())))
        if step % 100 == 0 or step - step0 in (1, 5, 20):
            print(f"step {step} {time.time() - begin:.1f} s, loss and whole answers", [round(v, 4) for v in torch.stack(acc).mean(0).tolist()], flush=True)
            acc = []
        if step % 1000 == 0 and a.out:
            save(a.out, tower, opt, meta | {"step": step, "seconds": done + time.time() - begin})
    meta |= {"step": step, "seconds": done + time.time() - begin}
    print(f"step {step}, {meta['pictures']:,} pictures, {meta['seconds']:.0f} s of training", flush=True)
    if a.out:
        save(a.out, tower, opt, meta)
        print(f"{export(os.path.join(a.out, 'mmproj.gguf'), tower):,} bytes")
        tower = load(os.path.join(a.out, "mmproj.gguf"), dev)
    if a.grade:
        report(m, tower, tok, a.grade, dev)


if __name__ == "__main__":
    main()
