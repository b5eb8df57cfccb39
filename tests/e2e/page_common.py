"""What the tests of the page share: the program, a server of their own that has the same page, and Chromium.

Skips (exit 77) without the package playwright or without Chromium. FACET_PAGE_PICTURES=DIR: keeps pictures of the page.
"""
import gzip
import http.client
import http.server
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("skipped: the package playwright is not installed (pip install playwright)")
    sys.exit(77)
if not CHROMIUM or CHROMIUM.startswith("/snap") or subprocess.run([CHROMIUM, "--version"], capture_output=True).returncode:
    print("skipped: there is no Chromium that runs (apt-get install chromium)")
    sys.exit(77)

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build/release/facet"
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "facet-nano-Q8_0.gguf"
expect.set_options(timeout=20000)  # machines may be busy
PICTURES = os.environ.get("FACET_PAGE_PICTURES")


class Facet:
    def __init__(self, *flags, port=0, model=str(MODEL)):
        self.process = subprocess.Popen([PROGRAM, "serve", "-m", model, "-c", "4096", "--port", str(port), *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def page(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        c.request("GET", "/", headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
        r = c.getresponse()
        body = gzip.decompress(r.read())
        c.close()
        return body, r.headers["Content-Security-Policy"]


class Fake(http.server.BaseHTTPRequestHandler):
    """Has facet's page and answers what `script` says: (pieces, seconds between them, timings)."""
    body = policy = script = None
    asked, broken, seen = [], threading.Event(), threading.Event()
    models = [{"id": "gemma-4-31b-it", "meta": {"n_ctx": 131072}}]

    def until_seen(piece):
        """Pieces of a script: this one until the test has seen what it waits for, then an answer."""
        yield from itertools.takewhile(lambda _: not Fake.seen.is_set(), [piece] * 200)
        yield "ok"

    def log_message(self, *_):
        pass

    def give(self, kind, body, **headers):
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/":
            return self.give("text/html; charset=utf-8", Fake.body, **{"Content-Security-Policy": Fake.policy})
        if self.path == "/v1/models":
            return self.give("application/json", json.dumps({"object": "list", "data": Fake.models}).encode())
        params = {"temperature": 1.0, "top_p": .95, "top_k": 64, "n_predict": -1}
        self.give("application/json", json.dumps({"status": "ok", "model_alias": "gemma-4-31b-it", "default_generation_settings": {"n_ctx": 131072, "params": params}}).encode())

    def do_POST(self):
        Fake.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        pieces, pause, timings = Fake.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        send = lambda x: self.wfile.write(b"data: " + json.dumps(x).encode() + b"\n\n")
        try:
            self.wfile.write(b": keep-alive\n\n")
            for p in pieces:
                send(p["event"] if "event" in p and isinstance(p, dict) else {"choices": [{"delta": p if isinstance(p, dict) else {"content": p}}]})
                time.sleep(pause)
            send({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            Fake.broken.set()


TIMINGS = {"cache_n": 1200, "prompt_n": 45, "prompt_ms": 80.5, "predicted_n": 420, "predicted_ms": 2900.0, "predicted_per_second": 144.8,
           "draft_n": 600, "draft_n_accepted": 290, "draft_rounds": 130, "draft_tokens_per_step": 3.231,
           "draft_accepted_at": [.81, .64, .42, .3], "draft_methods": [{"at": 0, "method": "dflash"}, {"at": 40, "method": "mtp"}]}


class PageTest(unittest.TestCase):
    """Chromium, and two servers: `facet` with the shipped model, and `fake_url`, whose answers are Fake.script."""

    @classmethod
    def setUpClass(cls):
        cls.facet = Facet()
        cls.addClassCleanup(cls.facet.stop)
        Fake.body, Fake.policy = cls.facet.page()
        cls.fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        cls.fake.daemon_threads = True
        threading.Thread(target=cls.fake.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.fake.shutdown)
        cls.fake_url = f"http://127.0.0.1:{cls.fake.server_port}"
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[
            "--no-sandbox", "--host-resolver-rules=MAP page.test 127.0.0.1", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"])
        cls.addClassCleanup(cls.browser.close)

    def visit(self, url, ready=True, **options):
        """A page with storage of its own. Afterwards: no error in its console (what the policy forbids is one), no request to another origin."""
        context = self.browser.new_context(**options)
        page = context.new_page()
        page.add_init_script("addEventListener('securitypolicyviolation', e => console.error(`policy: ${e.violatedDirective} ${e.sample}`))")
        self.errors, requests = [], []
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: requests.append(r.url))

        def check():
            context.close()
            self.assertEqual(self.errors, [])
            self.assertEqual([r for r in requests if not r.startswith((url + "/", "data:image/svg", f"blob:{url}/"))], [])
        self.addCleanup(check)
        page.goto(url)
        if ready:
            expect(page.locator("#model")).not_to_be_empty()
        return page

    def ask(self, page, text):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")

    def settle(self, page):
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=60000)

    def answers(self, page):
        return page.locator(".message.assistant .body")

    def picture(self, page, name):
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/{name}.png")

    def expected(self, *patterns):
        """The browser reports failed requests itself: these were meant."""
        self.errors[:] = [e for e in self.errors if not any(re.search(p, e) for p in patterns)]

    def cold(self, page):
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")
        page.get_by_role("button", name="Done").click()



def main():
    if not MODEL.exists():
        print(f"skipped: {MODEL} is missing")
        sys.exit(77)
    unittest.main()
