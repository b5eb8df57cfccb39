"""The two kinds of drafters for a target of model.py, in plain PyTorch; parameters are named like their GGUF tensors.

``features`` runs the frozen target once over packed rows and returns all that either kind learns from.
"""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import Model, rms, rope, rope_table

MASK = 4  # <mask>


@dataclass
class DflashConfig:
    dim: int = 256
    taps: tuple = (1, 3, 4)
    pattern: str = "SFF"     # S sliding and causal inside the block, F full and not
    heads: int = 4
    kv_heads: int = 2
    hd: int = 64
    ffn: int = 512
    window: int = 128
    theta: float = 1e6
    block: int = 8

    def to_dict(self) -> dict:
        return asdict(self) | {"kind": "dflash"}


@dataclass
class MtpConfig:
    dim: int = 128
    target_dim: int = 256
    vocab: int = 3072
    pattern: str = "SSSF"
    heads: int = 2
    ffn: int = 512
    chain: int = 7           # passes in training

    def to_dict(self) -> dict:
        return asdict(self) | {"kind": "mtp"}


@torch.no_grad()
def features(m: Model, ids: Tensor, seg: Tensor, taps: tuple) -> dict:
    """ids, seg [B,T], T a multiple of the window. taps: [B,T,n*D] after those layers; final: [B,T,D] after the output
    norm; kv: {"S", "F"} -> keys and values [B,T,K,hd] of the last layer of each kind; top: [B,T] the greedy next token."""
    x = F.embedding(ids, m.token_embd).float() * math.sqrt(m.c.dim)
    B, T, D = x.shape
    cs, kept, kv = m.tables(T, ids.device), {}, {}
    for i, b in enumerate(m.blk):
        n = rms(x, b.attn_norm)
        k = F.linear(n, b.attn_k).view(B, T, -1, b.hd)
        v = k if b.full else F.linear(n, b.attn_v).view(B, T, -1, b.hd)
        kv["F" if b.full else "S"] = (rope(rms(k, b.attn_k_norm), cs[b.full]), rms(v))
        x = b.attention(x, cs[b.full], seg)
        x = b.ffn(x.view(1, B * T, D))[0].view(B, T, D)
        if i in taps:
            kept[i] = x
    final = rms(x, m.output_norm)
    top = F.linear(final, m.token_embd).argmax(-1)
    return {"taps": torch.cat([kept[i] for i in taps], -1) if taps else None, "final": final, "kv": kv, "top": top}


def matrix(o: int, i: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(o, i) / math.sqrt(i))


def gain(n: int, v: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full((n,), v))


def rope_at(x: Tensor, cs: tuple[Tensor, Tensor], pos: Tensor) -> Tensor:
    """x [B,N,H,hd] rotated by pos [B,N]."""
    co, si = cs[0][pos][:, :, None], cs[1][pos][:, :, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * co - b * si, b * co + a * si), -1)


class DflashLayer(nn.Module):
    def __init__(self, c: DflashConfig):
        super().__init__()
        D, A, K = c.dim, c.heads * c.hd, c.kv_heads * c.hd
        self.attn_norm, self.ffn_norm = gain(D), gain(D)
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = matrix(A, D), matrix(K, D), matrix(K, D), matrix(D, A)
        self.attn_q_norm, self.attn_k_norm = gain(c.hd), gain(c.hd)
        self.ffn_gate, self.ffn_up, self.ffn_down = matrix(c.ffn, D), matrix(c.ffn, D), matrix(D, c.ffn)


class Dflash(nn.Module):
    def __init__(self, c: DflashConfig):
        super().__init__()
        self.c = c
        self.fc = matrix(c.dim, len(c.taps) * c.dim)
        self.hidden_norm, self.output_norm = gain(c.dim), gain(c.dim)
        self.blk = nn.ModuleList(DflashLayer(c) for _ in c.pattern)
        self._tables: dict = {}

    def table(self, n: int, device):
        if n not in self._tables:
            i = torch.arange(self.c.hd // 2, dtype=torch.float64)
            a = torch.arange(n, dtype=torch.float64)[:, None] * self.c.theta ** (-2 * i / self.c.hd)
            self._tables[n] = (a.cos().float().to(device), a.sin().float().to(device))
        return self._tables[n]

    def forward(self, target: Model, f: dict, ids: Tensor, seg: Tensor, at: Tensor) -> Tensor:
        """Logits [B,A,block-1,V] of the blocks that begin at tokens at [B,A]: context features of earlier tokens only."""
        c, (B, T), N = self.c, ids.shape, at.shape[1]
        n, G = c.block, c.heads // c.kv_heads
        cs = self.table(T + n, ids.device)
        g = rms(F.linear(f["taps"], self.fc), self.hidden_norm)
        j = torch.arange(n, device=ids.device)
        pos = (at[:, :, None] + j).view(B, N * n)
        row = torch.full((B, N, n), MASK, device=ids.device)
        row[:, :, 0] = ids.gather(1, at)
        x = F.embedding(row, target.token_embd).float() * math.sqrt(c.dim)          # [B,N,n,D]
        key = torch.arange(T, device=ids.device)
        ok = (key < at[:, :, None]) & (seg[:, None] == seg.gather(1, at)[:, :, None])  # [B,N,T]
        for kind, b in zip(c.pattern, self.blk):
            kc = rope(rms(F.linear(g, b.attn_k).view(B, T, -1, c.hd), b.attn_k_norm), (cs[0][:T], cs[1][:T]))
            vc = F.linear(g, b.attn_v).view(B, T, -1, c.hd)
            y = rms(x, b.attn_norm)
            q = rope_at(rms(F.linear(y, b.attn_q).view(B, N * n, -1, c.hd), b.attn_q_norm), cs, pos)
            k = rope_at(rms(F.linear(y, b.attn_k).view(B, N * n, -1, c.hd), b.attn_k_norm), cs, pos)
            v = F.linear(y, b.attn_v).view(B, N, n, c.kv_heads, c.hd)
            dt = vc.dtype
            q = q.to(dt).view(B, N, n, c.kv_heads, G, c.hd)
            k = k.to(dt).view(B, N, n, c.kv_heads, c.hd)
            s = torch.einsum("bnikgd,btkd->bnkgit", q, kc.to(dt)).float() * c.hd ** -0.5
            own = torch.einsum("bnikgd,bnjkd->bnkgij", q, k).float() * c.hd ** -0.5
            seen = ok[:, :, None].expand(B, N, n, T)
            if kind == "S":
                seen = seen & (at[:, :, None, None] + j[:, None] - key < c.window)
                own = own.masked_fill(j[None] > j[:, None], float("-inf"))
            p = torch.cat((s.masked_fill(~seen[:, :, None, None], float("-inf")), own), -1).softmax(-1).to(dt)
            o = torch.einsum("bnkgit,btkd->bnikgd", p[..., :T], vc) + torch.einsum("bnkgij,bnjkd->bnikgd", p[..., T:], v)
            x = x + F.linear(o.reshape(B, N, n, -1), b.attn_output)
            z = rms(x, b.ffn_norm)
            x = x + F.linear(F.silu(F.linear(z, b.ffn_gate)) * F.linear(z, b.ffn_up), b.ffn_down)
        z = F.linear(rms(x[:, :, 1:], self.output_norm), target.token_embd).float()
        return target.c.softcap * torch.tanh(z / target.c.softcap)


class MtpLayer(nn.Module):
    def __init__(self, c: MtpConfig, hd: int):
        super().__init__()
        D, A = c.dim, c.heads * hd
        self.attn_norm, self.ffn_norm, self.post_attention_norm, self.post_ffw_norm = gain(D), gain(D), gain(D, .5), gain(D, .5)
        self.attn_q, self.attn_output, self.attn_q_norm = matrix(A, D), matrix(D, A), gain(hd, hd ** -0.25)
        self.ffn_gate, self.ffn_up, self.ffn_down = matrix(c.ffn, D), matrix(c.ffn, D), matrix(D, c.ffn)
        self.layer_output_scale = gain(1)


class Mtp(nn.Module):
    def __init__(self, c: MtpConfig, target: Model):
        super().__init__()
        self.c = c
        self.pre, self.post = matrix(c.dim, 2 * c.target_dim), matrix(c.target_dim, c.dim)
        self.output_norm = gain(c.dim)
        # The head starts as what a matrix of this width can hold of the target's.
        u, s, _ = torch.linalg.svd(target.token_embd.detach().float().cpu(), full_matrices=False)
        self.token_embd = nn.Parameter((u * s)[:, :c.dim].contiguous())
        self.blk = nn.ModuleList(MtpLayer(c, target.c.hd_full if ch == "F" else target.c.hd) for ch in c.pattern)
        self._tables: dict = {}

    def forward(self, target: Model, f: dict, ids: Tensor, seg: Tensor, at: Tensor, chain: int, tokens: Tensor | None = None) -> Tensor:
        """Logits [B,A,chain,V] of chains whose newest token is at [B,A] (hidden state and keys of the tokens before it).
        tokens: [B,A,chain] inputs of the passes; None: the drafts themselves."""
        c, (B, T), N = self.c, ids.shape, at.shape[1]
        if T not in self._tables:
            self._tables[T] = {ch: rope_table(target.c, ch == "F", T + 1, ids.device) for ch in "SF"}
        cs = self._tables[T]
        key = torch.arange(T, device=ids.device)
        ok = (key < at[:, :, None]) & (seg[:, None] == seg.gather(1, at)[:, :, None])
        seen = {"F": ok, "S": ok & (at[:, :, None] - key < target.c.window)}
        h = f["final"].gather(1, (at - 1)[:, :, None].expand(B, N, c.target_dim))
        tok, out = ids.gather(1, at), []
        for step in range(chain):
            if tokens is not None:
                tok = tokens[:, :, step]
            e = F.embedding(tok, target.token_embd).float() * math.sqrt(c.target_dim)
            x = F.linear(torch.cat((e, h.float()), -1), self.pre).float()
            for ch, b in zip(c.pattern, self.blk):
                k, v = f["kv"][ch]
                q = F.linear(rms(x, b.attn_norm), b.attn_q).view(B, N, c.heads, -1)
                q = rope_at(rms(q, b.attn_q_norm), cs[ch], at)
                K, dt = k.shape[2], v.to(torch.bfloat16).dtype if q.is_cuda else torch.float32
                q = q.to(dt).view(B, N, K, c.heads // K, -1)
                s = torch.einsum("bnkgd,btkd->bnkgt", q, k.to(dt)).float()
                p = s.masked_fill(~seen[ch][:, :, None, None], -1e30).softmax(-1).to(dt)  # finite: a row may see nothing
                o = torch.einsum("bnkgt,btkd->bnkgd", p, v.to(dt)).reshape(B, N, -1)
                x = x + rms(F.linear(o, b.attn_output), b.post_attention_norm)
                z = rms(x, b.ffn_norm)
                y = F.linear(F.gelu(F.linear(z, b.ffn_gate), approximate="tanh") * F.linear(z, b.ffn_up), b.ffn_down)
                x = (x + rms(y, b.post_ffw_norm)) * b.layer_output_scale
            y = rms(x, self.output_norm)
            out.append(F.linear(y, self.token_embd).float())
            h = F.linear(y, self.post)
            tok = out[-1].argmax(-1)
        return torch.stack(out, 2)
