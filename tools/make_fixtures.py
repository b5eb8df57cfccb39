#!/usr/bin/env python3
"""Golden fixtures from the official implementation, on the very weights of a quantised GGUF.

    make_fixtures.py OUT NAME=MODEL.gguf:CONFIG.json[:LAYER,LAYER,...[:IDS.safetensors]] ...

Each MODEL is a Gemma 4 GGUF that llama.cpp's tools wrote. Chosen layers are kept, byte for byte, and written to
OUT/NAME/model.gguf; the dequantised weights go into transformers' Gemma4ForCausalLM (float32, eager attention) and its
logits for fixed random token ids (or those of another golden) into OUT/NAME/golden.safetensors (ids I32 [n], logits F32 [n, V], greedy I32: the first
32 ids continued by 24). So a test needs no allowance for how the weights were quantised.

Needs torch, transformers >= 5.17, safetensors, numpy and gguf. Runs in seconds, on a CPU or a GPU.
"""
import json
import os
import sys

import numpy as np
import torch
from gguf import GGUFReader, GGUFWriter, GGUFValueType
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

N_IDS, N_PROMPT, N_GREEDY = 64, 32, 24
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight", "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight", "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight", "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale", "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight", "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight", "post_norm.weight": "post_per_layer_input_norm.weight",
}
TOP_NAMES = {
    "token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight",
    "per_layer_token_embd.weight": "embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "per_layer_projection_norm.weight",
}


def trimmed(reader, keep, width):
    """(name, bytes as stored, type, dequantised) of the tensors of the kept layers, renumbered."""
    for t in reader.tensors:
        name, data = t.name, t.data
        if name.startswith("blk."):
            layer = int(name.split(".")[1])
            if layer not in keep:
                continue
            name = f"blk.{keep.index(layer)}." + name.split(".", 2)[2]
        if name == "per_layer_token_embd.weight":  # columns of the kept layers: whole blocks
            n_layer = int(t.shape[0]) // width
            per = data.shape[1] // n_layer
            data = np.concatenate([data[:, l * per:(l + 1) * per] for l in keep], axis=1)
        if name == "per_layer_model_proj.weight":
            data = np.concatenate([data[l * width:(l + 1) * width] for l in keep], axis=0)
        yield name, np.ascontiguousarray(data), t.tensor_type, dequantize(np.ascontiguousarray(data), t.tensor_type)


def copy_metadata(reader, writer, keep, shared):
    per_layer = {"gemma4.attention.head_count_kv", "gemma4.feed_forward_length", "gemma4.attention.sliding_window_pattern"}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if key == "gemma4.block_count":
            value = len(keep)
        elif key == "gemma4.attention.shared_kv_layers":
            value = shared
        elif key in per_layer and kind == GGUFValueType.ARRAY:
            value = [value[l] for l in keep]
        writer.add_key_value(key, value, kind, field.types[1] if kind == GGUFValueType.ARRAY else None)


@torch.no_grad()
def make(out, name, model, config_path, layers, ids_path):
    reader = GGUFReader(model)
    fields = json.load(open(config_path))
    n_layer, n_shared = fields["num_hidden_layers"], fields.get("num_kv_shared_layers", 0)
    keep = layers or list(range(n_layer))
    shared = sum(l >= n_layer - n_shared for l in keep)
    width = fields.get("hidden_size_per_layer_input", 0) or 0
    fields.update(num_hidden_layers=len(keep), num_kv_shared_layers=shared, layer_types=[fields["layer_types"][l] for l in keep])
    fields = {k: v for k, v in fields.items() if k not in ("architectures", "model_type", "per_layer_config", "transformers_version", "dtype")}
    net = Gemma4ForCausalLM._from_config(Gemma4TextConfig(**fields), attn_implementation="eager").float().eval()

    os.makedirs(f"{out}/{name}", exist_ok=True)
    writer = GGUFWriter(f"{out}/{name}/model.gguf", "gemma4")
    copy_metadata(reader, writer, keep, shared)
    have, state = net.state_dict(), {}
    for tensor, stored, kind, values in trimmed(reader, keep, width):
        writer.add_tensor(tensor, stored, raw_dtype=kind)
        if tensor == "rope_freqs.weight":
            continue
        if tensor.startswith("blk."):
            _, l, rest = tensor.split(".", 2)
            target = f"model.layers.{l}." + LAYER_NAMES[rest]
        else:
            target = "model." + TOP_NAMES[tensor]
        if target not in have:  # K/V of layers that share another layer's
            assert "self_attn" in target, target
            continue
        state[target] = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(have[target].shape)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and all(m == "lm_head.weight" or "inv_freq" in m or "embed_scale" in m for m in missing), (missing, unexpected)
    net.tie_weights()

    vocab = fields["vocab_size"]
    ids = torch.randint(5, vocab, (N_IDS,), generator=torch.Generator().manual_seed(7))
    ids[0] = 2
    if ids_path:
        ids = load_file(ids_path)["ids"].long()
    logits = net(input_ids=ids[None], use_cache=False).logits[0]
    greedy = ids[:N_PROMPT].clone()
    for _ in range(N_GREEDY):
        greedy = torch.cat([greedy, net(input_ids=greedy[None], use_cache=False).logits[0, -1].argmax()[None]])
    save_file({"ids": ids.int(), "logits": logits.contiguous(), "greedy": greedy.int()}, f"{out}/{name}/golden.safetensors")
    print(name, "layers", keep, "bytes", os.path.getsize(f"{out}/{name}/model.gguf"), "distinct greedy", len(set(greedy[N_PROMPT:].tolist())))


def main():
    out = sys.argv[1]
    for spec in sys.argv[2:]:
        name, rest = spec.split("=", 1)
        parts = rest.split(":")
        layers = [int(l) for l in parts[2].split(",")] if len(parts) > 2 and parts[2] else None
        make(out, name, parts[0], parts[1], layers, parts[3] if len(parts) > 3 else None)


if __name__ == "__main__":
    main()
