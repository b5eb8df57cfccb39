// Blocks of code: their colours, and the line above them.
import {element} from "./tree.js";

const COLOUR_LIMIT = 20000;  // characters that are coloured; a longer block stays plain
const ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "\"", "&#x27;": "'"};

// highlight.js answers with HTML of its own making: spans with a class, and five entities. This makes a tree of it.
function spans(html) {
  const root = {kids: []}, open = [root];
  for (const [part, name] of html.matchAll(/<span class="([\w -]*)">|<\/span>|[^<]+/g)) {
    const top = open[open.length - 1];
    if (part === "</span>") {
      open.pop();
    } else if (part[0] === "<") {
      const node = element("span", {class: name});
      top.kids.push(node);
      open.push(node);
    } else {
      top.kids.push(part.replace(/&[#\w]+;/g, e => ENTITIES[e] ?? e));
    }
  }
  return root.kids;
}

function coloured(source, language) {
  if (source.length > COLOUR_LIMIT || !hljs.getLanguage(language)) return [source];
  try { return spans(hljs.highlight(language, source, true).value); } catch { return [source]; }
}

// `info` is what follows the opening fence.
export function codeBlock(source, info) {
  const language = info.trim().split(/\s+/)[0];
  const head = element("figcaption", null, element("span", null, language || "code"), element("button", {type: "button", class: "copy"}, "Copy"));
  const code = element("code", language ? {class: "language-" + language} : null, coloured(source, language.toLowerCase()));
  return element("figure", null, head, element("pre", {tabindex: "0"}, code));
}
