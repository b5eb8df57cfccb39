#!/usr/bin/env python3
"""tests/rows.tsv, the list of what facet is to do: id, where it is done, the tests that would notice if it broke, and what is
missing. Counts rows with and without a test, and fails when a row has neither a test nor a reason, when a test that it names does
not exist, when all that it names are planted bugs, or when a row is gone."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = 208
CXX = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")


def existing_tests():
    names = set()
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix in (".cpp", ".cu"):
            names |= {f"{suite}.{name}" for suite, name in CXX.findall(path.read_text())}
        elif path.suffix == ".py":
            names |= set(re.findall(r"def (test_\w+)", path.read_text()))
    names |= set(re.findall(r"add_test\(NAME (\w+)", (ROOT / "tests/CMakeLists.txt").read_text()))
    return names


def problems(rows, tests):
    ids = [r[0] for r in rows]
    bad = [f"{i}: twice" for i in sorted({i for i in ids if ids.count(i) > 1})]
    if len(set(ids)) != ROWS:
        bad.append(f"expected {ROWS} rows, found {len(set(ids))}")
    for row in rows:
        if len(row) != 4:
            bad.append(f"{row[0]}: expected id, where, test and gap, found {len(row)} columns")
            continue
        if not row[2] and not row[3]:
            bad.append(f"{row[0]}: neither a test nor a reason")
        if row[2] and all("Planted" in name or "Bites" in name for name in row[2].split()):
            bad.append(f"{row[0]}: a planted bug guards a test, and no line of the program")
        for name in row[2].split():
            found = any(t.startswith(name[:-1]) for t in tests) if name.endswith("*") else name in tests
            if not found:
                bad.append(f"{row[0]}: no test {name}")
    return bad


def main():
    rows = [line.split("\t") for line in (ROOT / "tests/rows.tsv").read_text().splitlines()[1:]]
    tests = existing_tests()
    planted = [["X-01", "", "", ""], ["X-02", "src", "No.Test", ""], ["X-02", "src", "", "why"],
               ["X-03", "src", "DflashPlantedBug.WindowOneTooWide", ""]]
    if len(problems(planted, tests)) != 5:
        print("the check does not see planted mistakes")
        return 1
    bad = problems(rows, tests)
    for line in bad:
        print(line)
    whole = sum(1 for r in rows if r[2] and not r[3])
    print(f"{len(rows)} rows: {whole} tested, {sum(1 for r in rows if r[2] and r[3])} tested in part, "
          f"{sum(1 for r in rows if not r[2] and r[3].startswith('not applicable'))} not applicable, "
          f"{sum(1 for r in rows if not r[2] and not r[3].startswith('not applicable'))} without a test")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
