#!/usr/bin/env python3
"""Runs what the documents say: docs_test.py PROGRAM [DOCUMENT ...].

Every command in a fenced block of README.md, CONTRIBUTING.md and docs/*.md has to run, with the shipped models on the CPU, or has to be
marked: "(Example.)" or "(Example: why.)" in the paragraph before the block, after the fence's language or in the
command's own comment. Of marked commands, and of commands within a sentence, the options have to exist. Paths and
links have to lead somewhere, and the chat in README.md has to be what the program says.

Only Python's standard library. Before the documents, the checks have to catch mistakes planted in one.
"""
import functools
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/facet").resolve()
SECONDS = 60  # of one command
SHELL = ("sh", "bash", "shell", "console")
# How a line begins by which a block without a language is known to hold commands.
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ +)*(?:facet|curl|cmake|git|ncu|nvidia-smi|pip|python3?|build/\S+|scripts/\S+|tools/\S+|/usr/\S+) ?")
EXAMPLE = re.compile(r"\(Examples?[.:]")
# Not run here, and why. Everything else that does not run has to be marked.
EXEMPT = (
    (r"git clone\b", "needs a network"),
    (r"scripts/demo\.sh\b", "installs packages and builds; its chat is compared with README.md's below"),
    (r"scripts/test\.sh\b", "builds, and runs this test"),
    (r"scripts/package(_check)?\.sh\b", "builds packages; tests/package looks at them"),
    (r"cmake (--preset|--build|--install)\b", "builds; tests/package installs"),
    (r"(\S+=\S+ )*build/\w+/facet_test_\w+", "ctest runs the test programs"),
)


class Block:
    """A fenced block: where it begins, the words after the fence, its text, the paragraph before it."""

    def __init__(self, line, info, text, before):
        self.line, self.info, self.text = line, info.split(), text
        self.marked = bool(EXAMPLE.search(info) or EXAMPLE.search(before))

    def is_shell(self):
        if self.info:
            return self.info[0] in SHELL
        return any(COMMAND.match(line) for line in self.text.splitlines())

    def commands(self):
        """(line, command): lines are joined while a quote is open or a backslash ends them."""
        at, held = self.line + 1, ""
        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            held, at = (held + "\n" + line, at) if held else (line, number)
            if held.endswith("\\"):
                continue
            try:
                words = shlex.split(held, comments=True)
            except ValueError:  # no closing quote
                continue
            if words:
                yield at, held
            held = ""
        if held.strip():
            yield at, held


def blocks_and_prose(text):
    """The fenced blocks of a document, and (line, text) of every line outside of them."""
    blocks, prose, before, fence = [], [], "", None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"(`{3,})([^`]*)$", line)
        if fence and mark and mark[1] == fence[0]:
            blocks.append(Block(fence[1], fence[2], "\n".join(fence[3]), before))
            fence, before = None, ""
        elif fence:
            fence[3].append(line)
        elif mark:
            fence = (mark[1], number, mark[2].strip(), [])
        else:
            prose.append((number, line))
            # The paragraph that ends last: one empty line may lie between it and the fence.
            before = before + " " + line if line.strip() else before.rstrip() + "\0"
            before = before[before.rfind("\0", 0, -1) + 1:]
    return blocks, prose


class Server:
    """`facet serve` with the options of a command, on a free port."""

    def __init__(self, command, folder):
        words = shlex.split(command, comments=True)
        if "--port" not in words:
            words += ["--port", "0"]
        self.key = None
        if "--api-key-file" in words:
            self.key = (folder / words[words.index("--api-key-file") + 1]).read_text().split()[0]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(PROGRAM), *words[1:]], cwd=folder, stdout=subprocess.PIPE, stderr=self.log, text=True)
        found = re.match(r"listening on http://\S+:(\d+)$", self.process.stdout.readline())
        self.port = int(found[1]) if found else None

    def ask(self):
        """A short answer to Hello."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        c.request("POST", "/v1/chat/completions", json.dumps(
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}), headers)
        r = c.getresponse()
        body = r.read()
        c.close()
        return None if r.status == 200 else f"status {r.status}: {body[:200]!r}"

    def stop(self):
        """The exit code, and what went to stderr."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.log.seek(0)
        log = self.log.read()
        self.log.close()
        return code, log


class Runner:
    """Runs the commands of one document in a folder of its own, which holds what a built repository does."""

    def __init__(self, folder):
        self.folder, self.server, self.n_run, self.skipped = folder, None, 0, []
        (folder / "build/release").mkdir(parents=True)
        (folder / "bench/results").mkdir(parents=True)
        (folder / "build/release/facet").symlink_to(PROGRAM)
        (folder / "tools").symlink_to(ROOT / "tools")
        for lines in (ROOT / "bench/results").glob("*.jsonl"):
            shutil.copy(lines, folder / "bench/results")
        shutil.copytree(ROOT / "models", folder / "models")
        self.env = {**os.environ, "PATH": f"{folder / 'build/release'}:{os.environ['PATH']}"}

    def run(self, command):
        """None if the command runs, else what went wrong."""
        self.n_run += 1
        command = command.replace("/tmp/", f"{self.folder}/")
        if re.match(r"(build/release/)?facet serve\b", command):
            return self.serve(command)
        if command.startswith("curl "):
            if not shutil.which("curl"):
                return self.skipped.append("curl, which is not installed")
            if not self.server:
                self.server = Server("facet serve", self.folder)
            if self.server.port is None:
                return "facet serve does not start"
            command = command.replace("127.0.0.1:8080", f"127.0.0.1:{self.server.port}").replace("curl ", "curl -sS --fail ", 1)
        try:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.env, input="Hello\n",
                                  text=True, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"takes longer than {SECONDS} s"
        return None if done.returncode == 0 else f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"

    def serve(self, command):
        try:
            server = Server(command, self.folder)
        except OSError as e:
            return str(e)
        problem = server.ask() if server.port else "no address printed"
        code, log = server.stop()
        return problem and f"{problem}\n{log[-300:]}" or (f"exit code {code} after SIGTERM" if code else None)

    def close(self):
        if self.server:
            self.server.stop()


@functools.cache
def help_of(name):
    """What --help says of a subcommand; None if there is none of that name."""
    done = subprocess.run([str(PROGRAM), *name.split(), "--help"], text=True, capture_output=True)
    return done.stdout if done.returncode == 0 else None


def wrong_options(command):
    """What is wrong with the options of a command that is not run."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return
    programs = [i for i, w in enumerate(words) if w == "facet" or re.fullmatch(r"build/\w+/facet", w)]
    if not programs or len(words) < programs[0] + 2 or not re.fullmatch(r"[a-z]+", words[programs[0] + 1]):
        return
    words = words[programs[0]:]
    name = " ".join(words[1:3] if words[1:3] in (["bench", "spec"], ["bench", "matrix"]) else words[1:2])
    text = help_of(name)
    if text is None:
        yield f"there is no `facet {name}`"
        return
    for word in words[2:]:
        option = re.match(r"--[a-z][\w-]*|-[a-zA-Z]$", word)
        if option and not re.search(rf"(?<![\w-]){option[0]}(?![\w-])", text):
            yield f"`facet {name}` has no option {option[0]}"


@functools.cache
def code():
    """The paths of the repository's code, and all words of src."""
    paths = [p for d in ("src", "tests", "tools", "scripts", "bench") for p in (ROOT / d).rglob("*") if p.is_file()]
    text = "".join(p.read_text() for p in (ROOT / "src").rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".cuh"))
    return [f"/{p.relative_to(ROOT)}" for p in paths], set(re.findall(r"\w+", text))


@functools.cache
def tests():
    """Suite.Name of every test of googletest's."""
    return {".".join(t) for p in (ROOT / "tests").rglob("*.cpp") for t in re.findall(r"TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\)", p.read_text())}


def check_prose(number, line, folder):
    """Options of commands in a sentence, paths, links."""
    for span in re.findall(r"`([^`]+)`", line):
        for problem in wrong_options(span):
            yield f"{number}: {problem}"
        path = re.fullmatch(r"(?:src|include|examples|python|tests|tools|scripts|bench|docs|models|\.ci)/[\w./-]+", span)
        if path and not (ROOT / span).exists() and not list((ROOT / span).parent.glob(pathlib.Path(span).name + ".*")):
            yield f"{number}: {span} does not exist"
        elif not (path and (ROOT / span).exists()) and re.fullmatch(r"[\w./-]+\.(?:h|cpp|cu|cuh)", span) and not any(p.endswith(f"/{span}") for p in code()[0]):
            yield f"{number}: there is no file {span}"
        name = re.fullmatch(r"(\w+)::(\w+)", span)
        if name and not code()[1].issuperset(name.groups()):
            yield f"{number}: there is no {span} in src"
        test = re.fullmatch(r"([A-Z]\w+\.[A-Z]\w+)\*?", span)
        if test and not any(name.startswith(test[1]) for name in tests()):
            yield f"{number}: there is no test {span}"
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
        if "://" not in target and not (folder / target).exists():
            yield f"{number}: the link to {target} leads nowhere"


def check(text, runner, folder=ROOT):
    """What is wrong with a document, a line each."""
    blocks, prose = blocks_and_prose(text)
    problems = [p for number, line in prose for p in check_prose(number, line, folder)]
    for block in blocks:
        for number, command in block.commands() if block.is_shell() else ():
            if block.marked or EXAMPLE.search(command):
                problems += [f"{number}: {p}" for p in wrong_options(command)]
            elif not any(re.match(pattern, command) for pattern, _ in EXEMPT):
                problem = runner.run(command)
                if problem:
                    problems.append(f"{number}: {command.splitlines()[0]}: {problem} (mend it, or mark it with \"(Example.)\")")
    return problems


def check_chat(text, folder):
    """The chat in README.md: its questions give its answers, but for the lines of statistics, which are measured."""
    def plain(chat):
        return re.sub(r"^\[\d+ tokens in .*\]$", "", chat, flags=re.M).strip()
    chats = [b.text for b in blocks_and_prose(text)[0] if re.search(r"^\[\d+ tokens in ", b.text, re.M)]
    problems = []
    for chat in chats:
        asked = re.findall(r"^> (.*)$", chat, re.M)
        done = subprocess.run([str(PROGRAM), "chat", "--temp", "0", "-c", "8192"], cwd=folder, text=True, capture_output=True,
                              input="".join(a + "\n" for a in asked), timeout=SECONDS)
        said = done.stdout
        missing = [line for line in plain(chat).splitlines()
                   if not line.startswith(">") and not line.startswith("facet-nano, context") and line not in said + done.stderr]
        problems += [f"the chat has {line!r}, the program has not" for line in missing]
    return problems if chats else ["no chat found"]


PLANTED = """
Text.

```sh
facet inspect models/no-such-file.gguf
facet tokenize --no-such-option "Hello"
facet plan -c 512 --kv-k q8_0 --kv-v q8_0   # this one is right
facet serve --no-such-option
build/cuda/facet run -p "Hello"
```

```
facet nothing
```

(Example.)

```sh
facet run -m big.gguf --no-such-option
facet run -m big.gguf --temp 0
```

Not an example.

```text
facet nothing, which is no command here
```

`Speculation.Nothing` and `Speculation.ConversationsGoOn`, `Cuda::no_such_verb`, `none.cuh`, `docs/none.md`, `facet run --none`, [none](none.md), `src/model/gemma4.h` and `facet run --temp 0`.
"""
FOUND = ("5: facet inspect", "6: facet tokenize", "8: facet serve", "9: build/cuda/facet", "13: facet nothing",
         "19: `facet run` has no option --no-such-option", "29: there is no test Speculation.Nothing",
         "29: there is no Cuda::no_such_verb in src", "29: there is no file none.cuh",
         "29: docs/none.md", "29: `facet run` has no option --none", "29: the link to none.md")


def with_runner(use):
    with tempfile.TemporaryDirectory(prefix="facet-docs-") as folder:
        runner = Runner(pathlib.Path(folder))
        try:
            return use(runner), runner
        finally:
            runner.close()


def main():
    found, _ = with_runner(lambda r: check(PLANTED, r))
    found.sort(key=lambda p: int(p.split(":")[0]))
    if len(found) != len(FOUND) or any(not p.startswith(f) for p, f in zip(found, FOUND)):
        print("the mistakes planted in a document are not what is found:", *found, sep="\n  ")
        return 1
    chat, _ = with_runner(lambda r: check_chat("```\n> Hello\nGoodbye, and thanks.\n[3 tokens in 0.01 s]\n```\n", r.folder))
    if len(chat) != 1:
        print("a chat that the program does not hold is not what is found:", *chat, sep="\n  ")
        return 1
    bad = 0
    documents = [pathlib.Path(d) for d in sys.argv[2:]] or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for document in documents:
        text, start = document.read_text(), time.time()
        problems, runner = with_runner(lambda r: check(text, r, document.resolve().parent))
        if document.name == "README.md":
            problems += check_chat(text, runner.folder.parent)
        for p in problems:
            print(f"{document.name}:{p}")
        for s in set(runner.skipped):
            print(f"{document.name}: skipped: {s}")
        print(f"{document.name}: {runner.n_run} commands run, {len(problems)} problems, {time.time() - start:.1f} s")
        bad += len(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
