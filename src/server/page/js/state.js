// What all parts of the page share.

export const local = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(name, JSON.stringify(value)); return true; } catch { return false; }
  },
  remove(name) { try { localStorage.removeItem(name); } catch { /* nothing is kept */ } },
};

export const state = {
  heads: [],      // of all conversations that are kept: {id, title, changed}, the newest first
  chat: null,     // the one that is shown
  files: [],      // what goes with the next message
  settings: local.get("facet.settings", {}),
  key: local.get("facet.key", ""),
  models: [],     // of /v1/models
  router: false,  // several models, which may be loaded and unloaded
  takes: {},      // what the model takes beside text: {image, audio}
  opening: null,  // the promise of a conversation that is being read
  running: null,  // {abort, chat, message, ...} while an answer is on its way
  online: true,
};

// What a part does for parts that come before it.
export const actions = {};
