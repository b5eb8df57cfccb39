#!/usr/bin/env python3
"""Grammars of strangers: grammar_load_test.py PROGRAM [unittest arguments].

What one client asks for in grammars, schemas and expressions holds up no other: no stream falls silent, no plain request waits, memory stays within bounds, and the
server stays. FACET_TEST_RATES=1 prints what was measured.
"""
import http.client
import json
import os
import pathlib
import resource
import socket
import threading
import time
import unittest

from server_test import Server, post_bytes

# Seconds for which another client's stream may be silent. It takes some hundredths where a core is free; CI's are not.
SILENCE = 1.5


def calls(n):
    """Rules that call each other in every way."""
    rule = lambda i: (f"r{i} ::= [a-z ] r{(7 * i + 1) % n} r{(11 * i + 3) % n} r{(13 * i + 5) % n} | [a-z ] r{(17 * i + 2) % n} r{(3 * i + 1) % n} | [a-z ]")
    return "root ::= r0\n" + "\n".join(map(rule, range(n)))


def alternatives(n):
    names = " | ".join(f"r{i}" for i in range(n))
    return f"root ::= ({names})+\n" + "\n".join(f'r{i} ::= [a-z ]* "{i}" r{(7 * i + 1) % n}?' for i in range(n))


GRAMMARS = {
    "repeats in a row": "root ::= s\ns ::= [a-z ] s s s | [a-z ] s s | [a-z ] s | [a-z ]",
    "any character": "root ::= s\ns ::= . s s | . s | .",
    "may be empty": "root ::= s\ns ::= [a-z ] t t t t | [a-z ]\nt ::= s? u?\nu ::= [a-z ] s? t?",
    "sixty rules": calls(60),
    "six hundred rules": calls(600),
    "alternatives": alternatives(1500),
    "brackets": 'root ::= s\ns ::= "(" s ")" s | "(" s | "(" | [a-z ] s?',
}
EXPRESSIONS = {
    "counters": "(.*a.{400}|.*e.{300}b|.*[xyz].{200})*",
    "a long counter": ".*a.{5000}",
}
TOO_AMBIGUOUS = calls(60)  # in the middle of an answer


class Victim(threading.Thread):
    """A plain stream; gaps: between what came of it."""

    def __init__(self, server, seconds):
        super().__init__()
        self.server, self.seconds, self.gaps = server, seconds, []
        self.begun = threading.Event()
        self.start()
        self.begun.wait(60)

    def run(self):
        c = socket.create_connection(("127.0.0.1", self.server.port))
        c.settimeout(60)
        body = {"prompt": "a", "max_tokens": 3900, "ignore_eos": True, "max_loops": 0, "stream": True}
        c.sendall(post_bytes("/v1/completions", body))
        c.recv(65536)
        self.begun.set()
        last, end = time.time(), time.time() + self.seconds
        while time.time() < end:
            data = c.recv(65536)
            now = time.time()
            self.gaps.append(now - last)
            last = now
            if not data or b"[DONE]" in data:
                break
        c.close()


def told(what, **figures):
    if os.environ.get("FACET_TEST_RATES"):
        print(f"{what}: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()), flush=True)


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("--parallel", "4", "--draft", "ngram")

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0, cls.s.ended_log

    def attack(self, fields, seconds, leaves):
        """Three requests with it at once; they leave after a while, or stay to the end. What one was answered."""
        answers = []

        def one(i):
            c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=leaves or 120)
            try:
                c.request("POST", "/v1/completions", json.dumps({"prompt": "the quick brown", "max_tokens": 120, "temperature": 1.2, "seed": 5 + i, **fields}))
                r = c.getresponse()
                answers.append((r.status, json.loads(r.read())))
            except OSError:
                answers.append((0, None))
            finally:
                c.close()

        victim = Victim(self.s, seconds)
        before = self.s.rss()
        threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
        begun = time.time()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        took = time.time() - begun
        victim.join()
        return max(victim.gaps), answers, took, self.s.rss() - before

    def check(self, name, fields, leaves):
        gap, answers, took, grown = self.attack(fields, 6, leaves)
        told(name, leaves=bool(leaves), longest_silence=gap, answers=[a[0] for a in answers], took=took, grown_mb=grown >> 20)
        self.assertLess(gap, SILENCE, name)
        self.assertLess(grown, 400 << 20, name)
        for status, answer in answers:
            if status not in (0, 200):
                self.assertEqual(status, 400, answer)
                self.assertIn("too ambiguous", answer["error"]["message"])
                self.assertIn(answer["error"]["param"], ("grammar", *fields))

    def test_no_stream_waits_for_a_grammar(self):
        for name, text in GRAMMARS.items():
            with self.subTest(name):
                self.check(name, {"grammar": text}, leaves=None)

    def test_nor_for_one_whose_client_has_left(self):
        for name in ("repeats in a row", "sixty rules"):
            with self.subTest(name):
                self.check(name, {"grammar": GRAMMARS[name]}, leaves=1)

    def test_nor_for_an_expression(self):
        for name, text in EXPRESSIONS.items():
            with self.subTest(name):
                self.check(name, {"guided_regex": text}, leaves=None)

    def test_what_is_too_ambiguous_is_said(self):
        status, _, answer = self.s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 200, "seed": 1, "grammar": TOO_AMBIGUOUS})
        self.assertEqual(status, 400, answer)
        self.assertIn("too ambiguous", answer["error"]["message"])
        self.assertEqual((answer["error"]["param"], answer["error"]["code"]), ("grammar", "grammar_too_ambiguous"))
        c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=120)
        c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 200, "seed": 1, "stream": True, "grammar": TOO_AMBIGUOUS}))
        text = c.getresponse().read().decode()
        c.close()
        self.assertIn("too ambiguous", text)
        self.assertIn('"error"', text)
        self.assertEqual(self.s.request("GET", "/health")[0], 200)

    def test_plain_requests_never_wait_for_compiling(self):
        """Schemas that take long, of clients that wait and of some that leave."""
        bodies = [{"const": f"{i}" + "a" * 50000, "anyOf": [{}] * 20000} for i in range(6)]

        def one(i):
            try:
                self.s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "json_schema": bodies[i]}, timeout=1 if i % 2 else 60)
            except OSError:
                pass

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        longest = 0
        while any(t.is_alive() for t in threads):
            begun = time.time()
            self.s.completion("a", max_tokens=1)
            longest = max(longest, time.time() - begun)
        # A small grammar waits for slices, not for whole compilations.
        begun = time.time()
        self.s.completion("a", max_tokens=4, guided_regex=f"[a-z ]{{1,{int(begun) % 90 + 5}}}")
        told("plain requests beside schemas", longest_s=longest, small_grammar_s=time.time() - begun)
        self.assertLess(longest, 2.5)


class Memory(unittest.TestCase):
    """A server that may take little memory more than it has."""

    def test_the_server_stays(self):
        s = Server("--parallel", "2", "--cache-ram", "0")
        try:
            status = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
            size = int(status.split("VmSize:")[1].split()[0]) << 10
            resource.prlimit(s.process.pid, resource.RLIMIT_AS, (size + (48 << 20), size + (48 << 20)))
            jobs = []
            for i in range(6):
                jobs += [
                    ("/v1/completions", {"prompt": "a", "max_tokens": 60, "grammar": calls(300 + i)}),
                    ("/v1/completions", {"prompt": "a", "max_tokens": 60, "guided_regex": f"(.*a.{{{4000 + i}}}|.*e.{{{3000 + i}}}b)*"}),
                    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "json_schema": {"enum": [f"{i}{k}" * 20 for k in range(3000)]}}),
                    ("/tokenize", {"content": "word " * 200_000}),
                    ("/v1/completions", {"prompt": [[5] * 100] * 8, "max_tokens": 10}),
                ]
            statuses = []

            def one(path, body):
                try:
                    statuses.append(s.request("POST", path, body)[0])
                except (OSError, http.client.HTTPException):  # its connection was closed
                    statuses.append(0)

            threads = [threading.Thread(target=one, args=j) for j in jobs]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            told("little memory", statuses=sorted(set(statuses)))
            self.assertIsNone(s.process.poll(), s.log_text()[-2000:])
            self.assertEqual(s.request("GET", "/health")[0], 200)
            s.completion("a", max_tokens=8)
        finally:
            s.stop()

    def test_little_memory_from_the_start(self):
        """One line and exit code 1, or a server that answers; whatever runs out."""
        whole = Server("--parallel", "2")
        size = int(pathlib.Path(f"/proc/{whole.process.pid}/status").read_text().split("VmPeak:")[1].split()[0]) << 10
        whole.stop()
        served = 0
        for i in range(40):
            limit = (20 << 20) + (size - (20 << 20)) * i // 36
            try:
                s = Server("--parallel", "2", limit=limit)
            except AssertionError as e:
                said = [line for line in str(e).splitlines() if line.startswith("facet: ")]
                self.assertEqual(len(said), 1, e)
                self.assertRegex(said[0], "MiB|memory")
                self.assertIn("exit code 1\n", str(e))
                continue
            served += 1
            try:
                for body in ({"prompt": "a", "max_tokens": 8}, {"prompt": "word " * 3000, "max_tokens": 8}, {"prompt": [[5] * 100] * 8, "max_tokens": 10}):
                    self.assertIn(s.request("POST", "/v1/completions", body)[0], (200, 503))
                self.assertEqual(s.request("GET", "/health")[0], 200)
            except (OSError, http.client.HTTPException):  # it ended
                self.assertEqual(s.process.wait(60), 1)
                self.assertIn("\nfacet: ", s.log_text())
            finally:
                s.stop()
        self.assertGreater(served, 1)


if __name__ == "__main__":
    unittest.main()
