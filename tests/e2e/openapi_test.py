#!/usr/bin/env python3
"""/openapi.json and /docs: openapi_test.py PROGRAM. Both are of docs/openapi.yaml, describe what is there, and need no key.
PyYAML, where it is installed, reads the source as tools/openapi.py does."""
import base64
import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import unittest

from serving import MODELS, Serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL, SOURCE = ROOT / "tools/openapi.py", ROOT / "docs/openapi.yaml"


def keys_of(value):
    if isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from keys_of(v)
    elif isinstance(value, list):
        for v in value:
            yield from keys_of(v)


class OpenApiTest(unittest.TestCase):
    def check(self, s):
        status, headers, document = s.request("GET", "/openapi.json")
        self.assertEqual((status, headers["Content-Type"], document["openapi"]), (200, "application/json", "3.1.0"))
        made = subprocess.run([sys.executable, TOOL, SOURCE], capture_output=True, text=True, check=True).stdout
        self.assertEqual(document, json.loads(made))
        status, headers, packed = s.request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
        self.assertEqual(json.loads(gzip.decompress(packed)), document)
        self.assertEqual(s.request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip", "If-None-Match": headers["ETag"]})[0], 304)
        # A path that is described is one that there is; the method is its own.
        for path, methods in document["paths"].items():
            other = "POST" if "get" in methods else "GET"
            self.assertEqual(s.request(other, path.replace("{model}", "x"), headers={"Authorization": "Bearer secret"})[0], 405, path)
        status, headers, page = s.request("GET", "/docs", headers={"Accept-Encoding": "gzip"})
        html = gzip.decompress(page).decode()
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        (style,) = re.findall(r"<style>(.*?)</style>", html, re.S)
        hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self.assertTrue(headers["Content-Security-Policy"].startswith(f"default-src 'none'; style-src 'sha256-{hashed}';"))
        self.assertNotIn("<script", html)
        for path in document["paths"]:
            self.assertIn(f" {path}</h2>", html)
        self.assertLess(len(page), 4000)

    def test_one_model(self):
        s = Serving("-c", "512", "-m", MODELS / "facet-nano-Q8_0.gguf", "--api-key", "secret")
        self.addCleanup(s.stop)
        self.check(s)
        self.assertEqual(s.request("GET", "/v1/models")[0], 401)

    def test_several_models(self):
        s = Serving("-c", "512", "-m", f"a={MODELS}/facet-nano-Q8_0.gguf", "-m", f"b={MODELS}/facet-nano-Q8_0.gguf", "--no-models-autoload", "--api-key", "secret")
        self.addCleanup(s.stop)
        self.check(s)

    def test_without_the_page(self):
        s = Serving("-c", "512", "-m", MODELS / "facet-nano-Q8_0.gguf", "--no-webui")
        self.addCleanup(s.stop)
        self.assertEqual([s.request("GET", path)[0] for path in ("/docs", "/openapi.json")], [404, 200])

    def test_what_bounds_tests_is_left_out(self):
        document = json.loads(subprocess.run([sys.executable, TOOL, SOURCE], capture_output=True, text=True, check=True).stdout)
        chat = document["components"]["schemas"]["ChatRequest"]
        self.assertEqual(chat["properties"]["max_tokens"], {"type": "integer", "minimum": 1})
        self.assertIn("tool", chat["properties"]["messages"]["items"]["properties"]["role"]["enum"])
        self.assertFalse({"x-public", "maxItems"} & set(keys_of(document)))
        self.assertIn("maxLength", keys_of(document["components"]["schemas"]["Error"]))  # of answers it is a promise

    def test_reader(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no PyYAML")
        mine = subprocess.run([sys.executable, TOOL, SOURCE, "--source"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(mine), yaml.safe_load(SOURCE.read_text()))


if __name__ == "__main__":
    unittest.main(verbosity=1)
