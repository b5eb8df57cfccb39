// The server: its key, whether it is there, what it has.
import {$, make} from "./dom.js";
import {notify, settled} from "./notice.js";
import {showRecord} from "./record.js";
import {local, state} from "./state.js";
import {keepNew} from "./store.js";

export const headers = () => state.key ? {"Authorization": "Bearer " + state.key} : {};

export function askKey(why) {
  $("key-why").textContent = why;
  $("key-input").value = state.key;
  if (!$("key").open) $("key").showModal();
  $("key-input").select();
}

export function keyRefused() {
  const why = state.key ? "The server does not know this API key." : "This server needs an API key.";
  notify(why, "key");
  askKey(why);
}

export function lost() {
  if (!state.online) return;
  state.online = false;
  notify("The server does not answer. Trying again …", "server");
  setTimeout(retry, 1000);
}

async function retry() {
  let there = false;
  try { there = (await fetch("/health", {cache: "no-store"})).ok; } catch { /* still gone */ }
  if (!there) return void setTimeout(retry, 1500);
  state.online = true;
  await loadServer();
  if (!$("notice").hidden) return;
  notify("The server is back.", "back");
  setTimeout(() => settled("back"), 4000);
}

// JSON of a path, or null; says what went wrong.
async function get(path) {
  let answer;
  try { answer = await fetch(path, {headers: headers()}); } catch { return void lost(); }
  if (answer.status === 401) return void keyRefused();
  if (!answer.ok) return null;
  return answer.json();
}

export const errorText = async response => {
  try { return JSON.parse(await response.text()).error.message; } catch { return "The server answers " + response.status + "."; }
};

// --- Models

const statusOf = m => m?.status?.value || "loaded";
const stays = m => ["loading", "unloading"].includes(statusOf(m));

// The model that a conversation is answered by: its own while the server has it, else the last one that was chosen.
export function modelOf(chat) {
  const names = state.models.map(m => m.id);
  return [chat.model, state.settings.model].find(n => names.includes(n)) ||
    state.models.find(m => statusOf(m) === "loaded")?.id || names[0] || "";
}

function takesOf(model, props) {
  const list = model?.input_modalities || model?.architecture?.input_modalities || [], of = props?.modalities || {};
  return {image: list.includes("image") || !!of.vision, audio: list.includes("audio") || !!of.audio};
}

function words(m) {
  const s = m.status || {};
  if (s.failed) return "failed";
  if (s.value === "loading") return `loading ${Math.round((s.progress || 0) * 100)}%`;
  return {unloaded: "not loaded", sleeping: "asleep"}[s.value] || s.value;
}

function showModels(props) {
  const name = modelOf(state.chat), model = state.models.find(m => m.id === name);
  const context = props?.default_generation_settings?.n_ctx ?? model?.meta?.n_ctx;
  const facts = [state.router ? words(model || {}) : name || props?.model_alias, context && "context " + context.toLocaleString("en")];
  $("model").textContent = facts.filter(f => f).join(" · ");
  $("model").title = model?.status?.reason || "";
  $("model-choice").hidden = $("model-load").hidden = !state.router;
  if (!state.router) return;
  const options = state.models.map(m => make("option", {value: m.id}, statusOf(m) === "loaded" ? m.id : `${m.id} (${words(m)})`));
  if (document.activeElement !== $("model-choice") || options.length !== $("model-choice").options.length) $("model-choice").replaceChildren(...options);
  $("model-choice").value = name;
  $("model-load").textContent = statusOf(model) === "loaded" ? "Unload" : "Load";
  $("model-load").disabled = stays(model);
}

// What the server says of itself and its models; also shows whether the key is right.
export async function loadServer() {
  const list = await get("/v1/models");
  if (!list) return;
  state.models = list.data || [];
  state.router = state.models.some(m => m.status);
  const name = modelOf(state.chat), model = state.models.find(m => m.id === name);
  const there = !state.router || statusOf(model) === "loaded";
  const props = there ? await get(state.router ? "/props?model=" + encodeURIComponent(name) : "/props") : null;
  if (there && !props && !$("key").open && state.online) notify("The server does not tell what it has (/props).", "server");
  const params = props?.default_generation_settings?.params || {};
  for (const field of $("settings").querySelectorAll("[data-default]")) {
    const value = params[field.dataset.default];
    field.placeholder = value === undefined ? "" : field.name === "max_tokens" && value < 0 ? "no limit" : +Number(value).toFixed(3);
  }
  state.takes = takesOf(model, props);
  showRecord();
  showModels(props);
  if (props || !there) settled("server", "key");
  clearTimeout(loadServer.again);
  if (state.models.some(stays)) loadServer.again = setTimeout(loadServer, 700);
}

async function act(what, name) {
  const post = () => fetch("/models/" + what, {method: "POST", headers: {"Content-Type": "application/json", ...headers()}, body: JSON.stringify({model: name})});
  let answer;
  try { answer = await post(); } catch { return lost(); }
  if (answer.ok) settled("model"); else notify(await errorText(answer), "model");
  await loadServer();
}

export function listenModels() {
  $("model-choice").addEventListener("change", e => {
    state.chat.model = state.settings.model = e.target.value;
    local.set("facet.settings", state.settings);
    keepNew(state.chat);
    const model = state.models.find(m => m.id === e.target.value);
    if (["unloaded", "sleeping"].includes(statusOf(model))) act("load", e.target.value); else loadServer();
  });
  $("model-load").addEventListener("click", () => {
    const model = state.models.find(m => m.id === modelOf(state.chat));
    if (model) act(statusOf(model) === "loaded" ? "unload" : "load", model.id);
  });
}
