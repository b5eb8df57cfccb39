// The settings: those of the conversation, and those of every one.
import {$} from "./dom.js";
import {local, state} from "./state.js";
import {keepNew} from "./store.js";

const fields = () => $("settings").querySelectorAll("[name]");

// Why a text cannot be used, or "".
function wrong(name, text) {
  if (!text.trim()) return "";
  let json;
  try { json = JSON.parse(text); } catch (e) { return "No JSON: " + e.message; }
  if (name === "tools" && (!Array.isArray(json) || json.some(t => !t?.function?.name))) return "Expected a list of {\"type\": \"function\", \"function\": {\"name\": …}}.";
  if (name === "schema" && (json === null || typeof json !== "object" || Array.isArray(json))) return "Expected a JSON schema: an object.";
  return "";
}

function read() {
  const all = {model: state.settings.model, colour_drafted: state.settings.colour_drafted};
  for (const field of fields()) {
    if (!field.checkValidity()) continue;
    if (field.dataset.chat) state.chat[field.dataset.chat] = field.value.trim();
    else if (field.value !== "") all[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  state.settings = all;
  local.set("facet.settings", all);
  keepNew(state.chat);
}

export function showSettings() {
  for (const field of fields()) {
    field.value = (field.dataset.chat ? state.chat[field.dataset.chat] : state.settings[field.name]) ?? "";
    field.setCustomValidity("");
  }
  $("settings").querySelector("details").open = !!(state.chat.tools || state.chat.schema);
  $("settings").showModal();
}

export function listenSettings() {
  $("show-settings").addEventListener("click", showSettings);
  $("settings").addEventListener("close", read);
  for (const field of $("settings").querySelectorAll("[data-json]")) {
    field.addEventListener("input", () => {
      const why = wrong(field.dataset.json, field.value), line = $(field.dataset.json + "-wrong");
      field.setCustomValidity(why);
      line.textContent = why;
      line.hidden = !why;
    });
  }
}
