// The line above everything, and what is copied.
import {$, say} from "./dom.js";

// about: what takes it back (settled).
export function notify(text, about = "") {
  $("notice-text").textContent = text;
  $("notice-key").hidden = about !== "key";
  $("notice").hidden = !text;
  $("notice").dataset.about = about;
}

export function settled(...about) { if (about.includes($("notice").dataset.about)) notify(""); }

// The clipboard of browsers is there only on https and localhost; the old way works everywhere.
function copyOldWay(text) {
  const area = document.createElement("textarea"), before = document.activeElement;
  area.value = text;
  area.className = "unseen";
  (document.querySelector("dialog[open]") || document.body).append(area);
  area.select();
  let done = false;
  try { done = document.execCommand("copy"); } catch { /* not allowed */ }
  area.remove();
  before?.focus({preventScroll: true});
  return done;
}

// Copies, and says so on the button.
export async function copyText(text, button) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = copyOldWay(text);
  }
  if (!done) return notify("This browser does not let the page copy.");
  say("Copied.");
  const label = button.firstChild;
  button.dataset.label ??= label.data;
  label.data = "Copied";
  setTimeout(() => { label.data = button.dataset.label; }, 1500);
}
