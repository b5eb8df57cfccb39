// Conversations. A message knows the one that it follows (`parent`, its place in `messages`; -1: it is the first), so
// that another answer and an edited message stand beside the old ones. `leaf` is the last message that is shown.

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(2)), n => n.toString(36)).join("");

export const newChat = (system = "") =>
  ({id: newId(), title: "", changed: Date.now(), system, tools: "", schema: "", model: "", messages: [], leaf: -1});

export function titleOf(c) {
  const asked = c.messages.find(m => m.role === "user");
  return c.title || (asked?.content || "").trim().slice(0, 100) || asked?.files?.[0]?.name || "New conversation";
}

// Places of the messages from the first one to `last`.
export function path(chat, last = chat.leaf) {
  const out = [];
  for (let at = last; at >= 0; at = chat.messages[at].parent) out.push(at);
  return out.reverse();
}

// Of the messages that follow one, the one that was shown last.
function remember(chat, at) {
  const parent = chat.messages[at].parent;
  if (parent < 0) chat.first = at; else chat.messages[parent].next = at;
}

export function add(chat, message, parent = chat.leaf) {
  message.parent = parent;
  chat.leaf = chat.messages.push(message) - 1;
  chat.changed = Date.now();
  remember(chat, chat.leaf);
  return chat.leaf;
}

// Places of the messages that follow the same one, with `at` itself.
export const versions = (chat, at) => chat.messages.flatMap((m, i) => m.parent === chat.messages[at].parent ? [i] : []);

// Shows the version `at`, and of what follows it what was shown last.
export function choose(chat, at) {
  for (;;) {
    remember(chat, at);
    chat.leaf = at;
    const next = chat.messages[at].next ?? -1;
    if (next < 0) return;
    at = next;
  }
}

// --- Files of conversations

const ROLES = ["user", "assistant", "tool"];
const plainText = content => Array.isArray(content) ? content.filter(p => p?.type === "text").map(p => String(p.text)).join("\n") : String(content ?? "");

// What is known of an answer's speed: only what has the form that the panel shows.
function importedStats(stats) {
  const t = stats?.timings, out = {whole: !!stats?.whole};
  if (Number.isFinite(stats?.first)) out.first = stats.first;
  if (!t || !["cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "predicted_per_second"].every(k => Number.isFinite(t[k]))) return out;
  out.timings = Object.fromEntries(Object.entries(t).filter(([k, v]) => Number.isFinite(v) || k === "draft_inactive_reason" && typeof v === "string"));
  if (Number.isFinite(t.draft_n) && !["draft_n_accepted", "draft_tokens_per_step"].every(k => Number.isFinite(t[k]))) delete out.timings.draft_n;
  if (Array.isArray(t.draft_accepted_at)) out.timings.draft_accepted_at = t.draft_accepted_at.filter(Number.isFinite);
  if (Array.isArray(t.draft_methods)) out.timings.draft_methods = t.draft_methods.filter(m => typeof m?.method === "string");
  return out;
}

const isFile = f => typeof f?.name === "string" && (f.kind === "text" ? typeof f.text === "string" : ["image", "audio"].includes(f.kind) && /^data:/.test(f.data) && /^data:/.test(f.small ?? f.data));

const isJson = text => { try { JSON.parse(text); return true; } catch { return false; } };

function importedMessage(m, where) {
  if (!m || typeof m !== "object" || !ROLES.includes(m.role)) throw new Error(`${where}: expected a message of the roles ${ROLES.join(", ")}`);
  const out = {role: m.role, content: plainText(m.content), parent: -1};
  if (m.reasoning || m.reasoning_content || m.thinking) out.reasoning = String(m.reasoning || m.reasoning_content || m.thinking);
  const calls = Array.isArray(m.tool_calls) ? m.tool_calls.map(c => ({id: c?.id, ...c?.function})) : Array.isArray(m.calls) ? m.calls : [];
  if (calls.length) out.calls = calls.map(c => ({id: String(c?.id ?? ""), name: String(c?.name ?? ""), arguments: String(c?.arguments ?? "")}));
  if (m.tool_call_id) out.tool_call_id = String(m.tool_call_id);
  if (m.name) out.name = String(m.name);
  if (Array.isArray(m.files)) out.files = m.files.filter(isFile);
  if (m.role === "assistant") out.stats = importedStats(m.stats);
  for (const key of ["model", "finish", "failed"]) if (typeof m[key] === "string") out[key] = m[key];
  if (Array.isArray(m.drafted)) out.drafted = m.drafted.filter(Number.isInteger);
  return out;
}

function importedChat(c, where) {
  if (Array.isArray(c)) c = {messages: c};
  if (!c || !Array.isArray(c.messages)) throw new Error(`${where}: expected a conversation with messages`);
  const chat = newChat(), conv = c.conv || c, places = new Map();  // llama-server's page has `conv` beside the messages
  chat.title = String(conv.title || conv.name || "").slice(0, 100);
  if (Number.isFinite(conv.changed ?? conv.lastModified)) chat.changed = conv.changed ?? conv.lastModified;
  for (const key of ["system", "model"]) if (typeof c[key] === "string") chat[key] = c[key];
  for (const key of ["tools", "schema"]) if (isJson(c[key])) chat[key] = c[key];
  c.messages.forEach((m, i) => {
    if (m?.type === "root") return;
    if (m?.role === "system") { chat.system ||= plainText(m.content); places.set(m.id, places.get(m.parent) ?? -1); return; }
    const message = importedMessage(m, `${where}, message ${i + 1}`), ids = typeof m.parent === "string" || m.id !== undefined;
    message.parent = ids ? places.get(m.parent) ?? -1 : Number.isInteger(m.parent) && m.parent < i && m.parent >= -1 ? m.parent : chat.messages.length - 1;
    const at = chat.messages.push(message) - 1;
    if (m.id !== undefined) places.set(m.id, at);
    remember(chat, at);
  });
  const leaf = Number.isInteger(c.leaf) ? c.leaf : places.get(conv.currNode) ?? chat.messages.length - 1;
  chat.leaf = chat.messages[leaf] ? leaf : chat.messages.length - 1;
  for (const at of path(chat)) remember(chat, at);
  return chat;
}

// The conversations of a file: of this page (one or many), of llama-server's page, or messages as OpenAI has them.
export function chatsOfFile(text, name) {
  let json;
  try { json = JSON.parse(text); } catch { throw new Error(`${name}: expected JSON`); }
  const many = Array.isArray(json?.conversations) ? json.conversations : Array.isArray(json) && json.length && !json[0]?.role ? json : [json];
  return many.map((c, i) => importedChat(c, many.length > 1 ? `${name}, conversation ${i + 1}` : name));
}
