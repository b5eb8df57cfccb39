// Markdown to trees: markdown-it reads, and what is shown is built from its tokens. HTML in an answer is text.
import {element, patch} from "./tree.js";
import {formula, mathPlugin} from "./math.js";
import {codeBlock} from "./code.js";

const md = MarkdownIt({html: false, linkify: true}).use(mathPlugin);
md.linkify.set({fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false}).add("//", null).add("ftp:", null);

const link = (href, title, kids, name) => element("a", {href, ...(title && {title}), ...(name && {class: name}), target: "_blank", rel: "noopener noreferrer"}, kids);

// The first heading of an answer is the third of the page, whose own two come before it.
const heading = tag => "h" + Math.min(Number(tag[1]) + 2, 6);

const LEAVES = {
  text: t => t.content,
  softbreak: () => "\n",
  hardbreak: () => element("br"),
  hr: () => element("hr"),
  code_inline: t => element("code", null, t.content),
  code_block: t => codeBlock(t.content, ""),
  fence: t => codeBlock(t.content, md.utils.unescapeAll(t.info)),
  // Nothing is loaded from other places: a picture is a link to it.
  image: t => link(t.attrGet("src"), t.attrGet("title"), [md.renderer.renderInlineAsText(t.children, {}, {})], "image"),
  math_inline: t => formula(t.content, t.markup !== "$" && t.markup !== "\\("),
  math_block: t => t.markup ? element("div", {class: "scroll"}, formula(t.content, true)) : element("p", {class: "formula"}, t.content),
};

function opened(t) {
  if (t.type === "link_open") return link(t.attrGet("href"), t.attrGet("title"), []);
  if (t.type === "heading_open") return element(heading(t.tag));
  const align = /text-align:(\w+)/.exec(t.attrGet("style") || "");
  if (align) return element(t.tag, {class: align[1]});
  return element(t.tag, t.attrs ? Object.fromEntries(t.attrs.map(([name, value]) => [name, String(value)])) : null);
}

// "[ ] " or "[x] " at the beginning of an item is a box.
function box(tokens, i) {
  const text = tokens[i + 2]?.type === "inline" && tokens[i + 2].children[0];
  const mark = text && text.type === "text" && /^\[([ xX])\] /.exec(text.content);
  if (!mark) return null;
  text.content = text.content.slice(4);
  return element("input", {type: "checkbox", disabled: "", ...(mark[1] !== " " && {checked: ""})});
}

// The trees of a list of tokens, in order.
function trees(tokens, cell = false) {
  const root = {kids: []}, open = [root];
  const put = kid => {
    const kids = open[open.length - 1].kids;
    if (typeof kid === "string" && typeof kids[kids.length - 1] === "string") kids[kids.length - 1] += kid;
    else if (kid !== "") kids.push(kid);
  };
  tokens.forEach((t, i) => {
    if (t.hidden) return;  // the paragraphs of a list without blank lines
    if (t.type === "inline") {
      for (const kid of trees(t.children, /^t[dh]$/.test(open[open.length - 1].tag))) put(kid);
    } else if (cell && t.type === "code_inline") {
      put(element("code", null, t.content.replaceAll("\\|", "|")));
    } else if (t.nesting > 0) {
      const node = opened(t);
      put(t.type === "table_open" ? element("div", {class: "scroll"}, node) : node);
      open.push(node);
      const check = t.type === "list_item_open" && box(tokens, i);
      if (check) { node.attrs = {class: "task"}; put(check); }
    } else if (t.nesting < 0) {
      open.pop();
    } else {
      put((LEAVES[t.type] || LEAVES.text)(t));
    }
  });
  return root.kids;
}

// The tokens of each block of the outermost level.
function blocks(tokens) {
  const out = [];
  let depth = 0;
  for (const t of tokens) {
    if (depth === 0) out.push([]);
    out[out.length - 1].push(t);
    depth += t.nesting;
  }
  return out;
}

function lineStart(text, line) {
  let at = 0;
  while (line-- > 0) at = text.indexOf("\n", at) + 1;
  return at;
}

// Reads a text that grows. Only its last two blocks can still change by what follows (the last line, which may not be
// whole, can join the block before it), so that everything before them is read once. A definition of a link that comes
// or changes has everything read again.
export class Reader {
  text = "";
  done = 0;      // where the first block begins that is read again
  kept = [];     // trees of what is before it
  defined = {};  // links that are defined there
  links = "";    // all links, as the trees know them

  read(raw) {
    const text = raw.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.text.slice(0, this.done))) this.forget();
    this.text = text;
    const tail = text.slice(this.done), env = {references: {...this.defined}};
    const found = blocks(md.parse(tail, env)), links = JSON.stringify(env.references);
    if (links !== this.links && this.done > 0) {
      this.forget();
      return this.read(raw);
    }
    this.links = links;
    const now = found.map(t => trees(t));
    const shown = this.kept.concat(now.flat());
    if (found.length > 2) {
      const at = lineStart(tail, found[found.length - 2][0].map[0]);
      const before = {references: this.defined};
      if (links !== "{}") md.parse(tail.slice(0, at), before);
      this.defined = before.references;
      this.kept = this.kept.concat(now.slice(0, -2).flat());
      this.done += at;
    }
    return shown;
  }

  forget() {
    this.done = 0;
    this.kept = [];
    this.defined = {};
    this.links = "";
  }
}

// Makes `node` show `text`, which is mostly longer than it was.
export function showMarkdown(node, text) {
  node.reader ??= new Reader();
  const now = node.reader.read(text);
  patch(node, node.shown || [], now);
  node.shown = now;
}
