// What goes with a message: {kind, name, mime} and for text `text`, else `data`, a data: URL. A kind is read here,
// shown here, and becomes part of a request here (contentParts), and nowhere else.
import {$, make} from "./dom.js";
import {notify, settled} from "./notice.js";
import {state} from "./state.js";

const TEXT_BYTES = 1 << 20, MEDIA_BYTES = 20 << 20, THUMBNAIL = 256;

// Text of a file, or null if it is none: UTF-8, or UTF-16 with its mark, without NUL.
function textOf(bytes) {
  const mark = bytes[0] << 8 | bytes[1], coding = mark === 0xfffe ? "utf-16le" : mark === 0xfeff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(coding, {fatal: true}).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch { return null; }
}

const dataUrl = file => new Promise((ok, no) => {
  const reader = new FileReader();
  reader.onload = () => ok(reader.result);
  reader.onerror = () => no(reader.error);
  reader.readAsDataURL(file);
});

async function thumbnail(file) {
  const picture = await createImageBitmap(file), scale = Math.min(1, THUMBNAIL / Math.max(picture.width, picture.height));
  const canvas = make("canvas", {width: Math.max(1, Math.round(picture.width * scale)), height: Math.max(1, Math.round(picture.height * scale))});
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return canvas.toDataURL("image/jpeg", .8);
}

async function readFile(file) {
  const size = n => (n / (1 << 20)).toFixed(1) + " MB", name = file.name || "file";
  for (const [kind, what] of [["image", "pictures"], ["audio", "sound"]]) {
    if (!file.type.startsWith(kind + "/") || file.type === "image/svg+xml") continue;
    if (!state.takes[kind]) throw new Error(`${name}: this model takes no ${what}.`);
    if (file.size > MEDIA_BYTES) throw new Error(`${name}: ${size(file.size)}, expected at most ${MEDIA_BYTES >> 20} MB.`);
    const out = {kind, name, mime: file.type, data: await dataUrl(file)};
    if (kind === "image") try { out.small = await thumbnail(file); } catch { throw new Error(`${name}: this browser cannot read the picture.`); }
    return out;
  }
  if (file.size > TEXT_BYTES) throw new Error(`${name}: ${size(file.size)}, expected at most 1 MB of text.`);
  const text = textOf(new Uint8Array(await file.arrayBuffer()));
  if (text === null) throw new Error(`${name}: no text; only text files can be sent${state.takes.image ? ", and pictures" : ""}.`);
  return {kind: "text", name, mime: file.type || "text/plain", text};
}

// Takes files in, those that it can; says of the first other one why not.
export async function attach(files) {
  let refused = "";
  for (const file of files) {
    try { state.files.push(await readFile(file)); } catch (e) { refused ||= e.message || `${file.name}: cannot be read.`; }
  }
  if (refused) notify(refused, "files"); else settled("files");
  showFiles();
  $("input").focus();
}

export function fileNode(f, ...more) {
  const picture = f.kind === "image" ? make("img", {src: f.small || f.data, alt: ""}) : null;
  const text = f.kind === "text" ? make("span", {class: "quiet"}, `${f.text.length.toLocaleString("en")} characters`) : null;
  return make("li", {class: "file"}, picture, make("span", {class: "name", title: f.name}, f.name), text, ...more);
}

// Those of the message that is being written.
export function showFiles() {
  $("files").hidden = !state.files.length;
  $("files").replaceChildren(...state.files.map((f, i) => fileNode(f, make("button", {type: "button", "aria-label": "Remove " + f.name, onclick: () => {
    state.files.splice(i, 1);
    showFiles();
    $("input").focus();
  }}, "✕"))));
}

// A fence that the text does not have.
function fenced(f) {
  const longest = Math.max(2, ...Array.from(f.text.matchAll(/`{3,}/g), m => m[0].length)), fence = "`".repeat(longest + 1);
  return `${f.name}:\n${fence}\n${f.text.replace(/\n?$/, "\n")}${fence}\n\n`;
}

function soundFormat(mime) {
  const name = mime.replace(/^audio\/(x-)?/, "").replace(/;.*/, "");
  return {mpeg: "mp3", wave: "wav", "vnd.wave": "wav"}[name] || name;
}

// `content` of a message in a request: text, or parts where there is more than text.
export function contentParts(m) {
  const files = m.files || [], text = files.filter(f => f.kind === "text").map(fenced).join("") + m.content;
  const media = files.filter(f => f.kind !== "text").map(f => f.kind === "image"
    ? {type: "image_url", image_url: {url: f.data}}
    : {type: "input_audio", input_audio: {data: f.data.slice(f.data.indexOf(",") + 1), format: soundFormat(f.mime)}});
  return media.length ? [...media, ...(text ? [{type: "text", text}] : [])] : text;
}
