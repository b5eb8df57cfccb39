#!/usr/bin/env python3
"""What consumer cards must spend at least in the main loops of their kernels, clocks of an SM and bytes, and the tokens a second that this allows at most.

    cmake --preset cuda    (a configured build folder has the instances that are compiled)
    for f in matmul/{skinny,wide,prompt}_byte attention/{decode_shared,prefill_shared,decode,prefill}_q8_0; do
      nvcc -cubin -arch=sm_86 -O3 -DNDEBUG -std=c++20 --expt-relaxed-constexpr --expt-extended-lambda -Isrc -o k.cubin build/cuda/generated/kernels/$f.cu &&
      nvdisasm -c k.cubin > ${f##*/}.sass; done
    tools/consumer_cards.py *.sass

A main loop is the shortest range of a branch back that has just the tensor instructions that the source has for a tile; their products are checked against the
tile's. Of the ways through its body the cheapest counts on which all of them run, with the copies (LDGSTS) and the stores of expanded rows that the source has:
no masks, no changes of strips, inner loops once. Latency, bank conflicts, norms and launches are not in it, so clocks are a lower bound.

Four sub-cores issue an instruction a clock. By the CUDA guide's table of throughput and NVIDIA's forum (thread 302018) integers and logic take two clocks of ALU,
IMAD two of FMAheavy, f16x2 two of both FMA pipes, f32 one, MUFU eight; I2FP, whose pipe is not known, counts as an instruction alone. Shared memory: 128 bytes a
clock, 16 bytes a lane are four clocks. GA102 and AD102 have the same SM by these data; the cards differ in clock rate, SMs and memory."""
import collections
import re
import sys

TILE = {"Q4_K": 16 * 144, "Q6_K": 16 * 210, "Q5_0": 64 * 44, "Q8_0": 64 * 68}  # layout.h: bytes of 16 x 256 weights
# SMs, GHz, GB/s, TFLOP/s (f16, f32 sums), TOPS (int8): dense, NVIDIA's whitepapers of GA102 and Ada.
CARDS = {"RTX 3090": (82, 1.695, 936, 71, 284), "RTX 4090": (128, 2.52, 1008, 165.2, 660.6)}
U8, S8, S8_16, BF16, F16 = "IMMA.16832.U8.S8", "IMMA.16832.S8.S8", "IMMA.16816.S8.S8", "HMMA.16816.F32.BF16", "HMMA.16816.F32"
# Kernel: key (kind, rows, tile), unit (weights x rows; query rows x keys); symbol; tensor instructions of a loop without those of minima (BF16); which of how many
# such loops, by how much logic unpacks codes (Q4_K before Q5_K, Q8_0 before Q4_0, Q5_0); turns of the loop in it; a warp's copies, stores; a unit's warps, products, bytes.
Kernel = collections.namedtuple("Kernel", "key unit symbol mma which of turns copies stores warps products bytes")
SKINNY, PROMPT = "skinny_kernelILi%dELNS0_5InputE0ELb0", "prompt_kernelILNS0_4TileE%dELb0"
DECODE, PREFILL = "attend_decode_kernelILNS_6KvTypeE1ELS2_1ELi%dELi1ELi1ELNS0_4AlsoE2ELb%dELb0", "attend_prefill_mma_kernelILNS_6KvTypeE1ELS2_1ELi%dELb%d"


def few(rows, tile, mma, which, of, cols, size):  # skinny.cuh, stream.cuh: a warp, a tile of 16 rows; fewer than 8 columns of the product cost as 8
    return Kernel(("few", rows, tile), f"16 x {cols}", SKINNY % rows, mma, which, of, 1, -(-size // 512), 0, 1, 16 * cols * max(rows, 8), size)


KERNELS = []
for n, m in ((1, 1), (8, 1), (16, 2)):
    KERNELS += [few(n, tile, mma, which, of, cols, TILE[tile] * cols // 256) for tile, mma, which, of, cols in (
        ("Q4_K", {U8: 8 * m}, 0, 2, 256), ("Q6_K", {S8_16: 16 * m}, 0, 1, 256), ("Q8_0", {S8: 2 * m}, 0, 3, 64), ("Q5_0", {S8: 2 * m}, 2, 3, 64))]
for tile, mma, of in (("Q4_K", {U8: 64}, 2), ("Q6_K", {S8_16: 128}, 1)):  # wide.cuh: a warp, two tiles, 32 rows; copies of its strips and of the image
    KERNELS.append(Kernel(("batches", 32, tile), "32 x 256 x 32", "wide_kernelILb0ELi32", mma, 0, of, 1, 2 * -(-TILE[tile] // 512) + 2, 0, 1, 8192 * 32, 2 * TILE[tile]))
for tile, number, mma in (("Q4_K", 0, {U8: 32}), ("Q6_K", 2, {S8_16: 64}), ("Q8_0", 5, {S8: 32}), ("Q5_0", 4, {S8: 32})):
    # prompt.cuh: a warp, two strips of 256 columns, four turns of the loop over groups of 64, 64 rows; kPromptBeside blocks share weights
    KERNELS.append(Kernel(("prompts", 64, tile), "32 x 256 x 64", PROMPT % number, mma, 0, 1, 4, 4, 0, 1, 8192 * 64, TILE[tile] // 8))
for e, shared, row, warps, copies, stores in ((512, 1, 688, 8, 7, 12), (256, 0, 2 * 272, 4, 12, 8)):
    # decode.cuh: 32 keys, 8 query rows; prefill_mma.cuh: kRows query rows, 32 keys, expanded by DeviceKvPiece; bytes: device_kv_layout.cuh
    kind, rows = "full" if shared else "sliding", 32768 // e
    KERNELS += [Kernel(("decode", 8, kind), "8 x 32", DECODE % (e, shared), {F16: 16}, 0, 1, 1, copies, 0, warps, 2 * 8 * 32 * e, 32 * row),
                Kernel(("prefill", rows, kind), "64/128 x 32", PREFILL % (e, shared), {F16: 128}, 0, 1, 1, 6, stores, 8, 2 * rows * 32 * e, 0)]

INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)")
ALU = r"(LOP3|IADD3|SHF|LEA|PRMT|SEL|ISETP|IMNMX|FSETP|FMNMX|FSEL|PLOP3|MOV|IABS|F2FP)\b"


def functions(path):
    name, code, labels = "", [], {}
    for line in open(path, encoding="utf-8"):
        if m := re.match(r"\.text\.(\S+):", line):
            yield name, code, labels
            name, code, labels = m[1], [], {}
        elif m := re.match(r"(\.L_x_\d+):", line):
            labels[m[1]] = len(code)
        elif m := INSTRUCTION.match(line):
            code.append((m[1], m[2], re.findall(r"\.L_x_\d+", line)))
    yield name, code, labels


def products(op):  # of a tensor instruction; 0: it is none
    return 16 * 8 * int(op.split(".")[1][3:]) if re.match("[IH]MMA", op) else 0


def main_loop(k, code, labels):  # range of a tile's loop, and of the one in it that turns more than once
    same = collections.defaultdict(list)  # ranges by tensor instructions: the shortest is the loop, longer ones come from code that was moved behind it
    for i, (_, op, to) in enumerate(code):
        if op.startswith("BRA") and to and labels[to[0]] <= i:
            found = tuple(j for j in range(labels[to[0]], i + 1) if products(code[j][1]) and code[j][1] != BF16)
            if collections.Counter(code[j][1] for j in found) == k.mma:
                same[found].append((labels[to[0]], i + 1))
    if len(same) != k.of:
        sys.exit(f"{k.key}: expected {k.of} loops with {k.mma}, found {len(same)}")
    loops = [sorted(ranges, key=lambda r: r[1] - r[0]) for ranges in same.values()]
    loops.sort(key=lambda ranges: sum(op.startswith(("LOP3", "SHF")) for _, op, _ in code[slice(*ranges[0])]))
    return loops[k.which][1::-1] if k.turns > 1 else (loops[k.which][0], (0, 0))


def cheapest(k, code, labels, loop, inner):  # how often each instruction runs on the cheapest way through a loop's body
    turns = lambda i: k.turns if inner[0] <= i < inner[1] else 1
    ways, done = {loop[0]: {(0, 0, 0): (0, None)}}, {}  # [instruction][tensor instructions, copies, stores so far]: cost, where from
    for i in range(*loop):
        predicate, op, to = code[i]
        for state, (cost, _) in ways.get(i, {}).items():
            key = (state[0] + bool(products(op)), state[1] + op.startswith("LDGSTS"), state[2] + (op == "STS.128"))
            if key[1] > k.copies or key[2] > k.stores:
                continue
            after = [] if op.startswith(("BRX", "EXIT", "RET")) or op.startswith("BRA") and not predicate and i < labels[to[0]] else [i + 1]
            if op.startswith(("BRA", "BRX", "CALL")):  # a call to a label is how loops are left
                after += [labels[t] for t in to if i < labels[t]]
            if loop[0] in (labels[t] for t in to):
                done[key] = min(done.get(key, (1 << 30,)), (cost + turns(i), i, state))
            for j in after:
                if j < loop[1] and cost + turns(i) < ways.setdefault(j, {}).get(key, (1 << 30,))[0]:
                    ways[j][key] = (cost + turns(i), (i, state))
    key = max(done)
    at, counts = done[key][1:], collections.Counter({"LDGSTS": k.copies - key[1]})
    while at:
        counts[code[at[0]][1]] += turns(at[0])
        at = ways[at[0]][at[1]][1]
    return counts


def per_clock(card):  # multiply-adds of a tensor core, f16 and int8; bytes of memory for an SM
    sms, ghz, rate, *tensor = CARDS[card]
    return *(round(x * 1000 / 2 / (sms * 4 * ghz)) for x in tensor), rate / sms / ghz


def clocks(counts):  # of a warp: of a sub-core's tensor core and issue, of the SM's shared memory
    of = lambda pattern: sum(n for op, n in counts.items() if re.match(pattern, op))
    mma = sum(n * products(op) / per_clock("RTX 4090")[op[0] == "I"] for op, n in counts.items())
    imad, half = of("IMAD|IDP"), of("HADD|HMUL|HFMA")
    issue = max(sum(counts.values()), 2 * of(ALU), 2 * (imad + half), imad + of("FFMA|FMUL|FADD") + 2 * half, 8 * of("MUFU"))
    return mma, issue, sum(n * (4 if re.search(r"\.128|88\.4", op) else 2 if ".64" in op else 1) for op, n in counts.items() if re.match("LDS|STS|LDGSTS", op))


def measure(paths):
    found = {}  # [key]: clocks of an SM for a unit, of tensor cores, issue and shared memory
    for k, name, code, labels in ((k, *f) for path in paths for f in functions(path) for k in KERNELS if k.symbol in f[0]):
        counts = cheapest(k, code, labels, *main_loop(k, code, labels))
        if (made := k.warps * sum(n * products(op) for op, n in counts.items() if op != BF16)) != k.products:
            sys.exit(f"{name}: {made} products, the source has {k.products}")
        mma, issue, shared = clocks(counts)
        found[k.key] = (mma * k.warps / 4, issue * k.warps / 4, shared * k.warps)
    missing = [k.key for k in KERNELS if k.key not in found]
    return sys.exit(f"no kernel for {missing}") if missing else found


def matrices(layers, width, heads, kv_swa, kv_full, ffn, n_expert=0, used=0, expert_ffn=0):
    """(part, tile, weights) of Q4_K_M: synth.cpp has the shapes, mixture.cpp the types."""
    more = lambda i, n: i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
    tile = lambda many, cols: ("Q8_0" if many else "Q5_0") if cols % 256 else "Q6_K" if many else "Q4_K"
    sliding = [i for i in range(layers) if (i + 1) % 6]
    for i in range(layers):
        full = (i + 1) % 6 == 0
        q, kv = (512 * heads, 512 * kv_full) if full else (256 * heads, 256 * kv_swa)
        yield from (("dense", "Q4_K", width * (2 * q + kv + 2 * ffn)), ("dense", tile(more(i, layers), ffn), width * ffn))
        if not full:
            yield "dense", tile(more(sliding.index(i), len(sliding)), width), width * kv
        if n_expert:
            yield from (("expert", "Q4_K", 2 * width * expert_ffn), ("expert", tile(more(i, layers), expert_ffn), width * expert_ffn))
    yield "head", "Q6_K", width * 262144


MODELS = {"31B": (60, 5376, 32, 16, 4, 21504), "26B-A4B": (30, 2816, 16, 8, 2, 2112, 128, 8, 704)}


def seconds(model, got, card, rows):
    """Of a step of so many rows on an empty cache, or of a prompt of that many (over 16): products and a prompt's attention. Experts are chosen evenly."""
    sms, ghz, rate, *_ = CARDS[card]
    layers, _, heads, *_, n_expert, used, _ = (*MODELS[model], 0, 0, 0)[:9]

    def busy(key, weights):
        k = next(k for k in KERNELS if k.key == key)
        return weights * max(key[1], 8) / k.products * max(max(got[key]) / sms / ghz, k.bytes / rate) / 1e9

    total = 0
    for part, tile, weights in matrices(*MODELS[model]):
        if part == "expert" and rows > 16:  # large_batch.cu, grouped_gemm.cu: codes to bf16 panels, then mma.sync; here at the card's rate
            total += (n_expert * weights * (TILE[tile] / 4096 + 2) / rate + rows * used * weights / (per_clock(card)[0] * 4 * sms * ghz)) / 1e9
        elif part == "expert":  # small_batch.cu: eight rows a pass
            total += busy(("few", 1 if rows == 1 else 8, tile), weights * n_expert * (1 - (1 - used / n_expert) ** rows))
        else:
            total += busy(("prompts", 64, tile), weights * rows / 64) if rows > 16 and part == "dense" else busy(("few", rows if rows <= 16 else 1, tile), weights)
    full, window = layers // 6, min(rows, 1024)
    if rows > 16:
        pairs = {("prefill", 64, "full"): full * rows * rows / 2, ("prefill", 128, "sliding"): (layers - full) * (rows * window - window * window / 2)}
        total += sum(heads * n / (key[1] * 32) * max(got[key]) / sms / ghz / 1e9 for key, n in pairs.items())
    return total


def main(paths):
    got, rows = measure(paths), collections.defaultdict(list)
    for k in (k for k in KERNELS if k.key[2] not in ("Q8_0", "Q5_0") and k.key[:2] != ("few", 8)):
        rows[k.key[:2] if k.key[0] == "few" else k.key[0]].append(k)
    print("| kernel: tiles, layers | unit | tensor | issue | shared | memory, 3090 | 4090 | limit |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for ks in rows.values():
        cells, limits = [], []
        for k in ks:
            cells.append([f"{n:,.0f}" for n in (*got[k.key], *(k.bytes / per_clock(card)[2] for card in CARDS))])
            of = dict(zip(("tensor", "issue", "shared", "memory"), (*got[k.key], k.bytes / per_clock("RTX 3090")[2])))
            limit, rate = max(of, key=of.get), k.products / 4 / per_clock("RTX 4090")[k.key[0] == "prompts"]
            limits.append("memory" if limit == "memory" else f"{limit} {100 * rate / of[limit]:.0f}")
        name = f"few rows, {ks[0].key[1]}" if ks[0].key[0] == "few" else ks[0].key[0]
        columns = [f"{name}: " + ", ".join(k.key[2] for k in ks), ", ".join(dict.fromkeys(k.unit for k in ks)), *map("/".join, zip(*cells))]
        print("|", " | ".join(columns), "|", ", ".join(dict.fromkeys(limits)) + " %" * (limits[0] != "memory"), "|")
    print("\n| tokens a second, at most | one row | 16 rows | prompt of 4,096 |\n| --- | ---: | ---: | ---: |")
    for model, card in ((m, c) for m in MODELS for c in CARDS):
        print(f"| {model}, {card} | " + " | ".join(f"{n / seconds(model, got, card, n):,.0f}" for n in (1, 16, 4096)) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
