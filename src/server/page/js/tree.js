// Trees that become nodes: a string, {tag, attrs, kids, space}, or {tag, key, make} where something else makes the node,
// always the same for the same key. `patch` changes only what differs, so that an answer
// that grows does not flicker and keeps what is selected or scrolled.

const MATHML = "http://www.w3.org/1998/Math/MathML";

export const element = (tag, attrs = null, ...kids) => ({tag, attrs, kids: kids.flat().filter(k => k !== null)});

function setAttribute(node, name, value) {
  // The policy refuses style attributes, but not styles that a script sets.
  if (name !== "style") return node.setAttribute(name, value);
  node.style.cssText = "";
  for (const part of value.split(";")) {
    const colon = part.indexOf(":");
    if (colon > 0) node.style.setProperty(part.slice(0, colon).trim(), part.slice(colon + 1).trim());
  }
}

function toNode(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  if (tree.make) return tree.make();
  const node = tree.space ? document.createElementNS(MATHML, tree.tag) : document.createElement(tree.tag);
  for (const name in tree.attrs) setAttribute(node, name, tree.attrs[name]);
  for (const kid of tree.kids) node.append(toNode(kid));
  return node;
}

function patchAttributes(node, before, now) {
  for (const name in before) if (!now || !(name in now)) name === "style" ? node.style.cssText = "" : node.removeAttribute(name);
  for (const name in now) if (!before || before[name] !== now[name]) setAttribute(node, name, now[name]);
}

function patchNode(node, before, now) {
  if (before === now) return;
  const text = typeof now === "string";
  if (text && typeof before === "string") {
    // appendData leaves a selection where it is.
    if (now.startsWith(before)) node.appendData(now.slice(before.length)); else node.data = now;
  } else if (text || before.tag !== now.tag || before.space !== now.space || before.key !== now.key) {
    node.replaceWith(toNode(now));
  } else if (!now.make) {
    patchAttributes(node, before.attrs, now.attrs);
    patch(node, before.kids, now.kids);
  }
}

// The children of `node` are those of `before`; afterwards they are those of `now`.
export function patch(node, before, now) {
  const both = Math.min(before.length, now.length);
  for (let i = 0; i < both; ++i) if (before[i] !== now[i]) patchNode(node.childNodes[i], before[i], now[i]);
  while (node.childNodes.length > now.length) node.lastChild.remove();
  for (let i = both; i < now.length; ++i) node.append(toNode(now[i]));
}
