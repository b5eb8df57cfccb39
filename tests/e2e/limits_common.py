"""What the checks of limits_test.py share: tables of limits, and a row with what a check works with."""
import re
import subprocess

from server_test import MODEL, PROGRAM, Server

ROOT = MODEL.parents[1]
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "million": 10 ** 6}


def table(page):
    rows = {}
    for line in (ROOT / "docs" / page).read_text().split("## Limits\n")[1].split("\n## ")[0].splitlines():
        cells = [c.strip() for c in line.split("|")[1:-1]]
        if len(cells) >= 2 and not cells[0].startswith("--") and cells[0] not in ("", "what"):
            rows[cells[0].replace("`", "")] = [c.replace("`", "") for c in cells[1:]]
    return rows


def numbers(cell):
    return [int(n.replace(",", "")) * UNITS[u] for n, u in re.findall(r"([\d,]*\d) ?(KiB|MiB|GiB|million|)\b", cell)]


CHECKS = {}
FORMS = "structured-output.md"


def limit(row, page="server.md"):
    def add(f):
        assert (page, row) not in CHECKS, row
        CHECKS[page, row] = f
        return f
    return add


class Row:
    """What a check works with: the numbers of its row, servers, and requests."""
    servers = {}

    def __init__(self, test, cells):
        self.test, self.cells, self.n = test, cells, numbers(cells[0])

    def server(self, *flags):
        if flags not in Row.servers:
            Row.servers[flags] = Server("-t", "1", *flags)
        return Row.servers[flags]

    def post(self, path, body, *flags):
        """Again where the answer is that the machine is busy, as any client should."""
        for _ in range(10):
            answer = self.server(*flags).request("POST", path, body)
            error = answer[2].get("error") if isinstance(answer[2], dict) else None
            if not isinstance(error, dict) or error.get("code") != "grammar_timeout":
                break
        return answer

    def taken(self, path, body, *flags):
        status, _, answer = self.post(path, body, *flags)
        self.test.assertEqual(status, 200, answer)
        return answer

    def refused(self, path, body, says, *flags, status=400):
        got, _, answer = self.post(path, body, *flags)
        self.test.assertEqual(got, status, answer)
        message = answer["error"]["message"] if isinstance(answer["error"], dict) else answer["error"]
        self.test.assertIn(str(says), message)

    def default(self, option, expected):
        """The default that --help has for an option."""
        text = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout
        self.test.assertRegex(re.sub(r"\s+", " ", text), rf"{option} .{{0,100}}?={expected} ")
