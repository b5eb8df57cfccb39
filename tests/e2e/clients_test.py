#!/usr/bin/env python3
"""Other people's clients against `facet serve`, on the shipped model.

Usage: clients_test.py PROGRAM [--install | --installed] [CLIENT or CLIENT.CASE...]
The cases are in clients/. One whose package is not installed is skipped, with the reason; --install puts what the cases need from PyPI into virtual environments
in build/ and runs there (--installed: as they are). At the end a table of what was run; 77 where nothing was.
"""
import argparse
import collections
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from clients import anthropic_cases, evaluation_cases, framework_cases, gateway_cases, ollama_cases, openai_cases, responses_cases  # noqa: E402,F401
from clients.common import CASES, KEY, MODEL, Api  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "models" / "facet-nano-Q8_0.gguf"
EXTRAS = {"pydantic-ai-slim": "pydantic-ai-slim[openai]", "smolagents": "smolagents[openai]", "lm-eval": "lm-eval[api]"}
APART = ("llama-index-llms-openai-like", "guidellm")  # they want versions that the others do not have


def environments(cases):
    """Folders and the clients in them."""
    out = collections.defaultdict(list)
    for client in dict.fromkeys(c.client for c in cases):
        out[ROOT / "build" / (f"venv-{client}" if client in APART else "venv")].append(client)
    return out


def install(folder, clients):
    """A virtual environment's Python. What cannot be installed is left to be skipped."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "uv"])  # pip takes minutes to choose among versions
    tool = [python, "-m", "uv"] if not subprocess.run([python, "-m", "uv", "--version"], capture_output=True).returncode else [python, "-m"]
    wanted = [EXTRAS.get(c, c) for c in clients]
    for names in (wanted, *([w] for w in wanted)):
        done = subprocess.run([*tool, "pip", "install", "-q", *(["--python", python] if "uv" in tool else []), *names], capture_output=True, text=True)
        if not done.returncode:
            if names is wanted:
                return python
            continue
        print(f"not installed together: {' '.join(names)}: {done.stderr.strip()[-300:]}", flush=True)
    return python


def in_environments(a, cases):
    """Runs this file once in each environment; one table of all."""
    outcomes, versions, code = collections.defaultdict(collections.Counter), {}, 0
    for folder, clients in environments(cases).items():
        names = [c.name for c in cases if c.client in clients]
        child = subprocess.Popen([install(folder, clients) if a.install else folder / "bin" / "python", "-u", __file__, a.program, *names], stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            print(line, end="", flush=True)
            if line.startswith("| ") and len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 5 and cells[2].isdigit() and cells[0] != "all":
                outcomes[cells[0]].update(dict(zip(("passed", "failed", "skipped"), map(int, cells[2:]))))
                versions[cells[0]] = cells[1]
        code = max(code, child.wait() % 77)
    table(outcomes, versions)
    return code


def missing(c):
    def known(module):
        try:
            return importlib.util.find_spec(module) is not None
        except ImportError:  # of what it lies in
            return False
    return [m for m in c.modules if not known(m)]


def version(client):
    try:
        return importlib.metadata.version(client)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def run(cases, api):
    outcomes = collections.defaultdict(collections.Counter)
    for c in cases:
        begin, outcome = time.time(), "passed"
        if absent := missing(c):
            print(f"{c.name}: skipped, {', '.join(absent)} is not installed")
            outcome = "skipped"
        else:
            try:
                c.run(api)
                print(f"{c.name}: passed, {time.time() - begin:.1f} s", flush=True)
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print(f"{c.name}: FAILED", flush=True)
                outcome = "failed"
        outcomes[c.client][outcome] += 1
    return outcomes


def table(outcomes, versions=None):
    rows = [(client, versions[client] if versions else version(client), *(n[k] for k in ("passed", "failed", "skipped"))) for client, n in outcomes.items()]
    rows.append(("all", "", *(sum(r[k] for r in rows) for k in (2, 3, 4))))
    print(f"\n| {'client':28} | {'version':12} | passed | failed | skipped |\n|{'-' * 30}|{'-' * 14}|--------|--------|---------|")
    for r in rows:
        print(f"| {r[0]:28} | {r[1]:12} | {r[2]:6} | {r[3]:6} | {r[4]:7} |")
    return rows[-1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--install", action="store_true")
    p.add_argument("--installed", action="store_true")
    p.add_argument("wanted", nargs="*")
    a = p.parse_intermixed_args()
    cases = [c for c in CASES if not a.wanted or c.client in a.wanted or c.name in a.wanted]
    assert cases, f"no such cases: {a.wanted}"
    if a.install or a.installed:
        sys.exit(in_environments(a, cases))
    server, folder = None, tempfile.TemporaryDirectory()
    try:
        if any(not missing(c) for c in cases):
            mmproj = pathlib.Path(folder.name) / "mmproj.gguf"  # with random weights: a picture is read, and says nothing
            subprocess.run([a.program, "synth", "--mmproj", "nano", "--quant", "BF16", mmproj], check=True, capture_output=True)
            server = subprocess.Popen([a.program, "serve", "-m", str(FILE), "--mmproj", str(mmproj), "--image-tokens", "70", "--port", "0", "-c", "4096", "-n", "512", "-t", "1", "--alias", MODEL, "--api-key", KEY],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        outcomes = run(cases, Api(server.stdout.readline().split()[-1] if server else ""))
    finally:
        if server:
            server.terminate()
            code = server.wait(60)
    _, _, passed, failed, _ = table(outcomes)
    assert not server or code == 0, code
    sys.exit(1 if failed else 0 if passed else 77)


main()
