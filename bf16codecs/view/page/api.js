// Requests to the program that serves this page. A request aborts an earlier one of its kind, whose
// answer becomes null.

import { during } from "./busy.js";

const underWay = new Map();
// Kinds of requests that are aborted when the page shows something else.
const OF_PAGE = ["tensor", "picture", "statistics", "history", "changes"];

async function ask(kind, path, query) {
  underWay.get(kind)?.abort();
  const control = new AbortController();
  underWay.set(kind, control);
  const text = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== null)
  );
  try {
    return await during(answered(`/api/${path}?${text}`, control.signal, path === "picture"));
  } catch (error) {
    if (error.name === "AbortError") return null;
    if (error instanceof TypeError) {
      throw new Error("The program that serves this page has ended: start bf16codecs view again.");
    }
    throw error;
  }
}

async function answered(address, signal, isBinary) {
  const answer = await fetch(address, { signal });
  if (!answer.ok) {
    const failure = await answer.json().catch(() => ({ error: answer.statusText }));
    throw new Error(failure.error);
  }
  return isBinary ? answer.arrayBuffer() : answer.json();
}

export const api = {
  model: () => ask("model", "model", {}),
  contents: (step, sizes) => ask("contents", "contents", { step, sizes: sizes ? "ask" : "" }),
  tensor: (query) => ask("tensor", "tensor", query),
  statistics: (query) => ask("statistics", "statistics", query),
  changes: (query) => ask("changes", "changes", query),
  history: (tensor) => ask("history", "history", { tensor }),
  leave() {
    for (const kind of OF_PAGE) underWay.get(kind)?.abort();
  },
  async picture(query) {
    const buffer = await ask("picture", "picture", query);
    return buffer === null ? null : parsed(buffer);
  },
};

function parsed(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  const floats = (count) => {
    const array = new Float32Array(buffer, at, count);
    at += 4 * count;
    return array;
  };
  found.cells = floats(found.height * found.width);
  found.rowScales = floats(found.height);
  found.columnScales = floats(found.width);
  found.states = new Uint8Array(buffer, at);
  return found;
}
