#!/usr/bin/env python3
"""LiteLLM's proxy (pip install 'litellm[proxy]') with two models of facet and fallbacks: check.py [PROGRAM]. Exit code 77:
it is not installed in the Python that runs this."""
import http.client
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from fleet import ask, free_port  # noqa: E402

ROOT = HERE.parent.parent


def main():
    litellm = shutil.which("litellm", path=str(pathlib.Path(sys.executable).parent))
    if not litellm:
        print("skipped: litellm is not installed beside this Python (pip install 'litellm[proxy]')")
        return 77
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/facet")
    port, proxy_port, key = free_port(), free_port(), "sk-" + secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder:
        log = open(f"{folder}/log", "wb")
        server = subprocess.Popen([program, "serve", "--port", str(port), "-c", "1024", "--models-max", "2",
                                   "-m", f"nano={ROOT}/models/facet-nano-Q8_0.gguf", "-m", f"moe={ROOT}/models/facet-nano-moe-Q4_K_M.gguf"],
                                  stdout=log, stderr=log)
        proxy = subprocess.Popen([litellm, "--config", str(HERE / "config.yaml"), "--host", "127.0.0.1", "--port", str(proxy_port)],
                                 stdout=log, stderr=log, start_new_session=True,
                                 env={**os.environ, "FACET_URL": f"http://127.0.0.1:{port}/v1", "LITELLM_MASTER_KEY": key})
        try:
            end = time.time() + 300
            while True:
                try:
                    if ask(proxy_port, "GET", "/health/liveliness", timeout=5)[0] == 200:
                        break
                except (OSError, http.client.HTTPException):
                    pass
                if proxy.poll() is not None or time.time() > end:
                    print(pathlib.Path(f"{folder}/log").read_text()[-3000:])
                    return 1
                time.sleep(.5)
            bad = 0
            for model, answers in (("nano", {"nano"}), ("moe", {"moe"}), ("gone", {"nano", "moe"})):
                status, body = ask(proxy_port, "POST", "/v1/chat/completions", {
                    "model": model, "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]}, timeout=240, headers={"Authorization": f"Bearer {key}"})
                ok = status == 200 and bool(body["choices"][0]["message"]["content"])
                bad += not ok
                print(json.dumps({"asked": model, "status": status, "model": body.get("model") if ok else body}))
            used = {m["id"]: m["last_used_ms"] > 0 for m in ask(port, "GET", "/v1/models")[1]["data"]}
            print(json.dumps({"used": used}))
            return int(bad > 0 or not all(used.values()))
        finally:
            if proxy.poll() is None:
                os.killpg(proxy.pid, signal.SIGKILL)
            proxy.wait()
            server.send_signal(signal.SIGTERM)
            server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
