#!/usr/bin/env python3
"""Bytes of machine code of every CUDA kernel, and whether a change left them as they were.

    tools/kernel_sizes.py build/cuda > before.tsv      from the objects of a build (needs cuobjdump of the CUDA toolkit)
    tools/kernel_sizes.py a.cubin b.cubin              from `nvcc -cubin -arch=sm_90a ...`
    tools/kernel_sizes.py --compare before.tsv after   tables, build folders or folders of cubins; exit 1 where a kernel's size differs by more than 0.5 %, or
                                                       a kernel has no partner

Lines are: bytes, architecture, file, mangled name. Kernels are partners by their name; else by their readable name with the renames of tools/check_words.py; else
by size, among those of the same architecture and file, in the order of the file. What was found by size is printed, so that one can look."""
import argparse
import collections
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import check_words

LIMIT = 0.005
Kernel = collections.namedtuple("Kernel", "bytes arch file name")


def sections(data):
    """(name, bytes) of an ELF file's sections."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("expected a 64-bit ELF file (a cubin)")
    at, = struct.unpack_from("<Q", data, 0x28)
    size, n, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, at + i * size) for i in range(n)]
    strings = heads[names][4]
    for name, _, _, _, _, length in heads:
        begin = strings + name
        yield data[begin:data.index(b"\0", begin)].decode(), length


def arch_of(data):
    """The architecture of a cubin, from the flags of its header: the byte moved with CUDA 13."""
    flags, = struct.unpack_from("<I", data, 0x30)
    return f"sm_{flags >> 8 & 0xFF if flags & 0xFF in (0, 2, 3, 4, 5, 6, 7) else flags & 0xFF}"


def of_cubin(data, file):
    return [Kernel(size, arch_of(data), file, name[len(".text."):]) for name, size in sections(data) if name.startswith(".text.")]


def of_object(path, file, tool):
    with tempfile.TemporaryDirectory() as d:
        done = subprocess.run([tool, "-xelf", "all", str(path.resolve())], cwd=d, capture_output=True, text=True, check=False)
        cubins = sorted(pathlib.Path(d).glob("*.cubin"))
        if not cubins and "does not contain device code" not in done.stdout + done.stderr:
            sys.exit(f"{path}: {tool} -xelf all found no cubin (exit code {done.returncode}): {(done.stderr or done.stdout).strip()}")
        return [k for c in cubins for k in of_cubin(c.read_bytes(), file)]


def source_name(name):
    """src_x_moe_decode.cu.o and moe/decode.cu.cubin: the source's last name."""
    return re.sub(r"(\.cu)?\.(o|cubin)$", ".cu", pathlib.PurePath(name).name)


def measured(path):
    """Kernels of a table, a cubin, or a folder of cubins or objects."""
    path = pathlib.Path(path)
    if path.suffix == ".tsv":
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        return [Kernel(int(r[0]), *r[1:]) for r in rows]
    if path.is_file():
        return of_cubin(path.read_bytes(), source_name(path.name))
    cubins = sorted(path.rglob("*.cubin"))
    if cubins:
        return [k for c in cubins for k in of_cubin(c.read_bytes(), source_name(c.name))]
    tool = shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")
    objects = sorted(path.rglob("*.cu.o"))
    if not objects or not tool:
        lacks = "found no *.cubin and no *.cu.o" if not objects else "found *.cu.o and no cuobjdump; install it (Debian: cuda-cuobjdump-13-0), or compile with nvcc -cubin"
        sys.exit(f"{path}: {lacks}")
    return [k for o in objects for k in of_object(o, source_name(o.name), tool)]


def readable(names):
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if not tool or not names:
        return {n: n for n in names}
    out = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")
    return dict(zip(names, out))


def renamed(name):
    """A readable name in the words of today; parameters' types come with it."""
    for pattern, _, new, _, _ in check_words.ROWS:
        if re.fullmatch(r"\w+", new):
            name = pattern.sub(new, name)
    return name


def pairs(before, after):
    """Pairs of kernels and how they were found; those left over."""
    before, after, found = list(before), list(after), []

    def match(how, key_before, key_after):
        left = collections.defaultdict(list)
        for k in after:
            left[key_after(k)].append(k)
        for k in list(before):
            if left[key_before(k)]:
                other = left[key_before(k)].pop(0)
                before.remove(k), after.remove(other)
                found.append((k, other, how))

    match("name", lambda k: (k.arch, k.name), lambda k: (k.arch, k.name))
    plain = readable([k.name for k in before + after])
    match("renamed", lambda k: (k.arch, renamed(plain[k.name])), lambda k: (k.arch, renamed(plain[k.name])))
    match("size", lambda k: (k.arch, k.file, k.bytes), lambda k: (k.arch, k.file, k.bytes))
    match("size", lambda k: (k.arch, k.bytes), lambda k: (k.arch, k.bytes))
    return found, before, after


def compare(before, after, out):
    found, gone, new = pairs(before, after)
    worse = [(a, b) for a, b, _ in found if abs(b.bytes - a.bytes) > LIMIT * a.bytes]
    for a, b, how in found:
        if how == "size":
            print(f"by size\t{a.bytes}\t{a.name}\t{b.name}", file=out)
    for a, b in worse:
        print(f"size\t{a.bytes} -> {b.bytes} ({100 * (b.bytes - a.bytes) / a.bytes:+.2f} %)\t{b.file}\t{b.name}", file=out)
    for k in gone:
        print(f"gone\t{k.bytes}\t{k.file}\t{k.name}", file=out)
    for k in new:
        print(f"new\t{k.bytes}\t{k.file}\t{k.name}", file=out)
    how = collections.Counter(h for _, _, h in found)
    print(f"kernels: {len(found)} pairs ({how['name']} by name, {how['renamed']} renamed, {how['size']} by size), {len(worse)} of another size, "
          f"{len(gone)} gone, {len(new)} new; {sum(k.bytes for k in before)} -> {sum(k.bytes for k in after)} bytes", file=out)
    return 1 if worse or gone or new else 0


def bites(out):
    """That a kernel that grew by more than the limit is seen, one that has gone too, and that a rename is none of these."""
    old, new = check_words.GONE[0][:2]
    a = [Kernel(10000, "sm_90", "a.cu", "f"), Kernel(2000, "sm_90", "a.cu", old), Kernel(3000, "sm_90", "a.cu", "g")]
    assert compare(a, [a[0], a[1]._replace(name=new), a[2]._replace(name="h")], out) == 0
    assert pairs(a, [a[0], a[1]._replace(name=new, bytes=2016), a[2]])[0][-1][2] == "renamed"
    assert compare(a, [a[0]._replace(bytes=10050), *a[1:]], out) == 0 and compare(a, [a[0]._replace(bytes=10051), *a[1:]], out) == 1
    assert compare(a, a[1:], out) == 1 and compare(a[1:], a, out) == 1
    head = struct.pack("<5s", b"\x7fELF\x02").ljust(0x28, b"\0") + struct.pack("<QIHHHHHH", 64, 0x5A05, 64, 0, 0, 64, 2, 1)
    table = struct.pack("<IIQQQQ", 1, 1, 0, 0, 0, 384).ljust(64, b"\0") + struct.pack("<IIQQQQ", 0, 3, 0, 0, 192, 16).ljust(64, b"\0")
    assert of_cubin(head + table + b"\0.text.f\0", "a.cu") == [Kernel(384, "sm_90", "a.cu", "f")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("paths", nargs="*", help="a build folder, folders of cubins, or cubins")
    p.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    o = p.parse_args()
    with open("/dev/null", "w") as nowhere:
        bites(nowhere)
    if o.compare:
        return compare(*map(measured, o.compare), sys.stdout)
    for path in o.paths:
        for k in measured(path):
            print(*k, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
