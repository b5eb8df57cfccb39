#!/usr/bin/env python3
"""Every source file of the program is parsed once (-fsyntax-only) by a compiler newer than the one that builds it here, so that what a
newer one refuses is known before a user meets it. JSON_USE_IMPLICIT_CONVERSIONS=0 finds where a Json is taken for a string in silence,
which compilers resolve differently.

  tools/check_syntax.py clang-19                 a compiler of this system
  tools/check_syntax.py --root DIR g++           a compiler in another root folder, with that root's headers (as root: chroot)

The large headers of libraries that a source includes anyway are parsed once and come first (precompiled); nothing else does. So of what a
source forgets to include, only that is overlooked which one of its own large headers brings.
--build DIR: the configured build whose flags are used (build/release). --files F...: only these.
--not-in DIR: not what this build, of the same compiler, has compiled. --plain: nothing precompiled. Exit 1 if a file is refused."""
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
LARGE = ("fmt/format.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "boost/asio/io_context.hpp", "boost/beast/http.hpp")
INCLUDE = re.compile(r'^#include (?:<([^>]+)>|"([^"]+)")', re.M)


def flags_of(command):
    """What decides how a file is read: macros, folders, language, instruction sets."""
    words, kept = shlex.split(command), []
    for i, w in enumerate(words):
        if re.match(r"-(D|I|std=|m(?!prefer)|fopenmp)", w):
            kept.append(w)
        elif w in ("-isystem", "-include"):
            kept += [w, words[i + 1]]
    return kept


def large_headers(file, known):
    """Those of LARGE that `file` includes, or that a header of the program does for it. known: what was found before."""
    if file not in known:
        known[file] = set()  # a header that includes itself ends here
        for library, own in INCLUDE.findall(file.read_text()):
            if library in LARGE:
                known[file].add(library)
            elif re.search(r"-inl\.h$|/src\.hpp$", library):
                known[file].add(None)  # compiled as a part of this library: everything is parsed as it stands
            elif own and (HERE / "src" / own).is_file():
                known[file] |= large_headers(HERE / "src" / own, known)
    return known[file]


def precompile(jobs, folder, run):
    """A header for each set of large headers that four sources or more share, precompiled by run(header, flags). Gives the words that
    put it before a source: {source: words}."""
    sets, known = {}, {}
    for file, flags in jobs:
        large = large_headers(pathlib.Path(file), known)
        if large and None not in large and not any(f.startswith("-m") for f in flags):
            sets.setdefault((tuple(h for h in LARGE if h in large), "-fopenmp" in flags), []).append((file, flags))
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for (headers, openmp), sharing in sets.items():
        if len(sharing) < 4:
            continue
        header = folder / f"large_{'_'.join(str(LARGE.index(h)) for h in headers)}{'_openmp' * openmp}.h"
        header.write_text("".join(f"#include <{h}>\n" for h in headers))
        made[header] = (sharing[0][1], [file for file, _ in sharing])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda item: run(item[0], item[1][0]), made.items()))
    return {file: ["-include", str(header)] for header, (_, files) in made.items() for file in files}


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
    args.add_argument("--not-in", metavar="DIR")
    args.add_argument("--plain", action="store_true")
    args.add_argument("-j", type=int, default=os.cpu_count())
    a = args.parse_args()
    start = time.monotonic()
    build = pathlib.Path(a.build).resolve()
    commands = {c["file"]: flags_of(c["command"]) for c in json.loads((build / "compile_commands.json").read_text())}
    wanted = {str(pathlib.Path(f).resolve()) for f in a.files}
    jobs = [(f, flags) for f, flags in sorted(commands.items())
            if f.startswith(f"{HERE}/src/") and f.endswith(".cpp") and (not wanted or f in wanted)]
    if a.not_in:
        compiled = pathlib.Path(a.not_in).resolve()
        commands = compiled / "compile_commands.json"
        of = json.loads(commands.read_text()) if commands.is_file() else []
        done = {c["file"] for c in of if (compiled / re.search(r" -o (\S+)", c["command"])[1]).is_file()}
        jobs = [j for j in jobs if j[0] not in done]
    if not jobs and not a.not_in:
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

    def words_of(flags):
        return prefix + [move(f) for f in flags if not re.search(r"SPDLOG_FMT|FMT_HEADER", f)] + extra

    def make(header, flags):
        name, given = move(str(header)), words_of(flags)
        given.remove("-fsyntax-only")
        suffix = "pch" if "clang" in a.compiler else "gch"
        subprocess.run(given + ["-x", "c++-header", name, "-o", f"{name}.{suffix}"], check=True)

    folder = pathlib.Path(a.root + INSIDE if a.root != "/" else build, "large_headers")
    if a.root != "/":
        move_sources = move
        move = lambda s: s[len(a.root):] if s.startswith(a.root + "/") else move_sources(s)
    shutil.rmtree(folder, ignore_errors=True)
    first = {} if a.plain else precompile(jobs, folder, make)

    def check(job):
        file, flags = job
        done = subprocess.run(words_of(flags) + [move(w) for w in first.get(file, [])] + [move(file)], capture_output=True, text=True)
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
