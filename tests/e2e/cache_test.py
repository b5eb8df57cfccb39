#!/usr/bin/env python3
"""What conversations keep of what was computed for them, and who waits for whom: cache_test.py PROGRAM [unittest arguments]."""
import os
import random
import sys
import threading
import time
import unittest

from server_test import MODEL, Server

FULL = os.environ.get("FACET_TEST_FULL")
LONG = 11000 if FULL else 5000  # tokens


class Talk:
    """A conversation in token ids, on /v1/completions."""

    def __init__(self, server, rng, opening):
        self.s, self.rng = server, rng
        self.tokens, self.asked = list(opening), 0  # asked: tokens of the last prompt

    def turn(self, n_new):
        """Tokens of the prompt before, and how many of this one's were cached."""
        before = self.asked
        self.tokens += [self.rng.randrange(300, 2000) for _ in range(n_new)]
        self.asked = len(self.tokens)
        answer = self.s.completion(self.tokens, max_tokens=16, ignore_eos=True)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The answer comes as text, whose tokens may be others: what is known for sure is the prompt.
        self.tokens += self.s.request("POST", "/tokenize", {"content": answer["choices"][0]["text"]})[2]["tokens"]
        return before, cached


class Conversations(unittest.TestCase):
    def alternate(self, n, common, length, flags, turns=4, shuffled=False):
        """Share of the tokens computed before, from the second turn on, that were cached."""
        rng = random.Random(n * 1000 + common)
        system = [rng.randrange(300, 2000) for _ in range(common)]
        s = Server("-c", "8192", *flags)
        try:
            talks = [Talk(s, rng, system) for _ in range(n)]
            known = cached = 0
            for turn in range(turns):
                order = list(range(n))
                if shuffled:
                    rng.shuffle(order)
                for i in order:
                    before, hit = talks[i].turn(60 if turn else length - common)
                    known += before
                    cached += min(hit, before)
            return cached / known
        finally:
            s.stop()

    def test_alternating_conversations(self):
        for common in (0, 600):
            for n in (2, 3, 4) if FULL else (4,):
                share = self.alternate(n, common, 1500, ("--parallel", "4"))
                print(f"{n} conversations of 1,500 tokens on four sequences, {common} in common: {share:.1%} cached")
                self.assertGreaterEqual(share, .95)

    def test_sixteen_conversations_on_four_sequences(self):
        share = self.alternate(16, 0, 1500, ("--parallel", "4"), turns=6 if FULL else 3, shuffled=True)
        print(f"16 conversations of 1,500 tokens on four sequences, in random order: {share:.1%} cached")
        self.assertGreaterEqual(share, .95)

    def test_a_common_beginning_is_computed_once(self):
        rng = random.Random(1)
        system = [rng.randrange(300, 2000) for _ in range(4000)]
        s = Server("-c", "8192", "--parallel", "4")
        try:
            hits = []

            def ask(i):
                tail = [rng.randrange(300, 2000) for _ in range(20 + i)]
                hits.append(s.completion(system + tail, max_tokens=4)["usage"]["prompt_tokens_details"]["cached_tokens"])

            together = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
            for t in together:
                t.start()
            for t in together:
                t.join()
            self.assertEqual(sorted(h // 100 for h in hits), [0, 40, 40, 40], hits)
            ask(5)
            self.assertGreaterEqual(hits[-1], 4000)
        finally:
            s.stop()


class Waiting(unittest.TestCase):
    def test_a_short_question_behind_long_prompts(self):
        rng = random.Random(1)
        s = Server("-c", "16384", "--parallel", "4")
        try:
            # Content that no two share, or they would wait for each other's beginning.
            longs = [[rng.randrange(300, 2000) for _ in range(LONG)] for _ in range(3)]
            start = time.time()
            s.completion(longs[0][:2000], max_tokens=1)
            per_step = (time.time() - start) / (2000 / 512)
            done = []

            def ask(p):
                s.completion(p, max_tokens=1)
                done.append(time.time())

            threads = [threading.Thread(target=ask, args=(p,)) for p in longs]
            for t in threads:
                t.start()
            time.sleep(1.5 * per_step)
            asked = time.time()
            s.completion("Hello", max_tokens=1)
            waited = time.time() - asked
            for t in threads:
                t.join()
            print(f"Hello behind three prompts of {LONG:,} tokens: {waited:.2f} s; a step takes {per_step:.2f} s, the prompts {max(done) - asked:.1f} s")
            # The step under way and its own; as much again for a machine that has other things to do.
            self.assertLess(waited, 4 * per_step + .2)
            if max(done) - asked > 20 * per_step:  # else they were read before it came
                self.assertLess(waited, (max(done) - asked) / 4)
        finally:
            s.stop()


if __name__ == "__main__":
    if not MODEL.exists():
        print(f"skipped: {MODEL} is missing")
        sys.exit(77)
    unittest.main()
