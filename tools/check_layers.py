#!/usr/bin/env python3
"""Reports every #include that goes up or sideways between the folders of src/ (see docs/architecture.md), every file that
is opened past base/files.h, and every file that the header of a kernel names after Test, Bench or Reference and that
does not exist, and every header outside backend/cuda that reaches one of CUDA's."""
import pathlib
import re
import sys

# A folder may include itself and what is listed.
BELOW = {
    "base": [],
    "media": ["base"],
    "formats": ["base"],
    "tokenizer": ["formats", "base"],
    "grammar": ["tokenizer", "formats", "base"],
    "backend": ["formats", "base"],
    "model": ["backend", "formats", "media", "base"],
    "cache": ["model", "backend", "formats", "media", "base"],
    "spec": ["cache", "model", "backend", "formats", "media", "base"],
    "api": ["backend", "formats", "media", "base"],
    "session": ["api", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
    "engine": ["session", "api", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
    "compose": ["engine", "session", "api", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
    "tools": ["compose", "engine", "session", "api", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
    "server": ["api", "grammar", "tokenizer", "formats", "media", "base"],
    "capi": ["hub", "api", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
    "hub": ["tokenizer", "formats", "base"],
    "router": ["server", "api", "grammar", "tokenizer", "formats", "media", "base"],
    "daemon": ["api", "model", "backend", "tokenizer", "formats", "media", "base"],
    "app": ["router", "hub", "server", "daemon", "tools", "compose", "engine", "session", "api", "spec", "cache", "model", "backend", "grammar", "tokenizer", "formats", "media", "base"],
}
# Rooms of backend/cuda, from the lowest up: one may include those before it. A room is a folder of kernels/, or a file and
# its header.
CUDA_ROOMS = ["cublas_lt", "tensor_map", "device", "kernels/common", "kernels/kv_move", "kernels/route", "kernels/matmul", "kernels/probe",
              "kernels/attention", "kernels/moe", "kernels/embed_row", "kernels/ops", "kernels/norms", "kernels/encoder", "kernels/collectives", "kernels/sample", "kernels/draw",
              "loader", "cpu_ffn", "weight_stream", "gemm", "activations", "graphs", "host_table", "step_arrays", "sampler", "cuda", "weights", "cuda_memory",
              "cuda_products", "cuda_encoder", "peers", "cuda_link", "p2p_copy"]
CUDA_MAY = {("device", "kernels/probe")}  # what a card can do is found by running
# Headers that no CUDA source may reach, in whatever way.
FORBIDDEN_IN_CU = re.compile(r"boost/|nlohmann/|CLI/")
# Headers of CUDA, which no header outside backend/cuda may reach, but those that say so by their name (cuda_*): the rest
# is compiled where there are none.
OF_CUDA = re.compile(r"cuda(_|\.h$)|cublas|nccl")
# Files that somebody names are opened in base/files.cpp and part_file.cpp alone. Below: what the system says about itself.
OPENS = re.compile(r"\b[io]?fstream\b|\bfopen\(|::open\([^)]*O_|\bmkstemp\(")
MAY_OPEN = {"base/files.cpp", "base/part_file.cpp", "base/reserve.cpp", "base/threads.cpp", "tools/bench.cpp", "base/print.cpp", "app/line_input.cpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
# "// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp    Bench bench/verbs/cuda_moe_bench.cu"
NAMED_FILE = re.compile(r"\b(?:Test|Bench|Reference)\s+((?:src|tests|bench|tools|docs)/[\w./-]+)")


def cuda_room(path):
    parts = pathlib.PurePath(path).with_suffix("").parts[2:]
    return "/".join(parts[:2]) if parts[0] == "kernels" else parts[0]


def cuda_violations(path, src):
    """Includes of a file of backend/cuda that go up or sideways between its rooms."""
    room = cuda_room(path.relative_to(src))
    if room not in CUDA_ROOMS:
        return [f"{path.relative_to(src)}: a room that CUDA_ROOMS does not have"]
    bad = []
    for name in includes(path):
        if not name.startswith("backend/cuda/"):
            continue
        other = cuda_room(name)
        if other != room and (room, other) not in CUDA_MAY and other not in CUDA_ROOMS[:CUDA_ROOMS.index(room)]:
            bad.append(f"{path.relative_to(src)}: {room} must not include {name}")
    return bad


def named_files(path):
    """Paths that the comment at the top of a file names."""
    for line in path.read_text().splitlines():
        if not line.startswith(("//", "#pragma")):
            return
        yield from NAMED_FILE.findall(line)


def includes(path):
    return INCLUDE.findall(path.read_text())


def reached(path, src, seen):
    for name in includes(path):
        yield path, name
        nxt = src / name
        if nxt.exists() and nxt not in seen:
            seen.add(nxt)
            yield from reached(nxt, src, seen)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    src = root / "src"
    bad = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        layer = path.relative_to(src).parts[0]
        for name in includes(path):
            other = name.split("/")[0]
            if other in BELOW and other != layer and other not in BELOW[layer]:
                bad.append(f"{path.relative_to(src)}: {layer} must not include {name}")
        if path.relative_to(src).parts[:2] == ("backend", "cuda"):
            bad += cuda_violations(path, src)
        if OPENS.search(path.read_text()) and str(path.relative_to(src)) not in MAY_OPEN:
            bad.append(f"{path.relative_to(src)}: opens a file; use base/files.h")
        if path.suffix in (".cu", ".cuh"):
            bad += [f"{path.relative_to(src)}: reaches {name} through {at.relative_to(src)}"
                    for at, name in reached(path, src, {path}) if FORBIDDEN_IN_CU.match(name)]
        if path.suffix == ".h" and path.relative_to(src).parts[:2] != ("backend", "cuda") and not path.name.startswith("cuda_"):
            bad += [f"{path.relative_to(src)}: reaches {name} through {at.relative_to(src)}"
                    for at, name in reached(path, src, {path}) if OF_CUDA.match(name)]
        bad += [f"{path.relative_to(src)}: names {name}, which does not exist"
                for name in named_files(path) if not (root / name).exists()]
    for line in bad:
        print(line)
    print(f"layers: {len(bad)} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
