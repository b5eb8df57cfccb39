#!/usr/bin/env python3
"""Recorded turns for `facet bench spec --replay`, made of this repository's own history and documents.

    tools/make_replay.py COMMIT | gzip -9n > tests/data/replay.jsonl.gz
    gunzip -kc tests/data/replay.jsonl.gz > replay.jsonl

20 edits of files (as search/replace blocks, and as whole files), 20 results of tools answered in JSON, 20 questions answered in prose. Lines are
{"kind", "prompt", "answer"}, texts with Gemma 4's control tokens. The same commit gives the same bytes."""
import difflib
import json
import pathlib
import re
import subprocess
import sys


def git(*args):
    return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout


def turn(kind, user, answer):
    return {"kind": kind, "prompt": f"<|turn>user\n{user.strip()}<turn|>\n<|turn>model\n", "answer": answer.strip() + "<turn|>"}


def blocks(old, new):
    """The change as search/replace blocks with two lines of context."""
    old, new, out = old.splitlines(), new.splitlines(), []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(2):
        a, b = old[group[0][1]:group[-1][2]], new[group[0][3]:group[-1][4]]
        out.append("\n".join(["<<<<<<< SEARCH", *a, "=======", *b, ">>>>>>> REPLACE"]))
    return "\n\n".join(out)


def edits(commit, n):
    found = []
    for line in git("log", "--no-merges", "--format=%H\t%s", "-n", "900", commit).splitlines():
        sha, subject = line.split("\t", 1)
        names = git("diff-tree", "--no-commit-id", "--name-status", "-r", sha).splitlines()
        names = [x.split("\t")[1] for x in names if x.startswith("M\t") and re.search(r"\.(cpp|h|py|md|sh)$", x)]
        for name in names[:1]:
            try:
                old, new = git("show", f"{sha}~:{name}"), git("show", f"{sha}:{name}")
            except subprocess.CalledProcessError:
                continue
            changed = sum(x[:2] in ("- ", "+ ") for x in difflib.ndiff(old.splitlines(), new.splitlines())) if len(old) < 4200 else 0
            if not (1200 < len(old) < 4200 and len(new) < 4600 and 4 <= changed <= 40) or any(f[1] == name for f in found):
                continue
            found.append((subject, name, old, new))
            if len(found) == n:
                break
        if len(found) == n:
            break
    for i, (subject, name, old, new) in enumerate(found):
        how = "Answer with search/replace blocks." if i % 2 == 0 else "Answer with the whole file."
        answer = f"{name}\n{blocks(old, new)}" if i % 2 == 0 else f"```\n{new}```"
        yield turn("edits", f"{subject}. {how}\n\n{name}\n```\n{old}```", answer)


def tables(commit, n):
    """Outputs of git and wc, and the JSON that somebody wanted of them."""
    folders = [f for f in git("ls-tree", "-d", "-r", "--name-only", commit, "src", "tests", "tools").split() if f.count("/") == 1]
    made = 0
    for folder in folders:
        rows = [x.split(None, 4) for x in git("ls-tree", "-l", commit, folder + "/").splitlines()]
        files = [(r[4], int(r[3])) for r in rows if r[1] == "blob"][:14]
        if len(files) < 4:
            continue
        if made % 2 == 0:
            out = "\n".join(f"{size:>8} {name}" for name, size in files)
            answer = {"folder": folder, "files": [{"name": name, "bytes": size} for name, size in files]}
            ask = f"Call list_files on {folder} and give me name and bytes of every file as JSON."
        else:
            log = [x.split("\t") for x in git("log", "--no-merges", "--format=%h\t%ad\t%s", "--date=short", "-n", "10", commit, "--", folder).splitlines()]
            out = "\n".join(f"{h} {d} {s}" for h, d, s in log)
            answer = {"folder": folder, "commits": [{"hash": h, "date": d, "subject": s} for h, d, s in log]}
            ask = f"What changed in {folder} lately? JSON with hash, date and subject of each commit."
        yield turn("tool results", f"{ask}\n\nResult of the tool:\n{out}", json.dumps(answer, indent=2, ensure_ascii=False))
        made += 1
        if made == n:
            return


def chats(commit, n):
    """Sections of the documents, asked for by their headings."""
    made = 0
    for name in sorted(git("ls-tree", "--name-only", commit, "docs/").split()):
        if not name.endswith(".md"):
            continue
        title, *sections = re.split(r"^#+ ", git("show", f"{commit}:{name}"), flags=re.M)[1:]
        of_file = 0
        for section in sections:
            head, _, body = section.partition("\n")
            prose = [p for p in re.split(r"\n\s*\n", body) if p and not re.match(r"\s*([-|`#]|\d+\.)", p)]
            text = "\n\n".join(prose)
            if not 400 < len(text) < 1800 or of_file == 3:
                continue
            yield turn("chats", f"About {pathlib.Path(name).stem.replace('-', ' ')}: {head}. Explain it to me.", text)
            made, of_file = made + 1, of_file + 1
            if made == n:
                return


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for make in (edits, tables, chats):
        turns = list(make(sys.argv[1], 20))
        if len(turns) < 20:
            sys.exit(f"{make.__name__}: expected 20 turns, found {len(turns)}")
        for t in turns:
            print(json.dumps(t, ensure_ascii=False))


if __name__ == "__main__":
    main()
