import {$, make, say} from "./dom.js";
import {showMarkdown} from "./markdown.js";

// --- What the browser keeps: one entry for each conversation, so that two tabs do not overwrite each other

const CHAT = "facet.chat.";
const store = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(name, JSON.stringify(value)); } catch { notify("This browser keeps no more: delete or export conversations."); }
  },
  remove(name) { try { localStorage.removeItem(name); } catch { /* nothing is kept */ } },
  chats() {
    let names = [];
    try { names = Object.keys(localStorage).filter(n => n.startsWith(CHAT)); } catch { /* storage is switched off */ }
    return names.map(n => store.get(n, null)).filter(c => c && Array.isArray(c.messages)).sort((a, b) => b.changed - a.changed);
  },
};

const newChat = () => ({id: Array.from(crypto.getRandomValues(new Uint32Array(2)), n => n.toString(36)).join(""), title: "", changed: Date.now(), messages: []});
const titleOf = c => c.title || (c.messages.find(m => m.role === "user")?.content || "New conversation").slice(0, 60);

const state = {
  chats: store.chats(),
  chat: null,
  settings: store.get("facet.settings", {}),
  key: store.get("facet.key", ""),
  running: null,  // {abort, chat, message, ...} while an answer is on its way
  online: true,
};
state.chat = state.chats.find(c => c.id === store.get("facet.current", "")) || newChat();

function save(chat = state.chat) {
  if (!state.chats.includes(chat)) state.chats.unshift(chat);
  store.set(CHAT + chat.id, chat);
}
function keep(chat) { if (state.chats.includes(chat)) save(chat); }  // unless it was deleted meanwhile

// --- The server

const headers = () => state.key ? {"Authorization": "Bearer " + state.key} : {};

function notify(text, withKey = false) {
  $("notice-text").textContent = text;
  $("notice-key").hidden = !withKey;
  $("notice").hidden = !text;
}

function askKey(why) {
  $("key-why").textContent = why;
  $("key-input").value = state.key;
  if (!$("key").open) $("key").showModal();
  $("key-input").select();
}

function keyRefused() {
  const why = state.key ? "The server does not know this API key." : "This server needs an API key.";
  notify(why, true);
  askKey(why);
}

// What the server says of itself; also shows whether the key is right.
async function loadProps() {
  let answer;
  try { answer = await fetch("/props", {headers: headers()}); } catch { return lost(); }
  if (answer.status === 401) return keyRefused();
  if (!answer.ok) return notify("The server answers " + answer.status + ".");
  const props = await answer.json(), params = props.default_generation_settings?.params;
  if (!params) return notify("");  // several models, and none in memory yet
  $("model").textContent = props.model_alias + " · context " + props.default_generation_settings.n_ctx.toLocaleString("en");
  for (const name of ["temperature", "top_p", "top_k"]) $("settings").querySelector(`[name=${name}]`).placeholder = +Number(params[name]).toFixed(3);
  $("settings").querySelector("[name=max_tokens]").placeholder = params.n_predict < 0 ? "no limit" : params.n_predict;
  notify("");
}

function lost() {
  if (!state.online) return;
  state.online = false;
  notify("The server does not answer. Trying again …");
  setTimeout(retry, 1000);
}

async function retry() {
  let there = false;
  try { there = (await fetch("/health", {cache: "no-store"})).ok; } catch { /* still gone */ }
  if (!there) return void setTimeout(retry, 1500);
  state.online = true;
  await loadProps();
  if (!$("notice").hidden) return;
  notify("The server is back.");
  setTimeout(() => { if ($("notice-text").textContent === "The server is back.") notify(""); }, 4000);
}

function requestBody(chat, upTo) {
  const s = state.settings, body = {stream: true, stream_options: {include_usage: true}, timings_per_token: true, return_progress: true};
  for (const name of ["temperature", "top_p", "top_k", "seed", "max_tokens"]) if (Number.isFinite(s[name])) body[name] = s[name];
  if (s.thinking) body.enable_thinking = s.thinking === "on";
  body.messages = chat.messages.slice(0, upTo).filter(m => m.role === "user" || m.content).map(m => ({role: m.role, content: m.content}));
  if (s.system) body.messages.unshift({role: "system", content: s.system});
  return JSON.stringify(body);
}

// The JSON of each event of a stream; comments are keep-alives. Ends without "[DONE]" only where the connection broke.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {value, done} = await reader.read();
    if (done) throw new TypeError("the stream broke off");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line.slice(6).trim() === "[DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}

function take(run, event) {
  const m = run.message, choice = event.choices?.[0], delta = choice?.delta || {};
  if (event.error) throw new Error(event.error.message);
  if (event.prompt_progress) run.progress = event.prompt_progress;
  if (delta.content || delta.reasoning_content) m.stats.first ??= performance.now() - run.start;
  m.reasoning += delta.reasoning_content || "";
  m.content += delta.content || "";
  if (choice?.finish_reason) m.finish = choice.finish_reason;
  if (event.timings) m.stats.timings = event.timings;
  if (event.usage) m.stats.usage = event.usage;
  if (choice?.finish_reason || event.usage) m.stats.whole = true;
}

// Asks for the answer that follows the conversation's last message.
async function ask() {
  const chat = state.chat;
  const message = {role: "assistant", content: "", reasoning: "", stats: {}};
  const run = state.running = {abort: new AbortController(), chat, message, start: performance.now(), saved: Date.now()};
  const body = requestBody(chat, chat.messages.length);
  chat.messages.push(message);
  chat.changed = Date.now();
  showAll();
  say("The answer begins.");
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", body, signal: run.abort.signal, headers: {"Content-Type": "application/json", ...headers()}});
    if (!response.ok) {
      const text = await response.text();
      let why = "The server answers " + response.status + ".";
      try { why = JSON.parse(text).error.message; } catch { /* not its own answer */ }
      if (response.status === 401) keyRefused();
      throw new Error(response.status === 401 ? "The API key was refused." : why);
    }
    for await (const event of events(response)) {
      take(run, event);
      grow(run);
    }
  } catch (e) {
    if (e.name === "AbortError") message.stopped = true;
    else if (e instanceof TypeError) { message.failed = "The connection to the server was lost."; lost(); }
    else message.failed = e.message;
  }
  state.running = null;
  keep(chat);
  showAll();
  say(message.failed || (message.stopped ? "Stopped." : "Answer: " + message.content));
}

const stop = () => state.running?.abort.abort();

function send(text) {
  if (!text.trim() || state.running) return false;
  state.chat.messages.push({role: "user", content: text});
  save();
  store.set("facet.current", state.chat.id);
  ask();
  return true;
}

// Another answer in place of message `at`; everything after it goes.
function regenerate(at) {
  if (state.running) return;
  state.chat.messages.length = at;
  ask();
}

// --- What is shown

async function copyText(text) {
  try { await navigator.clipboard.writeText(text); say("Copied."); } catch { notify("This browser does not let the page copy."); }
}

function editor(m, at) {
  const text = make("textarea", {rows: Math.min(10, m.content.split("\n").length + 1), "aria-label": "Edit message"});
  text.value = m.content;
  const resend = () => {
    if (!text.value.trim() || state.running) return;
    state.chat.messages.length = at;
    send(text.value);
  };
  text.addEventListener("keydown", e => {
    if (sends(e)) { e.preventDefault(); resend(); }
    if (e.key === "Escape") { e.stopPropagation(); showAll(); }
  });
  return make("div", {class: "edit"}, text, make("button", {class: "main", type: "button", onclick: resend}, "Send"),
              make("button", {class: "framed", type: "button", onclick: () => showAll()}, "Cancel"));
}

function footer(m, at, node) {
  const button = (name, act) => make("button", {type: "button", onclick: act}, name);
  const foot = make("div", {class: "foot"}, button("Copy", () => copyText(m.content)));
  if (state.running) return foot;
  if (m.role === "user") foot.append(button("Edit", () => {
    node.replaceChildren(editor(m, at));
    node.querySelector("textarea").focus();
  }));
  else foot.append(button("Regenerate", () => regenerate(at)));
  const t = m.stats?.timings, notes = [];
  if (m.stopped) notes.push("stopped");
  if (m.finish === "length") notes.push("cut off: no tokens left");
  if (t) notes.push(`${t.predicted_n} tokens, ${number(t.predicted_per_second)} per second`);
  if (notes.length) foot.append(make("span", {class: "quiet"}, notes.join(" · ")));
  return foot;
}

function messageNode(m, at) {
  const mine = m.role === "user", live = state.running?.message === m;
  const node = make("article", {class: "message " + m.role, "aria-label": mine ? "You" : "Answer", "aria-busy": live ? "true" : null});
  if (!mine) node.append(make("p", {class: "who", "aria-hidden": "true"}, "facet"));
  const thought = make("details", {class: "thought"}, make("summary", {}, live && !m.content ? "Thinking" : "Thought"), make("div", {class: "text"}));
  const body = make("div", {class: mine ? "body" : "body markdown"});
  if (!mine) node.append(thought);
  node.append(body);
  if (m.failed) node.append(make("p", {class: "failed"}, m.failed));
  if (!live) node.append(footer(m, at, node));
  fill(node, m);
  return node;
}

// Puts the text of a message, as far as it is there, into its node.
function fill(node, m) {
  const thought = node.querySelector(".thought"), body = node.querySelector(".body");
  if (m.role === "user") { body.textContent = m.content; return; }
  thought.hidden = !m.reasoning;
  const text = thought.querySelector(".text");
  if (text.textContent !== m.reasoning) text.textContent = m.reasoning || "";
  showMarkdown(body, m.content);
  body.classList.toggle("waiting", state.running?.message === m && !m.content);
  if (m.content) thought.querySelector("summary").textContent = "Thought";
}

const atEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
const toEnd = () => { $("log").scrollTop = $("log").scrollHeight; };

// An answer grew: at most once for each frame.
function grow(run) {
  if (run.frame) return;
  run.frame = requestAnimationFrame(() => {
    run.frame = 0;
    if (state.running !== run) return;
    if (Date.now() - run.saved > 2000) { run.saved = Date.now(); keep(run.chat); }
    if (run.chat !== state.chat) return;
    const follow = atEnd();
    fill($("log").lastChild, run.message);
    if (follow) toEnd();
    showPanel();
  });
}

function showAll(follow = true) {
  const nodes = state.chat.messages.map(messageNode);
  $("log").replaceChildren(...(nodes.length ? nodes : [make("p", {class: "empty"}, "Ask something. The conversation stays in this browser.")]));
  $("send").hidden = !!state.running;
  $("stop").hidden = !state.running;
  if (follow) toEnd();
  if (document.activeElement === document.body && !document.querySelector("dialog[open]")) $("input").focus();  // its place is gone
  showChats();
  showPanel();
}

function showChats() {
  $("chat-list").replaceChildren(...state.chats.map(c => {
    const item = make("li", {class: c === state.chat ? "current" : ""});
    const small = (sign, name, act) => make("button", {type: "button", class: "small", title: name, "aria-label": `${name}: ${titleOf(c)}`, onclick: act}, sign);
    item.append(make("button", {type: "button", class: "open", "aria-current": c === state.chat ? "true" : null, onclick: () => open(c)}, titleOf(c)),
                small("✎", "Rename", () => rename(c, item)), small("⤓", "Export", () => exportChat(c)), small("✕", "Delete", () => remove(c)));
    return item;
  }));
}

function open(chat) {
  state.chat = chat;
  store.set("facet.current", chat.id);
  if (narrow.matches) toggle("chats", false);
  showAll();
  $("input").focus();
}

function rename(chat, item) {
  const input = make("input", {"aria-label": "Name of the conversation", maxlength: 100});
  input.value = titleOf(chat);
  const done = keep => {
    if (!item.contains(input)) return;
    if (keep) { chat.title = input.value.trim(); save(chat); }
    item.replaceChildren();
    showChats();
  };
  input.addEventListener("keydown", e => {
    if (e.key === "Enter") done(true);
    if (e.key === "Escape") { e.stopPropagation(); done(false); }
  });
  input.addEventListener("blur", () => done(true));
  item.replaceChildren(input);
  input.select();
}

function exportChat(chat) {
  const url = URL.createObjectURL(new Blob([JSON.stringify({...chat, title: titleOf(chat)}, null, 2)], {type: "application/json"}));
  make("a", {href: url, download: titleOf(chat).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) + ".json"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function remove(chat) {
  if (!confirm(`Delete "${titleOf(chat)}"?`)) return;
  if (state.running?.chat === chat) stop();
  state.chats = state.chats.filter(c => c !== chat);
  store.remove(CHAT + chat.id);
  if (chat === state.chat) open(newChat());
  else showChats();
}

// --- The panel

const number = x => x >= 100 ? String(Math.round(x)) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
const time = ms => ms >= 1000 ? number(ms / 1000) + " s" : Math.round(ms) + " ms";
const facts = pairs => make("dl", {}, pairs.filter(p => p).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
const METHODS = {dflash: "DFlash", mtp: "MTP", ngram: "n-gram", lookup: "lookup", none: "none"};

function draftNodes(t) {
  const why = t.draft_inactive_reason ? make("p", {class: "quiet"}, t.draft_inactive_reason) : null;
  if (!t.draft_n) return [why || make("p", {class: "quiet"}, "None were made for this answer.")];
  const methods = t.draft_methods || [], names = [...new Set(methods.map(m => METHODS[m.method] || m.method))];
  const bars = make("ol", {class: "bars", "aria-label": "Drafts that were right, by place"}, (t.draft_accepted_at || []).map((share, k) => {
    const filled = make("i");
    filled.style.width = share * 100 + "%";
    return make("li", {}, make("span", {}, String(k + 1)), make("span", {class: "bar", "aria-hidden": "true"}, filled), make("span", {}, Math.round(share * 100) + " %"));
  }));
  return [facts([["Method", names.join(", ")], methods.length > 1 && ["Changes of it", methods.length - 1], ["Accepted", `${t.draft_n_accepted} of ${t.draft_n}`],
                 ["Tokens per step", number(t.draft_tokens_per_step)]]), make("p", {class: "quiet"}, "Right at place"), bars, why];
}

function cacheNote(t) {
  if (!t.cache_n) return "No cached conversation begins like this prompt.";
  if (t.prompt_n < t.cache_n) return "The prompt goes on from one that is still cached.";
  return "Only the beginning is the same as that of a cached prompt.";
}

function showPanel() {
  const m = state.chat.messages.findLast(x => x.role === "assistant"), live = m && state.running?.message === m;
  const title = text => make("h2", {}, text), t = m?.stats?.timings, nodes = [];
  const progress = live && !m.stats.first && state.running.progress;
  if (progress) nodes.push(title("Reading the prompt"), facts([["Tokens", `${progress.processed} of ${progress.total}`]]));
  if (t) {
    nodes.push(title("Speed"), make("div", {class: "big"}, number(t.predicted_per_second)), make("p", {class: "quiet"}, "tokens per second"),
               facts([m.stats.first !== undefined && ["First token after", time(m.stats.first)], ["Tokens", t.predicted_n], ["Time", time(t.predicted_ms)]]));
    if (m.stats.whole) nodes.push(
      title("Prompt"), facts([["Tokens", t.prompt_n + t.cache_n], ["From the cache", t.cache_n], ["Computed", t.prompt_n], ["Took", time(t.prompt_ms)]]),
      make("p", {class: "quiet"}, cacheNote(t)), title("Drafts"), ...draftNodes(t).filter(n => n));
  }
  if (!nodes.length) nodes.push(title("Speed"), make("p", {class: "quiet"}, live ? "Waiting for the server." : "Numbers of the last answer come here."));
  $("panel").replaceChildren(...nodes);
}

// --- Parts that open and close, and keys

const narrow = matchMedia("(max-width: 62rem)"), dark = matchMedia("(prefers-color-scheme: dark)");

function toggle(id, on = $(id).hidden) {
  $(id).hidden = !on;
  $("show-" + id).setAttribute("aria-expanded", String(on));
  if (on && narrow.matches) for (const other of ["chats", "panel"]) if (other !== id) toggle(other, false);
}

function showTheme() {
  const theme = store.get("facet.theme", null) || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", theme === "dark" ? "Switch to light" : "Switch to dark");
}

const sends = e => e.key === "Enter" && !e.shiftKey && !e.isComposing;

function fitInput() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + 2 + "px";
}

function submit() {
  if (send($("input").value)) $("input").value = "";
  fitInput();
}

function readSettings() {
  const s = {};
  for (const field of $("settings").querySelectorAll("[name]")) {
    if (field.value === "" || !field.checkValidity()) continue;
    s[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  state.settings = s;
  store.set("facet.settings", s);
}

function showSettings() {
  for (const field of $("settings").querySelectorAll("[name]")) field.value = state.settings[field.name] ?? "";
  $("settings").showModal();
}

function listen() {
  const on = (id, type, act) => $(id).addEventListener(type, act);
  on("log", "click", e => {
    if (e.target.matches("figure .copy")) copyText(e.target.closest("figure").querySelector("code").textContent);
  });
  on("compose", "submit", e => { e.preventDefault(); submit(); });
  on("input", "keydown", e => { if (sends(e)) { e.preventDefault(); submit(); } });
  on("input", "input", fitInput);
  on("stop", "click", stop);
  on("new-chat", "click", () => open(newChat()));
  on("show-chats", "click", () => toggle("chats"));
  on("show-panel", "click", () => toggle("panel"));
  on("show-settings", "click", showSettings);
  on("settings", "close", readSettings);
  on("settings-key", "click", () => { $("settings").close(); askKey("Leave it empty where the server needs none."); });
  on("notice-key", "click", () => askKey(""));
  on("key-cancel", "click", () => $("key").close("cancel"));
  $("key").querySelector("form").addEventListener("submit", () => {
    state.key = $("key-input").value.trim();
    store.set("facet.key", state.key);
    loadProps();
  });
  on("theme", "click", () => {
    store.set("facet.theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  document.addEventListener("keydown", e => {
    if (e.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (state.running) return stop();
    if (narrow.matches) for (const id of ["chats", "panel"]) toggle(id, false);
  });
  addEventListener("pagehide", () => { if (state.running) keep(state.running.chat); });
}

showTheme();
listen();
toggle("chats", !narrow.matches);
toggle("panel", !narrow.matches);
showAll();
loadProps();
