// Requests to the program that serves this page. Of each kind one is under way: a newer one
// replaces it, whose answer nobody waits for any more.

const underWay = new Map();
let waiting = 0;

async function ask(kind, path, query) {
  underWay.get(kind)?.abort();
  const control = new AbortController();
  underWay.set(kind, control);
  const text = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== null)
  );
  waiting += 1;
  document.body.dataset.waiting = waiting;
  try {
    const answer = await fetch(`/api/${path}?${text}`, { signal: control.signal });
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({ error: answer.statusText }));
      throw new Error(told.error);
    }
    return await (path === "picture" ? answer.arrayBuffer() : answer.json());
  } catch (error) {
    if (error.name === "AbortError") return null;
    if (error instanceof TypeError) {
      throw new Error("The program that serves this page has ended: start bf16codecs view again.");
    }
    throw error;
  } finally {
    waiting -= 1;
    document.body.dataset.waiting = waiting;
  }
}

// Answers to null are of requests that a newer one has replaced.
export const api = {
  model: () => ask("model", "model", {}),
  contents: (step, sizes) => ask("contents", "contents", { step, sizes: sizes ? "ask" : "" }),
  tensor: (query) => ask("tensor", "tensor", query),
  statistics: (query) => ask("statistics", "statistics", query),
  changes: (query) => ask("changes", "changes", query),
  history: (tensor) => ask("history", "history", { tensor }),
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
