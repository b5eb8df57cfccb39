"""A running `facet serve` for the tests that need one. The program under test is the first argument of the script."""
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/facet").resolve())
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
SLOW = 120  # seconds that an answer may take


class Serving:
    """`facet serve FLAGS` on a free port, from the line that says so to stop(). What it says on stderr is kept."""

    def __init__(self, *flags, env=None, limit=None):
        """limit: bytes of address space."""
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, env={**os.environ, **(env or {})},
                                        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))))
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            if line:
                self.process.kill()
            rc = self.process.wait()
            text = self.log_text()
            self.close()
            raise AssertionError(f"no address printed: {line!r}, exit code {rc}\n{text}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def log_text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_log(self, pattern, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if re.search(pattern, self.log_text()):
                return
            time.sleep(.05)
        raise AssertionError(f"{pattern!r} is not in the log:\n{self.log_text()}")

    def rss(self):
        """Bytes of memory the server holds."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10

    def stop(self, seconds=60):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
            self.close()

    def close(self):
        """Of a process that has ended. Its log is then in ended_log."""
        self.process.stdout.close()
        self.ended_log = self.log_text()
        self.log.close()

    def request(self, method, path, body=None, headers=None, timeout=SLOW):
        """Status, headers and body (parsed if it is JSON) of one request."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), headers or {})
            r = c.getresponse()
            text = r.read()
            try:
                return r.status, r.headers, json.loads(text)
            except ValueError:
                return r.status, r.headers, text
        finally:
            c.close()

    def connect(self, rcvbuf=None):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(60)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, data, half_close=False):
        """What comes back until the server closes."""
        with self.connect() as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            out = b""
            while piece := s.recv(65536):
                out += piece
            return out
