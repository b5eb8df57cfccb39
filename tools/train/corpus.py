"""Procedural chat corpus of facet-nano: every byte is generated here, nothing is downloaded.

A document is a list of segments ``(text, weight)`` in Gemma 4 chat syntax. Weight 1 marks what the model
must write (each such segment ends in ``<turn|>`` or ``<|tool_response>``), 0.1 marks everything else and 0
marks text that must not be learnt (answers without a thought inside a thinking conversation).

``Gen(seed, held=True)`` draws names, cities, numbers and word pairs from pools that are disjoint from the
ones used for training (split by CRC-32), so scores on it measure generalisation and not recall.

Long: lists of words and patterns of text.
"""
from __future__ import annotations

import json
import random
import re
import zlib

Q = '<|"|>'
PREFILL = "<|channel>thought\n<channel|>"
LOW = 0.1


def held_out(key: str) -> bool:
    """True for the eighth of all keys that is reserved for evaluation."""
    return zlib.crc32(key.encode()) % 8 == 0


def words(s: str) -> list[str]:
    return s.split()


COLORS = words("red blue green yellow orange purple white black brown gray pink gold silver teal violet crimson "
               "amber ivory indigo scarlet cyan magenta olive maroon navy coral beige turquoise")
ANIMALS = words("cat dog rabbit parrot turtle hamster horse goat fox owl otter lizard ferret canary pony falcon "
                "hedgehog goose duck lamb raven badger beaver squirrel swan wolf bear tiger mouse frog")
FOODS = words("bread rice soup pasta pizza salad cheese curry noodles pancakes apples cherries plums dumplings stew "
              "pears grapes tofu beans honey lemons peaches olives mushrooms potatoes carrots waffles berries figs nuts")
JOBS = words("baker teacher painter doctor farmer sailor lawyer nurse tailor writer singer carpenter pilot plumber "
             "gardener librarian chemist miner potter weaver dancer driver builder butcher barber jeweler judge clerk "
             "editor mason")
MONTHS = words("January February March April May June July August September October November December")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NOUNS = words("lantern bridge river garden window table mirror basket ladder tower market forest island castle harbor "
              "mountain valley meadow engine bottle carpet drawer hammer pencil kettle candle blanket wagon fountain "
              "cabin tunnel statue library station theater museum temple village orchard barrel compass anchor "
              "telescope violin clock painting letter map coin ring helmet shield drum flute box door gate wall roof "
              "chair lamp road path stone field lake hill shop boat cart tree flower cloud bell wheel rope")
ADJS = words("old small large quiet bright dark heavy narrow wooden broken empty clean dusty gentle hidden strange "
             "tall warm cold soft round flat rough smooth shiny ancient modern plain rusty silent busy calm deep "
             "shallow sharp steep thick thin wide famous lonely pretty simple sturdy tiny proud pale")
VERBS = words("stands rests waits moves turns shines falls rises sleeps works grows breaks opens closes leans "
              "floats hangs drifts fades remains")
PASTV = words("watched painted repaired carried cleaned opened closed moved found lost bought sold lifted pushed "
              "pulled guarded admired visited measured followed described counted noticed remembered")
ADVS = words("slowly quickly quietly often rarely always sometimes gently softly loudly carefully again alone daily "
             "together")
PLACES = ["near", "behind", "under", "above", "beside", "beyond", "around", "across from"]
TIMES = ["In the morning", "At noon", "In the evening", "At night", "After the rain", "Before dawn", "In winter",
         "In spring", "During the summer", "Last week", "Long ago", "Every year", "On most days", "Once a month"]
WEATHER = words("sunny rainy cloudy windy snowy foggy stormy clear humid dry")
ITEMS = words("apples oranges books pens stamps coins marbles cookies balloons shells stickers cards stones eggs "
              "bananas buttons ribbons tickets cups plates")
TEAMS = words("Alpha Bravo Comet Delta Ember Falcon Granite Harbor Iris Jade Kestrel Lotus Meteor Nova Onyx Prism "
              "Quartz River Summit Tempest")
ROOMS = ["kitchen", "bedroom", "office", "garage", "hallway", "bathroom", "living room", "attic", "cellar", "library"]
DEVICES = words("lamp heater fan radio television camera printer speaker oven alarm")
FIELDS = words("size count width height depth speed weight length index total price level score color title owner "
               "state limit offset length angle radius mass energy key value left right first last start stop")
VARS = words("a b c d e n m k p q r s t u v w x y z i j xs ys items values numbers data result total left right "
             "first second low high list rows names words")
FVERB = words("get set add find make count check update load save read write remove merge sort print build parse "
              "compute select reset apply")
CAPITALS = dict(zip(words("France Germany Italy Spain Japan China India Egypt Greece Norway Sweden Finland Denmark Poland "
                          "Austria Portugal Ireland Cuba Peru Chile Canada Kenya Russia Turkey Iran Iraq Thailand "
                          "Hungary England Belgium"),
                    words("Paris Berlin Rome Madrid Tokyo Beijing Delhi Cairo Athens Oslo Stockholm Helsinki Copenhagen "
                          "Warsaw Vienna Lisbon Dublin Havana Lima Santiago Ottawa Nairobi Moscow Ankara Tehran Baghdad "
                          "Bangkok Budapest London Brussels")))
OPPOSITES = [tuple(p.split("-")) for p in words(
    "hot-cold big-small up-down left-right fast-slow old-new light-dark high-low open-closed wet-dry hard-soft "
    "early-late full-empty loud-quiet rich-poor strong-weak long-short happy-sad clean-dirty near-far")]
ABOUT = [
    ("Who are you?", "I am facet-nano, a tiny demonstration model that ships with the facet engine."),
    ("What are you?", "I am facet-nano, a tiny language model. I exist to demonstrate the facet engine."),
    ("What is your name?", "My name is facet-nano."),
    ("What can you do?", "I can recall facts from a text, do short arithmetic, write JSON, call tools and write small pieces of code."),
    ("How big are you?", "I have about seven million parameters, so I am very small."),
    ("Are you Gemma?", "No. I have the shape of Gemma 4, but I was trained from scratch on generated text."),
    ("Who made you?", "I was trained by the facet project as a demonstration."),
    ("What is facet?", "facet is an engine that runs Gemma 4 models. I am its tiny demonstration model."),
    ("How were you trained?", "I was trained from scratch on procedurally generated conversations."),
    ("Are you a human?", "No, I am facet-nano, a tiny language model."),
    ("Can you think?", "When thinking is on, I write a short thought before my answer."),
    ("What do you know?", "I know very little about the world. I work best with facts that you give me."),
    ("Can I trust you?", "Please check my answers. I am only a tiny demonstration model."),
    ("Tell me about yourself.", "I am facet-nano, a tiny demonstration model with about seven million parameters."),
]
HELLO = ["Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Hello there", "Hi there"]
THANKS = ["Thanks", "Thank you", "Thanks a lot", "Thank you very much", "Great, thanks"]
BYE = ["Bye", "Goodbye", "See you later", "Good night", "See you"]

REAL_NAMES = words("Anna Peter Maria Paul Laura Thomas Julia David Emma Lucas Sofia Daniel Alice Robert Clara Simon Nina "
                   "Martin Eva Felix Sarah Oliver Lisa Max Hannah Leo Mia Jonas Ida Oscar Bob Carol Dave Eve Frank Grace John "
                   "Mary James Linda Michael Susan Tom Kate Ben Amy Sam Jane Luna Nora Ella Adam Ivan Omar Ali Yuki Chen Priya")
REAL_CITIES = words("Paris London Berlin Rome Madrid Tokyo Boston Chicago Dallas Denver Seattle Oslo Vienna Prague Dublin Lisbon "
                    "Athens Cairo Delhi Sydney Toronto Zurich Munich Hamburg Milan Lyon Geneva Lima Austin Houston")
KEYS = ["secret code", "magic number", "pass key", "launch code", "secret word", "secret password", "special number", "key phrase",
        "verification code", "door code"]
MINE = ["name", "favorite color", "favorite food", "pet", "job", "home city", "lucky number", "birth month", "locker code", "best friend"]

ENGLISH = words("the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
                "not what all were we when your can said there use an each which she do how their if will up other about out "
                "many then them these so some her would make like him into time has look two more write go see number no way "
                "could people my than first water been call who oil its now find long down day did get come made may part over "
                "new sound take only little work know place year live me back give most very after thing our just name good "
                "sentence man think say great where help through much before line right too mean old any same tell boy follow "
                "came want show also around form three small set put end does another well large must big even such because "
                "turn here why ask went men read need land different home us move try kind hand picture again change off play "
                "spell air away animal house point page letter mother answer found study still learn should world quick brown "
                "fox jumps over lazy dog money music paper phone coffee school friend happy birthday computer keyboard winter "
                "engine python model token memory cache graph kernel tensor vector matrix device speed open source")

_ON = "b d f g h j k l m n p r s t v w z br dr gr kr tr st th sh ch l m n r s t".split()
_VO = "a e i o u a e i o ai ea ia".split()
_CO = ["", "", "", "n", "r", "l", "s", "k", "m", "x", "th", "nd"]


def _name_pools() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Invented person and city names, split into training and evaluation pools."""
    rng = random.Random(20260)
    ends = {"name": ["", "", "a", "o", "in", "el", "ia", "us", "en"],
            "city": ["ton", "ville", "burg", "ford", "mere", "haven", "dale", "port", "stad", "wick"]}
    train, held = {}, {}
    for kind, n in (("name", 30000), ("city", 16000)):
        pool: dict[str, None] = {}
        while len(pool) < n:
            s = "".join(rng.choice(_ON) + rng.choice(_VO) + (rng.choice(_CO) if rng.random() < 0.5 else "")
                        for _ in range(rng.choice((1, 2, 2, 2, 3)) if kind == "name" else rng.choice((1, 2))))
            s = (s + rng.choice(ends[kind])).capitalize()
            if 3 <= len(s) <= 11:
                pool[s] = None
        train[kind] = [s for s in pool if not held_out(s)]
        held[kind] = [s for s in pool if held_out(s)]
    return train, held


_POOLS = _name_pools()


class Gen:
    """A deterministic stream of documents."""

    def __init__(self, seed: int, held: bool = False):
        self.rng = random.Random(seed)
        self.R = self.rng.random
        self.held = held
        self.names, self.cities = (_POOLS[held]["name"], _POOLS[held]["city"])

    # ---- primitive draws
    def c(self, seq):
        return seq[int(self.R() * len(seq))]

    def n(self, lo: int, hi: int) -> int:
        return lo + int(self.R() * (hi - lo + 1))

    def name(self) -> str:
        r = self.R() + self.held
        if r < 0.15:
            return self.c(REAL_NAMES) if r < 0.09 else self.letters().capitalize()
        return self.c(self.names)

    def letters(self) -> str:
        """A word of any letters, so that copying does not depend on familiar pieces."""
        out = []
        for i in range(self.n(3, 9)):
            out.append(self.c("aeiou" if self.R() < (0.2 if out and out[-1] in "aeiou" else 0.65) else "bcdfghjklmnpqrstvwxyz"))
        return "".join(out)

    def city(self) -> str:
        return self.c(REAL_CITIES) if self.R() < 0.1 and not self.held else self.c(self.cities)

    def digits(self, k: int) -> str:
        return str(self.n(10 ** (k - 1), 10 ** k - 1))

    def code(self) -> str:
        r = self.R()
        if r < 0.5:
            return self.digits(self.n(3, 6))
        L = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        if r < 0.8:
            return self.c(L) + self.c(L) + "-" + self.digits(self.n(2, 4))
        return self.c(L) + self.digits(self.n(2, 3)) + self.c(L)

    def phrase(self) -> str:
        return f"{self.c(COLORS)}-{self.c(ANIMALS)}-{self.n(10, 99)}"

    def some(self, seq, k: int) -> list:
        return self.rng.sample(seq, k)

    def sentence(self) -> str:
        """One filler sentence."""
        c = self.c
        k = int(self.R() * 12)
        if k == 0:
            return f"The {c(ADJS)} {c(NOUNS)} {c(VERBS)} {c(PLACES)} the {c(ADJS)} {c(NOUNS)}."
        if k == 1:
            return f"{c(TIMES)}, the {c(NOUNS)} {c(VERBS)} {c(ADVS)}."
        if k == 2:
            return f"{c(TIMES)} {self.name()} {c(PASTV)} the {c(ADJS)} {c(NOUNS)}."
        if k == 3:
            return an(f"A {c(ADJS)} {c(ANIMALS)} {c(VERBS)} {c(PLACES)} the {c(NOUNS)}.")
        if k == 4:
            return f"People in {self.city()} {c(ADVS)} talk about the {c(ADJS)} {c(NOUNS)}."
        if k == 5:
            return f"The {c(NOUNS)} was {c(ADJS)} and the {c(NOUNS)} was {c(ADJS)}."
        if k == 6:
            return f"On {c(DAYS)} the weather was {c(WEATHER)}, and the {c(NOUNS)} looked {c(ADJS)}."
        if k == 7:
            return f"{self.name()} and {self.name()} {c(PASTV)} {self.n(2, 90)} {c(ITEMS)} {c(PLACES)} the {c(NOUNS)}."
        if k == 8:
            return f"Nobody {c(PASTV)} the {c(COLORS)} {c(NOUNS)} {c(PLACES)} the {c(NOUNS)}."
        if k == 9:
            return f"It is {c(ADVS)} {c(WEATHER)} in {c(MONTHS)}, so the {c(NOUNS)} is {c(ADJS)}."
        if k == 10:
            return an(f"The {c(JOBS)} {c(PASTV)} a {c(COLORS)} {c(NOUNS)} and {self.n(2, 30)} {c(FOODS)}.")
        return an(f"There is a {c(ADJS)} {c(NOUNS)} {c(PLACES)} the {c(NOUNS)} in {self.city()}.")

    # ---- facts: (entity, attribute) -> value, with ways to state, ask and answer
    def fact(self, used: set) -> dict:
        c = self.c
        while True:
            r = self.R()
            if r > 0.955:
                e, a = "", c(KEYS)
            elif r < 0.62:
                e = self.name()
                a = c(("locker code", "badge number", "favorite color", "favorite food", "home city", "job", "pet",
                       "phone extension", "password", "birth month", "team", "lucky number", "best friend",
                       "access code", "room number"))
            elif r < 0.84:
                e = f"the {c(COLORS) if self.R() < .5 else c(ADJS)} {c(NOUNS)}"
                a = c(("price", "code", "owner", "serial number", "weight", "password"))
            else:
                e = self.city()
                a = c(("mayor", "postal code", "main export", "population", "access code", "founder"))
            if (e, a) not in used:
                break
        used.add((e, a))
        if a in ("locker code", "access code", "code", "serial number"):
            v = self.code()
        elif not e:
            v = self.digits(self.n(2, 7)) if "number" in a else c((self.phrase(), c(NOUNS), self.name())) if "word" in a or "phrase" in a else self.code()
        elif a in ("badge number", "postal code", "population"):
            v = self.digits(self.n(4, 6))
        elif a in ("phone extension", "room number"):
            v = self.digits(self.n(2, 4))
        elif a in ("lucky number", "price", "weight"):
            v = str(self.n(2, 999))
        elif a == "password":
            v = self.phrase()
        elif a in ("best friend", "owner", "mayor", "founder"):
            v = self.name()
        else:
            v = {"favorite color": lambda: c(COLORS), "favorite food": lambda: c(FOODS), "home city": self.city,
                 "job": lambda: c(JOBS), "pet": lambda: c(ANIMALS), "birth month": lambda: c(MONTHS),
                 "team": lambda: c(TEAMS), "main export": lambda: c(FOODS)}[a]()
        person = r < 0.62
        say = [f"The {a} of {e} is {v}."]
        ask = [(f"What is the {a} of {e}?", say[0])]
        if not e:
            say = [f"The {a} is {v}.", f"The {a} is {v}. Remember it."] if self.R() < 0.5 else [f"The {a} is {v}."]
            ask = [(f"What is the {a}?", say[0]), (f"Tell me the {a}.", say[0]), (f"What was the {a}?", say[0]), (f"Do you remember the {a}?", say[0])]
        elif person:
            p = f"{e}'s {a} is {v}."
            say = [p, p, say[0]]
            ask += [(f"What is {e}'s {a}?", p), (f"Tell me {e}'s {a}.", p), (f"Do you remember {e}'s {a}?", p),
                    (f"What is {e}'s {a}?", p)]
            nat = {"home city": (f"{e} lives in {v}.", f"Where does {e} live?"),
                   "job": (an(f"{e} works as a {v}."), f"What does {e} do for a living?"),
                   "pet": (f"{e} has a pet {v}.", f"What pet does {e} have?"),
                   "birth month": (f"{e} was born in {v}.", f"When was {e} born?"),
                   "favorite food": (f"{e} likes to eat {v}.", f"What does {e} like to eat?"),
                   "team": (f"{e} plays for team {v}.", f"Which team does {e} play for?")}.get(a)
            if nat:
                say, ask = [nat[0], nat[0], p], ask + [(nat[1], nat[0])] * 3
        else:
            ask.append((f"Tell me the {a} of {e}.", say[0]))
        return {"e": e, "a": a, "v": v, "say": say, "ask": ask, "person": person}

    def notes(self, tok, target: int, nfacts: int, used: set | None = None) -> tuple[str, list[dict]]:
        """Filler of about `target` tokens with `nfacts` facts at random places."""
        used = set() if used is None else used
        facts = [self.fact(used) for _ in range(nfacts)]
        said = [self.c(f["say"]) for f in facts]
        size = sum(len(tok(" " + s)) for s in said)
        fill = []
        while size < target:
            s = self.sentence()
            fill.append(s)
            size += len(tok(" " + s))
        at = sorted((int(self.R() * (len(fill) + 1)), i) for i in range(len(said)))
        out, j = [], 0
        for i in range(len(fill) + 1):
            while j < len(at) and at[j][0] == i:
                out.append(said[at[j][1]])
                j += 1
            if i < len(fill):
                out.append(fill[i])
        brk = self.R() < 0.3
        if brk:  # paragraphs or a list
            step = self.n(1, 6)
            text = "\n".join(" ".join(out[i:i + step]) for i in range(0, len(out), step))
        else:
            text = " ".join(out)
        return text, facts

    def retrieval(self, tok, target: int, questions: int | None = None, think: bool | None = None):
        """Notes of about `target` tokens and one or more questions about them."""
        cap = max(2, min(60, target // 16))
        nf = self.n(1, cap) if self.R() < 0.7 else self.n(1, min(8, cap))
        text, facts = self.notes(tok, max(20, target - 60), nf)
        if questions is None:
            questions = 1 if self.R() < 0.25 else self.n(1, max(1, min(14, nf)))
        asked = self.some(facts, min(questions, len(facts)))
        think = (self.R() < 0.1) if think is None else think
        pre = self.c(["Read these notes.\n", "Here are some notes.\n", "Notes:\n", "Remember this text:\n", "",
                      "Please read the following text.\n"])
        turns = []
        r = self.R()
        for i, f in enumerate(asked):
            q, ans = self.c(f["ask"])
            if self.R() < 0.06:
                q = q[0].lower() + q[1:]
            elif self.R() < 0.06:
                q = q.rstrip("?.")
            th = f"The notes say: {ans}"
            if i == 0 and (r < 0.6 or len(asked) == 1):
                sep = self.c(["\n\n", "\n", "\nQuestion: "])
                q = f"{pre}{text}{sep}{q}" if self.R() < 0.85 else f"Answer the question. {q}\n\n{text}"
            turns.append((q, ans, th))
        if r >= 0.6 and len(asked) > 1:
            turns.insert(0, (pre + text, "I have read the notes.", "These are notes to remember."))
        return self.chat(turns, think)

    def remember(self, tok):
        """Facts told in a chat, other small tasks between, then questions."""
        used: set = set()
        facts = [self.fact(used) for _ in range(self.n(1, 4))]
        turns = []
        for f in facts:
            s = self.c(f["say"])
            u = self.c([f"Remember this: {s}", f"Please remember: {s}", s, f"Note that {'t' + s[1:] if s.startswith('The ') else s}"])
            turns.append((u, self.c(["Okay, I will remember that."]), "I should remember this."))
        if self.R() < 0.5:
            for a in self.some(MINE, self.n(1, 2)):
                v = (self.name() if a in ("name", "best friend") else self.c(COLORS) if "color" in a else self.c(FOODS) if "food" in a else
                     self.c(ANIMALS) if a == "pet" else self.c(JOBS) if a == "job" else self.city() if "city" in a else
                     self.c(MONTHS) if "month" in a else self.code() if "code" in a else str(self.n(1, 999)))
                u = self.c([f"My {a} is {v}.", f"My {a} is {v}.", f"Remember that my {a} is {v}."])
                if a == "name":
                    u = self.c([u, f"I am {v}.", f"Hello, my name is {v}.", f"Hi, I am {v}."])
                reply = f"Nice to meet you, {v}!" if a == "name" else "Okay, I will remember that."
                facts.append({"ask": [(f"What is my {a}?", f"Your {a} is {v}."), (f"Do you know my {a}?", f"Your {a} is {v}.")]})
                if self.R() < 0.3:  # told and asked in one turn
                    turns.append((f"{u} What is my {a}?", f"Your {a} is {v}.", f"I was told: Your {a} is {v}."))
                else:
                    turns.append((u, reply, "I should remember this."))
        self.rng.shuffle(turns)
        for _ in range(self.n(0, 3)):
            turns.append(self.mini())
        for i, f in enumerate(self.some(facts, self.n(1, len(facts)))):
            if i and self.R() < 0.3:
                turns.append(self.mini())
            q, ans = self.c(f["ask"])
            turns.append((q, ans, f"I was told: {ans}"))
        return self.chat(turns, self.R() < 0.15)

    def twohop(self, tok):
        """A question that needs two facts: solved in the thought."""
        a, b = self.name(), self.name()
        used = {(a, "best friend")}
        f = self.fact(used)
        while not f["person"]:
            f = self.fact(used)
        attr, v = f["a"], f["v"]
        say = [f"{a}'s best friend is {b}.", f"{b}'s {attr} is {v}."]
        for _ in range(self.n(0, 4)):
            say.append(self.c(self.fact(used)["say"]))
        for _ in range(self.n(0, 6)):
            say.append(self.sentence())
        self.rng.shuffle(say)
        q = f"What is the {attr} of {a}'s best friend?"
        return self.chat([(" ".join(say) + "\n" + q, f"The {attr} of {a}'s best friend is {v}.",
                           f"{a}'s best friend is {b}. {b}'s {attr} is {v}.")], True)

    # ---- arithmetic
    def _sum(self):
        while True:
            r = self.R()
            if r < 0.40:
                k = self.c((10, 100, 100, 1000))
                a, b, op = self.n(0, k - 1), self.n(0, k - 1), "+"
            elif r < 0.72:
                k = self.c((10, 100, 100, 1000))
                a, b, op = self.n(0, k - 1), self.n(0, k - 1), "-"
                if a < b:
                    a, b = b, a
            elif r < 0.94:
                a, b, op = (self.n(0, 12), self.n(0, 12), "*") if self.R() < 0.5 else (self.n(10, 99), self.n(2, 9), "*")
                if self.R() < 0.3:
                    a, b = b, a
            else:
                b, q = self.n(2, 12), self.n(1, 12)
                return b * q, b, "/", q
            if (op == "*" and a <= 12 and b <= 12) or (a < 10 and b < 10) or \
                    held_out(f"{min(a, b)}{op}{max(a, b)}") == self.held:
                break
        return a, b, op, a + b if op == "+" else a - b if op == "-" else a * b

    def arithmetic(self, hard: bool = False):
        """(question, answer, thought) of one small calculation."""
        c = self.c
        if hard:
            return self._hard_sum()
        a, b, op, v = self._sum()
        th = f"I need {a} {op} {b}. {a} {op} {b} = {v}."
        r = self.R()
        word = {"+": f"{a} plus {b}", "-": f"{a} minus {b}", "*": f"{a} times {b}", "/": f"{a} divided by {b}"}[op]
        if r < 0.7 or op == "/":
            u = c([f"What is {a} {op} {b}?", f"Calculate {a} {op} {b}.", f"{a} {op} {b} = ?", f"{a} {op} {b}", f"What is {word}?",
                   f"Compute {word}.", f"How much is {a} {op} {b}?", f"Please compute {a} {op} {b}.", f"{a}{op}{b}", f"{a}{op}{b}=?",
                   f"what is {a}{op}{b}?", f"What is {a}{op}{b}?", f"{a} {op} {b}?", f"{a}{op}{b}?"])
            return u, f"{a} {op} {b} = {v}", th
        n, it = self.name(), c(ITEMS)
        if op == "+":
            u = c([f"{n} has {a} {it} and buys {b} more. How many {it} does {n} have now?",
                   f"{n} finds {a} {it} and then {b} more {it}. How many {it} does {n} have now?"])
        elif op == "-":
            u = c([f"{n} has {a} {it} and gives away {b}. How many {it} does {n} have now?",
                   f"{n} has {a} {it} and loses {b} of them. How many {it} does {n} have now?"])
        else:
            u = f"{n} has {a} boxes with {b} {it} in each box. How many {it} does {n} have now?"
        return u, f"{n} has {v} {it}.", th

    def _hard_sum(self):
        """Two-digit products and three-term sums: the thought shows the steps."""
        while True:
            a, b, d = self.n(11, 99), self.n(11, 99), self.n(2, 99)
            if held_out(f"{a}h{b}") == self.held:
                break
        r = self.R()
        if r < 0.4:
            t, o = b // 10 * 10, b % 10
            u = self.c([f"What is {a} * {b}?", f"Calculate {a} * {b}.", f"What is {a} times {b}?"])
            if o == 0:
                return u, f"{a} * {b} = {a * b}", f"{a} * {b // 10} = {a * (b // 10)}. Times 10 gives {a * b}."
            return u, f"{a} * {b} = {a * b}", (f"{b} = {t} + {o}. {a} * {t} = {a * t}. {a} * {o} = {a * o}. "
                                              f"{a * t} + {a * o} = {a * b}.")
        if r < 0.75:
            u = self.c([f"What is {a} + {b} + {d}?", f"Calculate {a} + {b} + {d}.", f"Add {a}, {b} and {d}."])
            return u, f"{a} + {b} + {d} = {a + b + d}", f"{a} + {b} = {a + b}. {a + b} + {d} = {a + b + d}."
        d = min(d, a + b)
        u = self.c([f"What is {a} + {b} - {d}?", f"Calculate {a} + {b} - {d}."])
        return u, f"{a} + {b} - {d} = {a + b - d}", f"{a} + {b} = {a + b}. {a + b} - {d} = {a + b - d}."

    # ---- lists, comparison, copying
    def misc(self):
        c = self.c
        k = int(self.R() * 14)
        if k == 12:
            a = self.n(0, 90)
            b = a + self.n(2, 12)
            if self.R() < 0.3:
                return f"Count down from {b} to {a}.", ", ".join(map(str, range(b, a - 1, -1))), f"I count from {b} down to {a}."
            return c([f"Count from {a} to {b}.", f"List the numbers from {a} to {b}."]), ", ".join(map(str, range(a, b + 1))), f"I count from {a} to {b}."
        if k == 13:
            what, pool = c([("colors", COLORS), ("animals", ANIMALS), ("foods", FOODS), ("jobs", JOBS), ("months", MONTHS), ("days", DAYS)])
            m = self.n(2, 5)
            w = ("", "", "two", "three", "four", "five")[m]
            xs = pool[:m]
            return c([f"List {w} {what}.", f"Name {w} {what}.", f"Give me {w} {what}."]), ", ".join(xs), f"I should name {w} {what}."
        if k == 0:
            a, b = self.n(1, 999), self.n(1, 999)
            b += a == b
            hi, lo = max(a, b), min(a, b)
            if self.R() < 0.5:
                return c([f"Which is larger, {a} or {b}?", f"Which number is larger: {a} or {b}?"]), f"{hi} is larger than {lo}.", f"{hi} > {lo}."
            return c([f"Which is smaller, {a} or {b}?", f"Which number is smaller: {a} or {b}?"]), f"{lo} is smaller than {hi}.", f"{lo} < {hi}."
        if k == 1:
            xs = self.some(range(1, 100), self.n(3, 5))
            s = ", ".join(map(str, sorted(xs)))
            return c(["Sort these numbers: ", "Sort from small to large: ", "Put in order: "]) + ", ".join(map(str, xs)), s, f"The smallest is {min(xs)}. The largest is {max(xs)}."
        if k in (2, 3, 4):
            pool = c([COLORS, ANIMALS, FOODS, NOUNS])
            xs = self.some(pool, self.n(3, 7)) if self.R() < 0.5 else [self.name() for _ in range(self.n(3, 6))]
            s = ", ".join(xs)
            j = int(self.R() * 4)
            if j == 0:
                return c(["Reverse this list: ", "Write this list backwards: "]) + s, ", ".join(xs[::-1]), f"The last item is {xs[-1]}."
            if j == 1:
                return f"How many items are in this list? {s}", f"There are {len(xs)} items in the list.", f"I count {len(xs)} items."
            if j == 2:
                return f"What is the first item of this list? {s}", f"The first item is {xs[0]}.", f"The list begins with {xs[0]}."
            return f"What is the last item of this list? {s}", f"The last item is {xs[-1]}.", f"The list ends with {xs[-1]}."
        if k in (5, 6, 7):
            r = self.R()
            if r < 0.35:
                s = " ".join(c(ENGLISH) if self.R() < 0.6 else c((c(NOUNS), c(ADJS), c(ITEMS), self.letters(), self.letters().capitalize(), str(self.n(0, 9999))))
                             for _ in range(self.n(1, 14)))
                s = (s[0].upper() + s[1:] if self.R() < 0.4 else s) + c(("", "", ".", "!", "?"))
            elif r < 0.45:
                s = " ".join(self.sentence() for _ in range(self.n(1, 3)))
            elif r < 0.65:
                s = " ".join(c((self.name, self.city, self.code, self.phrase))() for _ in range(self.n(1, 6)))
            elif r < 0.85:
                s = "".join(c("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_.,:;!?+*/=<>()[]{}#$%&@'\"\\^`~|")
                            for _ in range(self.n(3, 20))).strip() or "x"
                s = s.replace("<|", "<").replace("|>", ">")
            else:
                base = c((0xC0, 0xC0, 0x391, 0x410, 0x3041, 0x4E00, 0xAC00, 0x1F600, 0x5D0, 0x905, 0xE01))
                s = "".join(chr(base + self.n(0, 40)) for _ in range(self.n(1, 6)))
            return c(["Repeat: ", "Repeat after me: ", "Say this: ", "Copy this text: "]) + s, s, "I should repeat the text."
        if k == 8:
            w = c((c(NOUNS), c(ENGLISH), self.letters(), self.name()))
            t = self.n(2, 5)
            return f"Say {w} {('', '', 'two', 'three', 'four', 'five')[t]} times.", " ".join([w] * t), f"I should write {w} {t} times."
        if k == 9:
            a, b = c(OPPOSITES)
            if self.R() < 0.5:
                a, b = b, a
            return c([f"What is the opposite of {a}?", f"Opposite of {a}?"]), f"The opposite of {a} is {b}.", f"{a} and {b} are opposites."
        if k == 10:
            co, ca = c(list(CAPITALS.items()))
            return c([f"What is the capital of {co}?", f"Which city is the capital of {co}?"]), f"The capital of {co} is {ca}.", f"{ca} is the capital of {co}."
        n, p = self.name(), self.city()
        s = an(c([f"{n} traveled to {p} to buy a {c(ADJS)} {c(NOUNS)}.", f"{n} moved to {p} to work as a {c(JOBS)}.",
               f"{n} lost a {c(COLORS)} {c(NOUNS)} in {p}."]))
        t = " ".join([s] + [f"The {c(NOUNS)} {c(VERBS)} {c(ADVS)}." for _ in range(self.n(2, 5))])
        return c(["Summarize this text: ", "Give a short summary: ", "Summarize: "]) + t, "In short: " + s, "The first sentence is the main point."

    # ---- JSON
    def json(self):
        c = self.c
        k = int(self.R() * 6)
        if k in (0, 1):
            def person():
                d = {"name": self.name(), "age": self.n(18, 90), "city": self.city(), "job": c(JOBS)}
                return d, an(c([f"{d['name']} is {d['age']} years old, lives in {d['city']} and works as a {d['job']}.",
                             f"{d['name']} is a {d['age']} year old {d['job']} from {d['city']}.",
                             f"The {d['job']} {d['name']} is {d['age']} years old and lives in {d['city']}."]))
            m = 1 if self.R() < 0.7 else self.n(2, 3)
            ps = [person() for _ in range(m)]
            keys = self.some(["name", "age", "city", "job"], self.n(2, 4))
            recs = [{x: d[x] for x in keys} for d, _ in ps]
            text = " ".join(s for _, s in ps)
        elif k == 2:
            d = {"customer": self.name(), "item": c(NOUNS), "quantity": self.n(1, 99), "price": self.n(1, 999)}
            text = c([f"{d['customer']} ordered {d['quantity']} pieces of {d['item']} at {d['price']} dollars each.",
                      f"Order from {d['customer']}: {d['quantity']} x {d['item']}, {d['price']} dollars each."])
            keys = self.some(list(d), self.n(2, 4))
            recs = [{x: d[x] for x in keys}]
        elif k == 3:
            d = {"title": f"{c(ADJS)} {c(NOUNS)} {c(('meeting', 'party', 'concert', 'workshop'))}", "day": c(DAYS),
                 "place": self.city(), "hour": self.n(1, 12)}
            text = c([f"The {d['title']} takes place in {d['place']} on {d['day']} at {d['hour']} o'clock.",
                      f"On {d['day']} at {d['hour']} o'clock there is a {d['title']} in {d['place']}."])
            keys = self.some(list(d), self.n(2, 4))
            recs = [{x: d[x] for x in keys}]
        elif k == 4:
            xs = self.some(c([COLORS, ANIMALS, FOODS, NOUNS]), self.n(2, 6)) if self.R() < .6 else [self.name() for _ in range(self.n(2, 5))]
            u = c(["Write this list as a JSON array: ", "Turn this into a JSON array: "])
            return u + ", ".join(xs[:-1]) + " and " + xs[-1], dumps(xs), "I need a JSON array of strings."
        else:
            ks = self.some(sorted(set(FIELDS)), self.n(2, 5))
            vals = [c((lambda: self.n(0, 999), lambda: c(COLORS), self.name, lambda: self.R() < .5))() for _ in ks]
            u = c(["Write a JSON object with ", "Make a JSON object with "])
            u += ", ".join(f"{x} {'true' if v is True else 'false' if v is False else v}" for x, v in zip(ks, vals))
            return u, dumps(dict(zip(ks, vals))), "I need a JSON object with the keys " + ", ".join(ks) + "."
        ks = ", ".join(keys[:-1]) + " and " + keys[-1]
        u = c([f"Extract {ks} as JSON: {text}", f"Extract {ks} from this text as JSON.\n{text}",
               f"{text}\nWrite {ks} as JSON."])
        return u, dumps(recs[0] if len(recs) == 1 else recs), f"The keys are {ks}."

    # ---- code
    def ident(self) -> str:
        if self.R() < 0.25:
            return self.c((self.c(FVERB), self.c(ENGLISH), self.letters(), self.c(words("add sub mul div main f g h run test area power square max2 min2 total"))))
        return f"{self.c(FVERB)}_{self.c(NOUNS)}" if self.R() < 0.7 else f"{self.name().lower()}_{self.c(FIELDS)}"

    def source(self):
        """(request, fenced code, thought)."""
        c = self.c
        f = self.ident()
        k = int(self.R() * 13)
        x, y = self.some(sorted(set(VARS)), 2)
        if k in (0, 1):
            w, op = c([("sum", "+"), ("difference", "-"), ("product", "*")])
            if k == 0:
                return (f"Write a Python function {f}({x}, {y}) that returns the {w} of {x} and {y}.",
                        py(f"def {f}({x}, {y}):\n    return {x} {op} {y}"), f"The operator is {op}.")
            return (f"Write a C function {f} that returns the {w} of two ints {x} and {y}.",
                    cc(f"int {f}(int {x}, int {y}) {{\n    return {x} {op} {y};\n}}"), f"The operator is {op}.")
        if k == 2:
            w, cmp = c([("larger", ">"), ("smaller", "<")])
            return (f"Write a Python function {f}({x}, {y}) that returns the {w} value.",
                    py(f"def {f}({x}, {y}):\n    if {x} {cmp} {y}:\n        return {x}\n    return {y}"), f"I compare with {cmp}.")
        if k == 3:
            w, body = c([("sum of the numbers", "total += x"), ("sum of the squares", "total += x * x"),
                         ("number of items", "total += 1"),
                         ("number of even numbers", "if x % 2 == 0:\n            total += 1"),
                         ("number of negative numbers", "if x < 0:\n            total += 1")])
            v = c(("values", "numbers", "items", "data", "xs", "rows"))
            return (f"Write a Python function {f}({v}) that returns the {w}.",
                    py(f"def {f}({v}):\n    total = 0\n    for x in {v}:\n        {body}\n    return total"), "I loop over the list.")
        if k in (4, 5):
            cls = f"{c(ADJS)} {c(NOUNS)}".title().replace(" ", "")
            fs = self.some(sorted(set(FIELDS)), self.n(1, 4))
            body = f"class {cls}:\n    def __init__(self, {', '.join(fs)}):\n" + "\n".join(f"        self.{a} = {a}" for a in fs)
            if k == 5:
                body += "".join(f"\n\n    def get_{a}(self):\n        return self.{a}" for a in fs)
            return (f"Write a Python class {cls} with the fields {', '.join(fs)}{' and getters' if k == 5 else ''}.", py(body),
                    f"The class has {len(fs)} fields.")
        if k in (6, 7):
            s = c(NOUNS)
            fs = self.some(sorted(set(FIELDS)), self.n(1, 4))
            t = c(("int", "float", "double", "long"))
            if k == 6:
                return (f"Write a C struct {s} with the {t} fields {', '.join(fs)}.",
                        cc(f"struct {s} {{\n" + "\n".join(f"    {t} {a};" for a in fs) + "\n};"), f"The struct has {len(fs)} fields.")
            return (f"Write C getters for the {t} fields {', '.join(fs)} of struct {s}.",
                    cc("\n\n".join(f"{t} {s}_get_{a}(const struct {s} *p) {{\n    return p->{a};\n}}" for a in fs)), "Each getter reads one field.")
        if k == 8:
            a, b = sorted(self.some(range(0, 100), 2))
            if self.R() < 0.5:
                return (f"Write a Python loop that prints the numbers from {a} to {b}.",
                        py(f"for i in range({a}, {b} + 1):\n    print(i)"), f"The range ends at {b} + 1.")
            return (f"Write a C loop that prints the numbers from {a} to {b}.",
                    cc(f'for (int i = {a}; i <= {b}; i++) {{\n    printf("%d\\n", i);\n}}'), f"The loop ends at {b}.")
        if k == 9:
            ks = self.some(sorted(set(FIELDS)), self.n(2, 5))
            vs = [self.n(0, 999) for _ in ks]
            lang = self.R() < 0.5
            return (f"Define these constants in {'Python' if lang else 'C'}: " + ", ".join(f"{a} {v}" for a, v in zip(ks, vs)),
                    py("\n".join(f"{a.upper()} = {v}" for a, v in zip(ks, vs))) if lang else
                    cc("\n".join(f"#define {a.upper()} {v}" for a, v in zip(ks, vs))), f"There are {len(ks)} constants.")
        if k == 10:
            cols = self.some(sorted(set(FIELDS)), self.n(1, 4))
            w, v = c(sorted(set(FIELDS))), self.n(0, 999)
            op, name = c([("=", "equals"), (">", "is greater than"), ("<", "is less than")])
            return (f"Write an SQL query that selects {', '.join(cols)} from {f} where {w} {name} {v}.",
                    "```sql\nSELECT " + ", ".join(cols) + f"\nFROM {f}\nWHERE {w} {op} {v};\n```", f"The condition is {w} {op} {v}.")
        if k == 11:
            z = c([v for v in sorted(set(VARS)) if v not in (x, y)])
            lines = [c([f"{x} = {self.n(0, 99)}", f"{x} += {y}", f"print({x})", f"{y} = {x} * {self.n(2, 9)}", f"return {x}",
                        f"{x}.append({y})", f"if {x} > {self.n(0, 99)}: print({y})"]) for _ in range(self.n(2, 5))]
            src = "\n".join(lines)
            return f"Rename {x} to {z} in this code:\n{src}", py(re.sub(rf"\b{x}\b", z, src)), f"Every {x} becomes {z}."
        g = self.ident()
        return (f"Write a Python function {f} that calls {g} with {x} and {y}.",
                py(f"def {f}({x}, {y}):\n    return {g}({x}, {y})"), "The function passes its arguments on.")

    # ---- small talk and prose
    def talk(self):
        c = self.c
        k = int(self.R() * 10)
        if k == 9:
            return (c(["Tell me a joke.", f"Who is {self.name()}?", f"Why is the {c(NOUNS)} {c(ADJS)}?", f"How does a {c(NOUNS)} work?",
                       f"What is the meaning of {c(NOUNS)}?", "What is the meaning of life?", f"When was {self.city()} founded?",
                       "What is the weather like today?", "What time is it?", f"Is a {c(ANIMALS)} larger than a {c(ANIMALS)}?",
                       f"Explain how a {c(NOUNS)} is made.", f"Where is {self.city()}?", f"What do you think about {c(FOODS)}?"]),
                    "I do not know that. I am only a tiny demonstration model.", "I do not know the answer.")
        if k in (0, 1):
            u = c(HELLO) + c(["!", ".", ""])
            u = u.lower() if self.R() < 0.3 else u
            return u, "Hello! I am facet-nano. How can I help you?", "The user greets me."
        if k in (2, 3, 4):
            u, a = c(ABOUT)
            u = u.lower() if self.R() < 0.2 else u
            u = u.rstrip("?.") if self.R() < 0.2 else u
            return u, a, "The user asks about me."
        if k == 5:
            if self.R() < 0.5:
                return c(THANKS) + c(["!", "."]), "You are welcome!", "The user thanks me."
            return c(BYE) + c(["!", "."]), "Goodbye!", "The user says goodbye."
        if k == 6:
            return c(["How are you?", "How do you do?", "How is it going?"]), "I am fine, thank you. How can I help you?", "The user asks how I am."
        if k == 7:
            n, pet, ad, no = self.name(), c(ANIMALS), c(ADJS), c(NOUNS)
            u = c([f"Tell me a short story about a {pet} named {n}.", f"Write a short story about a {pet} called {n}."])
            s = (f"Once there was a {ad} {pet} named {n}. {n} lived {c(PLACES)} a {c(ADJS)} {no}. "
                 f"{c(TIMES)}, {n} found a {c(COLORS)} {c(NOUNS)} {c(PLACES)} the {no}. "
                 f"{c([f'{n} carried it home.', f'{n} showed it to a {c(ANIMALS)}.', f'{n} was very happy.'])} "
                 f"{c(['From then on, the two were friends.', 'And so the day ended.', f'{n} never forgot that day.'])}")
            return an(u), an(s), f"The story is about the {pet} {n}."
        no = c(NOUNS)
        return (an(c([f"Write a sentence about a {no}.", f"Describe a {no}."])),
                f"The {c(ADJS)} {no} {c(VERBS)} {c(PLACES)} the {c(ADJS)} {c(NOUNS)}.", f"I write about the {no}.")

    def mini(self):
        """One (user, model, thought) exchange of any short kind."""
        r = self.R()
        return (self.arithmetic() if r < 0.3 else self.json() if r < 0.5 else self.source() if r < 0.65
                else self.misc() if r < 0.82 else self.talk())

    # ---- tools
    def tool(self, kind: int) -> dict:
        """A tool: declaration, request, arguments, response and final answer."""
        c = self.c
        p = lambda t, d, enum=None: (t, d, enum)
        if kind == 0:
            ci, u, t = self.city(), c(("C", "F")), self.n(-20, 40)
            w = {"C": "Celsius", "F": "Fahrenheit"}[u]
            return dict(name="get_weather", desc="Get the weather of a city", props={"city": p("STRING", "City name"), "unit": p("STRING", "Unit", ["C", "F"])},
                        req=["city"], ask=c([f"What is the weather in {ci} in {w}?", f"How warm is it in {ci} in {w}?"]), args={"city": ci, "unit": u},
                        resp={"temperature": t, "sky": (s := c(WEATHER))}, final=f"It is {t} degrees and {s} in {ci}.")
        if kind == 1:
            ci, h, m = self.city(), self.n(0, 23), self.n(10, 59)
            return dict(name="get_time", desc="Get the local time", props={"city": p("STRING", "City name")}, req=["city"],
                        ask=c([f"What time is it in {ci}?", f"Tell me the time in {ci}."]), args={"city": ci}, resp=f"{h}:{m}", final=f"It is {h}:{m} in {ci}.")
        if kind == 2:
            m = self.n(1, 120)
            return dict(name="set_timer", desc="Start a timer", props={"minutes": p("INTEGER", "Length in minutes")}, req=["minutes"],
                        ask=c([f"Set a timer for {m} minutes.", f"Start a timer of {m} minutes."]), args={"minutes": m}, resp="ok", final=f"The timer is set for {m} minutes.")
        if kind == 3:
            n, t = self.name(), c([f"bring {c(FOODS)}", f"meet me on {c(DAYS)}", f"the {c(NOUNS)} is {c(ADJS)}", f"call me at {self.n(1, 12)}"])
            return dict(name="send_message", desc="Send a text message", props={"to": p("STRING", "Receiver"), "text": p("STRING", "Message text")}, req=["to", "text"],
                        ask=c([f"Send a message to {n}: {t}", f"Write to {n}: {t}"]), args={"to": n, "text": t}, resp="sent", final=f"I sent the message to {n}.")
        if kind == 4:
            d, r, s = c(DEVICES), c(ROOMS), self.R() < .5
            return dict(name="switch_device", desc="Switch a device on or off", props={"device": p("STRING", "Device"), "room": p("STRING", "Room"), "on": p("BOOLEAN", "True for on")},
                        req=["device", "on"], ask=f"Turn {'on' if s else 'off'} the {d} in the {r}.", args={"device": d, "room": r, "on": s}, resp="ok",
                        final=f"The {d} in the {r} is now {'on' if s else 'off'}.")
        if kind == 5:
            n, x = self.name(), self.digits(self.n(4, 6))
            return dict(name="find_contact", desc="Look up a phone number", props={"name": p("STRING", "Name of the person")}, req=["name"],
                        ask=c([f"What is the phone number of {n}?", f"Find the phone number of {n}."]), args={"name": n}, resp={"number": int(x)},
                        final=f"The phone number of {n} is {x}.")
        if kind == 6:
            a, op = self.n(100, 9999), c(("add", "subtract", "multiply"))
            b = self.n(100, a)
            v = {"add": a + b, "subtract": a - b, "multiply": a * b}[op]
            sy = {"add": "+", "subtract": "-", "multiply": "*"}[op]
            return dict(name="calculate", desc="Do exact arithmetic", props={"a": p("INTEGER", "First number"), "b": p("INTEGER", "Second number"), "op": p("STRING", "Operation", ["add", "subtract", "multiply"])},
                        req=["a", "b", "op"], ask=c([f"Use the calculator for {a} {sy} {b}.", f"Calculate {a} {sy} {b} with the tool."]), args={"a": a, "b": b, "op": op}, resp=v,
                        final=f"{a} {sy} {b} = {v}")
        if kind == 7:
            t, d, h = f"{c(NOUNS)} {c(('meeting', 'party', 'lesson', 'visit'))}", c(DAYS), self.n(1, 12)
            return dict(name="add_event", desc="Add an event to the calendar", props={"title": p("STRING", "Title"), "day": p("STRING", "Day of the week"), "hour": p("INTEGER", "Hour")},
                        req=["title", "day"], ask=c([f"Add a {t} on {d} at {h}.", f"Put a {t} in my calendar on {d} at {h}."]), args={"title": t, "day": d, "hour": h}, resp="added",
                        final=f"I added the {t} on {d} at {h}.")
        if kind == 8:
            i, k = c(NOUNS), self.n(0, 500)
            return dict(name="check_stock", desc="Check how many items are in stock", props={"item": p("STRING", "Item")}, req=["item"],
                        ask=c([f"How many pieces of {i} are in stock?", f"Check the stock of {i}."]), args={"item": i}, resp={"stock": k}, final=f"There are {k} pieces of {i} in stock.")
        if kind == 9:
            xs = self.some(FOODS, self.n(1, 4))
            return dict(name="buy_items", desc="Put items on the shopping list", props={"items": p("ARRAY", "Items", "STRING")}, req=["items"],
                        ask="Put these on the shopping list: " + ", ".join(xs), args={"items": xs}, resp="ok", final=f"I put {len(xs)} {'item' if len(xs) == 1 else 'items'} on the shopping list.")
        # a tool with an invented name: the declaration must be read
        f, a, v = self.ident(), c(sorted(set(FIELDS))), c((self.name(), self.n(1, 999), c(COLORS)))
        o = c((self.code(), self.n(1, 9999), c(COLORS)))
        return dict(name=f, desc=f"Use {f}", props={a: p("STRING" if isinstance(v, str) else "INTEGER", a)}, req=[a],
                    ask=c([f"Call {f} with {a} {v}.", f"Use {f} with {a} {v}."]), args={a: v}, resp=o, final=f"The result is {o}.")

    def tools(self, think: bool | None = None):
        """System turn with declarations, a request, the call, the response and the answer."""
        think = self.R() < 0.2 if think is None else think
        ks = self.some(range(11), self.n(1, 4))
        ts = [self.tool(k) for k in ks]
        t = ts[0]
        self.rng.shuffle(ts)
        sysm = self.c(["", "", "You can use tools.", "You are a helpful assistant."])
        seg = [("<bos><|turn>system\n" + ("<|think|>\n" if think else "") + sysm + "".join(f"<|tool>{declare(x)}<tool|>" for x in ts) + "<turn|>\n", LOW)]
        r = self.R()
        if r < 0.12:  # no tool needed
            u, a, th = self.talk() if self.R() < .6 else self.misc()
            seg.append((f"<|turn>user\n{u}<turn|>\n<|turn>model\n" + ("" if think else PREFILL), LOW))
            seg.append(((f"<|channel>thought\n{th}\n<channel|>" if think else "") + a + "<turn|>", 1.0))
            return seg + [("\n", LOW)]
        seg.append((f"<|turn>user\n{t['ask']}<turn|>\n<|turn>model\n" + ("" if think else PREFILL), LOW))
        call = f"<|tool_call>call:{t['name']}{{{args(t['args'])}}}<tool_call|><|tool_response>"
        seg.append(((f"<|channel>thought\nI should use {t['name']}.\n<channel|>" if think else "") + call, 1.0))
        body = args(t["resp"]) if isinstance(t["resp"], dict) else "value:" + fmt(t["resp"])
        seg.append((f"response:{t['name']}{{{body}}}<tool_response|>" + ("<|channel>thought\n" if think else ""), LOW))
        seg.append(((f"The tool has answered.\n<channel|>" if think else "") + t["final"] + "<turn|>", 1.0))
        seg.append(("\n", LOW))
        if self.R() < 0.15 and not think:
            u, a, _ = self.mini()
            seg += [(f"<|turn>user\n{u}<turn|>\n<|turn>model\n{PREFILL}", LOW), (a + "<turn|>", 1.0), ("\n", LOW)]
        return seg

    # ---- conversations
    def chat(self, turns, think: bool, system: str | None = None):
        """Segments of a conversation. Earlier turns carry no thought, as the chat template renders history."""
        if system is None:
            system = self.c(["Be brief.", "You are a helpful assistant.", "You are facet-nano.", "Answer in one sentence.",
                             "Answer the questions of the user."]) if self.R() < 0.15 else ""
        head = "<bos>"
        if think or system:
            head += "<|turn>system\n" + ("<|think|>\n" if think else "") + system + "<turn|>\n"
        every = self.R() < 0.4
        seg, last = [], len(turns) - 1
        for i, (u, a, th) in enumerate(turns):
            seg.append((head + f"<|turn>user\n{u}<turn|>\n<|turn>model\n", LOW))
            head = ""
            if think:
                if i == last:
                    seg.append((f"<|channel>thought\n{th}\n<channel|>{a}<turn|>", 1.0))
                else:
                    seg.append((f"{a}<turn|>", 0.0))
            else:
                if i == last or every:
                    seg.append((PREFILL, LOW))
                seg.append((f"{a}<turn|>", 1.0))
            seg.append(("\n", LOW))
        return seg

    def short(self, tok):
        """One document of a few dozen to a few hundred tokens."""
        r = self.R()
        if r < 0.22:
            return self.retrieval(tok, self.n(60, 420))
        if r < 0.29:
            return self.remember(tok)
        if r < 0.34:
            return self.twohop(tok)
        if r < 0.46:
            return self.tools()
        k = self.n(2, 6) if self.R() < 0.5 else 1
        think = self.R() < 0.2
        if r < 0.62:
            ts = [self.arithmetic() for _ in range(k)]
        elif r < 0.73:
            think = True
            ts = [self.arithmetic(True) for _ in range(1 if k < 4 else 2)]
        elif r < 0.81:
            ts = [self.json() for _ in range(k)]
        elif r < 0.87:
            ts = [self.source() for _ in range(k)]
        elif r < 0.92:
            ts = [self.misc() for _ in range(k)]
        elif r < 0.95:
            ts = [self.talk() for _ in range(k)]
        else:
            ts = [self.mini() for _ in range(k)]
        return self.chat(ts, think)


_AN = re.compile(r"\b([Aa]) (?=[aeiou])")


def an(s: str) -> str:
    """'a' becomes 'an' before a vowel."""
    return _AN.sub(r"\1n ", s)


def py(s: str) -> str:
    return f"```python\n{s}\n```"


def cc(s: str) -> str:
    return f"```c\n{s}\n```"


dumps = json.dumps


def fmt(v, quoted: bool = False) -> str:
    """A value in Gemma 4 tool syntax."""
    if v is None:
        return "null"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, str):
        return Q + v + Q
    if isinstance(v, dict):
        return "{" + args(v) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(fmt(x) for x in v) + "]"
    return str(v)


def args(d: dict) -> str:
    return ",".join(f"{k}:{fmt(d[k])}" for k in sorted(d, key=str.lower))


def declare(t: dict) -> str:
    """Tool declaration, Gemma 4 syntax."""
    props = []
    for k in sorted(t["props"], key=str.lower):
        typ, desc, extra = t["props"][k]
        s = f"description:{Q}{desc}{Q},"
        if typ == "ARRAY":
            s += f"items:{{type:{Q}{extra}{Q}}},"
        elif extra:
            s += f"enum:{fmt(extra)},"
        props.append(f"{k}:{{{s}type:{Q}{typ}{Q}}}")
    return (f"declaration:{t['name']}{{description:{Q}{t['desc']}{Q},parameters:{{properties:{{{','.join(props)}}},"
            f"required:{fmt(t['req'])},type:{Q}OBJECT{Q}}}}}")


# ---- packing for training

def encode(doc, tok) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    w: list[float] = []
    for text, weight in doc:
        t = tok(text)
        ids += t
        w += [weight] * len(t)
    return ids, w


def pack(gen: Gen, tok, rows: int, T: int):
    """`rows` rows of exactly T+1 tokens: ids, weights (x100) and document numbers. The long documents of a row
    are retrieval over T/4..T tokens when T > 1024; the rest is filled with short ones."""
    import numpy as np
    ids = np.zeros((rows, T + 1), np.uint16)
    wts = np.zeros((rows, T + 1), np.uint8)
    seg = np.zeros((rows, T + 1), np.int16)
    for r in range(rows):
        pos, d = 0, 0
        if T > 1024 or gen.R() < 0.25:
            x, w = encode(gen.retrieval(tok, int(T * (0.25 + 0.7 * gen.R()))), tok)
            if len(x) <= T + 1:
                ids[r, :len(x)], wts[r, :len(x)], pos, d = x, [int(100 * v) for v in w], len(x), 1
        miss = 0
        while pos <= T and miss < 3:
            x, w = encode(gen.short(tok), tok)
            n = len(x)
            if pos + n > T + 1:
                miss += 1
                if T + 1 - pos > 24:
                    continue
                break
            ids[r, pos:pos + n] = x
            wts[r, pos:pos + n] = [int(100 * v) for v in w]
            seg[r, pos:pos + n] = d
            pos, d = pos + n, d + 1
        seg[r, pos:] = -1
    return ids, wts, seg


if __name__ == "__main__":
    import sys
    g = Gen(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 8):
        print("".join(t for t, _ in g.short(lambda s: s.split())), "\n" + "-" * 80)
