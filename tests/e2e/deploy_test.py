#!/usr/bin/env python3
"""What deploy/ says against what the program has: deploy_test.py PROGRAM. Metric names in rules, dashboard and manifests
are served; options in the unit and the manifests exist; where they are
there, systemd-analyze checks the unit, promtool the metrics and rules, and kubernetes-validate (PyPI) the manifests. Otherwise only Python's standard library."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from serving import MODELS, PROGRAM, Serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def metrics():
    """/metrics of a server of several models with one loaded."""
    s = Serving("-c", "512", "--metrics-compat", "-m", f"nano={MODELS}/facet-nano-Q8_0.gguf")
    try:
        status, _, body = s.request("POST", "/v1/completions", {"model": "nano", "prompt": "Hello", "max_tokens": 4})
        assert status == 200, body
        return s.request("GET", "/metrics")[2].decode()
    finally:
        s.stop()


def served(text):
    """Names of all metrics, and those that appear once counted."""
    return set(re.findall(r"^([a-z_:]+)(?:\{| )", text, re.M)) | {"facet_requests_refused_total"}


class DeployTest(unittest.TestCase):
    def test_metrics(self):
        names = served(metrics())
        for path in ("prometheus/rules.yaml", "grafana/facet.json", "kubernetes/facet.yaml"):
            text = re.sub(r"(?m)record: facet:\S+|^ *#.*$", "", (DEPLOY / path).read_text())
            used = set(re.findall(r"\b(?:facet_[a-z_]+|vllm:num_[a-z_]+)\b", text))
            self.assertTrue(used, path)
            self.assertFalse(used - names, path)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    def test_promtool(self):
        """Names of other servers are as those have them, which it dislikes."""
        text = metrics()
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertEqual([x for x in (done.stdout + done.stderr).splitlines() if not re.match(r"(llamacpp|vllm):", x)], [])
        bad = subprocess.run(["promtool", "check", "metrics"], input=text.replace("_total counter", "_total gauge"), capture_output=True, text=True)
        self.assertIn("facet_", bad.stdout + bad.stderr)
        self.assertEqual(subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus/rules.yaml"], capture_output=True).returncode, 0)

    def test_options(self):
        text = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout
        for path in ("systemd/facet.service", "kubernetes/facet.yaml", "Dockerfile"):
            lines = [x for x in (DEPLOY / path).read_text().splitlines() if "serve" in x or "--metrics-compat" in x]
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(lines)):
                if option not in ("--gpus",):
                    self.assertRegex(text, rf"{option}\b", path)

    def test_unit(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        text = (DEPLOY / "systemd/facet.service").read_text()
        self.assertIn("ExecStart=/usr/bin/facet ", text)

        def verified(unit):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "facet.service"
                path.write_text(unit)
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
                return done.returncode, [x for x in done.stderr.splitlines() if "facet.service" in x]
        good = text.replace("ExecStart=/usr/bin/facet ", f"ExecStart={PROGRAM} ")  # verify wants a program that exists
        self.assertEqual(verified(good), (0, []))
        self.assertEqual(len(verified(good.replace("UMask=", "UMsk="))[1]), 1)

    def test_manifests(self):
        done = subprocess.run([sys.executable, DEPLOY / "kubernetes/check.py"], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_dashboard(self):
        panels = json.loads((DEPLOY / "grafana/facet.json").read_text())["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))


if __name__ == "__main__":
    unittest.main(verbosity=2)
