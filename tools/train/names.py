"""Names of the model's parameters in other formats."""
from __future__ import annotations


def gguf_name(name: str) -> str:
    """GGUF tensor name of a parameter of model.Model."""
    p = name.split(".")
    if p[0] != "blk":
        return name + ".weight"
    if p[2].endswith("_scale") and p[2] != "layer_output_scale":
        return f"blk.{p[1]}.{p[2][:-6]}.scale"
    return ".".join(p) + ".weight"


HF = {"attn_norm": "input_layernorm.weight", "post_attention_norm": "post_attention_layernorm.weight",
      "ffn_norm": "pre_feedforward_layernorm.weight", "post_ffw_norm": "post_feedforward_layernorm.weight",
      "attn_q": "self_attn.q_proj.weight", "attn_k": "self_attn.k_proj.weight", "attn_v": "self_attn.v_proj.weight",
      "attn_output": "self_attn.o_proj.weight", "attn_q_norm": "self_attn.q_norm.weight", "attn_k_norm": "self_attn.k_norm.weight",
      "ffn_gate": "mlp.gate_proj.weight", "ffn_up": "mlp.up_proj.weight", "ffn_down": "mlp.down_proj.weight",
      "layer_output_scale": "layer_scalar", "ffn_gate_inp": "router.proj.weight", "ffn_gate_inp_scale": "router.scale",
      "ffn_gate_up_exps": "experts.gate_up_proj", "ffn_down_exps": "experts.down_proj", "ffn_down_exps_scale": "router.per_expert_scale",
      "pre_ffw_norm_2": "pre_feedforward_layernorm_2.weight", "post_ffw_norm_1": "post_feedforward_layernorm_1.weight",
      "post_ffw_norm_2": "post_feedforward_layernorm_2.weight"}


def hf_name(name: str) -> str:
    """Name inside transformers' Gemma4ForCausalLM."""
    p = name.split(".")
    if p[0] != "blk":
        return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name]
    return f"model.layers.{p[1]}.{HF[p[2]]}"
