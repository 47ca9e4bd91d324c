// Model stores and run stores (docs/store.md, docs/runs.md): tensors by their names.

import * as zarr from "zarrita";
import { roundToBFloat16 } from "./dtypes.js";
import { CorruptDataError, UnsupportedError } from "./errors.js";
import { detailsOf, get, withBF16 } from "./store.js";

/** @typedef {import("./core.js").Core} Core */

const NEWEST_LAYOUT = 2;
// Of the segments of a path that this layout makes of a name; nothing else of a stranger's map is
// followed, or it might lead out of the store.
const PATH = /^[A-Za-z0-9_=-]+(?:\/[A-Za-z0-9_=-]+)*$/;

/** @typedef {{ path: string, isRounded: boolean }} Place Of which array a tensor is, or the rounding. */

/**
 * Open a model store, or a run store.
 *
 * @param {string | URL | import("zarrita").AsyncReadable} store An address, or a store of zarrita's.
 * @param {Core} core Of load().
 * @returns {Promise<Model>}
 */
export async function openModel(store, core) {
  const source =
    typeof store === "string" || store instanceof URL ? new zarr.FetchStore(store) : store;
  const consolidated = await zarr.withMaybeConsolidatedMetadata(
    /** @type {any} */ (withoutGaps)(source),
    { format: ["v3", "v2"] },
  );
  const { root, open } = await openRoot(/** @type {any} */ (withBF16(consolidated, core)));
  const attributes = /** @type {any} */ (root.attrs).bf16codecs;
  if (typeof attributes?.layout !== "number" || typeof attributes.tensors !== "object") {
    throw new UnsupportedError("this group is no model store: its attributes have no tensors");
  }
  if (attributes.layout > NEWEST_LAYOUT) {
    throw new UnsupportedError(
      `the store has layout ${attributes.layout}, and this reader knows ${NEWEST_LAYOUT}`,
    );
  }
  return new Model(root, open, attributes);
}

/**
 * The root, in format 3 or else in format 2, and what opens arrays of that format: zarrita by itself
 * asks for format 2 first, and takes an array that it cannot open for one of the other format.
 *
 * @param {import("zarrita").AsyncReadable} store
 */
async function openRoot(store) {
  try {
    return { root: await zarr.open.v3(store, { kind: "group" }), open: zarr.open.v3 };
  } catch (error) {
    if (!(error instanceof zarr.NotFoundError)) throw error;
    return { root: await zarr.open.v2(store, { kind: "group" }), open: zarr.open.v2 };
  }
}

export class Model {
  #root;
  #open;
  /** @type {Map<string, unknown>} */ #tensors;

  /**
   * @param {zarr.Group<any>} root
   * @param {(at: any, options: { kind: "array" }) => Promise<any>} open
   * @param {any} attributes
   */
  constructor(root, open, attributes) {
    this.#root = root;
    this.#open = open;
    this.attributes = attributes;
    this.#tensors = new Map(Object.entries(attributes.tensors));
    /**
     * The numbers of a run's steps; of other stores, null.
     *
     * @type {number[] | null}
     */
    this.steps =
      attributes.run === undefined
        ? null
        : attributes.steps.map((/** @type {{ step: number }} */ { step }) => step);
  }

  /** @returns {string[]} */
  get names() {
    return [...this.#tensors.keys()];
  }

  /**
   * Open a tensor.
   *
   * @param {string} name
   * @param {object} [options]
   * @param {number} [options.step] The number of a run's step; by default the last one.
   * @returns {Promise<Tensor>}
   */
  async tensor(name, { step } = {}) {
    if (!this.#tensors.has(name)) throw new RangeError(`there is no tensor "${name}"`);
    const index = this.#stepIndex(step);
    const place = placeOf(name, this.#tensors.get(name), index);
    const array = await this.#open(this.#root.resolve(place.path), { kind: "array" });
    return new Tensor(name, array, place.isRounded, index);
  }

  /** @param {number} [step] */
  #stepIndex(step) {
    if (this.steps === null) {
      if (step !== undefined) throw new RangeError("the store holds one model, and no steps");
      return null;
    }
    const index = step === undefined ? this.steps.length - 1 : this.steps.indexOf(step);
    if (index < 0) throw new RangeError(`the run has no step ${step}`);
    return index;
  }
}

/**
 * @param {string} name
 * @param {any} value Of the map of tensors.
 * @param {number | null} index Of the step.
 * @returns {Place}
 */
function placeOf(name, value, index) {
  const forms = Array.isArray(value) ? value : [value];
  const form = forms.find(
    ({ at }) => index === null || at === undefined ||
      at.some((/** @type {[number, number | null]} */ [first, stop]) =>
        first <= index && (stop === null || index < stop)),
  );
  if (form === undefined) throw new RangeError(`"${name}" is not in the model at this step`);
  if (form?.difference !== undefined) {
    throw new UnsupportedError(
      `"${name}" is stored as a difference to another store, and this reader reads one store: write` +
        " it without a base (bf16codecs rebase)",
    );
  }
  const path = typeof form === "string" ? form : (form?.path ?? form?.rounded);
  if (typeof path !== "string" || !PATH.test(path)) {
    throw new CorruptDataError(`the store's map leads to no array for "${name}"`);
  }
  return { path, isRounded: form.rounded !== undefined };
}

/** A tensor of a store, of which no data were read yet. */
export class Tensor {
  /**
   * @param {string} name
   * @param {zarr.Array<any, any>} array zarrita's array: in a run, of all steps.
   * @param {boolean} isRounded
   * @param {number | null} step The place of its step in a run.
   */
  constructor(name, array, isRounded, step) {
    const { dataType, codecs } = detailsOf(array);
    this.name = name;
    this.array = array;
    this.isRounded = isRounded;
    this.step = step;
    this.dataType = isRounded ? "bfloat16" : dataType;
    this.codecs = codecs;
    /** @type {number[]} */
    this.shape = step === null ? array.shape : array.shape.slice(1);
  }

  /**
   * Read a selection.
   *
   * @param {null | (null | number | zarr.Slice)[]} [selection]
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<any>} A chunk as of zarrita's get(): for data types that JavaScript lacks, bits.
   */
  async get(selection = null, options = {}) {
    const whole = selection ?? this.shape.map(() => null);
    const all = this.step === null ? whole : [this.step, ...whole];
    const found = await get(this.array, all, options);
    if (!this.isRounded) return found;
    if (typeof found === "number") return roundToBFloat16(Float32Array.of(found))[0];
    return { ...found, data: roundToBFloat16(found.data) };
  }
}

const METADATA = new Set(["zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"]);

/** A store writes every chunk, so one that is missing is an error, and no chunk of fill values. */
const withoutGaps = zarr.defineStoreExtension((/** @type {any} */ inner) => {
  const there = (/** @type {string} */ key, /** @type {Uint8Array | undefined} */ bytes) => {
    if (bytes === undefined && !METADATA.has(key.slice(key.lastIndexOf("/") + 1))) {
      throw new CorruptDataError(`the chunk ${key} is missing`);
    }
    return bytes;
  };
  return {
    get: async (/** @type {any} */ key, /** @type {any} */ options) =>
      there(key, await inner.get(key, options)),
    ...(inner.getRange && {
      getRange: async (/** @type {any} */ key, /** @type {any} */ range, /** @type {any} */ options) =>
        there(key, await inner.getRange(key, range, options)),
    }),
  };
});
