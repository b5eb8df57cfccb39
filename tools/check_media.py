#!/usr/bin/env python3
"""Makes pictures of every kind that facet reads and compares what facet decodes and resizes with Pillow, byte for byte.

    tools/check_media.py PROGRAM [--write FOLDER]     PROGRAM: build/release/facet_media_look

Needs Pillow, numpy and simplejpeg from PyPI. With --write, the files go into FOLDER, and what Pillow says about them into FOLDER/pillow.json: this is how
tests/data/media/kinds was made (Pillow 13.0). Pillow resizes one axis at a time here, horizontal first: left alone it chooses the order."""
import argparse
import hashlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib

import numpy
import PIL
import simplejpeg
from PIL import Image, ImageOps

BUDGET = 70
warnings.simplefilter("ignore")  # of palettes with alpha


def photo(w, h, seed=0, channels=3):
    """Smooth colours, an edge and some noise: every path of a decoder has something to do."""
    r = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:h, 0:w].astype(float)
    planes = [128 + 90 * numpy.sin(x / (5 + 3 * c) + c) * numpy.cos(y / (7 + 2 * c)) + 40 * (x * h > y * w) for c in range(channels)]
    return numpy.clip(numpy.stack(planes, -1) + r.normal(0, 12, (h, w, channels)), 0, 255).astype(numpy.uint8)


def saved(image, **options):
    f = io.BytesIO()
    image.save(f, **options)
    return f.getvalue()


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def packed(rows, depth):
    """[h][n] values to the bytes of PNG rows, each behind filter 0."""
    out = b""
    for row in rows:
        bits = numpy.unpackbits(numpy.asarray(row, numpy.uint16).astype(">u2").view(numpy.uint8).reshape(-1, 2), axis=1)[:, 16 - depth:]
        out += b"\0" + numpy.packbits(bits.reshape(-1)).tobytes()
    return out


def png(values, color_type, depth, interlaced=False, before=b"", behind=b""):
    """[h][w][channels] values as a PNG: what Pillow does not write itself, such as 16-bit colour and Adam7."""
    h, w, _ = values.shape
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if interlaced else [(0, 0, 1, 1)]
    parts = [values[y::dy, x::dx] for x, y, dx, dy in passes]
    data = b"".join(packed(p.reshape(p.shape[0], -1), depth) for p in parts if p.size)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, color_type, 0, 0, interlaced)) + before +
            chunk(b"IDAT", zlib.compress(data, 9)) + behind + chunk(b"IEND", b""))


def bmp(pixels, w, h, bits, compression=0, masks=b"", palette=b""):
    head = struct.pack("<IiiHHIIiiII", 40, w, h, 1, bits, compression, len(pixels), 0, 0, len(palette) // 4, 0) + masks + palette
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


def exif(orientation):
    e = Image.Exif()
    e[0x0112] = orientation
    return e


def jpegs():
    for i, (name, sampling) in enumerate((("444", 0), ("422", 1), ("420", 2))):
        for progressive in (False, True):
            yield f"{'progressive' if progressive else 'baseline'}-{name}.jpg", saved(
                Image.fromarray(photo(61 + i, 47, i)), format="JPEG", quality=85, subsampling=sampling, progressive=progressive)
    for name in ("440", "411"):
        yield f"baseline-{name}.jpg", simplejpeg.encode_jpeg(photo(59, 45, 9), quality=85, colorsubsampling=name)
    grey = Image.fromarray(photo(50, 39, 4)[:, :, 0])
    yield "grey.jpg", saved(grey, format="JPEG")
    yield "grey-progressive.jpg", saved(grey, format="JPEG", progressive=True)
    cmyk = Image.fromarray(photo(45, 33, 5, 4), "CMYK")
    yield "cmyk.jpg", saved(cmyk, format="JPEG", quality=90)
    yield "cmyk-progressive.jpg", saved(cmyk, format="JPEG", progressive=True)
    yield "rgb.jpg", saved(Image.fromarray(photo(40, 40, 6)), format="JPEG", keep_rgb=True)
    yield "restarts.jpg", saved(Image.fromarray(photo(64, 48, 7)), format="JPEG", restart_marker_rows=1, quality=40)
    for o in range(1, 9):
        yield f"orientation-{o}.jpg", saved(Image.fromarray(photo(40, 24, 8)), format="JPEG", exif=exif(o))


def pngs():
    rgb, alpha = photo(43, 31, 10), photo(43, 31, 11, 4)
    deep = numpy.random.default_rng(1).integers(0, 65536, (19, 23, 4))
    colors = chunk(b"PLTE", photo(16, 1, 12).tobytes())
    for depth in (1, 2, 4):
        values = numpy.random.default_rng(depth).integers(0, 1 << depth, (17, 21, 1))
        yield f"grey-{depth}.png", png(values, 0, depth)
        yield f"palette-{depth}.png", png(values, 3, depth, before=chunk(b"PLTE", photo(1 << depth, 1, 13).tobytes()))
    yield "grey-8.png", saved(Image.fromarray(rgb[:, :, 0]), format="PNG")
    yield "palette-8.png", saved(Image.fromarray(rgb).quantize(200), format="PNG")
    indices = numpy.random.default_rng(5).integers(0, 16, (18, 20, 1))
    yield "palette-alpha.png", png(indices, 3, 8, before=colors + chunk(b"tRNS", bytes(range(0, 160, 10))))
    yield "rgb.png", saved(Image.fromarray(rgb), format="PNG")
    yield "rgb-transparent.png", png(rgb.astype(int), 2, 8, before=chunk(b"tRNS", struct.pack(">HHH", *[int(v) for v in rgb[3, 3]])))
    yield "rgba.png", saved(Image.fromarray(alpha), format="PNG")
    yield "grey-alpha.png", png(alpha[:, :, :2].astype(int), 4, 8)
    yield "grey-alpha-16.png", png(deep[:, :, :2], 4, 16)
    yield "rgb-16.png", png(deep[:, :, :3], 2, 16)
    yield "rgba-16.png", png(deep, 6, 16)
    yield "grey-16.png", png(deep[:, :, :1], 0, 16)
    yield "interlaced.png", png(rgb.astype(int), 2, 8, True)
    yield "interlaced-palette.png", png(indices, 3, 4, True, before=colors)
    yield "interlaced-16.png", png(deep, 6, 16, True)
    yield "interlaced-3x2.png", png(rgb[:2, :3].astype(int), 2, 8, True)
    yield "orientation-6.png", png(rgb.astype(int), 2, 8, behind=chunk(b"eXIf", exif(6).tobytes()[6:]))


def webps():
    rgb, alpha = Image.fromarray(photo(53, 37, 20)), Image.fromarray(photo(53, 37, 21, 4))
    yield "lossy.webp", saved(rgb, format="WEBP", quality=80)
    yield "lossless.webp", saved(rgb, format="WEBP", lossless=True)
    yield "lossy-alpha.webp", saved(alpha, format="WEBP", quality=70)
    yield "lossless-alpha.webp", saved(alpha, format="WEBP", lossless=True, exact=True)
    yield "animation.webp", saved(rgb, format="WEBP", save_all=True, append_images=[alpha.convert("RGB")], duration=100)
    yield "orientation-5.webp", saved(rgb, format="WEBP", quality=60, exif=exif(5))


def gifs():
    frames = [Image.fromarray(photo(41, 29, 30 + i)).quantize(64) for i in range(2)]
    yield "plain.gif", saved(frames[0], format="GIF", interlace=0)
    yield "interlaced.gif", saved(frames[0], format="GIF", interlace=1)
    yield "transparent.gif", saved(frames[0], format="GIF", transparency=5)
    yield "animation.gif", saved(frames[0], format="GIF", save_all=True, append_images=frames[1:])
    two = Image.fromarray(numpy.random.default_rng(3).integers(0, 2, (9, 300)).astype(numpy.uint8) * 255).convert("1")
    yield "two.gif", saved(two, format="GIF")
    # A frame that begins at 4, 3 of a larger screen, and one that goes over it.
    small = bytearray(saved(Image.fromarray(photo(12, 9, 33)).quantize(16), format="GIF"))
    at = small.index(b"\x2c", 13 + 3 * 16)
    for name, screen in (("offset.gif", (24, 20)), ("larger.gif", (5, 6))):
        moved = bytearray(small)
        moved[6:10] = struct.pack("<HH", *screen)
        moved[at + 1:at + 5] = struct.pack("<HH", 4, 3)
        yield name, bytes(moved)


def bmps():
    rgb = photo(27, 19, 40)
    yield "rgb.bmp", saved(Image.fromarray(rgb), format="BMP")
    yield "grey.bmp", saved(Image.fromarray(rgb[:, :, 0]), format="BMP")
    yield "palette.bmp", saved(Image.fromarray(rgb).quantize(100), format="BMP")
    yield "one.bmp", saved(Image.fromarray(rgb[:, :, 0]).convert("1"), format="BMP")
    four = numpy.random.default_rng(4).integers(0, 256, (11, 8)).astype(numpy.uint8)
    yield "four.bmp", bmp(four.tobytes(), 15, 11, 4, palette=photo(16, 1, 41, 4).tobytes())
    words = numpy.random.default_rng(6).integers(0, 65536, (10, 14)).astype("<u2")
    yield "555.bmp", bmp(words.tobytes(), 14, 10, 16)
    yield "565.bmp", bmp(words.tobytes(), 14, 10, 16, 3, struct.pack("<III", 0xf800, 0x7e0, 0x1f))
    wide = numpy.random.default_rng(7).integers(0, 256, (10, 14, 4)).astype(numpy.uint8)
    yield "32.bmp", bmp(wide.tobytes(), 14, 10, 32)
    yield "32-masks.bmp", bmp(wide.tobytes(), 14, 10, 32, 3, struct.pack("<III", 0xff000000, 0xff0000, 0xff00))
    yield "top-down.bmp", bmp(wide.tobytes(), 14, -10, 32)


def target(w, h):
    most = 256 * 9 * BUDGET
    f = (most / (h * w)) ** 0.5
    th, tw = int(f * h / 48), int(f * w / 48)
    if th == 0:
        th, tw = 1, min(w // h, BUDGET)
    elif tw == 0:
        tw, th = 1, min(h // w, BUDGET)
    return tw * 48, th * 48


def expected(body):
    """What Pillow decodes, and what its resize makes of it, horizontal first."""
    image = Image.open(io.BytesIO(body))
    if image.mode.startswith("I"):  # grey of 16 bits: Pillow turns it white
        image = Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
    rgb = ImageOps.exif_transpose(image).convert("RGB")
    w, h = target(*rgb.size)
    small = rgb.resize((w, rgb.height), Image.Resampling.BICUBIC).resize((w, h), Image.Resampling.BICUBIC)
    sha = [hashlib.sha256(i.tobytes()).hexdigest() for i in (rgb, small)]
    return [*rgb.size, sha[0], w, h, w // 48 * (h // 48), sha[1]]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("program")
    a.add_argument("--write", type=pathlib.Path)
    o = a.parse_args()
    files = {n: b for kind in (jpegs, pngs, webps, gifs, bmps) for n, b in kind()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.write or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        for name, body in files.items():
            (folder / name).write_bytes(body)
        want = {name: expected(body) for name, body in files.items()}
        if o.write:
            rows = ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in want.items())
            (folder / "pillow.json").write_text("{\n" + rows + "\n}\n")
        run = subprocess.run([o.program, "--budget", str(BUDGET), *[str(folder / n) for n in files]], capture_output=True, text=True, check=True)
    bad = 0
    for (name, w), line in zip(want.items(), run.stdout.splitlines()):
        f = line.split()
        got = [int(f[3]), int(f[4]), f[5], int(f[6]), int(f[7]), int(f[8]), f[9]] if len(f) == 10 and f[1] == "picture" else line
        if got != w:
            bad += 1
            print(f"{name}: Pillow {w}\n{' ' * len(name)}  facet  {got}")
    print(f"media: {len(want)} files, {bad} differ from Pillow {PIL.__version__}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
