#!/usr/bin/env python3
"""Conversations, forks, cancels, disconnects and restarts at random on a server with little room: soak.py PROGRAM [SECONDS [SEED [OPTION VALUE ...]]].

A small pool, small tiers in memory and on disk, so that everything is parked, given up and brought back all the time. Every answer that
comes whole is compared with that of a server which keeps nothing; at the end memory and counters are looked at. Options of the server replace those below: on a GPU, where
only steps of at most 16 tokens have the same bits however a prompt is cut, `--chunk 16`.
"""
import json
import http.client
import pathlib
import random
import sys
import tempfile
import threading
import time

SECONDS = float(sys.argv.pop(2)) if len(sys.argv) > 2 else 60
SEED = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 1
OPTIONS = sys.argv[2:]
del sys.argv[2:]
from server_test import Server  # noqa: E402  takes the program from argv

LITTLE = {"-c": "1024", "--parallel": "3", "--snapshots": "3", "--kv-memory": "12MB", "--cache-ram": "12MB", "--cache-disk-size": "40MB",
          "--snapshot-every": "200", "-t": "1"}
NOTHING = {"-c": "1024", "--parallel": "2", "--snapshots": "0", "--cache-ram": "0", "-t": "1"}


def flags(usual):
    given = dict(zip(OPTIONS[::2], OPTIONS[1::2]))
    kept = {k: v for k, v in given.items() if usual is LITTLE or not k.startswith(("--kv-memory", "--cache", "--parallel", "--snapshot"))}
    return [x for pair in {**usual, **kept}.items() for x in pair]


class Talk:
    def __init__(self, rng, opening):
        self.rng = rng
        self.tokens = list(opening) + [rng.randrange(300, 2000) for _ in range(rng.randrange(5, 300))]
        self.salt = rng.choice(["", "", "a"])

    def turn(self):
        self.tokens += [self.rng.randrange(300, 2000) for _ in range(self.rng.randrange(1, 60))]
        if len(self.tokens) > 700:
            del self.tokens[self.rng.randrange(50, 300):]
        return list(self.tokens)


class Soak:
    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.Lock()
        self.asked = []  # (request, text)
        self.left = self.hits = self.errors = 0
        self.serve()

    def serve(self):
        self.server = Server(*flags(LITTLE), "--cache-disk", str(self.folder))

    def rss(self):
        for line in open(f"/proc/{self.server.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0

    def client(self, seed, until):
        rng = random.Random(seed)
        openings = [[random.Random(k).randrange(300, 2000) for _ in range(200)] for k in range(3)]
        talks = [Talk(rng, rng.choice(openings)) for _ in range(4)]
        while time.time() < until:
            talk = rng.choice(talks)
            if rng.random() < .1:  # a conversation that parts from another
                talks[rng.randrange(4)] = other = Talk(rng, talk.tokens[:rng.randrange(1, len(talk.tokens))])
                other.salt, talk = talk.salt, other
            body = {"prompt": talk.turn(), "max_tokens": rng.randrange(1, 60), "temperature": 0, "ignore_eos": True, "cache_salt": talk.salt,
                    "cache_prompt": rng.random() < .95}
            if rng.random() < .15:
                self.leave(body, rng)
                continue
            status, _, answer = self.server.request("POST", "/v1/completions", body)
            with self.lock:
                if status != 200:
                    self.errors += 1
                    print(answer)
                    continue
                self.asked.append((body, answer["choices"][0]["text"]))
                self.hits += answer["timings"].get("cache", {}).get("hit_tokens", 0) > 0

    def leave(self, body, rng):
        """Hangs up in the middle of a stream."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
        time.sleep(rng.uniform(0, .1))
        c.close()
        with self.lock:
            self.left += 1

    def phase(self, seconds, seed):
        until = time.time() + seconds
        clients = [threading.Thread(target=self.client, args=(seed * 100 + i, until)) for i in range(6)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()


def main():
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(pathlib.Path(folder) / "cache")
        phases = max(2, int(SECONDS / 60))
        sizes = []
        for k in range(phases):
            soak.phase(SECONDS / phases, SEED * 1000 + k)
            sizes.append(soak.rss())
            if k % 3 == 1 and k + 1 < phases:  # a restart goes on
                assert soak.server.stop() == 0, soak.server.ended_log
                soak.serve()
        time.sleep(.5)
        slots = soak.server.request("GET", "/slots")[2]
        assert not any(s["is_processing"] for s in slots), slots
        assert all(s["n_computed"] <= s["n_tokens"] for s in slots), slots
        kept = sum(f.stat().st_size for f in soak.folder.glob("*"))
        assert kept <= 40 << 20, kept
        assert soak.server.stop() == 0
        log = soak.server.ended_log
        assert "damaged" not in log and "deleted" not in log, log
        # The first phases fill tiers and heaps.
        assert max(sizes) < 1.5 * sizes[min(1, len(sizes) - 1)] + 64, sizes
        plain = Server(*flags(NOTHING))
        step = max(1, len(soak.asked) // 2000)
        wrong = 0
        for body, text in soak.asked[::step]:
            status, _, answer = plain.request("POST", "/v1/completions", {**body, "cache_prompt": False})
            if status != 200 or answer["choices"][0]["text"] != text:
                wrong += 1
                print("differs:" if status == 200 else f"{status} {answer}:", json.dumps(body)[:300])
        plain.stop()
        print(f"{len(soak.asked)} answers, {soak.hits} from the cache, {soak.left} clients left; {len(soak.asked[::step])} compared, {wrong} differ, "
              f"{soak.errors} errors; {sizes[0]:.0f} to {sizes[-1]:.0f} MB, {kept / 1e6:.0f} MB in files")
        return 1 if wrong or soak.errors or not soak.asked else 0


if __name__ == "__main__":
    sys.exit(main())
