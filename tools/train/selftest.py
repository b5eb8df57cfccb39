"""Random dense and mixture-of-experts models against transformers: ``python selftest.py`` (needs transformers)."""
from __future__ import annotations

import tempfile

import torch

from eval import hf_model
from export_gguf import load_model, write
from model import Config, Model
from tokenizer import Tok


def main() -> None:
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    tok = Tok()
    for name, kw in {"dense": {}, "moe": dict(experts=16, top_k=4, expert_ffn=64)}.items():
        torch.manual_seed(5)
        m = Model(Config(vocab=len(tok), **kw))
        with torch.no_grad():
            for n, p in m.named_parameters():
                p.mul_(1 + 0.2 * torch.randn_like(p)) if p.ndim == 1 else None
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            write(f.name, {n: p.detach().numpy() for n, p in m.named_parameters()}, m.c.to_dict(), tok)
            m, meta = load_model(f.name, dev)
        ids = torch.randint(5, len(tok), (2, 300), device=dev)
        with torch.no_grad():
            d = (m.logits(ids) - hf_model(m, meta, dev)(input_ids=ids, use_cache=False).logits).abs().max().item()
        print(f"{name}: largest difference of logits {d:.2e}")
        assert d < 1e-3


if __name__ == "__main__":
    main()
