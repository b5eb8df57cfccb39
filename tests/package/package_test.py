#!/usr/bin/env python3
"""The program as it is installed and packaged: package_test.py BUILD_FOLDER"""
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import elf  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
FILES = ["bin/facet", "share/bash-completion/completions/facet",
         "share/zsh/vendor-completions/_facet", "share/fish/vendor_completions.d/facet.fish", "share/doc/facet/copyright", "share/man/man1/facet.1",
         "share/facet/models/facet-nano-Q8_0.gguf", "share/facet/models/facet-nano-dflash-Q8_0.gguf",
         "share/facet/models/facet-nano-eval.jsonl", "share/facet/models/facet-nano.md",
         *[f"share/doc/facet/licenses/{n}.txt" for n in ("libjpeg-turbo", "libpng", "zlib", "libwebp", "libFLAC", "libogg", "markdown-it", "highlight.js", "KaTeX")]]


def run(*args, **kw):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **kw)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.tmp.name) / "usr"
        done = run("cmake", "--install", BUILD, "--prefix", cls.root)
        assert done.returncode == 0, done.stderr
        cls.program = cls.root / "bin/facet"

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def commands(self, *path):
        """Names of subcommands, as --help lists them: in groups, as options are."""
        names, group = [], ""
        for line in run(self.program, *path, "--help").stdout.splitlines():
            if re.match(r"\S.*:$", line):
                group = line
            elif (m := re.match(r"  ([a-z][\w-]*)( |$)", line)) and group not in ("Examples:", "Positionals:"):
                names.append(m[1])
        return names

    def helps(self):
        """(command path, {option: names}) of the program and every command below it."""
        todo = [()]
        while todo:
            path = todo.pop()
            out = run(self.program, *path, "--help").stdout
            names = [m[1].split(",") for m in re.finditer(r"^  (-[^ ]+)", out, re.M)]
            yield path, names
            todo += [path + (c,) for c in self.commands(*path)]

    def test_files(self):
        for name in FILES:
            self.assertTrue((self.root / name).is_file(), name)

    def test_one_program_does_it_all(self):
        self.assertLessEqual({"chat", "run", "serve", "daemon", "bench", "quantize", "convert", "inspect", "plan", "doctor"}, set(self.commands()))

    def test_finds_its_own_model(self):
        r = run(self.program, "run", "-p", "What is 17 + 25?", "--temp", "0", "-c", "512", cwd="/", env={"PATH": "/bin"})
        self.assertEqual((r.returncode, r.stdout), (0, "17 + 25 = 42\n"), r.stderr)
        self.assertIn(f"drafter: {self.root}/share/facet/models/facet-nano", r.stderr)

    def test_needs_nothing_but_glibc(self):
        libraries, versions = elf.needs(self.program)
        if any("asan" in x for x in libraries):
            self.skipTest("built with sanitizers")
        if (BUILD / "CMakeCache.txt").read_text().find("FACET_CUDA:BOOL=ON") >= 0:
            self.skipTest("built for a GPU")
        self.assertEqual([x for x in libraries if x not in elf.LIBRARIES], [])
        here = tuple(map(int, platform.libc_ver()[1].split(".")[:2]))
        if here > elf.NEWEST_GLIBC:
            self.skipTest(f"packages are built with glibc 2.36 or older, this is {here[0]}.{here[1]}")
        self.assertEqual(elf.newer_than(versions, elf.NEWEST_GLIBC), [])

    def test_elf_reader_bites(self):
        _, versions = elf.needs(self.program)
        self.assertIn("libc.so.6", elf.needs(self.program)[0])
        self.assertTrue(elf.newer_than(versions, (2, 2)))
        self.assertEqual(elf.newer_than({"libc.so.6": {"GLIBC_2.4", "GLIBC_2.38", "GLIBC_PRIVATE"}}, (2, 36)), ["GLIBC_2.38"])

    def test_manual_has_every_option(self):
        page = (self.root / "share/man/man1/facet.1").read_text()
        sections = {m[1].replace("\\-", "-"): m[2] for m in re.finditer(r"^\.SS facet (.*)\n((?:(?!\.SS |\.SH ).*\n)*)", page, re.M)}
        seen = 0
        for path, options in self.helps():
            text = sections.pop(" ".join(path)) if path else page
            for names in options:
                self.assertIn("\\fB" + ", ".join(names).replace("-", "\\-") + "\\fR", text, path)
                seen += 1
        self.assertEqual(sections, {}, "commands that --help does not have")
        self.assertGreater(seen, 100)

    def test_manual_is_well_formed(self):
        if run("sh", "-c", "command -v groff").returncode != 0:
            self.skipTest("no groff")
        r = run("groff", "-man", "-ww", "-z", "-Tutf8", self.root / "share/man/man1/facet.1")
        self.assertEqual((r.returncode, r.stderr), (0, ""))

    def complete(self, *words):
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _facet; printf "%s\\n" "${COMPREPLY[@]}"'
        r = run("bash", "-c", script, "x", self.root / "share/bash-completion/completions/facet",
         "share/zsh/vendor-completions/_facet", "share/fish/vendor_completions.d/facet.fish", "facet", *words)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return r.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("ch"), ["chat"])
        self.assertEqual(sorted(x for x in self.complete("") if x[0] != "-"), sorted(self.commands()))
        self.assertEqual(self.complete("bench", "sp"), ["spec"])
        self.assertEqual(self.complete("run", "--backend", "c"), ["cuda", "cpu"])
        self.assertEqual(self.complete("run", "-m", "x"), [])  # bash's own files
        for path, options in self.helps():
            offered = set(self.complete(*path, "-"))
            self.assertEqual(offered, {n for names in options for n in names if n[0] == "-"}, path)

    def test_completion_of_fish(self):
        if run("sh", "-c", "command -v fish").returncode != 0:
            self.skipTest("no fish")
        def complete(line):
            r = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]',
                    self.root / "share/fish/vendor_completions.d/facet.fish", line, env={**os.environ, "HOME": self.tmp.name})
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            return [x.split("\t")[0] for x in r.stdout.splitlines()]
        self.assertEqual(complete("facet ch"), ["chat"])
        self.assertEqual(sorted(complete("facet ")), sorted(self.commands()))
        self.assertEqual(complete("facet bench sp"), ["spec"])
        self.assertEqual(complete("facet run --backend c"), ["cpu", "cuda"])
        for path, options in self.helps():
            offered = complete(" ".join(("facet",) + path) + " --")
            self.assertEqual(set(offered), {n for names in options for n in names if n[:2] == "--"}, path)

    def test_completion_of_zsh(self):
        """In a terminal: what Tab makes of a line."""
        if run("sh", "-c", "command -v zsh").returncode != 0:
            self.skipTest("no zsh")
        folder = self.root / "share/zsh/vendor-completions"
        script = ("import os, pty, sys, time, select\n"
                  "pid, fd = pty.fork()\n"
                  "if pid == 0: os.execvp('zsh', ['zsh', '-f'])\n"
                  "def read(until, most=20):\n"
                  "    out, end = b'', time.time() + most\n"
                  "    while time.time() < end and until not in out:\n"
                  "        if select.select([fd], [], [], .2)[0]:\n"
                  "            try: out += os.read(fd, 65536)\n"
                  "            except OSError: break\n"
                  "    return out.decode(errors='replace')\n"
                  f"os.write(fd, b\"PS1='> '; stty -echo; fpath=({folder} $fpath); autoload -U compinit && compinit -D -u; \"\n"
                  "         b\"zstyle ':completion:*' verbose no; facet() { printf 'R:%s:E\\\\n' \\\"$*\\\" }; print REA''DY\\n\")\n"
                  "read(b'READY')\n"
                  "for line in sys.argv[1:]:\n"
                  "    os.write(fd, line.encode() + b'\\t'); time.sleep(1); os.write(fd, b'\\n')\n"
                  "    out = read(b':E')\n"
                  "    print(out[out.rfind('R:') + 2:out.rfind(':E')].strip())\n")
        r = run(sys.executable, "-c", script, "facet cha", "facet bench sp", "facet run --ctx", "facet run --backend cud", env={**os.environ, "HOME": self.tmp.name, "TERM": "dumb"})
        self.assertEqual(r.stdout.splitlines(), ["chat", "bench spec", "run --ctx-size", "run --backend cuda"], r.stderr)

    def test_packages(self):
        out = pathlib.Path(self.tmp.name) / "package"
        r = run("cpack", "-G", "DEB;TZST", "-B", out, cwd=BUILD)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        (deb,), (archive,) = out.glob("facet_*.deb"), out.glob("facet-*.tar.zst")
        if run("sh", "-c", "command -v dpkg-deb").returncode == 0:
            listing = run("dpkg-deb", "-c", deb).stdout
            for name in FILES:
                self.assertIn(f" ./usr/{name}\n", listing)
            self.assertEqual(run("dpkg-deb", "-f", deb, "Depends").stdout, "libc6 (>= 2.36)\n")
            recommends = run("dpkg-deb", "-f", deb, "Recommends").stdout
            self.assertTrue("libcurl4" in recommends and "ca-certificates" in recommends, recommends)
        listing = run("cmake", "-E", "tar", "tf", archive).stdout.splitlines()
        for name in FILES:
            self.assertIn(archive.name.removesuffix(".tar.zst") + "/" + name, listing)


if __name__ == "__main__":
    unittest.main(verbosity=1)
