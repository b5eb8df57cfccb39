// Colours what was drafted, without touching the nodes of an answer: ranges of its text (CSS highlights).
import {state} from "./state.js";

const there = typeof Highlight === "function" && !!CSS.highlights;
export const canColour = there;

// A piece of an answer: `drafted` holds [begin, end, begin, end, ...] in its content.
export function noteDrafted(message, begin, end) {
  const list = message.drafted ??= [];
  if (list[list.length - 1] === begin) list[list.length - 1] = end; else list.push(begin, end);
}

// Ranges of the drafted parts in the nodes that show `message`. Text of a node stands in the content as it is, in the
// same order, but for marks between; what does not (a formula, an entity) is passed over.
function rangesOf(body, message) {
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT, n => n.parentElement.closest("figcaption, .katex") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const out = [], list = message.drafted, content = message.content;
  let from = 0, k = 0;
  for (let node; (node = walker.nextNode());) {
    const text = node.data, at = text ? content.indexOf(text, from) : -1;
    if (at < 0) continue;
    from = at + text.length;
    while (k < list.length && list[k + 1] <= at) k += 2;
    for (let i = k; i < list.length && list[i] < from; i += 2)
      out.push(new StaticRange({startContainer: node, startOffset: Math.max(list[i] - at, 0), endContainer: node, endOffset: Math.min(list[i + 1], from) - at}));
  }
  return out;
}

// bodies: of pairs [node, message] that are shown.
export function colourDrafted(bodies) {
  if (!there) return;
  CSS.highlights.delete("drafted");
  if (!state.settings.colour_drafted) return;
  const ranges = bodies.flatMap(([body, m]) => m.drafted?.length ? rangesOf(body, m) : []);
  if (ranges.length) CSS.highlights.set("drafted", new Highlight(...ranges));
}
