#!/usr/bin/env python3
"""Every source file of the program is parsed once (-fsyntax-only) by a compiler newer than the one that builds it here, so that what a
newer one refuses is known before a user meets it. JSON_USE_IMPLICIT_CONVERSIONS=0 finds where a Json is taken for a string in silence,
which compilers resolve differently.

  tools/check_syntax.py clang-19                 a compiler of this system
  tools/check_syntax.py --root DIR g++           a compiler in another root folder, with that root's headers (as root: chroot)

--build DIR: the configured build whose flags are used (build/release). --files F...: only these. Exit 1 if a file is refused."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[1]
INSIDE = "/facet"  # where the sources are in another root


def flags_of(command):
    """What decides how a file is read: macros, folders, language, instruction sets."""
    words, kept = shlex.split(command), []
    for i, w in enumerate(words):
        if re.match(r"-(D|I|std=|m(?!prefer)|fopenmp)", w):
            kept.append(w)
        elif w in ("-isystem", "-include"):
            kept += [w, words[i + 1]]
    return kept


def fmt_macros(root):
    """As CMakeLists.txt decides: fmt 9 is compiled into the program, of another one the headers are used."""
    for header in ("base.h", "core.h"):
        path = pathlib.Path(root, "usr/include/fmt", header)
        m = path.is_file() and re.search(r"#define FMT_VERSION (\d+)", path.read_text())
        if m:
            nine = 90000 <= int(m[1]) < 100000
            return ["-DSPDLOG_FMT_EXTERNAL"] if nine else ["-DFMT_HEADER_ONLY", "-DSPDLOG_FMT_EXTERNAL_HO"]
    sys.exit(f"check_syntax: no fmt headers in {root} (libfmt-dev)")


def openmp_folder(compiler):
    """clang without its own omp.h (libomp-dev of one version can be installed) reads that of another version of clang."""
    found = sorted(pathlib.Path("/usr/lib").glob("llvm-*/lib/clang/*/include/omp.h"))
    if "clang" not in compiler or not found:
        return []
    folder = HERE / "build/omp"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "omp.h"
    link.unlink(missing_ok=True)
    link.symlink_to(found[-1])
    return ["-isystem", str(folder)]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("compiler")
    args.add_argument("--root", default="/")
    args.add_argument("--build", default=str(HERE / "build/release"))
    args.add_argument("--files", nargs="*", default=[])
    args.add_argument("-j", type=int, default=os.cpu_count())
    a = args.parse_args()
    start = time.monotonic()
    build = pathlib.Path(a.build).resolve()
    commands = {c["file"]: flags_of(c["command"]) for c in json.loads((build / "compile_commands.json").read_text())}
    wanted = {str(pathlib.Path(f).resolve()) for f in a.files}
    jobs = [(f, flags) for f, flags in sorted(commands.items())
            if f.startswith(f"{HERE}/src/") and f.endswith(".cpp") and (not wanted or f in wanted)]
    if not jobs:
        sys.exit(f"check_syntax: no source of the program in {build}/compile_commands.json (configure first)")
    extra = ["-fsyntax-only", "-w", "-DJSON_USE_IMPLICIT_CONVERSIONS=0", *fmt_macros(a.root), *openmp_folder(a.compiler)]
    prefix, move = [a.compiler], lambda s: s
    if a.root != "/":
        inside = pathlib.Path(a.root + INSIDE)
        shutil.rmtree(inside, ignore_errors=True)
        for folder in ("src", "include"):
            shutil.copytree(HERE / folder, inside / folder)
        shutil.copytree(build / "generated", inside / "generated")
        prefix = ["chroot", a.root, a.compiler]
        move = lambda s: s.replace(str(build / "generated"), INSIDE + "/generated").replace(str(HERE), INSIDE)

    def check(job):
        file, flags = job
        flags = [f for f in flags if not re.search(r"SPDLOG_FMT|FMT_HEADER", f)]
        done = subprocess.run(prefix + [move(f) for f in flags] + extra + [move(file)], capture_output=True, text=True)
        return file, done.returncode, done.stderr

    refused = 0
    with concurrent.futures.ThreadPoolExecutor(a.j) as pool:
        for file, status, said in pool.map(check, jobs):
            if status:
                refused += 1
                print(f"{a.compiler} refuses {os.path.relpath(file, HERE)}:")
                print("\n".join([l for l in said.splitlines() if "error:" in l][:5] or said.splitlines()[-5:]))
    print(f"{len(jobs)} files, {refused} refused by {a.compiler} ({time.monotonic() - start:.0f} s)")
    return refused > 0


if __name__ == "__main__":
    sys.exit(main())
