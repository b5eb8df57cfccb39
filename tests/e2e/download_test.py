#!/usr/bin/env python3
# Long: one hub of its own, and a test for each of its faults.
"""Downloads from a hub of the test's own, with faults: download_test.py PROGRAM. Only Python's standard library.

FACET_TEST_FULL=1 also fetches 1 GB over a connection that drops ten times."""
import hashlib
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hub_server import File, Hub
from serving import MODELS, PROGRAM, Serving

NANO, DFLASH = MODELS / "facet-nano-Q8_0.gguf", MODELS / "facet-nano-dflash-Q8_0.gguf"
TOKEN = "hf_SecretOfTheTest"


def noise(n, seed=0):
    return random.Random(seed).randbytes(n)


class DownloadTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.cache = pathlib.Path(self.folder.name) / "cache"
        self.hubs = []
        self.hub = self.add_hub()

    def tearDown(self):
        for hub in self.hubs:
            hub.close()
        self.folder.cleanup()

    def add_hub(self, **kw):
        self.hubs.append(Hub(**kw))
        return self.hubs[-1]

    def env(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
        return {**clean, "FACET_CACHE": str(self.cache), "HF_ENDPOINT": self.hub.url, "no_proxy": "*", **more}

    def facet(self, *args, env=None, **kw):
        return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=120,
                              env=self.env(**(env or {})), **kw)

    def download(self, name="u/r", *args, **kw):
        return self.facet("download", name, "--retries", 2, *args, **kw)

    def right(self, done, data, name="x-Q4_K_M.gguf"):
        """The file has arrived, and nothing but it and its hash is left."""
        self.assertEqual(done.returncode, 0, done.stderr)
        path = self.cache / "u/r" / name
        self.assertEqual(done.stdout, f"{path}\n")
        self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest())
        self.assertEqual(list(self.cache.rglob("*.part*")), [])

    def wrong(self, done, *says, keeps_part=False):
        """One line says what is wrong, and no file has appeared."""
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("facet: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1], errors[0])
        for words in says:
            self.assertIn(words, errors[0])
        self.assertEqual([p for p in self.cache.rglob("*") if p.suffix in (".gguf", ".safetensors")], [])
        if not keeps_part:
            self.assertEqual(list(self.cache.rglob("*.part")), [])

    def one(self, data, **faults):
        self.hub.repos["u/r"] = {"x-Q4_K_M.gguf": File(data, **faults)}
        return data

    # ---- what is fetched

    def test_file_is_fetched_once(self):
        data = self.one(noise(3_000_000))
        self.right(self.download(), data)
        again = self.download()
        self.right(again, data)
        self.assertEqual(len(self.hub.asked("/resolve/")), 1)
        check = subprocess.run(["sha256sum", "-c", "x-Q4_K_M.gguf.sha256"], cwd=self.cache / "u/r", capture_output=True)
        self.assertEqual(check.returncode, 0, check.stderr)

    def test_choice_of_quant(self):
        self.hub.repos["u/r"] = {n: File(noise(1000, n)) for n in ("a-Q8_0.gguf", "a-Q5_K_M.gguf", "mmproj-Q4_K_M.gguf")}
        done = self.download("hf:u/r:q5_k_m")
        self.right(done, noise(1000, "a-Q5_K_M.gguf"), "a-Q5_K_M.gguf")
        done = self.download()
        self.right(done, noise(1000, "a-Q8_0.gguf"), "a-Q8_0.gguf")
        self.assertIn("u/r has no Q4_K_M; a-Q8_0.gguf is taken, of Q8_0, Q5_K_M", done.stderr)
        done = self.download("u/r:Q2_K")
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected one of Q8_0, Q5_K_M, found Q2_K", done.stderr)
        done = self.download("u/r/mmproj-Q4_K_M.gguf")
        self.right(done, noise(1000, "mmproj-Q4_K_M.gguf"), "mmproj-Q4_K_M.gguf")

    def test_split_file_in_a_folder(self):
        names = [f"BF16/x-BF16-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        self.hub.repos["u/r"] = {n: File(noise(5000, n)) for n in reversed(names)}
        self.right(self.download("u/r:BF16"), noise(5000, names[0]), names[0])
        for n in names:
            self.assertEqual((self.cache / "u/r" / n).read_bytes(), noise(5000, n))
        del self.hub.repos["u/r"][names[1]]
        shutil.rmtree(self.cache)
        self.wrong(self.download("u/r:BF16"), "expected all 3 parts, found no", "00002-of-00003")

    def test_listing_in_pages(self):
        self.one(noise(1000))
        self.hub.paged = True
        self.right(self.download(), noise(1000))
        self.hub.next_host = self.add_hub().url
        shutil.rmtree(self.cache)
        self.wrong(self.download(), "found it elsewhere")

    def test_small_file_is_verified_by_its_git_hash(self):
        self.hub.repos["u/r"] = {"config.json": File(b'{"a": 1}', lfs=False), "model.safetensors": File(noise(1000))}
        done = self.download("u/r", "--drafter")
        self.right(done, noise(1000), "model.safetensors")
        self.assertEqual((self.cache / "u/r/config.json").read_bytes(), b'{"a": 1}')

    # ---- connections

    def test_connection_that_drops_ten_times(self):
        data = self.one(noise(11_000_000), drops=10)
        self.hub.cdn = self.hub.url
        done = self.download()
        self.right(done, data)
        parts = self.hub.asked("/cdn/")
        self.assertEqual(len(parts), 11)
        etag = self.hub.repos["u/r"]["x-Q4_K_M.gguf"].etag()
        for headers in parts[1:]:
            self.assertIn("range", headers)
            self.assertEqual(headers.get("if-range"), etag)

    def test_another_run_goes_on(self):
        data = self.one(noise(4_000_000), drops=3, piece=1_500_000)
        self.hub.statuses = [0, 0] + [500] * 3  # listing, first part; then the hub is ill
        self.wrong(self.download(), "1.5 MB of 4.0 MB came", "500", keeps_part=True)
        done = self.download()
        self.right(done, data)
        self.assertIn("from 1.5 MB on", done.stderr)
        self.assertEqual(self.hub.asked("/resolve/")[-1]["range"], "bytes=3000000-")

    def test_server_without_ranges(self):
        data = self.one(noise(2_000_000), drops=2, piece=500_000, no_range=True)
        done = self.download()
        self.right(done, data)
        self.assertIn("does not resume; it begins again", done.stderr)

    def test_server_without_ranges_that_always_drops(self):
        self.one(noise(200_000), drops=1000, piece=50_000, no_range=True)
        self.wrong(self.download(), "50.0 kB of 200.0 kB came", keeps_part=True)

    def test_wrong_range(self):
        self.one(noise(200_000), drops=1, piece=50_000, wrong_range=1)
        self.right(self.download(), noise(200_000))

    def test_stalled_body(self):
        self.one(noise(100_000), stall=60)
        begin = time.time()
        done = self.facet("download", "u/r", "--retries", 0, env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
        self.wrong(done, "of 100.0 kB came", keeps_part=True)
        self.assertLess(time.time() - begin, 20)

    def test_dead_hub(self):
        self.hub.close()
        self.hubs.remove(self.hub)
        self.wrong(self.facet("download", "u/r", "--retries", 0), "Failed to connect")

    # ---- answers

    def test_statuses(self):
        for status, words in ((401, "not for everybody"), (403, "accept the model's licence"), (404, "check the name")):
            self.one(noise(1000))
            self.hub.statuses = [status]
            self.wrong(self.download(), str(status), words)
            self.one(noise(1000), status=status)
            self.wrong(self.download(), str(status), words)
        self.one(noise(1000))
        self.wrong(self.download("u/other"), "u/other", "404")
        self.hub.statuses = [500, 503, 429]
        self.wrong(self.download(), "u/r", "429")
        self.hub.statuses = [0, 503, 0]
        self.right(self.download(), noise(1000))

    def test_wrong_hash(self):
        self.one(noise(100_000), announce="a" * 64)
        self.wrong(self.download(), "expected SHA-256 " + "a" * 64, "found " + hashlib.sha256(noise(100_000)).hexdigest())

    def test_pieces_of_different_files(self):
        """A server that resumes whatever it is asked for: the pieces do not fit, all of it is fetched again."""
        file = File(noise(200_000, 1), drops=1, piece=50_000, no_etag=True)
        file.faults["change"] = File(noise(200_000, 2))
        file.faults["announce"] = hashlib.sha256(noise(200_000, 2)).hexdigest()
        self.hub.repos["u/r"] = {"x-Q4_K_M.gguf": file}
        done = self.download()
        self.right(done, noise(200_000, 2))
        self.assertIn("do not make up the file", done.stderr)

    def test_wrong_size(self):
        self.one(noise(1000), announce_size=2000)
        self.wrong(self.download(), "another one than the hub's listing says", keeps_part=True)
        self.one(noise(1000), longer=50)
        self.wrong(self.download(), "another one than the hub's listing says", keeps_part=True)

    def test_file_that_changes_meanwhile(self):
        for cdn in (True, False):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.one(noise(200_000, 1), drops=1, piece=50_000, change=File(noise(220_000, 2)))
            self.hub.cdn = self.hub.url if cdn else None
            done = self.download()
            self.right(done, noise(220_000, 2))
            self.assertIn("changed", done.stderr)

    def test_file_of_the_same_size_that_changes_meanwhile(self):
        self.one(noise(200_000, 1), drops=1, piece=50_000, change=File(noise(200_000, 2)))
        self.hub.repos["u/r"]["x-Q4_K_M.gguf"].faults["announce"] = hashlib.sha256(noise(200_000, 2)).hexdigest()
        done = self.download()
        self.right(done, noise(200_000, 2))
        self.assertIn("changed on the server meanwhile; it begins again", done.stderr)
        self.assertEqual(len(self.hub.asked("/resolve/")), 2)  # no part was fetched in vain

    def test_file_that_changed_between_runs(self):
        self.one(noise(1000, 1))
        self.right(self.download(), noise(1000, 1))
        self.one(noise(1000, 2))
        done = self.download()
        self.right(done, noise(1000, 2))
        self.assertIn("is another one on the hub now", done.stderr)

    def test_part_of_an_older_file(self):
        self.one(noise(200_000, 1), drops=9, piece=50_000)
        self.hub.statuses = [0, 0] + [500] * 3
        self.wrong(self.download(), "came", keeps_part=True)
        data = self.one(noise(200_000, 2))
        done = self.download()
        self.right(done, data)
        self.assertIn("changed on the hub since", done.stderr)

    def test_listings_that_are_none(self):
        for body, words in ((b"<html>", "expected JSON"), (b"{}", "expected a listing"), (b"[" * 200, "deep"), (b"[1]", "an entry"),
                            (b" " * (9 << 20), "at most 8.4 MB"),
                            (b'[{"type":"file","path":"a-Q4_K_M.gguf","size":5,"lfs":{"oid":"../../x"}}]', "no SHA-256"),
                            (b"[" + b",".join([b'{"type":"file","path":"a","size":5}'] * 10_001) + b"]", "at most 10000 files")):
            self.hub.bodies["u/r"] = body
            self.wrong(self.download(), words)

    # ---- names and redirects

    def test_names_that_lead_elsewhere(self):
        outside = pathlib.Path(self.folder.name) / "evil-Q4_K_M.gguf"
        for name in ("../../../evil-Q4_K_M.gguf", str(outside), "a/../../../../evil-Q4_K_M.gguf", ".evil-Q4_K_M.gguf",
                     "evil\n-Q4_K_M.gguf", "a\\..\\evil-Q4_K_M.gguf", "a//evil-Q4_K_M.gguf", "\x1b[2Jevil-Q4_K_M.gguf"):
            self.hub.repos["u/r"] = {name: File(noise(1000))}
            done = self.download()
            self.wrong(done, "is refused")
            self.assertNotIn("\x1b", done.stderr)
            self.assertFalse(outside.exists())
        for name in ("../r", "u/..", "u", "u/r/../x.gguf", "u/r:", "u/r?x"):
            self.assertEqual(self.download(name).returncode, 1)

    def test_links_in_the_cache(self):
        self.one(noise(1000))
        victim = pathlib.Path(self.folder.name) / "victim"
        victim.write_bytes(b"mine")
        (self.cache / "u/r").mkdir(parents=True)
        for name in ("x-Q4_K_M.gguf", "x-Q4_K_M.gguf.part", "x-Q4_K_M.gguf.part.etag"):
            (self.cache / "u/r" / name).symlink_to(victim)
            done = self.download()
            self.assertEqual(done.returncode, 1, name)
            self.assertIn("found a link", done.stderr)
            self.assertEqual(victim.read_bytes(), b"mine")
            shutil.rmtree(self.cache / "u")
            (self.cache / "u/r").mkdir(parents=True)
        shutil.rmtree(self.cache / "u")
        (self.cache / "u").symlink_to(self.folder.name)
        done = self.download()
        self.assertEqual(done.returncode, 1)
        self.assertIn("found a link", done.stderr)

    def test_redirects_to_other_schemes(self):
        secret = pathlib.Path(self.folder.name) / "secret"
        secret.write_bytes(noise(1000))
        for to in (f"file://{secret}", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://user:word@127.0.0.1/x"):
            self.one(noise(1000), redirect=to)
            self.wrong(self.download(), "sends on to", "is refused", keeps_part=True)

    def test_redirects_without_end(self):
        self.one(noise(1000), redirect=self.hub.url + "/{repo}/resolve/main/{name}")
        self.wrong(self.download(), "more than 10 times", keeps_part=True)

    def test_redirects_whose_body_has_no_end(self):
        self.one(noise(1000), redirect=self.hub.url + "/cdn/{repo}/{name}", endless=True)
        begin = time.time()
        self.wrong(self.download(), "of an answer that sends on", keeps_part=True)
        self.assertLess(time.time() - begin, 10)

    def test_token_goes_to_the_hub_alone(self):
        data = self.one(noise(100_000), drops=1)
        other = self.add_hub(repos=self.hub.repos)
        self.hub.token, self.hub.cdn = TOKEN, other.url
        done = self.download(env={"HF_TOKEN": TOKEN})
        self.right(done, data)
        self.assertGreaterEqual(len(other.asked("/cdn/")), 2)
        for headers in other.asked(""):
            self.assertNotIn("authorization", headers)
            self.assertNotIn(TOKEN, str(headers))
        for headers in self.hub.asked(""):
            self.assertEqual(headers.get("authorization"), "Bearer " + TOKEN)
        self.assertNotIn(TOKEN, done.stderr + done.stdout)
        shutil.rmtree(self.cache)
        self.wrong(self.download(), "401", "HF_TOKEN opens what is yours")
        done = self.download(env={"HF_TOKEN": "wrong" + TOKEN})
        self.wrong(done, "HF_TOKEN is not accepted")
        self.assertNotIn(TOKEN, done.stderr)
        self.wrong(self.download(env={"HF_TOKEN": "a\r\nX-Evil: 1"}), "HF_TOKEN: expected visible characters")

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl to make a certificate")
    def test_https(self):
        here = pathlib.Path(self.folder.name)
        key, certificate = here / "key.pem", here / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
                        certificate, "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        plain = self.hub
        self.hub = self.add_hub(certificate=(certificate, key))
        data = self.one(noise(100_000))
        plain.repos = self.hub.repos
        self.wrong(self.download(), "certificate")  # which nobody trusts
        self.hub.cdn = plain.url
        self.wrong(self.download(env={"SSL_CERT_FILE": str(certificate)}), "from https to http", keeps_part=True)
        self.assertEqual(plain.asked(""), [])
        self.hub.cdn = None
        self.right(self.download(env={"SSL_CERT_FILE": str(certificate)}), data)

    def test_addresses_that_are_none(self):
        for url in ("file:///etc", "hub", "http://u:p@127.0.0.1"):
            self.wrong(self.download(env={"HF_ENDPOINT": url}), "HF_ENDPOINT")

    # ---- disks, processes, no hub

    def test_full_disk(self):
        self.one(noise(3_000_000))
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        self.wrong(self.download(preexec_fn=limit), "cannot write", "free some space", keeps_part=True)
        self.right(self.download(), noise(3_000_000))

    def test_no_room(self):
        self.one(noise(1000), announce_size=1 << 59)
        self.wrong(self.download(), "terabyte")
        self.one(noise(1000), announce_size=900 << 30)
        if shutil.disk_usage(self.folder.name).free < 900 << 30:
            self.wrong(self.download(), "disk space; needed", keeps_part=True)

    def test_two_processes_at_once(self):
        data = self.one(noise(4_000_000), rate=60)
        both = [subprocess.Popen([PROGRAM, "download", "u/r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env())
                for _ in range(2)]
        said = [p.communicate(timeout=60) for p in both]
        self.assertEqual([p.returncode for p in both], [0, 0], said)
        self.assertEqual(len({out for out, _ in said}), 1)
        self.assertEqual(len(self.hub.asked("/resolve/")), 1)
        self.assertEqual(sum("another process downloads u/r" in err for _, err in said), 1)
        self.assertEqual((self.cache / "u/r/x-Q4_K_M.gguf").read_bytes(), data)

    def test_killed_and_begun_again(self):
        data = self.one(noise(6_000_000), rate=20)
        p = subprocess.Popen([PROGRAM, "download", "u/r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env())
        part = self.cache / "u/r/x-Q4_K_M.gguf.part"
        end = time.time() + 30
        while not (part.exists() and part.stat().st_size > 1_000_000) and time.time() < end:
            time.sleep(.02)
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=30)
        self.hub.repos["u/r"]["x-Q4_K_M.gguf"].faults.clear()
        done = self.download()
        self.right(done, data)
        self.assertRegex(done.stderr, r"from \d\.\d MB on")

    def test_offline(self):
        data = self.one(noise(1000))
        self.wrong(self.download("u/r", "--offline"), "--offline", "without --offline downloads it")
        self.assertEqual(self.hub.asked(""), [])
        self.right(self.download(), data)
        n = len(self.hub.asked(""))
        self.right(self.download("u/r", "--offline"), data)
        self.right(self.download(env={"HF_HUB_OFFLINE": "1"}), data)
        self.assertEqual(len(self.hub.asked("")), n)
        self.assertIn("found Q8_0", self.download("u/r:Q8_0", "--offline").stderr)
        self.hub.close()
        self.hubs.remove(self.hub)
        done = self.download()
        self.right(done, data)
        self.assertIn("what the cache has is taken", done.stderr)

    def test_file_without_a_noted_hash(self):
        data = self.one(noise(1000))
        self.right(self.download(), data)
        (self.cache / "u/r/x-Q4_K_M.gguf.sha256").unlink()
        done = self.download()
        self.right(done, data)
        self.assertIn("it is read", done.stderr)
        (self.cache / "u/r/x-Q4_K_M.gguf.sha256").unlink()
        (self.cache / "u/r/x-Q4_K_M.gguf").write_bytes(noise(1000, 7))  # not what the hub has
        self.right(self.download(), data)

    def test_where_the_cache_is(self):
        data = self.one(noise(1000))
        home = pathlib.Path(self.folder.name) / "home"
        for env, place in (({"XDG_CACHE_HOME": str(home / "xdg")}, home / "xdg/facet/hub"),
                           ({"HOME": str(home), "XDG_CACHE_HOME": ""}, home / ".cache/facet/hub")):
            done = self.download(env={"FACET_CACHE": "", **env})
            self.assertEqual((done.returncode, done.stdout), (0, f"{place}/u/r/x-Q4_K_M.gguf\n"), done.stderr)
            self.assertEqual((place / "u/r/x-Q4_K_M.gguf").read_bytes(), data)
        self.assertIn("FACET_CACHE", self.download(env={"FACET_CACHE": "", "HOME": "", "XDG_CACHE_HOME": ""}).stderr)

    # ---- commands

    def nano(self):
        self.hub.repos["u/nano"] = {"facet-nano-Q8_0.gguf": File(NANO.read_bytes())}
        self.hub.repos["u/dflash"] = {"facet-nano-dflash-Q8_0.gguf": File(DFLASH.read_bytes())}

    def test_commands_take_it(self):
        self.nano()
        run = ("run", "-p", "What is 17 + 25?", "--temp", "0", "-c", "512")
        done = self.facet(*run, "-hf", "u/nano:Q8_0", "--draft", "hf:u/dflash")
        self.assertEqual((done.returncode, done.stdout), (0, "17 + 25 = 42\n"), done.stderr)
        self.assertIn(f"drafter: {self.cache}/u/dflash/facet-nano-dflash-Q8_0.gguf", done.stderr)
        for args in (("--hf-repo", "u/nano"), ("-hfr", "u/nano"), ("-m", "hf:u/nano"), ("--hf-repo=u/nano",),
                     ("-hf", "u/nano", "--hf-file", "facet-nano-Q8_0.gguf", "--offline", "--quiet")):
            done = self.facet(*run, *args, "--draft", "none")
            self.assertEqual((done.returncode, done.stdout), (0, "17 + 25 = 42\n"), done.stderr)
        self.assertEqual(done.stderr, "")
        for args in (("plan",), ("tokenize",), ("chat",)):
            done = self.facet(*args, "-hf", "u/nano", input="Hello\n")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.facet("run", "-hf", "u/nano", "-m", NANO, "-p", "x").returncode, 2)
        self.assertEqual(len(self.hub.asked("nano/resolve/")), 1)

    def test_server_takes_it(self):
        self.nano()
        for flags in (("-hf", "u/nano", "--draft", "hf:u/dflash"), ("-hf", "u/nano", "-hff", "facet-nano-Q8_0.gguf"),
                      ("-m", "a=hf:u/nano", "-m", f"b={NANO}")):
            server = Serving(*flags, "-c", 512, env=self.env())
            try:
                end = time.time() + 60
                while (status := server.request("GET", "/health")[0]) == 503 and time.time() < end:
                    time.sleep(.1)
                self.assertEqual(status, 200)
                model = {"model": "a"} if "-m" in flags else {}
                status, _, answer = server.request("POST", "/v1/chat/completions", {
                    **model, "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0})
                self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "17 + 25 = 42"))
            finally:
                server.stop()

    def with_encoders(self):
        """A repository with encoders that fit, in two types, above a model in a folder."""
        files = {}
        for quant in ("F16", "Q8_0"):
            path = pathlib.Path(self.folder.name) / f"mmproj-{quant}.gguf"
            done = self.facet("synth", "--mmproj", "nano", "--quant", quant, path)
            self.assertEqual(done.returncode, 0, done.stderr)
            files[path.name] = File(path.read_bytes())
        self.hub.repos["u/sees"] = {"Q8/facet-nano-Q8_0.gguf": File(NANO.read_bytes()), **files}

    def test_encoders_come_with_a_model(self):
        self.with_encoders()
        picture = MODELS / "facet-nano-loss.png"
        run = ("run", "-p", "What is it?", "-n", "2", "-c", "1024", "--draft", "none", "-hf", "u/sees:Q8_0")
        encoders = self.cache / "u/sees/mmproj-F16.gguf"
        for leave in (("--no-mmproj",), ("--mmproj", "none"), ("--mmproj", pathlib.Path(self.folder.name) / "mmproj-Q8_0.gguf")):
            done = self.facet(*run, *leave)
            self.assertEqual((done.returncode, encoders.exists()), (0, False), done.stderr)
        # What takes no pictures fetches none.
        self.assertEqual(self.facet("tokenize", "-hf", "u/sees:Q8_0", input="x").returncode, 0)
        self.assertEqual(self.facet("download", "u/sees:Q8_0", "--no-mmproj").returncode, 0)
        self.assertFalse(encoders.exists())
        # Offline the model is taken as it is, and a picture is an error that says what is missing.
        done = self.facet(*run, "--offline")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--mmproj FILE", self.facet(*run, "--offline", "--image", picture).stderr)
        done = self.facet(*run, "--image", picture)
        self.assertEqual((done.returncode, encoders.exists()), (0, True), done.stderr)
        self.assertIn("mmproj-F16.gguf: complete, SHA-256 verified", done.stderr)
        self.assertEqual(list((self.cache / "u/sees").glob("mmproj-Q8_0*")), [])
        for args in ((), ("--offline",)):
            done = self.facet(*run, "--image", picture, *args)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.hub.asked("mmproj-F16.gguf")), 1)
        self.assertIn("mmproj-F16.gguf", self.facet("plan", "-hf", "u/sees:Q8_0", "--offline").stdout)

    def test_encoders_come_to_servers(self):
        self.with_encoders()
        encoders = self.cache / "u/sees/mmproj-F16.gguf"
        for flags, comes in ((("-m", "a=hf:u/sees:Q8_0", "-m", f"b={NANO}", "--no-mmproj"), False),
                             (("-m", "a=hf:u/sees:Q8_0", "-m", f"b={NANO}"), True), (("-hf", "u/sees:Q8_0"), True)):
            server = Serving(*flags, "-c", 512, env=self.env())
            try:
                end = time.time() + 60
                while server.request("GET", "/health")[0] == 503 and time.time() < end:
                    time.sleep(.1)
                self.assertEqual(encoders.exists(), comes, flags)
                if "-hf" in flags:
                    self.assertTrue(server.request("GET", "/props")[2]["modalities"]["vision"])
            finally:
                server.stop()

    def test_download_brings_encoders_and_prints_the_model(self):
        self.with_encoders()
        done = self.facet("download", "u/sees:Q8_0")
        self.assertEqual((done.returncode, done.stdout), (0, f"{self.cache}/u/sees/Q8/facet-nano-Q8_0.gguf\n"), done.stderr)
        self.assertTrue((self.cache / "u/sees/mmproj-F16.gguf").exists())

    def test_preset_takes_it(self):
        self.nano()
        preset = pathlib.Path(self.folder.name) / "models.ini"
        preset.write_text("[tiny]\nhf-repo = u/nano:Q8_0\nctx-size = 512\n")
        server = Serving("--models-preset", preset, env=self.env())
        try:
            status, _, answer = server.request("POST", "/v1/chat/completions", {
                "model": "tiny", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0})
            self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "17 + 25 = 42"))
        finally:
            server.stop()

    @unittest.skipUnless(os.environ.get("FACET_TEST_FULL") == "1", "1 GB: FACET_TEST_FULL=1")
    def test_a_gigabyte_over_a_connection_that_drops_ten_times(self):
        data = self.one(b"".join(noise(100_000_000, i) for i in range(10)), drops=10)
        begin = time.time()
        done = self.facet("download", "u/r")
        seconds = time.time() - begin
        self.right(done, data)
        self.assertEqual(len(self.hub.asked("/resolve/")), 11)
        print(f"1 GB, ten drops: {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
