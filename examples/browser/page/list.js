// The list of a model's tensors.

import { codecText, errorText, shapeText, sizeText } from "./words.js";

/** @typedef {import("../src/model.js").Model} Model */

const MOST_LISTED = 5000;
// After so many rows the page shows what else has happened.
const ROWS_AT_ONCE = 250;

export class TensorList {
  #body;
  #count;
  #filter;
  /** @type {Model | null} */ #model = null;
  /** @type {number | undefined} */ #step;
  /** @type {string | null} */ #chosen = null;
  /** @type {Map<string, HTMLTableRowElement>} */ #rows = new Map();
  #turn = 0; // what is asked for later wins

  /**
   * @param {{ body: HTMLTableSectionElement, count: HTMLElement, filter: HTMLInputElement }} elements
   */
  constructor({ body, count, filter }) {
    this.#body = body;
    this.#count = count;
    this.#filter = filter;
    filter.addEventListener("input", () => this.#update());
  }

  /**
   * List the tensors of a model.
   *
   * @param {Model | null} model Null for none.
   * @param {number} [step] The number of a run's step.
   */
  async show(model, step) {
    this.#model = model;
    this.#step = step;
    this.#rows.clear();
    await this.#update();
  }

  /**
   * Mark a tensor.
   *
   * @param {string | null} name
   */
  choose(name) {
    this.#chosen = name;
    for (const row of this.#body.rows) this.#mark(row);
  }

  /** @param {HTMLTableRowElement} row */
  #mark(row) {
    row.setAttribute("aria-selected", String(row.dataset.name === this.#chosen));
  }

  async #update() {
    const turn = ++this.#turn, model = this.#model, step = this.#step;
    if (model === null) {
      this.#body.replaceChildren();
      this.#count.textContent = "";
      return;
    }
    const wanted = this.#filter.value.toLowerCase();
    const names = model.names.filter((name) => name.toLowerCase().includes(wanted));
    const listed = names.slice(0, MOST_LISTED);
    const missing = listed.filter((name) => !this.#rows.has(name));
    for (const [i, name] of missing.entries()) {
      const row = await rowOf(model, name, step);
      if ((i + 1) % ROWS_AT_ONCE === 0) await new Promise((resolve) => setTimeout(resolve));
      if (turn !== this.#turn) return;
      this.#rows.set(name, row);
    }
    const rows = listed.map((name) => /** @type {HTMLTableRowElement} */ (this.#rows.get(name)));
    for (const row of rows) this.#mark(row);
    this.#body.replaceChildren(...rows);
    this.#count.textContent = countText(listed.length, names.length);
  }
}

/**
 * @param {number} listed
 * @param {number} found
 */
function countText(listed, found) {
  const text = (/** @type {number} */ count) => count.toLocaleString("en");
  if (listed < found) {
    return `the first ${text(listed)} of ${text(found)} tensors; filter to see others`;
  }
  return `${text(found)} tensor${found === 1 ? "" : "s"}`;
}

/**
 * @param {Model} model
 * @param {string} name
 * @param {number} [step]
 */
async function rowOf(model, name, step) {
  const row = document.createElement("tr");
  row.dataset.name = name;
  const button = document.createElement("button");
  button.append(...breakable(name));
  row.insertCell().append(button);
  try {
    const { shape, dataType, codecs } = await model.tensor(name, { step });
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
export function itemSize(dataType) {
  if (dataType === "bool") return 1;
  return Number(/^\D*(\d+)/.exec(dataType)?.[1]) / 8;
}
