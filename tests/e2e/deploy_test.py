#!/usr/bin/env python3
"""What deploy/ says against what the program has: deploy_test.py PROGRAM. Metric names in rules, dashboard and manifests
are served; options in the unit and the manifests exist. Only Python's standard library."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/facet"
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def served():
    """Names of all metrics: of a server of several models with one loaded, and those that appear once counted."""
    p = subprocess.Popen([PROGRAM, "serve", "--port", "0", "-c", "512", "--metrics-compat", "-m",
                          f"nano={ROOT}/models/facet-nano-Q8_0.gguf"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = p.stdout.readline().split()[-1]
        body = json.dumps({"model": "nano", "prompt": "Hello", "max_tokens": 4}).encode()
        urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body), timeout=120).read()
        text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(60)
        p.stdout.close()
    return set(re.findall(r"^([a-z_:]+)(?:\{| )", text, re.M)) | {"facet_requests_refused_total"}


class DeployTest(unittest.TestCase):
    def test_metrics(self):
        names = served()
        for path in ("prometheus/rules.yaml", "grafana/facet.json", "kubernetes/facet.yaml"):
            text = re.sub(r"(?m)record: facet:\S+|^ *#.*$", "", (DEPLOY / path).read_text())
            used = set(re.findall(r"\b(?:facet_[a-z_]+|vllm:num_[a-z_]+)\b", text))
            self.assertTrue(used, path)
            self.assertFalse(used - names, path)

    def test_options(self):
        text = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout
        for path in ("systemd/facet.service", "kubernetes/facet.yaml", "Dockerfile"):
            lines = [x for x in (DEPLOY / path).read_text().splitlines() if "serve" in x or "--metrics-compat" in x]
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(lines)):
                if option not in ("--gpus",):
                    self.assertRegex(text, rf"{option}\b", path)

    def test_dashboard(self):
        panels = json.loads((DEPLOY / "grafana/facet.json").read_text())["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))


if __name__ == "__main__":
    unittest.main(verbosity=2)
