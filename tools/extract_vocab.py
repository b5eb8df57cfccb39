#!/usr/bin/env python3
"""Writes the vocabulary of a GGUF file as compact JSON: {"tokens": [...], "types": [...], "merges": [...]}.

    pip install gguf
    tools/extract_vocab.py model.gguf > vocab.json
"""
import json
import sys

from gguf import GGUFReader


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    fields = GGUFReader(sys.argv[1]).fields
    vocab = {
        "tokens": fields["tokenizer.ggml.tokens"].contents(),
        "types": [int(t) for t in fields["tokenizer.ggml.token_type"].contents()],
        "merges": fields["tokenizer.ggml.merges"].contents(),
    }
    json.dump(vocab, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
