"""Pictures of shapes and digits as PNG files, for tests of answers about them; Python's standard library only."""
import struct
import zlib

INKS = {"red": (220, 30, 30), "green": (40, 170, 70), "blue": (30, 80, 220), "yellow": (245, 215, 30), "orange": (250, 140, 20),
        "purple": (130, 40, 170), "pink": (250, 130, 190), "black": (20, 20, 25)}
# Whether a point is inside of a shape of radius 1, y downwards.
SHAPES = {"circle": lambda x, y: x * x + y * y <= 1,
          "square": lambda x, y: max(abs(x), abs(y)) <= .86,
          "triangle": lambda x, y: y <= .7 and .87 * abs(x) <= .49 * (y + 1),
          "diamond": lambda x, y: 1.4 * abs(x) + abs(y) <= 1,
          "cross": lambda x, y: min(abs(x), abs(y)) <= .28 and max(abs(x), abs(y)) <= .95,
          "ring": lambda x, y: .54 ** 2 <= x * x + y * y <= .98 ** 2}
DIGITS = [".###.#...##..###.#.###..##...#.###.", "..#...##....#....#....#....#...###.", ".###.#...#....#...#...#...#...#####",
          ".###.#...#....#..##.....##...#.###.", "...#...##..#.#.#..#.#####...#....#.", "######....####.....#....##...#.###.",
          "..##..#...#....####.#...##...#.###.", "#####....#...#...#...#....#....#...", ".###.#...##...#.###.#...##...#.###.",
          ".###.#...##...#.####....#...#..##.."]


def inside(what, x, y):
    if what in SHAPES:
        return SHAPES[what](x, y)
    column, row = int((x / .71 + 1) * 2.5 // 1), int((y + 1) * 3.5 // 1)
    return 0 <= column < 5 and 0 <= row < 7 and DIGITS[int(what)][row * 5 + column] == "#"


def picture(size, things):
    """A white picture of size x size pixels as a PNG. things: (a shape or a digit, a colour, x, y, radius), in parts of the side."""
    pixels = bytearray(b"\xff") * (3 * size * size)
    for what, color, cx, cy, radius in things:
        cx, cy, r = cx * size, cy * size, radius * size
        for y in range(max(0, int(cy - r)), min(size, int(cy + r) + 1)):
            for x in range(max(0, int(cx - r)), min(size, int(cx + r) + 1)):
                if inside(what, (x + .5 - cx) / r, (y + .5 - cy) / r):
                    pixels[3 * (y * size + x):3 * (y * size + x) + 3] = bytes(INKS[color])
    lines = b"".join(b"\0" + pixels[3 * size * y:3 * size * (y + 1)] for y in range(size))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))
