// Formulas: where they are in Markdown, and their trees. KaTeX draws them, with MathML beside it for screen readers.
import {element} from "./tree.js";

const FORMULA_LIMIT = 4000;  // characters of a formula: what is longer is text, and a search for an end stays short
const known = new Map();

function mathTree(node) {
  if (node.text !== undefined && !node.type) return node.text;
  // A space is {width} or a character (katex: SpaceNode).
  if (node.width !== undefined && !node.type)
    return node.character || {tag: "mspace", attrs: {width: node.width + "em"}, kids: [], space: "math"};
  const attrs = {...node.attributes};
  delete attrs.xmlns;
  if (node.classes?.length) attrs.class = node.classes.join(" ");
  return {tag: node.type, attrs, kids: node.children.filter(k => k.type !== "annotation").map(mathTree), space: "math"};
}

// The tree of a formula; what KaTeX cannot read is shown as it was written.
export function formula(source, display) {
  const key = (display ? "d" : "i") + source;
  if (known.has(key)) return known.get(key);
  let tree;
  try {
    const options = {displayMode: display, strict: false, trust: false, maxExpand: 200, maxSize: 20};
    const root = katex.__renderToDomTree(source, options), [math, drawn] = (display ? root.children[0] : root).children;
    tree = element("span", {class: "katex"}, element("span", {class: "katex-mathml"}, mathTree(math.children[0])),
                   {tag: "katex", attrs: null, kids: [], key, make: () => drawn.toNode()});
    if (display) tree = element("span", {class: "katex-display"}, tree);
  } catch {
    tree = element("code", {class: "formula"}, source);
  }
  if (known.size > 500) known.clear();
  known.set(key, tree);
  return tree;
}

const meant = text => /[\p{L}\p{N}]/u.test(text);  // "\[\\\]" and "$-$" are no formulas

// Where `mark` stands first from `from` on, not behind a backslash, at most FORMULA_LIMIT further; or -1.
function closing(text, mark, from, max) {
  for (let at = from;; ++at) {
    at = text.indexOf(mark, at);
    if (at < 0 || at + mark.length > max || at - from > FORMULA_LIMIT) return -1;
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") ++slashes;
    if (slashes % 2 === 0) return at;
  }
}

// An amount of money is no formula: `$` opens where no space follows, and closes where none is before it and no digit
// follows, as in Pandoc.
function dollar(text, at, max) {
  if (/\s/.test(text[at + 1] || " ")) return -1;
  for (let end = at; (end = closing(text, "$", end + 1, max)) >= 0;) {
    if (end - at > FORMULA_LIMIT) return -1;
    if (!/\s/.test(text[end - 1]) && !/\d/.test(text[end + 1] || "")) return end;
  }
  return -1;
}

function inlineRule(state, silent) {
  const text = state.src, at = state.pos, max = state.posMax, two = text.slice(at, at + 2);
  let mark, end;
  if (two === "$$" || two === "\\(" || two === "\\[") {
    mark = two;
    end = closing(text, {"$$": "$$", "\\(": "\\)", "\\[": "\\]"}[two], at + 2, max);
  } else if (text[at] === "$") {
    mark = "$";
    end = dollar(text, at, max);
  } else {
    return false;
  }
  const source = end < 0 ? "" : text.slice(at + mark.length, end);
  if (!meant(source) || (mark[0] === "$" && source.includes("`"))) return false;
  if (!silent) {
    const token = state.push("math_inline", "math", 0);
    token.content = source;
    token.markup = mark;
  }
  state.pos = end + mark.length;
  return true;
}

// A block: a line that is "$$" or "\[" alone, to one that ends with the other mark, or one line that has both. It ends
// at a blank line at the latest; without its end it is shown as it was written.
function blockRule(state, startLine, endLine, silent) {
  const line = n => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trim();
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  const first = line(startLine), mark = first.slice(0, 2), end = mark === "$$" ? "$$" : "\\]";
  if (mark !== "$$" && mark !== "\\[") return false;
  let last = startLine, source = null;
  if (first.length > 2) {
    if (closing(first, end, 2, first.length) !== first.length - 2) return false;
    source = first.slice(2, -2);
    if (!meant(source)) return false;
  } else {
    const lines = [];
    for (++last; last < endLine && line(last) && state.sCount[last] >= state.blkIndent; ++last) {
      const text = line(last);
      lines.push(text);
      if (text.endsWith(end) && closing(text, end, 0, text.length) === text.length - 2) {
        source = lines.join("\n").slice(0, -2);
        break;
      }
    }
    if (source === null) --last;
  }
  if (silent) return true;
  const token = state.push("math_block", "math", 0);
  token.block = true;
  token.map = [startLine, last + 1];
  token.markup = source !== null && meant(source) && source.length <= FORMULA_LIMIT ? mark : "";
  token.content = token.markup ? source : state.getLines(startLine, last + 1, state.blkIndent, false);
  state.line = last + 1;
  return true;
}

export function mathPlugin(md) {
  md.inline.ruler.before("escape", "math", inlineRule);
  md.block.ruler.before("fence", "math", blockRule, {alt: ["paragraph", "reference", "blockquote", "list"]});
}
