"""The closed world of facet-nano's tower: pictures of shapes and digits, and short conversations about them.

A picture has one to five shapes of one kind and one colour, or one digit, on a light ground. Of every kind one colour and a
quarter of the places on a 4 x 4 grid are held out: ``sample(..., held=True)`` draws those alone, and training never sees them.
Drawing is vectorised over a batch and runs where its tensors are.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from corpus import PREFILL, an

SHAPES = ["circle", "square", "triangle", "diamond", "star", "cross", "ring", "heart"]
MANY = ["circles", "squares", "triangles", "diamonds", "stars", "crosses", "rings", "hearts"]
COLORS = ["red", "green", "blue", "yellow", "orange", "purple", "pink", "black"]
TONES = [[(255, 0, 0), (220, 30, 30), (180, 20, 40)], [(0, 255, 0), (0, 128, 0), (40, 170, 70)], [(0, 0, 255), (30, 80, 220), (40, 120, 230)],
         [(255, 255, 0), (245, 215, 30), (230, 210, 60)], [(255, 165, 0), (250, 140, 20), (240, 120, 20)],
         [(128, 0, 128), (130, 40, 170), (150, 70, 200)], [(255, 182, 193), (250, 130, 190), (255, 105, 180)], [(0, 0, 0), (20, 20, 25), (50, 50, 50)]]
KINDS, GRID, MOST = len(SHAPES) + 10, 4, 5

# 5 x 7 pixels of each digit, a row a character: bits from the left. Two hands.
FONTS = ["EHJLPHE 4C4444E EH1248V EH161HE 26AIV22 VGU11HE 68GUHHE V124888 EHHEHHE EHHF12C",
         "VHHHHHV 1111111 V11VGGV V11V11V HHHV111 VGGV11V VGGVHHV V111111 VHHVHHV VHHV11V"]


def font() -> Tensor:
    """[fonts, 10, 7, 5]"""
    bits = [[[int(c, 32) >> (4 - x) & 1 for x in range(5)] for c in d] for f in FONTS for d in f.split()]
    return torch.tensor(bits, dtype=torch.float32).view(len(FONTS), 10, 7, 5).contiguous()


def held_color(kind: Tensor) -> Tensor:
    """The one colour that a kind is never trained in."""
    return torch.where(kind < 8, (5 * kind + 2) % 8, (3 * kind + 1) % 8)


def held_cells(kind: Tensor) -> Tensor:
    """[.., 16] places where a kind is never trained: one in every row and column of the grid."""
    cell = torch.arange(GRID * GRID, device=kind.device)
    return (cell // GRID + 3 * (cell % GRID) + kind[..., None]) % GRID == 0


@dataclass
class Pictures:
    kind: Tensor      # [B] 0..7 shapes, 8..17 digits
    color: Tensor     # [B]
    count: Tensor     # [B]
    place: Tensor     # [B, 5, 2] centres, in parts of the width and the height
    radius: Tensor    # [B, 5] in parts of the shorter side
    angle: Tensor     # [B]


def sample(B: int, gen: torch.Generator, held: bool = False, ratio: float = 1.0) -> Pictures:
    """Contents of B pictures of a width of `ratio` heights."""
    dev = gen.device

    def u(*shape) -> Tensor:
        return torch.rand(*shape, generator=gen, device=dev)

    def n(k: int, *shape) -> Tensor:
        return torch.randint(k, shape, generator=gen, device=dev)

    kind = torch.where(u(B) < 0.3, 8 + n(10, B), n(8, B))
    color = held_color(kind) if held else (held_color(kind) + 1 + n(7, B)) % 8
    count = torch.where((u(B) < 0.35) | (kind >= 8), 1, 1 + n(MOST, B))
    score = u(B, GRID * GRID) + 2 * (held_cells(kind) == held)
    cell = score.topk(MOST, 1).indices
    at = torch.stack((cell % GRID, cell // GRID), -1).float()
    one = (count == 1)[:, None]
    side = torch.tensor([max(1.0, ratio), max(1.0, 1 / ratio)], device=dev)         # of the picture, in shorter sides
    loose = (at + u(B, MOST, 2)) / GRID
    loose = torch.minimum(torch.maximum(loose, 0.09 / side), 1 - 0.09 / side)
    edge = (torch.minimum(loose, 1 - loose) * side).amin(-1)                         # room of a single shape
    alone = 0.08 + u(B, MOST) * (edge.clamp(max=0.45) - 0.08).clamp(min=0)
    small = (0.2 + 0.24 * u(B, 1)) * (0.85 + 0.15 * u(B, MOST)) / GRID
    free = 0.5 - small[..., None] * GRID / side - 0.02
    tight = (at + 0.5 + (2 * u(B, MOST, 2) - 1) * free.clamp(min=0)) / GRID
    angle = (u(B) - 0.5) * torch.where(kind < 8, 0.3, 0.2) * (u(B) < 0.5)
    return Pictures(kind, color, count, torch.where(one[..., None], loose, tight), torch.where(one, alone, small), angle)


def inside(kind: int, x: Tensor, y: Tensor) -> Tensor:
    """How far a point is outside of a shape of radius 1, y downwards; negative inside."""
    ax, ay = x.abs(), y.abs()
    if kind == 0:
        return torch.hypot(x, y) - 1
    if kind == 1:
        return torch.maximum(ax, ay) - 0.86
    if kind == 2:
        return torch.maximum(y - 0.7, 0.87 * ax - 0.49 * (y + 1))
    if kind == 3:
        return (1.4 * ax + ay - 1) / 1.72
    if kind == 4:
        fifth = 2 * math.pi / 5
        a = torch.remainder(torch.atan2(x, -y) + fifth / 2, fifth) - fifth / 2
        r = torch.hypot(x, y)
        return 0.35 * (r * a.cos() - 1) + 0.936 * r * a.sin().abs()
    if kind == 5:
        return torch.maximum(torch.minimum(ax, ay) - 0.28, torch.maximum(ax, ay) - 0.95)
    if kind == 6:
        return (torch.hypot(x, y) - 0.76).abs() - 0.22
    lobe = torch.hypot(ax - 0.45, y + 0.35) - 0.5
    point = torch.maximum(0.76 * ax + 0.65 * y - 0.62, -0.03 - y)
    return torch.minimum(torch.minimum(lobe, point), torch.maximum(ax - 0.4, torch.maximum(-0.2 - y, y - 0.1)))


def strokes(glyph: Tensor, x: Tensor, y: Tensor, smooth: Tensor) -> Tensor:
    """The same of digits; glyph [M, 7, 5], smooth [M, 1, 1] 0 or 1: rounded strokes."""
    gx, gy = (x / 0.71 + 1) * 2.5, (y + 1) * 3.5
    padded = torch.nn.functional.pad(glyph, (1, 1, 1, 1)).flatten(1)

    def at(ix: Tensor, iy: Tensor) -> Tensor:
        i = (iy.clamp(-1, 7) + 1) * 7 + ix.clamp(-1, 5) + 1
        return padded.gather(1, i.flatten(1).long()).view(i.shape)

    hard = at(gx.floor(), gy.floor())
    fx, fy = gx - 0.5, gy - 0.5
    ix, iy = fx.floor(), fy.floor()
    tx, ty = fx - ix, fy - iy
    soft = (at(ix, iy) * (1 - tx) + at(ix + 1, iy) * tx) * (1 - ty) + (at(ix, iy + 1) * (1 - tx) + at(ix + 1, iy + 1) * tx) * ty
    return torch.where(smooth > 0.5, 0.45 - soft, 0.5 - hard) * 0.3


def draw(p: Pictures, W: int, H: int, gen: torch.Generator, plain: bool = False) -> Tensor:
    """[B, 3, H, W] whole values 0..255. plain: even white ground, sharp, no noise."""
    dev, B, S = gen.device, len(p.kind), min(W, H)

    def u(*shape) -> Tensor:
        return torch.rand(*shape, generator=gen, device=dev)

    fonts = font().to(dev)
    hand, smooth = (u(B) * len(FONTS)).long(), (u(B) < 0.4).float()
    # Edges as of a picture that was drawn smaller and enlarged: coarse steps, then soft.
    step = torch.where(u(B) < 0.6, 1.0, 2.0 ** (1 + 2.0 * u(B))).round() * (S / 384)
    soft = (torch.where(u(B) < 0.5, 1.0, 1 + 5 * u(B)) * (S / 384)).clamp(min=1)
    if plain:
        step, soft = torch.ones_like(step), torch.ones_like(soft)
    ys, xs = (torch.arange(k, device=dev).float() + 0.5 for k in (H, W))
    cover = torch.zeros(B, H, W, device=dev)
    for j in range(MOST):
        for kind in range(9):
            i = ((p.count > j) & (p.kind.clamp(max=8) == kind)).nonzero()[:, 0]
            if not len(i):
                continue
            g, r = step[i, None], (p.radius[i, j] * S)[:, None, None]
            x = (xs / g).floor() * g + g / 2 - p.place[i, j, 0, None] * W
            y = (ys / g).floor() * g + g / 2 - p.place[i, j, 1, None] * H
            c, s = p.angle[i].cos()[:, None, None], p.angle[i].sin()[:, None, None]
            a, b = (c * x[:, None] + s * y[..., None]) / r, (c * y[..., None] - s * x[:, None]) / r
            d = inside(kind, a, b) if kind < 8 else strokes(fonts[hand[i], p.kind[i] - 8], a, b, smooth[i, None, None])
            cover[i] = torch.maximum(cover[i], (0.5 - d * r / soft[i, None, None]).clamp(0, 1))
    w = u(B, 3) ** 2 + 1e-3
    tones = torch.tensor(TONES, dtype=torch.float32, device=dev)[p.color]
    ink = ((tones * (w / w.sum(1, keepdim=True))[..., None]).sum(1) + 20 * (u(B, 3) - 0.5)).clamp(0, 255)
    tint = 255 - 45 * u(B, 1) * (0.5 + 0.5 * u(B, 3))
    ground = torch.where(u(B, 1) < 0.5, torch.full_like(tint, 255), tint)
    if plain:
        ink, ground = tones[:, 1], torch.full_like(ground, 255)
    img = ground[..., None, None] + (ink - ground)[..., None, None] * cover[:, None]
    if not plain:
        img += torch.randn(img.shape, generator=gen, device=dev) * (4 * u(B, 1, 1, 1) * (u(B, 1, 1, 1) < 0.4))
    return img.round().clamp(0, 255)


# ---- what is said

def exchanges(kind: int, color: int, count: int) -> list[tuple[list[str], str]]:
    """(ways to ask, answer) of a picture."""
    c = COLORS[color]
    they, are = ("it", "is") if count == 1 else ("they", "are")
    out = [(["What is in the picture?", "What do you see?", "Describe the picture.", "What is this?"], ""),
           ([f"What color {are} {they}?", f"What colour {are} {they}?", "What is the color?", "Which color do you see?"], f"The color is {c}.")]
    if kind >= 8:
        d = kind - 8
        out[0] = (out[0][0], an(f"There is a {c} {d}."))
        out.append((["Which digit is it?", "What is the digit?", "Which digit do you see?", "Which number is it?"], f"The digit is {d}."))
        return out
    one, many = SHAPES[kind], MANY[kind]
    out[0] = (out[0][0], an(f"There is a {c} {one}.") if count == 1 else f"There are {count} {c} {many}.")
    out.append(([f"What shape {are} {they}?", "What is the shape?", "Which shape do you see?"], f"The shape is a {one}."))
    out.append((["How many shapes are there?", f"How many {many} are there?", "How many do you see?"],
                f"There is 1 {one}." if count == 1 else f"There are {count} {many}."))
    return out


def turn(question: str) -> str:
    return f"<|turn>user\n{question}<turn|>\n<|turn>model\n"


def conversation(tok, rng, turns: list[tuple[str, str]], before: bool = True) -> tuple[list[int], list[int], int]:
    """Ids without the picture's soft tokens, places of what the model says, and the place of the soft tokens. before: the picture
    stands before the first question, else behind it."""
    ids, said, hole = tok("<bos>"), [], 0
    for i, (q, a) in enumerate(turns):
        if i == 0:
            x = tok(turn("<|image><image|>" + q if before else q + "<|image><image|>"))
            hole = len(ids) + x.index(tok.id["<image|>"])
            ids += x
        else:
            ids += tok(turn(q))
        if i == len(turns) - 1 or rng.random() < 0.5:   # a server keeps what was computed, a client sends answers alone
            ids += tok(PREFILL)
        x = tok(a + "<turn|>")
        said += range(len(ids), len(ids) + len(x))
        ids += x + (tok("\n") if i < len(turns) - 1 else [])
    return ids, said, hole
