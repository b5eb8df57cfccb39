// Asking, and the answer as it comes.
import {$, say} from "./dom.js";
import {add, choose, path} from "./conversation.js";
import {noteDrafted} from "./drafted.js";
import {contentParts, showFiles} from "./files.js";
import {grow, showAll} from "./messages.js";
import {settled} from "./notice.js";
import {errorText, headers, keyRefused, loadServer, lost, modelOf} from "./server.js";
import {actions, local, state} from "./state.js";
import {keep, keepRunning, save} from "./store.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "repeat_penalty", "presence_penalty", "frequency_penalty"];

function requestMessage(m) {
  if (m.role === "tool") return {role: "tool", tool_call_id: m.tool_call_id, content: m.content};
  if (m.role === "user") return {role: "user", content: contentParts(m)};
  if (!m.calls?.length) return m.content ? {role: "assistant", content: m.content} : null;
  return {role: "assistant", content: m.content, tool_calls: m.calls.map(c => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments}}))};
}

function requestBody(chat, parent) {
  const s = state.settings, body = {stream: true, stream_options: {include_usage: true}, timings_per_token: true, return_progress: true};
  if (state.router) body.model = modelOf(chat);
  for (const name of NUMBERS) if (Number.isFinite(s[name])) body[name] = s[name];
  if (s.thinking) body.enable_thinking = s.thinking === "on";
  if (chat.tools) body.tools = JSON.parse(chat.tools);
  if (chat.schema) body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: JSON.parse(chat.schema)}};
  body.messages = path(chat, parent).map(i => requestMessage(chat.messages[i])).filter(m => m);
  if (chat.system) body.messages.unshift({role: "system", content: chat.system});
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

function takeCalls(m, calls) {
  m.calls ??= [];
  for (const c of calls) {
    const call = m.calls[c.index ?? m.calls.length] ??= {id: "", name: "", arguments: ""};
    call.id = c.id || call.id;
    call.name += c.function?.name || "";
    call.arguments += c.function?.arguments || "";
  }
}

function take(run, event) {
  const m = run.message, choice = event.choices?.[0], delta = choice?.delta || {};
  if (event.error) throw new Error(event.error.message);
  if (event.prompt_progress) run.progress = event.prompt_progress;
  run.loading = event.load_progress ? `${event.load_progress.status || "loading"}, ${Math.round((event.load_progress.value || 0) * 100)} %` : "";
  if (delta.content || delta.reasoning_content || delta.tool_calls) m.stats.first ??= performance.now() - run.start;
  m.reasoning += delta.reasoning_content || "";
  if (delta.content && event.drafted_tokens > 0) noteDrafted(m, m.content.length, m.content.length + delta.content.length);
  m.content += delta.content || "";
  if (delta.tool_calls) takeCalls(m, delta.tool_calls);
  if (state.router && event.model) m.model = event.model;
  if (choice?.finish_reason) m.finish = choice.finish_reason;
  if (event.timings) m.stats.timings = event.timings;
  if (event.usage) m.stats.usage = event.usage;
  if (choice?.finish_reason || event.usage) m.stats.whole = true;
}

async function stream(run, body) {
  const m = run.message;
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", body, signal: run.abort.signal, headers: {"Content-Type": "application/json", ...headers()}});
    if (response.status === 401) {
      keyRefused();
      throw new Error("The API key was refused.");
    }
    if (!response.ok) throw new Error(await errorText(response));
    for await (const event of events(response)) {
      take(run, event);
      grow(run);
    }
  } catch (e) {
    if (e.name === "AbortError") m.stopped = true;
    else if (e instanceof TypeError) { m.failed = "The connection to the server was lost."; lost(); }
    else m.failed = e.message;
  }
}

// Asks for an answer that follows the message `parent`.
async function ask(parent) {
  const chat = state.chat, message = {role: "assistant", content: "", reasoning: "", stats: {}};
  const body = requestBody(chat, parent), at = add(chat, message, parent);
  const run = state.running = {abort: new AbortController(), chat, message, at, start: performance.now(), saved: Date.now()};
  save(chat);
  local.set("facet.current", chat.id);
  showAll();
  say("The answer begins.");
  await stream(run, body);
  state.running = null;
  local.remove("facet.running");
  keep(chat);
  showAll();
  if (state.router && state.online) loadServer();
  const calls = (message.calls || []).map(c => " Call of " + c.name + ".").join("");
  say(message.failed || (message.stopped ? "Stopped." : "Answer: " + message.content + calls));
}

export const stop = () => state.running?.abort.abort();

export function send(text) {
  if (state.running || !text.trim() && !state.files.length) return false;
  const parent = add(state.chat, {role: "user", content: text, ...(state.files.length && {files: state.files})});
  state.files = [];
  showFiles();
  settled("files");
  ask(parent);
  return true;
}

// Another answer beside the one at `at`, which stays; one that failed before it said anything makes room.
actions.regenerate = at => {
  if (state.running) return;
  const {messages} = state.chat, old = messages[at], parent = old.parent;
  if (old.failed && !old.content && !old.reasoning && at === messages.length - 1) messages.pop();
  ask(parent);
};

// The message at `at` as it should have been, beside the old one.
actions.edit = (at, text) => {
  const old = state.chat.messages[at];
  if (state.running || !text.trim() && !old.files?.length) return;
  ask(add(state.chat, {role: "user", content: text, ...(old.files && {files: old.files})}, old.parent));
};

// button: the name of what was pressed, which can be pressed again.
actions.choose = (at, button) => {
  if (state.running) return;
  choose(state.chat, at);
  keep(state.chat);
  showAll(false);
  const steps = [...$("log").children[path(state.chat).indexOf(at)].querySelectorAll(".step:not(:disabled)")];
  (steps.find(s => s.getAttribute("aria-label") === button) || steps[0]).focus();
};

// Results of the calls of the answer at `at`.
actions.results = (at, results) => {
  if (state.running) return;
  let parent = at;
  state.chat.messages[at].calls.forEach((c, i) => { parent = add(state.chat, {role: "tool", tool_call_id: c.id, name: c.name, content: results[i]}, parent); });
  ask(parent);
};

actions.keepRunning = run => {
  if (Date.now() - run.saved < 2000) return;
  run.saved = Date.now();
  keep(run.chat);
};

export function leave() { if (state.running && state.heads.some(h => h.id === state.running.chat.id)) keepRunning(state.running); }
