"""A small server that speaks the hub's interface, with faults. Only Python's standard library."""
import hashlib
import http.server
import json
import ssl
import threading
import time
from urllib.parse import unquote, urlsplit


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    """Content of a repository, and what is wrong with how it is served."""

    def __init__(self, data, lfs=True, **faults):
        self.data, self.lfs, self.faults = data, lfs, faults
        self.size, self.sha = len(data), hashlib.sha256(data).hexdigest()

    def etag(self):
        return '"v' + hashlib.md5(self.data[:1 << 16]).hexdigest() + '"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        try:
            self.answer(hub, unquote(urlsplit(self.path).path))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, hub, path):
        if hub.statuses:
            status = hub.statuses.pop(0)
            if status:
                return self.say(status, b'{"error":"no"}', [("Retry-After", "0")])
        if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token and not path.startswith("/cdn/"):
            return self.say(401)
        parts = path.split("/")
        if path.startswith("/api/models/"):
            return self.listing(hub, "/".join(parts[3:5]))
        if path.startswith("/cdn/"):
            return self.content(hub.repos["/".join(parts[2:4])]["/".join(parts[4:])])
        repo, name = "/".join(parts[1:3]), "/".join(parts[5:])
        file = hub.repos.get(repo, {}).get(name)
        if file is None:
            return self.say(404)
        if "status" in file.faults:
            return self.say(file.faults["status"])
        to = file.faults.get("redirect", hub.cdn and hub.cdn + "/cdn/{repo}/{name}")
        if to:
            linked = [("X-Linked-Size", str(file.size)), ("X-Linked-ETag", f'"{file.sha}"')] if file.lfs else []
            moved = [("Location", to.format(repo=repo, name=name)), *linked]
            if not file.faults.get("endless"):
                return self.say(302, b"moved", moved)
            self.send_response(302)  # a body that does not end
            for key, value in moved:
                self.send_header(key, value)
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(b"x" * 65536)
        self.content(file)

    def listing(self, hub, repo):
        if repo in hub.bodies:
            return self.say(200, hub.bodies[repo])
        if repo not in hub.repos:
            return self.say(404)
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for name, f in hub.repos[repo].items():
            sha, size = f.faults.get("announce", f.sha), f.faults.get("announce_size", f.size)
            e = {"type": "file", "oid": git_hash(f.data) if not f.lfs else "1" * 40, "size": size, "path": name}
            if f.lfs:
                e["lfs"] = {"oid": sha, "size": size, "pointerSize": 134}
            entries.append(e)
        half = len(entries) // 2
        if hub.paged and "cursor=2" not in self.path:
            return self.say(200, json.dumps(entries[:half]).encode(), [("Link", f'<{hub.next_host or hub.url}{self.path}&cursor=2>; rel="next"')])
        self.say(200, json.dumps(entries[half:] if hub.paged else entries).encode())

    def content(self, file):
        faults, data, begin, status = file.faults, file.data, 0, 200
        wanted, if_range = self.headers.get("Range"), self.headers.get("If-Range")
        if faults.get("change") and wanted:  # another file lies there since the first part was sent
            for key, value in faults.pop("change").__dict__.items():
                if key != "faults":
                    setattr(file, key, value)
            data = file.data
        if wanted and not faults.get("no_range") and (if_range is None or if_range == file.etag()):
            begin, status = int(wanted[len("bytes="):].split("-")[0]), 206
            if begin >= len(data):
                return self.say(416)
        body = data[begin:]
        self.send_response(status)
        if status == 206:
            shown = begin + faults.get("wrong_range", 0)
            self.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        if not faults.get("no_etag"):
            self.send_header("ETag", file.etag())
        self.send_header("Content-Length", str(len(body) + faults.get("longer", 0)))
        self.end_headers()
        if faults.get("longer"):
            body += bytes(faults["longer"])
        if faults.get("drops", 0) > 0:
            faults["drops"] -= 1
            self.wfile.write(body[:faults.get("piece", len(data) // 11)])
            self.wfile.flush()
            self.close_connection = True
            return
        if "stall" in faults:
            self.wfile.write(body[:1000] if begin == 0 else b"")
            self.wfile.flush()
            self.server.hub.stop.wait(faults["stall"])
            self.close_connection = True
            return
        if "rate" in faults:  # pieces a second
            for at in range(0, len(body), 1 << 16):
                self.wfile.write(body[at:at + (1 << 16)])
                time.sleep(1 / faults.get("rate", 1000))
            return
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        """Clients that hang up are part of the test."""


class Hub:
    """repos: {"user/repo": {path: File}}. Requests are kept as (path, headers with lower-case names)."""

    def __init__(self, repos=None, certificate=None):
        self.repos, self.requests, self.bodies = repos or {}, [], {}
        self.token, self.cdn, self.statuses, self.paged, self.next_host = None, None, [], False, None
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.hub = self
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def asked(self, part):
        with self.lock:
            return [h for p, h in self.requests if part in p]

    def close(self):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()
