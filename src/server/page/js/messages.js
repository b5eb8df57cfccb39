// The messages of a conversation.
import {$, make} from "./dom.js";
import {codeBlock} from "./code.js";
import {path, versions} from "./conversation.js";
import {colourDrafted} from "./drafted.js";
import {fileNode} from "./files.js";
import {showMarkdown} from "./markdown.js";
import {copyText} from "./notice.js";
import {number, showPanel} from "./panel.js";
import {actions, state} from "./state.js";
import {patch} from "./tree.js";

const bodies = new WeakMap();  // of each message: the node of its text, which stays when everything around is made anew

function bodyOf(m) {
  if (!bodies.has(m)) bodies.set(m, make("div", {class: m.role === "assistant" ? "body markdown" : "body"}));
  return bodies.get(m);
}

export const sends = e => e.key === "Enter" && !e.shiftKey && !e.isComposing;

function editor(m, at) {
  const text = make("textarea", {rows: Math.min(10, m.content.split("\n").length + 1), "aria-label": "Edit message"});
  text.value = m.content;
  const resend = () => actions.edit(at, text.value);
  text.addEventListener("keydown", e => {
    if (sends(e)) { e.preventDefault(); resend(); }
    if (e.key === "Escape") { e.stopPropagation(); showAll(false); }
  });
  return make("div", {class: "edit"}, text, make("button", {class: "main", type: "button", onclick: resend}, "Send"),
              make("button", {class: "framed", type: "button", onclick: () => showAll(false)}, "Cancel"));
}

// "2/3" and a step to either side, where there are several versions of a message.
function versionNodes(at) {
  const all = versions(state.chat, at), place = all.indexOf(at);
  if (all.length < 2) return [];
  const step = (name, sign, to) => make("button", {type: "button", class: "step", "aria-label": name, disabled: to === undefined ? "" : null, onclick: () => actions.choose(to, name)}, sign);
  return [step("Earlier version", "‹", all[place - 1]), make("span", {class: "quiet versions", "aria-label": `Version ${place + 1} of ${all.length}`}, `${place + 1}/${all.length}`),
          step("Later version", "›", all[place + 1])];
}

function footer(m, at, node) {
  const button = (name, act) => make("button", {type: "button", onclick: act}, name);
  const foot = make("div", {class: "foot"}, state.running ? null : versionNodes(at), button("Copy", e => copyText(m.content, e.currentTarget)));
  if (state.running) return foot;
  if (m.role === "user") foot.append(button("Edit", () => {
    node.replaceChildren(editor(m, at));
    node.querySelector("textarea").focus();
  }));
  else foot.append(button("Regenerate", () => actions.regenerate(at)));
  const t = m.stats?.timings, notes = [];
  if (m.stopped) notes.push("stopped");
  if (m.finish === "length") notes.push("cut off: no tokens left");
  if (t) notes.push(`${t.predicted_n} tokens, ${number(t.predicted_per_second)} per second`);
  if (notes.length) foot.append(make("span", {class: "quiet"}, notes.join(" · ")));
  return foot;
}

const pretty = text => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

function jsonNode(text) {
  const node = make("div", {class: "markdown"});
  patch(node, [], [codeBlock(pretty(text), "json").kids[1]]);
  return node;
}

const card = (title, ...inside) => make("section", {class: "card", "aria-label": title}, make("h3", {}, title), inside);

// The calls of an answer; where they wait for results, a place for each.
function callNodes(m, at) {
  const waits = !state.running && state.chat.leaf === at, fields = [];
  const cards = m.calls.map(c => {
    const field = waits && make("textarea", {rows: 2, placeholder: "What the function gives back", "aria-label": "Result of " + c.name});
    if (field) fields.push(field);
    return card("Call of " + c.name, jsonNode(c.arguments || "{}"), field || null);
  });
  if (waits) cards.push(make("button", {type: "button", class: "main", onclick: () => actions.results(at, fields.map(f => f.value))}, fields.length > 1 ? "Send results" : "Send result"));
  return cards;
}

function messageNode(m, at) {
  const mine = m.role === "user", live = state.running?.message === m, name = m.model || "facet";
  if (m.role === "tool") return make("article", {class: "message tool", "aria-label": "Result"}, card("Result of " + (m.name || "the function"), make("pre", {}, m.content)));
  const node = make("article", {class: "message " + m.role, "aria-label": mine ? "You" : "Answer", "aria-busy": live ? "true" : null});
  if (!mine) node.append(make("p", {class: "who", "aria-hidden": "true"}, name));
  if (!mine) node.append(make("details", {class: "thought"}, make("summary", {}, live && !m.content ? "Thinking" : "Thought"), make("div", {class: "text"})));
  if (m.files?.length) node.append(make("ul", {class: "files"}, m.files.map(f => fileNode(f))));
  node.append(bodyOf(m));
  if (m.calls?.length && !live) node.append(...callNodes(m, at));
  if (m.failed) node.append(make("p", {class: "failed"}, m.failed));
  if (!live) node.append(footer(m, at, node));
  fill(node, m);
  return node;
}

// What an answer waits for, where that takes long enough to be read.
function waitingFor(run) {
  if (run.message.reasoning || performance.now() - run.start < 700) return "";
  if (run.loading) return "The model is loaded: " + run.loading + " ";
  return run.progress ? `The prompt is read: ${run.progress.processed} of ${run.progress.total} tokens ` : "";
}

// Puts the text of a message, as far as it is there, into its node.
function fill(node, m) {
  const body = bodyOf(m);
  if (m.role === "user") {
    body.textContent = m.content;
    body.hidden = !m.content;
    return;
  }
  const thought = node.querySelector(".thought"), text = thought.querySelector(".text");
  thought.hidden = !m.reasoning;
  patch(text, text.firstChild ? [text.textContent] : [], m.reasoning ? [m.reasoning] : []);
  showMarkdown(body, m.content);
  const waits = state.running?.message === m && !m.content && !m.calls;
  body.classList.toggle("waiting", waits);
  body.dataset.note = waits ? waitingFor(state.running) : "";
  if (m.content) thought.querySelector("summary").textContent = "Thought";
}

export const colour = () => colourDrafted(path(state.chat).map(i => [bodyOf(state.chat.messages[i]), state.chat.messages[i]]));

const atEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
const toEnd = () => { $("log").scrollTop = $("log").scrollHeight; };

// An answer grew: shown at most once for each frame, and where that takes long, so that other things get their time.
export function grow(run) {
  if (run.frame) return;
  const draw = () => {
    run.frame = 0;
    if (state.running !== run) return;
    actions.keepRunning(run);
    if (run.chat !== state.chat) return;
    const follow = atEnd(), begin = performance.now();
    fill($("log").lastChild, run.message);
    if (state.settings.colour_drafted) colour();
    if (follow) toEnd();
    showPanel();
    run.pause = (performance.now() - begin) * 3;
  };
  const soon = () => { run.frame = requestAnimationFrame(draw); };
  if (run.pause > 100) run.frame = setTimeout(soon, run.pause); else soon();
}

export function showAll(follow = true) {
  const nodes = path(state.chat).map(at => messageNode(state.chat.messages[at], at)), top = $("log").scrollTop;
  $("log").replaceChildren(...(nodes.length ? nodes : [make("p", {class: "empty"}, "Ask something. The conversation stays in this browser.")]));
  $("send").hidden = !!state.running;
  $("stop").hidden = !state.running;
  if (follow) toEnd(); else $("log").scrollTop = top;
  if (document.activeElement === document.body && !document.querySelector("dialog[open]")) $("input").focus();  // its place is gone
  colour();
  actions.showList();
  showPanel();
}
