// Parts that open and close, keys, and how it begins.
import {$} from "./dom.js";
import {leave, send, stop} from "./answer.js";
import {attach, showFiles} from "./files.js";
import {colour, sends, showAll} from "./messages.js";
import {copyText, notify} from "./notice.js";
import {showPanel} from "./panel.js";
import {listenRecord} from "./record.js";
import {askKey, listenModels, loadServer} from "./server.js";
import {listenSettings} from "./settings.js";
import {listenSidebar, showList} from "./sidebar.js";
import {actions, local, state} from "./state.js";
import {draft, keepNew, loadHeads, openStore, setDraft} from "./store.js";

const narrow = matchMedia("(max-width: 62rem)"), dark = matchMedia("(prefers-color-scheme: dark)");

function toggle(id, on = $(id).hidden) {
  $(id).hidden = !on;
  $("show-" + id).setAttribute("aria-expanded", String(on));
  if (on && narrow.matches) for (const other of ["chats", "panel"]) if (other !== id) toggle(other, false);
  if (on && id === "panel" && state.chat) showPanel();
}

function showTheme() {
  const theme = local.get("facet.theme", null) || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", theme === "dark" ? "Switch to light" : "Switch to dark");
}

function fitInput() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + 2 + "px";
}

async function submit() {
  const text = $("input").value;
  if (state.opening) await state.opening;  // what was asked for is what is written to
  const id = state.chat.id;
  if (send(text)) {
    $("input").value = "";
    setDraft(id, "");
  }
  fitInput();
}

function showDraft() {
  $("input").value = draft(state.chat.id);
  fitInput();
  showFiles();
}

function keys(e) {
  const command = (e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase();
  if (document.querySelector("dialog[open]")) return;
  if (command === "k") {
    e.preventDefault();
    toggle("chats", true);
    $("search").focus();
    $("search").select();
  } else if (command === "b") {
    e.preventDefault();
    toggle("chats");
  } else if (e.key === "Escape") {
    if (state.running) return stop();
    if (narrow.matches) for (const id of ["chats", "panel"]) toggle(id, false);
  }
}

function listenFiles() {
  const files = e => [...(e.dataTransfer || e.clipboardData).files], drop = on => document.body.classList.toggle("drop", on);
  $("attach").addEventListener("click", () => $("attach-file").click());
  $("attach-file").addEventListener("change", e => {
    attach([...e.target.files]);
    e.target.value = "";
  });
  listenRecord();
  $("input").addEventListener("paste", e => {
    if (!files(e).length) return;
    e.preventDefault();
    attach(files(e));
  });
  addEventListener("dragover", e => {
    if (![...e.dataTransfer.types].includes("Files")) return;
    e.preventDefault();
    drop(true);
  });
  addEventListener("dragleave", e => { if (!e.relatedTarget) drop(false); });
  addEventListener("drop", e => {
    if (!files(e).length) return;
    e.preventDefault();
    drop(false);
    attach(files(e));
  });
}

function listen() {
  const on = (id, type, act) => $(id).addEventListener(type, act);
  on("log", "click", e => {
    if (e.target.matches("figure .copy")) copyText(e.target.closest("figure").querySelector("code").textContent, e.target);
  });
  on("compose", "submit", e => { e.preventDefault(); submit(); });
  on("input", "keydown", e => { if (sends(e)) { e.preventDefault(); submit(); } });
  on("input", "input", () => { fitInput(); setDraft(state.chat.id, $("input").value); });
  on("stop", "click", stop);
  on("show-chats", "click", () => toggle("chats"));
  on("show-panel", "click", () => toggle("panel"));
  on("settings-key", "click", () => { $("settings").close(); askKey("Leave it empty where the server needs none."); });
  on("notice-close", "click", () => notify(""));
  on("notice-key", "click", () => askKey(""));
  on("key-cancel", "click", () => $("key").close("cancel"));
  $("key").querySelector("form").addEventListener("submit", () => {
    state.key = $("key-input").value.trim();
    local.set("facet.key", state.key);
    loadServer();
  });
  on("theme", "click", () => {
    local.set("facet.theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  document.addEventListener("keydown", keys);
  addEventListener("pagehide", leave);
  document.addEventListener("visibilitychange", async () => {  // another tab may have changed the list
    if (document.visibilityState !== "visible" || state.running) return;
    await loadHeads();
    showList();
  });
  listenFiles();
  listenModels();
  listenSettings();
  listenSidebar();
  Object.assign(actions, {colour, showDraft, toggle, narrow: () => narrow.matches});
}

async function begin() {
  showTheme();
  toggle("chats", !narrow.matches);
  toggle("panel", !narrow.matches);
  await openStore();
  listen();
  local.set("facet.current", state.chat.id);
  keepNew(state.chat);
  showDraft();
  showAll();
  loadServer();
}

begin();
