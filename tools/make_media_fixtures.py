#!/usr/bin/env python3
"""Writes tests/data/media: tiny random encoders of pictures and sound, and what the official implementation makes of them at every stage.

    tools/make_media_fixtures.py OUT GRID MEL      needs torch, numpy, safetensors and transformers 5.17

GRID, MEL: safetensors with a picture's `patches` uint8 [n,768] and `positions` int32 [n,2], and with `<sound>.mel` float32 [frames,128]. All weights are
exact in BF16, in which matrices are stored; float32, one thread. Names and shapes are those of llama.cpp's converter."""
import pathlib
import struct
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers.models.gemma4 import configuration_gemma4 as conf
from transformers.models.gemma4 import modeling_gemma4 as official
from transformers.models.gemma4_unified import configuration_gemma4_unified as uconf
from transformers.models.gemma4_unified import modeling_gemma4_unified as unified

OUT, GRID, MEL = (pathlib.Path(p) for p in sys.argv[1:4])
torch.set_num_threads(1)
torch.manual_seed(11)


def bf16(t):
    return t.to(torch.bfloat16).to(torch.float32)


def randomise(module):
    """Every weight such that no part of the encoder is without effect."""
    with torch.no_grad():
        for name, p in list(module.named_parameters()) + list(module.named_buffers()):
            end = name.rsplit(".", 1)[-1]
            if "inv_timescales" in name or "inv_freq" in name or name.endswith("softcap"):
                continue
            if p.ndim == 0 or end in ("input_min", "input_max", "output_min", "output_max"):
                bound = (1 + 0.5 * torch.rand(p.shape)) * (-1.2 if "min" in end else 1)
                p.copy_(bf16(bound * (0.9 if "input" in end else 1.3)))
            elif end == "std_bias":
                p.copy_(bf16(torch.randn(p.shape) * 3))
            elif end == "std_scale":
                p.copy_(bf16(0.1 + torch.rand(p.shape)))
            elif end == "bias":
                p.copy_(bf16(torch.randn(p.shape) * 0.3))
            elif p.ndim == 1 or "norm" in name:
                p.copy_(bf16(1 + 0.3 * torch.randn(p.shape)))
            else:
                p.copy_(bf16(torch.randn(p.shape) * (0.5 if "position" in name or "pos_embedding" in name else 0.25)))
    return module.eval()


class Gguf:
    """Just enough of a writer."""

    def __init__(self):
        self.meta, self.tensors = [], []

    def add(self, key, kind, value):
        self.meta.append((key, kind, value))

    def tensor(self, name, t, matrix=True):
        self.tensors.append((name, t.detach().contiguous(), matrix))

    def write(self, path):
        def text(s):
            return struct.pack("<Q", len(s)) + s.encode()

        def value(kind, v):
            return text(v) if kind == 8 else struct.pack({4: "<I", 6: "<f", 7: "<?"}[kind], v)

        head, data = b"", b""
        for key, kind, v in self.meta:
            head += text(key) + struct.pack("<I", kind) + value(kind, v)
        for name, t, matrix in self.tensors:
            raw = t.to(torch.bfloat16).view(torch.int16).numpy().tobytes() if matrix else t.numpy().astype("<f4").tobytes()
            ne = list(reversed(t.shape)) or [1]
            head += text(name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", 30 if matrix else 0, len(data))
            data += raw + bytes(-len(raw) % 32)
        start = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.meta)) + head
        path.write_bytes(start + bytes(-len(start) % 32) + data)


def begin(name, vision, audio):
    g = Gguf()
    for key, kind, v in [("general.architecture", 8, "clip"), ("general.type", 8, "mmproj"), ("general.name", 8, name), ("general.file_type", 4, 32),
                         ("clip.has_vision_encoder", 7, True)] + ([("clip.has_audio_encoder", 7, True)] if audio else []):
        g.add(key, kind, v)
    for prefix, values in (("clip.vision.", vision), ("clip.audio.", audio)):
        for key, v in values.items():
            g.add(prefix + key, 8 if isinstance(v, str) else 6 if isinstance(v, float) else 4, v)
    return g


def clips(g, base, module):
    g.tensor(base + ".weight", module.linear.weight)
    for end in ("input_min", "input_max", "output_min", "output_max"):
        if hasattr(module, end):
            g.tensor(f"{base}.{end}", getattr(module, end).reshape(1), False)


def save(folder, stages):
    save_file({k: v.detach().numpy().astype("<f4").copy() for k, v in stages.items()}, folder / "stages.safetensors")


def pictures():
    """name -> patches uint8 [n,768], positions [n,2]: the picture of noise, and a flat one."""
    grid = load_file(GRID)
    at = np.array([(x, y) for y in range(3) for x in range(6)], dtype=np.int32)
    flat = np.tile(np.array([120, 121, 119], dtype=np.uint8), (18, 256))
    return {"grid": (grid["patches"], grid["positions"]), "flat": (flat, at)}


def tower(folder, config, d_out):
    model = randomise(official.Gemma4VisionModel(config))
    text = conf.Gemma4TextConfig(hidden_size=d_out)
    embed = randomise(official.Gemma4MultimodalEmbedder(config, text))
    stages = {}
    for name, (patches, positions) in pictures().items():
        got = {}
        hooks = [model.patch_embedder.register_forward_hook(lambda m, i, o: got.update(embed=o)),
                 model.pooler.register_forward_hook(lambda m, i, o: got.update(pooled=o[0]))]
        for l, layer in enumerate(model.encoder.layers):
            hooks.append(layer.register_forward_hook(lambda m, i, o, l=l: got.update({f"layer{l}": o[0] if isinstance(o, tuple) else o})))
        with torch.no_grad():
            got["tower"] = model(torch.tensor(patches)[None].float() / 255, torch.tensor(positions)[None].long()).last_hidden_state
            got["soft"] = embed(got["tower"])
        for h in hooks:
            h.remove()
        for stage, t in got.items():
            stages[f"{name}.{stage}"] = t.reshape(-1, t.shape[-1])
    return model, embed, stages


def tower_tensors(g, model, embed):
    p = model.patch_embedder
    d = p.input_proj.weight.shape[0]
    g.tensor("v.patch_embd.weight", p.input_proj.weight.reshape(d, 16, 16, 3).permute(0, 3, 1, 2))
    g.tensor("v.position_embd.weight", p.position_embedding_table)
    for n, layer in enumerate(model.encoder.layers):
        b = f"v.blk.{n}."
        for name, norm in [("ln1", layer.input_layernorm), ("attn_post_norm", layer.post_attention_layernorm), ("ln2", layer.pre_feedforward_layernorm),
                           ("ffn_post_norm", layer.post_feedforward_layernorm), ("attn_q_norm", layer.self_attn.q_norm), ("attn_k_norm", layer.self_attn.k_norm)]:
            g.tensor(f"{b}{name}.weight", norm.weight, False)
        for name, linear in [("attn_q", layer.self_attn.q_proj), ("attn_k", layer.self_attn.k_proj), ("attn_v", layer.self_attn.v_proj),
                             ("attn_out", layer.self_attn.o_proj), ("ffn_gate", layer.mlp.gate_proj), ("ffn_up", layer.mlp.up_proj), ("ffn_down", layer.mlp.down_proj)]:
            clips(g, b + name, linear)
    if hasattr(model, "std_bias"):
        g.tensor("v.std_bias", model.std_bias, False)
        g.tensor("v.std_scale", model.std_scale, False)
    g.tensor("mm.input_projection.weight", embed.embedding_projection.weight)


def vision_meta(c, d_out):
    return {"projector_type": "gemma4v", "projection_dim": d_out, "image_size": 224, "patch_size": 16, "embedding_length": c.hidden_size,
            "feed_forward_length": c.intermediate_size, "block_count": c.num_hidden_layers, "attention.head_count": c.num_attention_heads,
            "attention.layer_norm_epsilon": 1e-6}


def large():
    folder = OUT / "large"
    folder.mkdir(parents=True, exist_ok=True)
    c = conf.Gemma4VisionConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=24,
                                position_embedding_size=16, use_clipped_linears=False, standardize=True, attn_implementation="eager")
    model, embed, stages = tower(folder, c, 32)
    g = begin("Large", vision_meta(c, 32), {})
    tower_tensors(g, model, embed)
    g.write(folder / "mmproj-BF16.gguf")
    save(folder, stages)


def edge():
    folder = OUT / "edge"
    folder.mkdir(parents=True, exist_ok=True)
    c = conf.Gemma4VisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                                position_embedding_size=16, use_clipped_linears=True, standardize=False, attn_implementation="eager")
    model, embed, stages = tower(folder, c, 32)
    a = conf.Gemma4AudioConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, output_proj_dims=48, subsampling_conv_channels=[128, 4],
                               attn_implementation="sdpa")
    audio = randomise(official.Gemma4AudioModel(a))
    aembed = randomise(official.Gemma4MultimodalEmbedder(a, conf.Gemma4TextConfig(hidden_size=32)))
    for name in ("stereo44k",):
        mel, got = load_file(MEL)[name + ".mel"], {}
        hooks = [audio.subsample_conv_projection.layer1.register_forward_hook(lambda m, i, o: got.update(conv1=o[0][0].permute(1, 2, 0))),
                 audio.subsample_conv_projection.register_forward_hook(lambda m, i, o: got.update(sub=o[0]))]
        for l, layer in enumerate(audio.layers):
            hooks.append(layer.register_forward_hook(lambda m, i, o, l=l: got.update({f"layer{l}": o[0] if isinstance(o, tuple) else o})))
        with torch.no_grad():
            got["out"] = audio(torch.tensor(mel)[None], torch.ones(1, mel.shape[0], dtype=torch.bool)).last_hidden_state
            got["soft"] = aembed(got["out"])
        for h in hooks:
            h.remove()
        stages["sound.mel"] = torch.tensor(mel)
        for stage, t in got.items():
            stages[f"sound.{stage}"] = t.reshape(t.shape[0], -1) if stage == "conv1" else t.reshape(-1, t.shape[-1])
    g = begin("Edge", vision_meta(c, 32), {"projector_type": "gemma4a", "projection_dim": 32, "embedding_length": 32, "feed_forward_length": 128, "block_count": 2,
                                           "attention.head_count": 2, "num_mel_bins": 128, "attention.layer_norm_epsilon": 1e-5})
    tower_tensors(g, model, embed)
    sub = audio.subsample_conv_projection
    for i, layer in enumerate((sub.layer0, sub.layer1)):
        g.tensor(f"a.conv1d.{i}.weight", layer.conv.weight)
        g.tensor(f"a.conv1d.{i}.norm.weight", layer.norm.weight, False)
    g.tensor("a.input_projection.weight", sub.input_proj_linear.weight)
    for n, layer in enumerate(audio.layers):
        b, attn, conv = f"a.blk.{n}.", layer.self_attn, layer.lconv1d
        for end, ffn in (("", layer.feed_forward1), ("_1", layer.feed_forward2)):
            g.tensor(f"{b}ffn_norm{end}.weight", ffn.pre_layer_norm.weight, False)
            g.tensor(f"{b}ffn_post_norm{end}.weight", ffn.post_layer_norm.weight, False)
            clips(g, f"{b}ffn_up{end}", ffn.ffw_layer_1)
            clips(g, f"{b}ffn_down{end}", ffn.ffw_layer_2)
        for name, norm in [("attn_pre_norm", layer.norm_pre_attn), ("attn_post_norm", layer.norm_post_attn), ("ln2", layer.norm_out),
                           ("conv_norm", conv.pre_layer_norm), ("norm_conv", conv.conv_norm)]:
            g.tensor(f"{b}{name}.weight", norm.weight, False)
        for name, linear in [("attn_q", attn.q_proj), ("attn_k", attn.k_proj), ("attn_v", attn.v_proj), ("attn_out", attn.post),
                             ("conv_pw1", conv.linear_start), ("conv_pw2", conv.linear_end)]:
            clips(g, b + name, linear)
        g.tensor(f"{b}attn_k_rel.weight", attn.relative_k_proj.weight)
        g.tensor(f"{b}per_dim_scale.weight", torch.nn.functional.softplus(attn.per_dim_scale), False)
        g.tensor(f"{b}conv_dw.weight", conv.depthwise_conv1d.weight.reshape(32, 5), False)
    g.tensor("a.pre_encode.out.weight", audio.output_proj.weight)
    g.tensor("a.pre_encode.out.bias", audio.output_proj.bias, False)
    g.tensor("mm.a.input_projection.weight", aembed.embedding_projection.weight)
    g.write(folder / "mmproj-BF16.gguf")
    save(folder, stages)


def unified_case():
    folder = OUT / "unified"
    folder.mkdir(parents=True, exist_ok=True)
    v = uconf.Gemma4UnifiedVisionConfig(mm_embed_dim=8, output_proj_dims=8, mm_posemb_size=8)
    text = uconf.Gemma4UnifiedTextConfig(hidden_size=32)
    model = randomise(unified.Gemma4UnifiedVisionEmbedder(v, text))
    stages = {}
    for name, (patches, positions) in pictures().items():
        width = positions[:, 0].max() + 1
        cells = patches.reshape(-1, 3, width // 3, 3, 16, 16, 3).transpose(0, 2, 1, 4, 3, 5, 6).reshape(-1, 6912)
        at = np.array([(x, y) for y in range(len(positions) // width // 3) for x in range(width // 3)])
        got = {}
        hooks = [m.register_forward_hook(lambda m, i, o, n=n: got.update({n: o}))
                 for n, m in (("dense", model.patch_dense), ("ln2", model.patch_ln2), ("pos", model.pos_norm))]
        with torch.no_grad():
            got["soft"] = model(torch.tensor(cells)[None].float() / 255, torch.tensor(at)[None]).pooler_output
        for h in hooks:
            h.remove()
        for stage, t in got.items():
            stages[f"{name}.{stage}"] = t.reshape(-1, t.shape[-1])
    audio = randomise(unified.Gemma4UnifiedMultimodalEmbedder(uconf.Gemma4UnifiedAudioConfig(output_proj_dims=640), text))
    frames = torch.randn(3, 640) * torch.tensor([[0.1], [1e-3], [0.5]])
    stages["sound.frames"] = frames
    with torch.no_grad():
        stages["sound.soft"] = audio(frames)
    g = begin("Unified", {"projector_type": "gemma4uv", "projection_dim": 32, "image_size": 224, "patch_size": 16, "embedding_length": 8, "feed_forward_length": 0,
                          "block_count": 0, "attention.head_count": 0, "attention.layer_norm_epsilon": 1e-6},
              {"projector_type": "gemma4ua", "projection_dim": 32, "embedding_length": 640, "feed_forward_length": 0, "block_count": 0, "attention.head_count": 0,
               "num_mel_bins": 128})

    def planes(t):  # columns (row, col, channel) -> (channel, row, col)
        return t.reshape(*t.shape[:-1], 48, 48, 3).permute(*range(t.ndim - 1), t.ndim + 1, t.ndim - 1, t.ndim).reshape(t.shape)

    g.tensor("v.patch_embd.weight", planes(model.patch_dense.weight))
    g.tensor("v.patch_embd.bias", model.patch_dense.bias, False)
    g.tensor("v.patch_norm.1.weight", planes(model.patch_ln1.weight))
    g.tensor("v.patch_norm.1.bias", planes(model.patch_ln1.bias))
    for i, norm in ((2, model.patch_ln2), (3, model.pos_norm)):
        g.tensor(f"v.patch_norm.{i}.weight", norm.weight, False)
        g.tensor(f"v.patch_norm.{i}.bias", norm.bias, False)
    g.tensor("v.position_embd.weight", model.pos_embedding.permute(1, 0, 2))
    g.tensor("mm.input_projection.weight", model.multimodal_embedder.embedding_projection.weight)
    g.tensor("mm.a.input_projection.weight", audio.embedding_projection.weight)
    g.write(folder / "mmproj-BF16.gguf")
    save(folder, stages)


if __name__ == "__main__":
    large()
    edge()
    unified_case()
    grid = load_file(GRID)
    save_file({"patches": grid["patches"]}, OUT / "grid.safetensors")
