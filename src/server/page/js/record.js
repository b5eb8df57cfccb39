// Sound from the microphone, as a file that goes with the message: 16 kHz, mono, WAV.
import {$} from "./dom.js";
import {attach} from "./files.js";
import {notify, settled} from "./notice.js";
import {state} from "./state.js";

const SAMPLE_RATE = 16000, MOST_SECONDS = 600;
let recorder = null;

function wavOf(samples) {
  const head = new DataView(new ArrayBuffer(44)), pcm = Int16Array.from(samples, x => Math.max(-1, Math.min(1, x)) * 32767);
  const text = (at, s) => [...s].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); text(8, "WAVEfmt "); text(36, "data");
  for (const [at, n] of [[4, 36 + pcm.byteLength], [16, 16], [24, SAMPLE_RATE], [28, 2 * SAMPLE_RATE], [40, pcm.byteLength]]) head.setUint32(at, n, true);
  for (const [at, n] of [[20, 1], [22, 1], [32, 2], [34, 16]]) head.setUint16(at, n, true);
  return new File([head, pcm], "recording.wav", {type: "audio/wav"});
}

async function toWav(blob) {
  const sound = await new OfflineAudioContext(1, 1, SAMPLE_RATE).decodeAudioData(await blob.arrayBuffer());
  const to = new OfflineAudioContext(1, Math.max(1, sound.length), SAMPLE_RATE), from = to.createBufferSource();
  from.buffer = sound;
  from.connect(to.destination);
  from.start();
  return wavOf((await to.startRendering()).getChannelData(0));
}

function showRecording(on) {
  const what = on ? "Stop recording" : "Record sound";
  $("record").textContent = on ? "■" : "●";
  $("record").title = what;
  $("record").setAttribute("aria-label", what);
}

async function beginRecording() {
  const stream = await navigator.mediaDevices.getUserMedia({audio: true}), pieces = [];
  recorder = new MediaRecorder(stream);
  recorder.ondataavailable = e => pieces.push(e.data);
  recorder.onstop = async () => {
    clearTimeout(limit);
    stream.getTracks().forEach(t => t.stop());
    recorder = null;
    showRecording(false);
    try { await attach([await toWav(new Blob(pieces))]); } catch { notify("The recording cannot be read.", "record"); }
  };
  const limit = setTimeout(() => recorder?.stop(), MOST_SECONDS * 1000);
  recorder.start();
  showRecording(true);
  settled("record");
}

// Where the model hears and the browser gives a microphone, which it does on https and localhost alone.
export function showRecord() { $("record").hidden = !recorder && !(state.takes.audio && navigator.mediaDevices && window.MediaRecorder); }

export function listenRecord() {
  $("record").addEventListener("click", () => recorder ? recorder.stop() : beginRecording().catch(e => notify(`The microphone cannot be used: ${e.message}`, "record")));
}
