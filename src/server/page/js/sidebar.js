// The list of conversations: by date, searched, renamed, exported, imported.
import {$, make, say} from "./dom.js";
import {chatsOfFile, newChat, titleOf} from "./conversation.js";
import {showAll} from "./messages.js";
import {notify} from "./notice.js";
import {stop} from "./answer.js";
import {loadServer} from "./server.js";
import {actions, local, state} from "./state.js";
import {eachChat, forget, keepNew, loadChat, save} from "./store.js";

const MOST = 500;  // rows at once
const BEFORE = 8;  // characters before what is found: it stands within the row
let search = {text: "", found: null};  // found: id to what was found there; null: everything is shown

const day = time => new Date(time).setHours(0, 0, 0, 0);

function groupOf(time) {
  const days = Math.round((day(Date.now()) - day(time)) / 864e5);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Last 7 days";
  if (days < 30) return "Last 30 days";
  return new Date(time).toLocaleDateString("en", {month: "long", year: "numeric"});
}

function row(head) {
  const here = head.id === state.chat.id, found = search.found?.get(head.id);
  const menu = make("button", {type: "button", class: "more", "aria-label": "More for " + head.title, "aria-haspopup": "menu", onclick: e => openMenu(e.currentTarget, head)}, "⋯");
  return make("li", {class: here ? "current" : "", "data-id": head.id},
              make("button", {type: "button", class: "open", title: head.title, "aria-current": here ? "true" : null, onclick: () => openChat(head.id)}, head.title, found ? make("span", {class: "found quiet"}, found) : null), menu);
}

export function showList() {
  const heads = state.heads.filter(h => !search.found || search.found.has(h.id)).slice(0, MOST), groups = new Map();
  for (const h of heads) {
    const name = groupOf(h.changed);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(h);
  }
  const nodes = [...groups].flatMap(([name, list]) => [make("h2", {}, name), make("ul", {}, list.map(row))]);
  if (search.found && !heads.length) nodes.push(make("p", {class: "quiet"}, "Nothing is found."));
  $("chat-list").replaceChildren(...nodes);
}

// --- What can be done with one

function openMenu(button, head) {
  const menu = $("chat-menu"), item = (name, act) => make("button", {type: "button", role: "menuitem", onclick: () => { menu.hidePopover(); act(head); }}, name);
  menu.replaceChildren(item("Rename", rename), item("Export", exportChat), item("Delete", remove));
  menu.showPopover();
  const place = button.getBoundingClientRect();
  menu.style.left = Math.max(4, Math.min(place.right - menu.offsetWidth, innerWidth - menu.offsetWidth - 4)) + "px";
  menu.style.top = Math.min(place.bottom, innerHeight - menu.offsetHeight - 4) + "px";
  menu.firstChild.focus();
}

function menuKeys(e) {
  const step = {ArrowDown: 1, ArrowUp: -1}[e.key], items = [...$("chat-menu").children];
  if (!step) return;
  e.preventDefault();
  items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
}

const chatById = async head => head.id === state.chat.id ? state.chat : state.running?.chat.id === head.id ? state.running.chat : loadChat(head.id);

function rename(head) {
  const item = [...$("chat-list").querySelectorAll("li")].find(li => li.dataset.id === head.id);
  const input = make("input", {"aria-label": "Name of the conversation", maxlength: 100});
  input.value = head.title;
  let over = false;
  const done = async keep => {
    if (over) return;
    over = true;
    const chat = keep && await chatById(head);
    if (chat) { chat.title = input.value.trim(); save(chat); }
    showList();
  };
  input.addEventListener("keydown", e => {
    if (e.key === "Enter") done(true);
    if (e.key === "Escape") { e.stopPropagation(); done(false); }
  });
  input.addEventListener("blur", () => done(true));
  item.replaceChildren(input);
  input.focus();
  input.select();
}

function download(json, name) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(json, null, 2)], {type: "application/json"}));
  make("a", {href: url, download: name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) + ".json"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function exportChat(head) {
  const chat = await chatById(head);
  download({...chat, title: titleOf(chat)}, titleOf(chat));
}

async function exportAll() {
  const conversations = [];
  await eachChat(c => conversations.push({...c, title: titleOf(c)}));
  download({conversations}, "facet conversations");
}

async function importFiles(files) {
  let count = 0, last = null, wrong = "";
  for (const file of files) {
    try {
      for (const chat of chatsOfFile(await file.text(), file.name)) {
        if (!chat.messages.length) continue;
        save(chat);
        last = chat;
        ++count;
      }
    } catch (e) { wrong ||= e.message; }
  }
  notify(wrong);
  say(`${count} conversations imported.`);
  if (!last) return showList();
  state.opening = null;
  state.chat = last;
  shown();
}

async function remove(head) {
  if (!confirm(`Delete "${head.title}"?`)) return;
  if (state.running?.chat.id === head.id) stop();
  forget(head.id);
  if (head.id === state.chat.id) startChat(); else showList();
}

// --- Which one is shown

function shown() {
  state.files = [];
  local.set("facet.current", state.chat.id);
  actions.showDraft();
  if (actions.narrow()) actions.toggle("chats", false);
  showAll();
  loadServer();
  $("input").focus();
}

export async function openChat(id) {
  const mine = state.opening = chatById({id});
  const chat = await mine;
  if (state.opening !== mine) return;  // another one was asked for since
  state.opening = null;
  if (!chat) return notify("This conversation was deleted in another tab.");
  state.chat = chat;
  shown();
}

export function startChat() {
  state.opening = null;
  state.chat = newChat(state.settings.system || "");
  keepNew(state.chat);
  shown();
}

// --- Search

let asked = 0;
async function find(text) {
  const mine = ++asked, words = text.trim().toLowerCase();
  if (!words) {
    search = {text: "", found: null};
    return showList();
  }
  const found = new Map();
  for (const h of state.heads) if (h.title.toLowerCase().includes(words)) found.set(h.id, "");
  await eachChat(chat => {
    if (mine !== asked || found.has(chat.id)) return;
    for (const m of chat.messages) {
      const at = (m.content || "").toLowerCase().indexOf(words);
      if (at < 0) continue;
      found.set(chat.id, (at > BEFORE ? "…" : "") + m.content.slice(Math.max(0, at - BEFORE), at + 60).replace(/\s+/g, " "));
      break;
    }
  });
  if (mine !== asked) return;
  search = {text, found};
  showList();
}

export function listenSidebar() {
  let wait = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => find($("search").value), 150);
  });
  $("search").addEventListener("keydown", e => {
    if (e.key === "Escape" && $("search").value) { e.stopPropagation(); $("search").value = ""; find(""); }
    if (e.key === "Enter") $("chat-list").querySelector(".open")?.click();
  });
  $("new-chat").addEventListener("click", startChat);
  $("export-all").addEventListener("click", exportAll);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", e => {
    importFiles([...e.target.files]);
    e.target.value = "";
  });
  $("chat-menu").addEventListener("keydown", menuKeys);
  actions.showList = showList;
}
