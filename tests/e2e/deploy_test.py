#!/usr/bin/env python3
"""What deploy/ says against what the program has: deploy_test.py PROGRAM. Metric names in rules, dashboard and manifests
are served; options in the unit and the manifests exist; where they are
there, systemd-analyze checks the unit, promtool the metrics and rules, and kubernetes-validate (PyPI) the manifests. Otherwise only Python's standard library."""
import json
import pathlib
import re
import shutil
import socket
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

    def test_tells_the_service_manager(self):
        """READY=1 to NOTIFY_SOCKET once requests are served, as systemd listens: a path, or an abstract name."""
        self.assertIn("Type=notify", (DEPLOY / "systemd/facet.service").read_text())
        with tempfile.TemporaryDirectory() as folder:
            for name in (folder + "/notify", "@facet-deploy-test-" + pathlib.Path(folder).name):
                for models in (("-m", MODELS / "facet-nano-Q8_0.gguf"),
                               ("-m", f"a={MODELS}/facet-nano-Q8_0.gguf", "-m", f"b={MODELS}/facet-nano-Q8_0.gguf")):
                    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
                        pathlib.Path(name).unlink(missing_ok=True)
                        listener.bind(name.replace("@", "\0", 1))
                        listener.settimeout(60)
                        s = Serving("-c", "512", *models, env={"NOTIFY_SOCKET": name})
                        try:
                            self.assertEqual(listener.recv(100), b"READY=1")
                            self.assertEqual(s.request("GET", "/health")[0], 200)
                            listener.setblocking(False)
                            self.assertRaises(BlockingIOError, listener.recv, 100)  # told once, by one process
                        finally:
                            s.stop()
        s = Serving("-c", "512", "-m", MODELS / "facet-nano-Q8_0.gguf", env={"NOTIFY_SOCKET": "/nowhere/notify"})
        self.addCleanup(s.stop)
        s.wait_log("NOTIFY_SOCKET")
        self.assertEqual(s.request("GET", "/health")[0], 200)

    def test_health_check_of_the_image(self):
        """The command as the image has it, on another port."""
        found = re.search(r"HEALTHCHECK .*CMD (\[.*\])", (DEPLOY / "Dockerfile").read_text())
        command = json.loads(found[1])
        s = Serving("-c", "512", "-m", MODELS / "facet-nano-Q8_0.gguf")
        there = [x.replace("/8080 ", f"/{s.port} ") for x in command]
        self.assertNotEqual(there, command)
        self.assertEqual(subprocess.run(there, capture_output=True, timeout=20).returncode, 0)
        # One that answers, and not with 200.
        self.assertNotEqual(subprocess.run([x.replace("/health", "/nothing") for x in there], capture_output=True, timeout=20).returncode, 0)
        s.stop()
        self.assertNotEqual(subprocess.run(there, capture_output=True, timeout=20).returncode, 0)

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
