// The page: opens a store by its address, lists its tensors, draws one.

import { complexParts, CorruptDataError, load, loadZstd, openModel, toFloat32 } from "../src/index.js";
import { detailsOf } from "../src/store.js";
import { itemSize, TensorList } from "./list.js";
import { measureFrame, measureText } from "./measure.js";
import { drawPicture, drawScale, summary } from "./picture.js";
import { Traffic } from "./traffic.js";
import { errorText, factsText, numberText } from "./words.js";

/** @typedef {import("../src/model.js").Model} Model */
/** @typedef {import("../src/model.js").Tensor} Tensor */
/**
 * What is drawn: numbers, where they are in the plane, and the number that gets the full colour.
 *
 * @typedef {{ values: Float32Array, rows: number, columns: number, top: number, left: number,
 *   limit: number }} Drawn
 */

const MOST_DRAWN_BYTES = 2 ** 23;
const COUNTS = new Set(["numbers", "NaN", "infinite"]);

/**
 * @param {string} id
 * @returns {any}
 */
const element = (id) => document.getElementById(id);

/** @type {Promise<import("../src/index.js").Core>} */
const loading = loadZstd().then((zstd) =>
  load({ folder: new URL(".", document.baseURI), zstd }),
);

const list = new TensorList({
  body: element("rows"), count: element("count"), filter: element("filter"),
});

/** What is shown now. */
const shown = {
  /** @type {Traffic | null} */ traffic: null,
  /** @type {Model | null} */ model: null,
  /** @type {string | null} */ name: null, // of the tensor that was asked for
  /** @type {Tensor | null} */ tensor: null,
  /** @type {Drawn | null} */
  window: null,
  work: new AbortController(),
};

/** @param {unknown} error */
function fail(error) {
  console.warn(error);
  element("message").textContent = errorText(error);
  element("message").hidden = false;
}

function tellTraffic() {
  element("traffic").textContent = String(shown.traffic ?? "");
}

/**
 * Do what takes time, instead of what was asked for before: that is given up.
 *
 * @param {(signal: AbortSignal) => Promise<void>} work
 * @returns {Promise<boolean>} Whether nothing else was asked for meanwhile.
 */
async function attempt(work) {
  shown.work.abort();
  shown.work = new AbortController();
  const { signal } = shown.work;
  element("message").hidden = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work(signal);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
  if (!signal.aborted) document.body.setAttribute("aria-busy", "false");
  tellTraffic();
  return !signal.aborted;
}

/** Keep in the page's address what is shown. */
function remember() {
  const query = new URLSearchParams(location.search);
  query.set("store", element("address").value);
  if (shown.tensor) query.set("tensor", shown.tensor.name);
  else query.delete("tensor");
  query.delete("measure");
  history.replaceState(null, "", `?${query}`);
}

/** @param {string} address */
const openStore = (address) =>
  attempt(async (signal) => {
    element("address").value = address;
    shown.model = shown.name = null;
    element("steps").hidden = true;
    hideTensor();
    await list.show(null);
    const core = await loading;
    if (signal.aborted) return;
    const traffic = new Traffic(core);
    shown.traffic = traffic;
    const model = await openModel(traffic.store(new URL(address, document.baseURI), tellTraffic), core);
    if (signal.aborted) return;
    shown.model = model;
    element("steps").hidden = model.steps === null;
    const steps = (model.steps ?? []).map((step) => new Option(String(step)));
    element("step").replaceChildren(...steps.reverse());
    await list.show(model, chosenStep());
  });

/** @returns {number | undefined} */
const chosenStep = () =>
  shown.model?.steps == null ? undefined : Number(element("step").value);

const changeStep = () =>
  attempt(async (signal) => {
    await list.show(shown.model, chosenStep());
    if (shown.name !== null && !signal.aborted) await showTensor(shown.name, signal);
  });

/** Hide what is shown of a tensor, which is not the one that was asked for. */
function hideTensor() {
  shown.tensor = null;
  list.choose(null);
  element("tensor").hidden = true;
  hidePicture();
}

function hidePicture() {
  shown.window = null;
  element("figure").hidden = true;
  element("statistics").replaceChildren();
}

/**
 * Rows and columns to draw: the last two axes of a plane; a vector is cut into rows.
 *
 * @param {number[]} shape
 */
function planeOf(shape) {
  const [rows, columns] = shape.length > 1 ? shape.slice(-2) : [1, shape[0] ?? 1];
  return { planes: shape.slice(0, -2).reduce((a, b) => a * b, 1), rows, columns };
}

/** @param {string} name */
const chooseTensor = (name) => attempt((signal) => showTensor(name, signal));

/**
 * @param {string} name
 * @param {AbortSignal} signal
 */
async function showTensor(name, signal) {
  shown.name = name;
  let tensor;
  try {
    tensor = await /** @type {Model} */ (shown.model).tensor(name, { step: chosenStep() });
  } catch (error) {
    if (!signal.aborted) hideTensor();
    throw error;
  }
  if (signal.aborted) return;
  if (shown.tensor?.name !== name) hidePicture();
  shown.tensor = tensor;
  remember();
  list.choose(name);
  element("tensor").hidden = false;
  element("name").textContent = name;
  element("facts").textContent = factsText(tensor);
  element("measured").textContent = "";
  element("measure").disabled = whyNotMeasured(tensor) !== null;
  setWindow(tensor);
  await drawWindow(signal);
}

/**
 * Choose what is drawn first, and limit what can be asked for.
 *
 * @param {Tensor} tensor
 */
function setWindow(tensor) {
  const { planes, rows, columns } = planeOf(tensor.shape);
  element("plane").hidden = planes < 2;
  const form = element("window").elements;
  const rowBytes = Math.max(1, columns * itemSize(tensor.dataType));
  const wanted = { plane: 0, row: 0, column: 0, columns: Math.min(columns, 4096), rows: 0 };
  wanted.rows = Math.max(1, Math.min(rows, 1024, Math.floor(MOST_DRAWN_BYTES / rowBytes)));
  const limits = { plane: planes - 1, row: rows - 1, column: columns - 1, rows, columns };
  for (const [key, value] of Object.entries(wanted)) {
    form[key].value = value;
    form[key].max = Math.max(0, /** @type {any} */ (limits)[key]);
  }
}

/** @param {AbortSignal} signal */
async function drawWindow(signal) {
  const tensor = shown.tensor;
  if (tensor === null) return;
  const form = element("window").elements;
  const { rows, columns } = planeOf(tensor.shape);
  const at = (/** @type {string} */ key, /** @type {number} */ most) =>
    Math.max(0, Math.min(most, Math.floor(Number(form[key].value)) || 0));
  const top = at("row", rows - 1), left = at("column", columns - 1);
  const bottom = top + Math.max(1, at("rows", rows - top));
  const right = left + Math.max(1, at("columns", columns - left));
  const selection = selectionOf(tensor.shape, at("plane", Infinity), [top, bottom], [left, right]);
  let found;
  try {
    found = tensor.shape.includes(0) ? { data: [] } : await tensor.get(selection, { signal });
  } catch (error) {
    if (!signal.aborted) hidePicture();
    throw error;
  }
  if (!signal.aborted) show(valuesOf(found, tensor), bottom - top, right - left, top, left);
}

/**
 * @param {number[]} shape
 * @param {number} plane
 * @param {[number, number]} rows
 * @param {[number, number]} columns
 */
function selectionOf(shape, plane, rows, columns) {
  const slice = (/** @type {[number, number]} */ [start, stop]) => ({ start, stop, step: 1 });
  if (shape.length === 0) return [];
  if (shape.length === 1) return [slice(columns)];
  /** @type {any[]} */
  const selection = [slice(rows), slice(columns)];
  for (const length of shape.slice(0, -2).reverse()) {
    selection.unshift(plane % length);
    plane = Math.floor(plane / length);
  }
  return selection;
}

/**
 * What is drawn of what was read; of complex numbers, their sizes.
 *
 * @param {any} found
 * @param {Tensor} tensor
 */
function valuesOf(found, { array, dataType }) {
  const data = found?.data ?? [found];
  if (dataType === "complex64") {
    const parts = complexParts(BigUint64Array.from(data));
    return Float32Array.from({ length: parts.length / 2 }, (_, i) =>
      Math.hypot(parts[2 * i], parts[2 * i + 1]),
    );
  }
  // One number of an engine that has float16 is no bits.
  const isNumber = dataType === "float16" && array.dtype === "float16";
  return toFloat32(data, isNumber ? "float32" : dataType);
}

/**
 * @param {Float32Array} values
 * @param {number} rows
 * @param {number} columns
 * @param {number} top
 * @param {number} left
 */
function show(values, rows, columns, top, left) {
  const { limit, statistics } = summary(values);
  shown.window = { values, rows, columns, top, left, limit };
  element("figure").hidden = values.length === 0;
  drawAgain();
  element("low").textContent = numberText(-limit);
  element("high").textContent = numberText(limit);
  const facts = { numbers: values.length, ...(values.length ? statistics : {}) };
  element("statistics").replaceChildren(
    ...Object.entries(facts).map(([name, value]) => {
      const group = document.createElement("div");
      const term = document.createElement("dt"), detail = document.createElement("dd");
      term.textContent = name;
      detail.textContent = COUNTS.has(name) ? String(value) : numberText(value);
      group.append(term, detail);
      return group;
    }),
  );
}

function drawAgain() {
  if (shown.window === null) return;
  const { values, rows, columns, limit } = shown.window;
  if (values.length) drawPicture(element("picture"), values, rows, columns, limit);
  drawScale(element("scale"));
}

/** @param {PointerEvent} event */
function tellPointed(event) {
  if (shown.window === null || shown.tensor === null) return;
  const { values, rows, columns, top, left } = shown.window;
  const box = element("picture").getBoundingClientRect();
  const part = (/** @type {number} */ at, /** @type {number} */ length, /** @type {number} */ n) =>
    Math.max(0, Math.min(n - 1, Math.floor((at / length) * n)));
  const row = part(event.clientY - box.top, box.height, rows);
  const column = part(event.clientX - box.left, box.width, columns);
  const place = shown.tensor.shape.length > 1 ? [top + row, left + column] : [left + column];
  element("pointed").textContent = `[${place.join(", ")}] ${numberText(values[row * columns + column])}`;
}

/**
 * Why the first chunk of a tensor cannot be measured; null if it can.
 *
 * @param {Tensor} tensor
 */
function whyNotMeasured({ array, shape }) {
  if (shape.includes(0)) return "this tensor has no numbers, so that there is nothing to decode";
  const isFrame = detailsOf(array).isInBlocks;
  return isFrame ? null : "this tensor is not in frames of bf16codecs, which alone are measured";
}

const measure = () =>
  attempt(async (signal) => {
    const tensor = shown.tensor;
    if (tensor === null) return;
    const why = whyNotMeasured(tensor);
    if (why !== null) throw new RangeError(why);
    const { array } = tensor;
    const output = element("measured");
    output.textContent = "measuring …";
    try {
      const path = detailsOf(array).chunkPath(array.shape.map(() => 0));
      const frame = await array.store.get(path, { signal });
      if (frame === undefined) throw new CorruptDataError("the first chunk is missing");
      const found = await measureFrame(await loading, frame, signal);
      output.textContent = measureText(found);
      output.dataset.found = JSON.stringify(found); // for programs
    } catch (error) {
      output.textContent = "";
      throw error;
    }
  });

async function start() {
  element("engine").textContent = "";
  const core = await loading;
  element("engine").textContent = `bf16codecs ${core.version} in WebAssembly, ${core.isa}`;
  const query = new URLSearchParams(location.search);
  if (!(await openStore(query.get("store") || "samples/demo.zarr"))) return;
  const name = query.get("tensor") ?? shown.model?.names[0];
  if (!shown.model || name === undefined || !(await chooseTensor(name))) return;
  if (query.has("measure") && shown.tensor) await measure();
}

element("open").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  openStore(element("address").value.trim()).then(remember);
});
element("rows").addEventListener("click", (/** @type {any} */ event) => {
  const row = event.target.closest("tr");
  if (row) chooseTensor(row.dataset.name);
});
element("step").addEventListener("change", changeStep);
element("window").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  attempt(drawWindow);
});
element("picture").addEventListener("pointermove", tellPointed);
element("picture").addEventListener("pointerleave", () => (element("pointed").textContent = ""));
element("measure").addEventListener("click", measure);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
start().catch(fail);
