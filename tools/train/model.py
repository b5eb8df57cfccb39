"""Gemma 4 text architecture in plain PyTorch, made to be trained fast at tiny sizes.

The same module covers the dense model and, with ``experts > 0``, the mixture-of-experts form (dense branch and
experts in parallel). Parameter names follow GGUF, so export is a plain copy. Attention works on packed rows: ``seg`` holds the
document number of every token and no token sees another document.
"""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 3072
    dim: int = 256
    pattern: str = "SSFSSF"      # S sliding, F full; the last must be full
    heads: int = 2
    kv_heads: int = 1            # sliding layers
    kv_heads_full: int = 1
    hd: int = 256                # sliding head size
    hd_full: int = 512
    ffn: int = 768
    window: int = 256
    theta: float = 1e4
    theta_full: float = 1e6
    rotary_full: float = 0.25
    softcap: float = 30.0
    eps: float = 1e-6
    context: int = 16384
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    fake_quant: bool = False     # round matrices as a 4-bit file will, gradients as if they were not

    def to_dict(self) -> dict:
        return asdict(self)


def rms(x: Tensor, w: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    x = x.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def rounded(w: Tensor, bits: int) -> Tensor:
    """w as blocks of 32 equal steps of 2^bits levels hold it; the gradient passes through."""
    b = w.reshape(-1, 32)
    low, high = b.amin(-1, keepdim=True).clamp(max=0), b.amax(-1, keepdim=True).clamp(min=0)
    d = ((high - low) / (2 ** bits - 1)).clamp(min=1e-12)
    return w + (torch.round((b - low) / d) * d + low - b).reshape(w.shape).detach()


def rope_table(c: Config, full: bool, T: int, device) -> tuple[Tensor, Tensor]:
    """cos and sin [T, hd/2]; pairs beyond the rotated quarter of a full layer keep angle 0."""
    hd = c.hd_full if full else c.hd
    i = torch.arange(hd // 2, device=device, dtype=torch.float64)
    inv = (c.theta_full if full else c.theta) ** (-2 * i / hd)
    if full:
        inv = torch.where(i < int(c.rotary_full * hd // 2), inv, torch.zeros_like(inv))
    a = torch.arange(T, device=device, dtype=torch.float64)[:, None] * inv
    return a.cos().float(), a.sin().float()


def rope(x: Tensor, cs: tuple[Tensor, Tensor]) -> Tensor:
    co, si = cs[0][:, None], cs[1][:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * co - b * si, b * co + a * si), -1)


def local_attention(q: Tensor, k: Tensor, v: Tensor, seg: Tensor, W: int) -> Tensor:
    """Sliding window of W keys as dense products of W queries with 2W keys. q [B,T,H,d], k and v [B,T,K,d]."""
    B, T, H, d = q.shape
    K, N = k.shape[2], T // W
    q = q.view(B, N, W, K, H // K, d).permute(0, 1, 3, 4, 2, 5).reshape(B, N, K, -1, d)

    def both(x: Tensor, fill: float) -> Tensor:
        x = x.view(B, N, W, *x.shape[2:])
        return torch.cat((torch.cat((torch.full_like(x[:, :1], fill), x[:, :-1]), 1), x), 2)

    k2, v2 = both(k, 0).transpose(2, 3), both(v, 0).transpose(2, 3)           # [B,N,K,2W,d]
    s = (q @ k2.transpose(-1, -2)).view(B, N, K, H // K, W, 2 * W)
    i = torch.arange(W, device=q.device)[:, None]
    j = torch.arange(2 * W, device=q.device)[None]
    ok = (j > i) & (j <= i + W)
    ok = ok & (seg.view(B, N, W, 1) == both(seg, -9)[:, :, None])
    p = s.float().masked_fill(~ok[:, :, None, None], float("-inf")).softmax(-1).to(v2.dtype)
    o = p.view(B, N, K, -1, 2 * W) @ v2
    return o.view(B, N, K, H // K, W, d).permute(0, 1, 4, 2, 3, 5).reshape(B, T, H * d)


def full_attention(q: Tensor, k: Tensor, v: Tensor, seg: Tensor, chunk: int = 1024) -> Tensor:
    """Causal attention, queries in chunks that read only the keys before their end."""
    B, T, H, d = q.shape
    K, out = k.shape[2], []
    kt, v = k.permute(0, 2, 3, 1), v.transpose(1, 2)                           # [B,K,d,T], [B,K,T,d]
    chunk = max(chunk, T // 4)
    for a in range(0, T, chunk):
        e = min(T, a + chunk)
        qc = q[:, a:e].reshape(B, e - a, K, H // K, d).permute(0, 2, 3, 1, 4).reshape(B, K, -1, d)
        s = (qc @ kt[..., :e]).view(B, K, H // K, e - a, e)
        ok = torch.arange(a, e, device=q.device)[:, None] >= torch.arange(e, device=q.device)[None]
        ok = ok & (seg[:, a:e, None] == seg[:, None, :e])
        p = s.float().masked_fill(~ok[:, None, None], float("-inf")).softmax(-1).to(v.dtype)
        o = p.view(B, K, -1, e) @ v[:, :, :e]
        out.append(o.view(B, K, H // K, e - a, d).permute(0, 3, 1, 2, 4).reshape(B, e - a, H * d))
    return out[0] if len(out) == 1 else torch.cat(out, 1)


class Block(nn.Module):
    """One layer. Parameters are named like the GGUF tensors of a block, with '_' for '.'."""

    def __init__(self, c: Config, full: bool):
        super().__init__()
        self.c, self.full = c, full
        hd, kv = (c.hd_full, c.kv_heads_full) if full else (c.hd, c.kv_heads)
        self.hd = hd
        D, A = c.dim, c.heads * hd

        def mat(o: int, i: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(o, i) / math.sqrt(i))

        def vec(n: int, v: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.full((n,), v))

        self.attn_norm, self.post_attention_norm = vec(D), vec(D, 0.5)
        self.ffn_norm, self.post_ffw_norm = vec(D), vec(D, 0.5)
        self.attn_q, self.attn_k, self.attn_output = mat(A, D), mat(kv * hd, D), mat(D, A)
        if not full:
            self.attn_v = mat(kv * hd, D)
        self.attn_q_norm, self.attn_k_norm = vec(hd, hd ** -0.25), vec(hd, hd ** -0.25)
        self.ffn_gate, self.ffn_up, self.ffn_down = mat(c.ffn, D), mat(c.ffn, D), mat(D, c.ffn)
        self.layer_output_scale = vec(1)
        if c.experts:
            E, I = c.experts, c.expert_ffn
            self.ffn_gate_inp, self.ffn_gate_inp_scale = mat(E, D), vec(D, math.sqrt(D))
            self.ffn_gate_up_exps = nn.Parameter(torch.randn(E, 2 * I, D) / math.sqrt(D))
            self.ffn_down_exps = nn.Parameter(torch.randn(E, D, I) / math.sqrt(I))
            self.ffn_down_exps_scale = vec(E)
            self.pre_ffw_norm_2, self.post_ffw_norm_1, self.post_ffw_norm_2 = vec(D), vec(D, 0.7), vec(D, 0.7)

    def mat(self, w: Tensor, bits: int = 4) -> Tensor:
        return rounded(w, bits) if self.c.fake_quant else w

    def attention(self, x: Tensor, cs: tuple[Tensor, Tensor], seg: Tensor) -> Tensor:
        B, T, _ = x.shape
        n = rms(x, self.attn_norm)
        q = F.linear(n, self.mat(self.attn_q)).view(B, T, -1, self.hd)
        k0 = F.linear(n, self.mat(self.attn_k)).view(B, T, -1, self.hd)
        v0 = k0 if self.full else F.linear(n, self.mat(self.attn_v)).view(B, T, -1, self.hd)
        q, k, v = (t.to(k0.dtype) for t in (rope(rms(q, self.attn_q_norm), cs), rope(rms(k0, self.attn_k_norm), cs), rms(v0)))
        o = full_attention(q, k, v, seg) if self.full else local_attention(q, k, v, seg, self.c.window)
        return x + rms(F.linear(o, self.mat(self.attn_output)), self.post_attention_norm)

    def ffn(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stream after the layer, and how unevenly the experts are used (1: evenly)."""
        n = rms(x, self.ffn_norm)
        g, u = F.linear(n, self.mat(self.ffn_gate)), F.linear(n, self.mat(self.ffn_up))
        f, uneven = F.linear(F.gelu(g, approximate="tanh") * u, self.mat(self.ffn_down, 5)), x.new_ones(())
        if self.c.experts:
            m, uneven = self.moe(x)
            f = rms(f, self.post_ffw_norm_1) + rms(m, self.post_ffw_norm_2)
        return (x + rms(f, self.post_ffw_norm)) * self.layer_output_scale, uneven

    def moe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Top-k experts; computes every expert and weighs, which is cheap at this size."""
        E, K = self.c.experts, self.c.top_k
        with torch.autocast(x.device.type, enabled=False):
            t = rms(x) * self.c.dim ** -0.5 * self.ffn_gate_inp_scale
            p = F.linear(t, self.ffn_gate_inp).softmax(-1)
            w, e = p.topk(K, -1)
            w = torch.zeros_like(p).scatter(-1, e, w / w.sum(-1, keepdim=True))
            uneven = E / K * ((w > 0).float().mean((0, 1)) * p.mean((0, 1))).sum()
            w = w * self.ffn_down_exps_scale
        g, u = torch.einsum("btd,eid->btei", rms(x, self.pre_ffw_norm_2), self.mat(self.ffn_gate_up_exps)).chunk(2, -1)
        return torch.einsum("btei,edi->btd", F.gelu(g, approximate="tanh") * u * w[..., None], self.mat(self.ffn_down_exps, 5)), uneven


class Model(nn.Module):
    BALANCE = 0.01  # weight of the experts' even use in the loss

    def __init__(self, c: Config):
        super().__init__()
        assert c.pattern[-1] == "F"
        self.c = c
        self.token_embd = nn.Parameter(torch.randn(c.vocab, c.dim) / math.sqrt(c.dim))
        self.output_norm = nn.Parameter(torch.ones(c.dim))
        self.blk = nn.ModuleList(Block(c, ch == "F") for ch in c.pattern)
        self._attention, self._ffn, self._loss = Block.attention, Block.ffn, self.head_loss
        self._tables: dict = {}

    def compile(self) -> None:
        """Compile the three regions; each is traced once per layer kind and row length."""
        torch._dynamo.config.cache_size_limit = 64
        self._attention = torch.compile(Block.attention, dynamic=False)
        self._ffn = torch.compile(Block.ffn, dynamic=False)
        self._loss = torch.compile(self.head_loss, dynamic=False)

    def tables(self, T: int, device):
        if T not in self._tables:
            self._tables[T] = [rope_table(self.c, f, T, device) for f in (False, True)]
        return self._tables[T]

    def hidden(self, ids: Tensor, seg: Tensor) -> tuple[Tensor, Tensor]:
        x = F.embedding(ids, self.token_embd).float() * math.sqrt(self.c.dim)
        B, T, D = x.shape
        cs, uneven = self.tables(T, ids.device), 0.0
        for b in self.blk:
            x = self._attention(b, x, cs[b.full], seg)
            x, u = self._ffn(b, x.view(1, B * T, D))
            x, uneven = x.view(B, T, D), uneven + u / len(self.blk)
        return x, uneven

    def logits(self, ids: Tensor, seg: Tensor | None = None) -> Tensor:
        """Logits [B,T,V] for any T (padded inside to whole windows)."""
        T = ids.shape[1]
        n = -T % self.c.window
        seg = torch.zeros_like(ids) if seg is None else seg
        x = self.hidden(F.pad(ids, (0, n)), F.pad(seg, (0, n), value=-1))[0][:, :T]
        z = F.linear(rms(x, self.output_norm), self.token_embd).float()
        return self.c.softcap * torch.tanh(z / self.c.softcap)

    def head_loss(self, x: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted cross entropy, and the plain loss and accuracy of the tokens of weight 1."""
        z = F.linear(rms(x, self.output_norm), self.token_embd).float()
        z = self.c.softcap * torch.tanh(z / self.c.softcap)
        lse = z.logsumexp(-1)
        zt = z.gather(-1, target[:, None])[:, 0]
        ce, one = lse - zt, (weight > 0.9).float()
        n = one.sum().clamp(min=1)
        return (ce * weight).sum() / weight.sum().clamp(min=1), (ce * one).sum() / n, ((zt >= z.amax(-1)).float() * one).sum() / n

    def loss(self, ids: Tensor, weight: Tensor, seg: Tensor):
        """ids, weight and seg are [B,T+1]; targets in another document do not count."""
        w = weight[:, 1:] * (seg[:, 1:] == seg[:, :-1])
        x, uneven = self.hidden(ids[:, :-1], seg[:, :-1])
        loss, ce, hit = self._loss(x.reshape(-1, self.c.dim), ids[:, 1:].reshape(-1), w.reshape(-1))
        return loss + self.BALANCE * uneven if self.c.experts else loss, ce, hit

