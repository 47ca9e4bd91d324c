// The page as a whole: it draws the state in its address.

import { api } from "./api.js";
import { paused } from "./busy.js";
import { byId, element } from "./dom.js";
import { overview } from "./overview.js";
import { listen, show, state } from "./state.js";
import * as tensors from "./tensor.js";
import * as tree from "./tree.js";

let model = null;
let contents = null;
let asksSizes = false;
// The number of drawings begun: only the latest one may report errors and end the waiting state.
let begun = 0;

// Values that cannot be the label of a checkpoint, which is a number or the name of a file.
const BEFORE = "/before";
const NOTHING = "/nothing";

function complain(error) {
  byId("error").hidden = false;
  byId("error").textContent = error.message;
  for (const note of document.querySelectorAll(".reading")) note.remove();
  byId("main").removeAttribute("aria-busy");
}

// The checkpoint to compare the shown one with, or "".
function against() {
  if (state.against === NOTHING) return "";
  if (state.against !== BEFORE) return state.against || model.base || "";
  return model.steps[model.steps.indexOf(state.step) - 1] ?? "";
}

async function start() {
  model = await api.model();
  byId("where").textContent = model.where;
  const labels = [...model.steps, model.base];
  const missing = [];
  if (!labels.includes(state.step)) {
    if (state.step) missing.push(`no step ${state.step}: this is ${model.steps.at(-1)}`);
    state.step = model.steps.at(-1);
  }
  if (state.against && ![...labels, BEFORE, NOTHING].includes(state.against)) {
    missing.push(`no ${state.against} to compare with`);
    state.against = "";
  }
  controls();
  await load();
  if (missing.length && byId("error").hidden) {
    complain(new Error(`There is ${missing.join(", and ")}.`));
  }
}

// Read the contents of the step, and draw all.
async function load() {
  byId("error").hidden = true;
  byId("main").setAttribute("aria-busy", "true");
  const found = await api.contents(state.step, asksSizes);
  if (found === null) return;
  contents = found;
  tree.setRows(contents.tensors);
  await draw();
}

async function draw() {
  begun += 1;
  const drawing = begun;
  byId("error").hidden = true;
  byId("main").setAttribute("aria-busy", "true");
  if (!tensors.isShown(state.tensor)) {
    tensors.leave();
    api.leave();
  }
  const names = [state.tensor, contents.path.split("/").pop(), "bf16codecs"];
  document.title = names.filter(Boolean).join(" · ");
  try {
    if (state.tensor) {
      const row = contents.tensors.find((other) => other.name === state.tensor);
      await tensors.tensor(row, against(), model.is_remote);
    } else await overview(contents, against());
  } catch (error) {
    if (drawing === begun) complain(error);
  }
  if (drawing === begun) byId("main").removeAttribute("aria-busy");
}

function controls() {
  const { steps, base } = model;
  const all = base ? [...steps, base] : steps;
  byId("step-control").hidden = steps.length < 2;
  byId("step").max = steps.length - 1;
  byId("against-control").hidden = all.length < 2;
  const options = [[NOTHING, "nothing"], ...(steps.length > 1 ? [[BEFORE, "the step before"]] : []),
    ...all.map((label) => [label, label])];
  byId("against").replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  mark();
}

// Set the controls to the state in the address.
function mark() {
  const at = Math.max(0, model.steps.indexOf(state.step));
  byId("step").value = at;
  byId("step").setAttribute("aria-valuetext", state.step);
  byId("step-label").textContent = state.step;
  byId("against").value = state.against || model.base || NOTHING;
  for (const option of byId("against").options) option.disabled = option.value === state.step;
  byId("none-before").hidden = state.against !== BEFORE || Boolean(against());
}

function walk(by) {
  const next = model.steps[model.steps.indexOf(state.step) + by];
  if (next !== undefined) show({ step: next });
}

listen((changed) => {
  const has = (...keys) => keys.some((key) => changed.has(key));
  if (!model) return;
  mark();
  if (has("step")) {
    if (!state.step) state.step = model.steps.at(-1);
    load().catch(complain);
  } else if (has("tensor", "against")) {
    tree.select();
    draw();
    if (has("tensor")) byId("main").scrollTop = 0;
  } else if (has("rows", "columns", "show") && state.tensor) tensors.refresh();
  else if (has("colour") && !state.tensor) draw();
  if (has("search")) tree.draw();
});

byId("home").addEventListener("click", () => show({ tensor: "" }));
byId("search").addEventListener("input", (event) => show({ search: event.target.value }));
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") byId("tree").querySelector("[role=treeitem]")?.focus();
  else if (event.key === "Escape") show({ search: "" });
  else if (event.key === "Enter") byId("tree").querySelector("[data-tensor] .row")?.click();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
byId("tree").addEventListener("keydown", tree.onKey);
byId("step").addEventListener("input", (event) => show({ step: model.steps[event.target.value] }));
byId("against").addEventListener("change", (event) => show({ against: event.target.value }));
// After a choice, keys belong to the page again.
document.addEventListener("change", ({ target }) => target.matches("select") && target.blur());
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("main").addEventListener("sizes", () => {
  asksSizes = true;
  load().catch(complain);
});

const keys = {
  "/": () => byId("search").focus(),
  "?": () => byId("keys").showModal(),
  Escape: () => show({ tensor: "" }),
  n: () => show({ tensor: tree.neighbour(1) }),
  p: () => show({ tensor: tree.neighbour(-1) }),
  "[": () => walk(-1),
  "]": () => walk(1),
  "+": () => tensors.zoom(2),
  "=": () => tensors.zoom(2),
  "-": () => tensors.zoom(0.5),
  0: () => tensors.showWhole(),
  c: () => tensors.fitColours(),
  w: () => tensors.move(0, -0.25),
  s: () => tensors.move(0, 0.25),
  a: () => tensors.move(-0.25, 0),
  d: () => tensors.move(0.25, 0),
};

addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input[type=search], select");
  if (isTyping || event.ctrlKey || event.altKey || event.metaKey || byId("keys").open) return;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

const drawAgain = paused(150, () => {
  if (!contents) return;
  if (state.tensor) tensors.refresh();
  else draw();
});
addEventListener("resize", drawAgain);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);

start().catch(complain);
