// Model stores and run stores (docs/store.md, docs/runs.md): tensors by their names.

import * as zarr from "zarrita";
import { modelAttributes, placeOf } from "./attributes.js";
import { roundToBFloat16 } from "./dtypes.js";
import { CorruptDataError, StoreError, UnsupportedError } from "./errors.js";
import { detailsOf, get, withBF16 } from "./store.js";
import { axesOf } from "./touched.js";

/** @typedef {import("./core.js").Core} Core */

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
  return new Model(root, open);
}

/**
 * The root, in format 3 or else in format 2, and what opens arrays of that format: zarrita by itself
 * asks for format 2 first, and takes an array that it cannot open for one of the other format.
 *
 * @param {import("zarrita").AsyncReadable} store
 */
async function openRoot(store) {
  for (const open of [zarr.open.v3, zarr.open.v2]) {
    try {
      return { root: await open(store, { kind: "group" }), open };
    } catch (error) {
      if (!(error instanceof zarr.NotFoundError)) throw error;
      if (error.found === "array") throw new UnsupportedError("this is an array, and no model store");
    }
  }
  const { url } = /** @type {any} */ (store); // of a FetchStore
  const place = url === undefined ? "" : ` at ${String(url).replace(/\/$/, "")}`;
  throw new StoreError(`there is no store${place}: neither zarr.json nor .zgroup is there`);
}

export class Model {
  #root;
  #open;
  /** @type {Map<string, unknown>} */ #tensors;

  /**
   * @param {zarr.Group<any>} root
   * @param {(at: any, options: { kind: "array" }) => Promise<any>} open
   */
  constructor(root, open) {
    const { attributes, tensors, steps } = modelAttributes(root.attrs);
    this.#root = root;
    this.#open = open;
    this.#tensors = tensors;
    this.attributes = attributes;
    /** The numbers of a run's steps; of other stores, null. */
    this.steps = steps;
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

/** A tensor of a store, of which no data were read yet. */
export class Tensor {
  /**
   * @param {string} name
   * @param {zarr.Array<any, any>} array zarrita's array: in a run, of all steps.
   * @param {boolean} isRounded
   * @param {number | null} step The place of its step in a run.
   */
  constructor(name, array, isRounded, step) {
    const { dataType, codecs, isPlain } = detailsOf(array);
    if (!isPlain) throw new CorruptDataError(`the array of "${name}" is in another order than C`);
    if (isRounded && dataType !== "float32") {
      throw new CorruptDataError(
        `"${name}" is the rounding of an array of ${dataType}, not of float32`,
      );
    }
    if (step !== null && !(step < array.shape[0])) {
      throw new CorruptDataError(`the array of "${name}" does not have step ${step + 1} of the run`);
    }
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
    axesOf(selection, this.shape); // which is refused as one of this shape
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
