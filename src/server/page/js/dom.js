// Elements, and what screen readers are told.

export const $ = id => document.getElementById(id);

// make("a", {href, class, onclick, "aria-label"}, children): attributes, handlers, text or nodes.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return node;
}

// To screen readers: an answer is read once, when it is whole, and not with every token.
export function say(text) { $("status").textContent = text; }
