// What the browser keeps. Conversations stand in its database, each an entry of its own, so that two tabs do not
// overwrite each other and files may be large; the small things (settings, drafts) in local storage.
import {newChat, newId, titleOf} from "./conversation.js";
import {notify} from "./notice.js";
import {local, state} from "./state.js";

const OLD = "facet.chat.";
let database = null;
const memory = new Map();  // where there is no database

const finished = request => new Promise((ok, no) => {
  request.onsuccess = () => ok(request.result);
  request.onerror = () => no(request.error);
});

function openDatabase() {
  const request = indexedDB.open("facet", 1);
  request.onupgradeneeded = () => {
    for (const name of ["heads", "chats"]) request.result.createObjectStore(name, {keyPath: "id"});
  };
  return finished(request);
}

const headOf = c => ({id: c.id, title: titleOf(c), changed: c.changed});

function put(chat) {
  if (!database) return void memory.set(chat.id, structuredClone(chat));
  const t = database.transaction(["heads", "chats"], "readwrite");
  t.onabort = () => notify("This browser keeps no more: delete or export conversations.");
  t.objectStore("heads").put(headOf(chat));
  t.objectStore("chats").put(chat);
  t.commit?.();
}

function sorted(heads) { return heads.sort((a, b) => b.changed - a.changed); }

export async function loadHeads() {
  state.heads = sorted(database ? await finished(database.transaction("heads").objectStore("heads").getAll()) : [...memory.values()].map(headOf));
}

export async function loadChat(id) {
  return await (database ? finished(database.transaction("chats").objectStore("chats").get(id)) : memory.get(id)) || null;
}

// Writes a conversation down; it is then one of those of the list.
export function save(chat) {
  state.heads = sorted([headOf(chat), ...state.heads.filter(h => h.id !== chat.id)]);
  put(chat);
}

// Writes it down unless it was deleted meanwhile.
export function keep(chat) { if (state.heads.some(h => h.id === chat.id)) save(chat); }

// One without messages is no entry of the list yet, but survives a reload.
export function keepNew(chat) { if (!chat.messages.length) local.set("facet.new", chat); else keep(chat); }

export function forget(id) {
  state.heads = state.heads.filter(h => h.id !== id);
  setDraft(id, "");
  if (!database) return void memory.delete(id);
  const t = database.transaction(["heads", "chats"], "readwrite");
  for (const name of ["heads", "chats"]) t.objectStore(name).delete(id);
}

// Of all conversations, one after the other.
export async function eachChat(act) {
  for (const {id} of state.heads) {
    const chat = await loadChat(id);
    if (chat) act(chat);
  }
}

export const draft = id => local.get("facet.drafts", {})[id] || "";
export function setDraft(id, text) {
  const drafts = local.get("facet.drafts", {});
  if (text) drafts[id] = text; else delete drafts[id];
  local.set("facet.drafts", drafts);
}

// An answer that is still growing when the page goes: the database may not be quick enough for it.
export function keepRunning(run) {
  local.set("facet.running", {id: run.chat.id, at: run.at, message: run.message});
}

async function takeRunning() {
  const last = local.get("facet.running", null);
  local.remove("facet.running");
  const chat = last && await loadChat(last.id);
  if (!chat || !chat.messages[last.at]) return;
  chat.messages[last.at] = last.message;
  put(chat);
}

// Conversations of earlier versions of the page: in local storage, without branches.
function takeOld() {
  let names = [];
  try { names = Object.keys(localStorage).filter(n => n.startsWith(OLD)); } catch { /* storage is switched off */ }
  for (const name of names) {
    const old = local.get(name, null);
    if (old && Array.isArray(old.messages)) {
      const chat = {...newChat(state.settings.system || ""), id: old.id || newId(), title: old.title || "", changed: old.changed || Date.now()};
      chat.messages = old.messages.map((m, i) => ({...m, parent: i - 1, ...(i + 1 < old.messages.length && {next: i + 1})}));
      chat.leaf = chat.messages.length - 1;
      if (chat.messages.length) put(chat);
    }
    local.remove(name);
  }
}

// Opens what is kept; afterwards the list is there and the conversation that was shown last.
export async function openStore() {
  try { database = await openDatabase(); } catch { notify("This browser keeps nothing: conversations are gone when the page is closed."); }
  takeOld();
  await takeRunning();
  await loadHeads();
  const current = local.get("facet.current", ""), fresh = local.get("facet.new", null);
  state.chat = current && await loadChat(current) || (fresh?.id === current && Array.isArray(fresh.messages) ? fresh : newChat(state.settings.system || ""));
}
