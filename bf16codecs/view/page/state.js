// The state of the page, all of which is in its address: a copied address shows the same.

import { paused } from "./busy.js";

const KEYS = ["step", "against", "tensor", "show", "rows", "columns", "limit", "colour", "search"];
// Parts of the state that belong to one tensor's picture, and are reset with it.
const OF_PICTURE = ["rows", "columns", "limit"];

export const state = {};
const listeners = [];
// Browsers limit changes of the address to some hundred a minute, and a drag makes more.
const written = paused(120, () => history.replaceState(null, "", address()));

function read() {
  const query = new URLSearchParams(location.search);
  for (const key of KEYS) state[key] = query.get(key) ?? "";
}

function address() {
  const query = new URLSearchParams();
  for (const key of KEYS) if (state[key]) query.set(key, state[key]);
  const text = query.toString().replaceAll("%3A", ":").replaceAll("%2F", "/");
  return text ? `?${text}` : location.pathname;
}

// Change the state. Another tensor, or the whole model, becomes a new entry of the browser's history;
// all else changes the current entry.
export function show(changes) {
  const before = { ...state };
  const isNew = "tensor" in changes && changes.tensor !== state.tensor;
  if (isNew) for (const key of OF_PICTURE) state[key] = "";
  Object.assign(state, changes);
  if (KEYS.every((key) => state[key] === before[key])) return;
  if (isNew) {
    written.cancel();
    history.pushState(null, "", address());
  } else written();
  notify(before);
}

function notify(before) {
  const changed = new Set(KEYS.filter((key) => state[key] !== before[key]));
  for (const listener of listeners) listener(changed);
}

// Call a function with the names of the changed parts on every change.
export function listen(listener) {
  listeners.push(listener);
}

addEventListener("popstate", () => {
  written.cancel();
  const before = { ...state };
  read();
  notify(before);
});

read();
