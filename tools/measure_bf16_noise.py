#!/usr/bin/env python3
"""What computing in bf16 costs the official implementation on the golden models: the noise that no bf16 backend is below.

    tools/measure_bf16_noise.py DIR        needs torch, transformers (5.17) and gguf

For each folder of DIR with config.json, golden.safetensors and model-BF16.gguf: rms of logits and rows with the same top token
against the golden logits, with weights, residual stream and activations in bf16, the rows at once, in steps of 16 and one by one;
in f32 first, to show that it is the same model (exit code 1 if it is not).
"""
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm", "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2", "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "ffn_gate_inp": "router.proj",
    "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
}
WHOLE = {
    "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight", "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}


def name_of(tensor):
    if not tensor.startswith("blk."):
        return TOP[tensor]
    _, layer, rest = tensor.split(".", 2)
    return f"model.layers.{layer}." + (WHOLE[rest] if rest in WHOLE else LAYER[rest.removesuffix(".weight")] + ".weight")


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "dtype")}
    model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**config, attn_implementation="eager")).eval()
    weights = {}
    for t in gguf.GGUFReader(folder / "model-BF16.gguf").tensors:
        if t.name == "rope_freqs.weight":
            continue
        data = np.array(t.data)
        if t.tensor_type.name == "BF16":
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        weights[name_of(t.name)] = torch.from_numpy(data.reshape([int(n) for n in reversed(t.shape)]).copy())
    missing, unexpected = model.load_state_dict(weights, strict=False)
    left = [m for m in missing if "rotary" not in m and m != "lm_head.weight"]
    assert not left and not unexpected, (left, unexpected)
    model.tie_weights()
    return model


@torch.no_grad()
def logits(model, ids, step):
    cache, rows = None, []
    for at in range(0, len(ids), step):
        out = model(input_ids=ids[None, at : at + step], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0].float())
    return torch.cat(rows).numpy()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    same = True
    print(f"{'model':8} {'dtype':6} {'step':>5} {'rms':>8} {'top 1':>6}")
    for folder in sorted(p.parent for p in Path(sys.argv[1]).glob("*/model-BF16.gguf")):
        golden = load_file(folder / "golden.safetensors")
        ids, want = torch.from_numpy(golden["ids"].astype(np.int64)), golden["logits"]
        model = load(folder)
        for dtype, steps in ((torch.float32, [len(ids)]), (torch.bfloat16, [len(ids), 16, 1])):
            model = model.to(dtype)
            for step in steps:
                got = logits(model, ids, step)
                rms, top = float(np.sqrt(np.mean((got - want) ** 2))), int((got.argmax(1) == want.argmax(1)).sum())
                print(f"{folder.name:8} {'f32' if dtype == torch.float32 else 'bf16':6} {step:5} {rms:8.4f} {top:6}", flush=True)
                same &= dtype != torch.float32 or rms < 1e-3
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
