// The page: opens a store by its address, lists its tensors, draws one.

import { complexParts, load, loadZstd, openModel, toFloat32 } from "../src/index.js";
import { detailsOf } from "../src/store.js";
import { measureFrame, measureText } from "./measure.js";
import { drawPicture, drawScale, summary } from "./picture.js";
import { Traffic } from "./traffic.js";
import { codecText, errorText, numberText, shapeText, sizeText } from "./words.js";

/** @typedef {import("../src/model.js").Model} Model */
/** @typedef {import("../src/model.js").Tensor} Tensor */

const MOST_DRAWN_BYTES = 2 ** 23;
const MOST_LISTED = 5000;

/**
 * @param {string} id
 * @returns {any}
 */
const element = (id) => document.getElementById(id);

/** @type {Promise<import("../src/index.js").Core>} */
const loading = loadZstd().then((zstd) =>
  load({ folder: new URL(".", document.baseURI), zstd }),
);

/** What is shown now. */
const shown = {
  traffic: new Traffic(),
  /** @type {Model | null} */ model: null,
  /** @type {Tensor | null} */ tensor: null,
  /** @type {{ values: Float32Array, rows: number, columns: number, top: number, left: number, limit: number } | null} */
  window: null,
  turn: 0, // what is asked for later wins
};

/** @param {unknown} error */
function fail(error) {
  console.warn(error);
  element("message").textContent = errorText(error);
  element("message").hidden = false;
}

async function tellTraffic() {
  const { requests, bytes } = shown.traffic;
  const { decoded } = await loading;
  const rate = `${(decoded.bytes / decoded.milliseconds / 1e6).toFixed(2)} GB/s`;
  element("traffic").textContent =
    `fetched ${sizeText(bytes)} in ${requests} request${requests === 1 ? "" : "s"}; decoded` +
    ` ${sizeText(decoded.bytes)} in ${decoded.milliseconds.toFixed(1)} ms` +
    (decoded.bytes >= 1e6 ? `, ${rate}` : "");
}

/**
 * Do what takes time, unless something else is asked for meanwhile.
 *
 * @param {(isLast: () => boolean) => Promise<void>} work
 */
async function attempt(work) {
  const turn = ++shown.turn;
  const isLast = () => turn === shown.turn;
  element("message").hidden = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work(isLast);
  } catch (error) {
    if (isLast()) fail(error);
  } finally {
    if (isLast()) document.body.setAttribute("aria-busy", "false");
    await tellTraffic().catch(fail);
  }
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
  attempt(async (isLast) => {
    element("address").value = address;
    shown.model = shown.tensor = null;
    element("tensor").hidden = true;
    element("rows").replaceChildren();
    element("count").textContent = "";
    shown.traffic = new Traffic();
    const core = await loading;
    const store = shown.traffic.store(new URL(address, document.baseURI), tellTraffic);
    const model = await openModel(store, core);
    if (!isLast()) return;
    shown.model = model;
    element("steps").hidden = model.steps === null;
    const steps = (model.steps ?? []).map((step) => new Option(String(step)));
    element("step").replaceChildren(...steps.reverse());
    await listTensors();
  });

/** @returns {number | undefined} */
const chosenStep = () =>
  shown.model?.steps == null ? undefined : Number(element("step").value);

async function listTensors() {
  const model = /** @type {Model} */ (shown.model);
  const names = model.names.slice(0, MOST_LISTED);
  const rows = [];
  for (const name of names) rows.push(await rowOf(model, name));
  if (model !== shown.model) return;
  element("rows").replaceChildren(...rows);
  filterTensors();
}

/**
 * @param {Model} model
 * @param {string} name
 */
async function rowOf(model, name) {
  const row = document.createElement("tr");
  row.dataset.name = name;
  const button = document.createElement("button");
  button.append(...breakable(name));
  row.insertCell().append(button);
  try {
    const { shape, dataType, codecs } = await model.tensor(name, { step: chosenStep() });
    const size = shape.reduce((a, b) => a * b, itemSize(dataType));
    for (const text of [shapeText(shape), dataType, codecText(codecs)]) row.insertCell().append(text);
    row.insertCell().append(sizeText(size));
    row.cells[4].className = "number";
  } catch (error) {
    const cell = row.insertCell();
    cell.colSpan = 4;
    cell.append(errorText(error));
  }
  return row;
}

/**
 * A name that may go on in the next line behind each of its parts.
 *
 * @param {string} name
 */
const breakable = (name) =>
  name.split(/(?<=[._/])/).flatMap((part) => [part, document.createElement("wbr")]);

/** @param {string} dataType */
function itemSize(dataType) {
  if (dataType === "bool") return 1;
  return Number(/^\D*(\d+)/.exec(dataType)?.[1]) / 8;
}

function filterTensors() {
  const wanted = element("filter").value.toLowerCase();
  let count = 0;
  for (const row of element("rows").rows) {
    row.hidden = !row.dataset.name.toLowerCase().includes(wanted);
    if (!row.hidden) count += 1;
  }
  element("count").textContent = `${count} tensor${count === 1 ? "" : "s"}`;
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
const chooseTensor = (name) =>
  attempt(async (isLast) => {
    const tensor = await /** @type {Model} */ (shown.model).tensor(name, { step: chosenStep() });
    if (!isLast()) return;
    shown.tensor = tensor;
    remember();
    for (const row of element("rows").rows) {
      row.setAttribute("aria-selected", String(row.dataset.name === name));
    }
    element("tensor").hidden = false;
    element("name").textContent = name;
    const chunks = tensor.array.chunks;
    element("facts").textContent =
      `${shapeText(tensor.shape)} of ${tensor.dataType}${tensor.isRounded ? ", rounded from float32" : ""};` +
      ` ${codecText(tensor.codecs)}; chunks of ${shapeText(chunks)}`;
    element("measured").textContent = "";
    element("measure").disabled = !detailsOf(tensor.array).isInBlocks;
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
    await drawWindow(isLast);
  });

/** @param {() => boolean} isLast */
async function drawWindow(isLast) {
  const tensor = /** @type {Tensor} */ (shown.tensor);
  const form = element("window").elements;
  const { rows, columns } = planeOf(tensor.shape);
  const at = (/** @type {string} */ key, /** @type {number} */ most) =>
    Math.max(0, Math.min(most, Math.floor(Number(form[key].value)) || 0));
  const top = at("row", rows - 1), left = at("column", columns - 1);
  const bottom = top + Math.max(1, at("rows", rows - top));
  const right = left + Math.max(1, at("columns", columns - left));
  /** @type {Float32Array} */
  let values = new Float32Array(0);
  if (tensor.shape.every((length) => length > 0)) {
    const selection = selectionOf(tensor.shape, at("plane", Infinity), [top, bottom], [left, right]);
    values = valuesOf(await tensor.get(selection), tensor.dataType);
  }
  if (!isLast()) return;
  show(values, bottom - top, right - left, top, left);
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
 * @param {string} dataType
 */
function valuesOf(found, dataType) {
  const data = found?.data ?? [found];
  if (dataType !== "complex64") return toFloat32(data, dataType);
  const parts = complexParts(found?.data ?? BigUint64Array.of(found));
  return Float32Array.from({ length: parts.length / 2 }, (_, i) =>
    Math.hypot(parts[2 * i], parts[2 * i + 1]),
  );
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
  drawAgain();
  element("low").textContent = numberText(-limit);
  element("high").textContent = numberText(limit);
  const facts = { numbers: values.length, ...(values.length ? statistics : {}) };
  element("statistics").replaceChildren(
    ...Object.entries(facts).map(([name, value]) => {
      const group = document.createElement("div");
      const term = document.createElement("dt"), detail = document.createElement("dd");
      term.textContent = name;
      detail.textContent = numberText(value);
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

const measure = () =>
  attempt(async (isLast) => {
    const { array } = /** @type {Tensor} */ (shown.tensor);
    const core = await loading;
    element("measured").textContent = "measuring …";
    const path = detailsOf(array).chunkPath(array.shape.map(() => 0));
    const frame = await array.store.get(path);
    const found = await measureFrame(core, frame);
    if (!isLast()) return;
    element("measured").textContent = measureText(found);
    element("measured").dataset.found = JSON.stringify(found); // for programs
  });

async function start() {
  element("engine").textContent = "";
  const core = await loading;
  element("engine").textContent = `bf16codecs ${core.version} in WebAssembly, ${core.isa}`;
  const query = new URLSearchParams(location.search);
  await openStore(query.get("store") || "samples/demo.zarr");
  const name = query.get("tensor") ?? shown.model?.names[0];
  if (shown.model && name !== undefined) await chooseTensor(name);
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
element("filter").addEventListener("input", filterTensors);
element("step").addEventListener("change", async () => {
  await listTensors().catch(fail);
  if (shown.tensor) await chooseTensor(shown.tensor.name);
});
element("window").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  attempt(drawWindow);
});
element("picture").addEventListener("pointermove", tellPointed);
element("picture").addEventListener("pointerleave", () => (element("pointed").textContent = ""));
element("measure").addEventListener("click", measure);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
start().catch(fail);
