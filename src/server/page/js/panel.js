// What is known of the speed of the last answer.
import {$, make} from "./dom.js";
import {path} from "./conversation.js";
import {canColour} from "./drafted.js";
import {actions, local, state} from "./state.js";

export const number = x => x >= 100 ? String(Math.round(x)) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
const time = ms => ms >= 1000 ? number(ms / 1000) + " s" : Math.round(ms) + " ms";
const facts = pairs => make("dl", {}, pairs.filter(p => p).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
const METHODS = {dflash: "DFlash", mtp: "MTP", suffix: "suffix", lookup: "lookup", grammar: "grammar", none: "none"};

function draftNodes(t) {
  const reason = t.draft_inactive_reason || "", why = reason ? make("p", {class: "quiet"}, reason[0].toUpperCase() + reason.slice(1) + ".") : null;
  if (!t.draft_n) return [why || make("p", {class: "quiet"}, "None were made for this answer.")];
  const methods = t.draft_methods || [], names = [...new Set(methods.map(m => METHODS[m.method] || m.method))];
  const bars = make("ol", {class: "bars", "aria-label": "Drafts that were right, by place"}, (t.draft_accepted_at || []).map((share, k) => {
    const filled = make("i");
    filled.style.width = share * 100 + "%";
    return make("li", {}, make("span", {}, String(k + 1)), make("span", {class: "bar", "aria-hidden": "true"}, filled), make("span", {}, Math.round(share * 100) + "\u00a0%"));
  }));
  return [facts([["Method", names.join(", ")], methods.length > 1 && ["Changed", methods.length > 2 ? methods.length - 1 + " times" : "once"], ["Right", `${t.draft_n_accepted} of ${t.draft_n}`],
                 ["Tokens per step", number(t.draft_tokens_per_step)]]), make("p", {class: "quiet"}, "Right at place"), bars, why];
}

function colourChoice() {
  if (!canColour) return [];
  const box = make("input", {type: "checkbox", checked: state.settings.colour_drafted ? "" : null, onchange: e => {
    state.settings.colour_drafted = e.target.checked;
    local.set("facet.settings", state.settings);
    actions.colour();
  }});
  return [make("label", {class: "choice"}, box, make("span", {}, "Colour drafted tokens"))];
}

function cacheNote(t) {
  if (!t.cache_n) return "No cached conversation begins like this prompt.";
  if (t.prompt_n < t.cache_n) return "The prompt goes on from one that is still cached.";
  return "Only the beginning is the same as that of a cached prompt.";
}

export function showPanel() {
  if ($("panel").hidden) return;
  const shown = path(state.chat).map(i => state.chat.messages[i]);
  const m = shown.findLast(x => x.role === "assistant"), live = m && state.running?.message === m;
  const title = text => make("h2", {}, text), t = m?.stats?.timings, nodes = [];
  const progress = live && !m.stats.first && state.running.progress;
  if (live && state.running.loading) nodes.push(title("Loading the model"), make("p", {class: "quiet"}, state.running.loading));
  if (progress) nodes.push(title("Reading the prompt"), facts([["Tokens", `${progress.processed} of ${progress.total}`]]));
  if (t) {
    nodes.push(title("Speed"), make("div", {class: "big"}, number(t.predicted_per_second)), make("p", {class: "quiet"}, "tokens per second"),
               facts([m.stats.first !== undefined && ["First token after", time(m.stats.first)], ["Tokens", t.predicted_n], ["Time", time(t.predicted_ms)]]));
    if (m.stats.whole) nodes.push(
      title("Prompt"), facts([["Tokens", t.prompt_n + t.cache_n], ["From the cache", t.cache_n], ["Computed", t.prompt_n], ["Took", time(t.prompt_ms)]]),
      make("p", {class: "quiet"}, cacheNote(t)), title("Drafts"), ...draftNodes(t).filter(n => n), ...(t.draft_n ? colourChoice() : []));
  }
  if (!nodes.length) nodes.push(title("Speed"), make("p", {class: "quiet"}, live ? "Waiting for the server." : "Numbers of the last answer come here."));
  const focus = $("panel").contains(document.activeElement);
  $("panel").replaceChildren(...nodes);
  if (focus) $("panel").querySelector("input")?.focus();
}
