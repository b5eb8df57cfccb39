#!/usr/bin/env python3
"""Writes blocks.safetensors and books.safetensors into tests/data/formats: random blocks of every type with the values that
gguf-py's numpy code gives for them, and rows with the blocks that gguf-py encodes. Needs: pip install gguf numpy. Seeded."""
import json
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

N = 1024  # elements per type
# Byte offsets of the f16 fields of a block, so that random bytes never make an infinite scale.
F16_FIELDS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
# Types of a file of their own, so that adding one changes no other's bytes. IQ1_M has its f16 in the top nibbles of four
# words; MXFP4's and NVFP4's scales are bytes, all of which occur but MXFP4's that are no weight's (beyond 2^63).
BOOKS = {"IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
         "MXFP4": [], "NVFP4": []}
ENCODED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def blocks(name, rng):
    block, size = GGML_QUANT_SIZES[T[name]]
    b = rng.integers(0, 256, (N // block, size), dtype=np.uint8)
    for i, at in enumerate((F16_FIELDS | BOOKS)[name]):
        d = rng.normal(0, 0.05, N // block).astype(np.float16)
        d[i % len(d)] = np.float16(3e-7)  # a subnormal scale
        b[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":
        d = rng.normal(0, 0.05, len(b)).astype(np.float16)
        d[0] = np.float16(3e-7)
        for k in range(4):
            nibble = (d.view(np.uint16) >> (4 * k) & 15).astype(np.uint8)
            b[:, 49 + 2 * k] = b[:, 49 + 2 * k] & 15 | nibble << 4
    if name == "MXFP4":
        b[:, 0] = np.linspace(0, 191, len(b)).astype(np.uint8)
        b[1, 0] = 1
    if name == "NVFP4":  # every byte, in four of N / 64 blocks' scales each
        b = np.concatenate([b] * 4)
        b[:, :4] = np.arange(4 * len(b)).astype(np.uint8).reshape(-1, 4)
    return b


def rows(rng):
    """Gaussian blocks, and the awkward ones: zeros, a constant, a lone spike, ties of +-amax, tiny and huge values."""
    x = rng.normal(0, 1, (64, 32)).astype(np.float32)
    x[0] = 0
    x[1] = 0.75
    x[2] = 0
    x[2, 7] = -3
    x[3, 4], x[3, 9] = 5, -5
    x[4, 4], x[4, 9] = -5, 5
    x[5] *= np.float32(1e-6)
    x[6] *= np.float32(1e4)
    x[7] = np.arange(32) - 16
    return x.reshape(1, -1)


def decoded(names, rng):
    tensors = {}
    for name in names:
        b = blocks(name, rng)
        tensors[f"{name}.blocks"] = b.view(np.int8).reshape(-1)
        tensors[f"{name}.values"] = quants.dequantize(b, T[name]).reshape(-1).astype(np.float32)
    return tensors


def write(out, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        dtype = {np.dtype(np.int8): "I8", np.dtype(np.float32): "F32"}[t.dtype]
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.tobytes())


def main(folder):
    rng = np.random.default_rng(20)
    tensors = decoded(F16_FIELDS, rng)
    x = rows(rng)
    tensors["encode.input"] = x.reshape(-1)
    for name in ENCODED:
        with np.errstate(all="ignore"):
            e = quants.quantize(x, T[name])
        tensors[f"encode.{name}"] = e.view(np.int8).reshape(-1)
    write(f"{folder}/blocks.safetensors", tensors)
    write(f"{folder}/books.safetensors", decoded(BOOKS, np.random.default_rng(21)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/formats")
