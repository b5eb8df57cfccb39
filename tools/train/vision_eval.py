"""Right answers of the program itself about held-out pictures: ``python vision_eval.py FACET TEXT.gguf MMPROJ.gguf [--count 100]``.

Starts ``facet serve`` on the CPU and asks every question of shapes.py about every picture, greedily. A picture is right when every answer about it is,
word for word. ``--tokens 280`` has pictures of 768 x 768 instead of 384 x 384, ``--pixels`` draws them at another size than the tower's.
"""
from __future__ import annotations

import argparse
import base64
import http.client
import json
import re
import struct
import subprocess
import zlib

import torch

import shapes


def png(img: torch.Tensor) -> bytes:
    """A picture [3, H, W] of whole values as a file."""
    a = img.permute(1, 2, 0).to(torch.uint8).contiguous()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes(line.flatten().tolist()) for line in a)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", a.shape[1], a.shape[0], 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def ask(port: int, picture: bytes, question: str) -> str:
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps({"temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]}]}))
    answer = json.loads(c.getresponse().read())
    c.close()
    return answer["choices"][0]["message"]["content"]


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("facet")
    ap.add_argument("text")
    ap.add_argument("mmproj")
    ap.add_argument("--count", type=int, default=100)
    ap.add_argument("--tokens", type=int, default=70, choices=(70, 280))
    ap.add_argument("--pixels", type=int, nargs=2, help="width and height to draw at")
    ap.add_argument("--seed", type=int, default=2026)
    ap.add_argument("--plain", action="store_true", help="white ground, sharp edges, no noise")
    a = ap.parse_args()
    W, H = a.pixels or ((384, 384) if a.tokens == 70 else (768, 768))
    gen = torch.Generator()
    gen.manual_seed(a.seed)
    p = shapes.sample(a.count, gen, held=True, ratio=W / H)
    server = subprocess.Popen([a.facet, "serve", "--port", "0", "-m", a.text, "--mmproj", a.mmproj, "--image-tokens", str(a.tokens), "-c", "2048",
                               "--draft", "none"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(re.search(r":(\d+)$", server.stdout.readline().strip())[1])
        kinds: dict[str, list[int]] = {}
        whole = 0
        for i in range(a.count):
            one = shapes.Pictures(*(v[i:i + 1] for v in vars(p).values()))
            file = png(shapes.draw(one, W, H, gen, a.plain)[0])
            every = True
            for questions, want in shapes.exchanges(int(p.kind[i]), int(p.color[i]), int(p.count[i])):
                got = ask(port, file, questions[0])
                kind = " ".join(questions[0].split()[:2])
                kinds.setdefault(kind, []).append(got == want)
                every = every and got == want
                if got != want:
                    print(f"{i}: {questions[0]} {want!r}, got {got!r}", flush=True)
            whole += every
        for kind, right in kinds.items():
            print(f"{kind:12} {sum(right)}/{len(right)}")
        everything = [r for k in kinds.values() for r in k]
        print(f"answers {sum(everything)}/{len(everything)}, pictures with every answer right {whole}/{a.count}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
