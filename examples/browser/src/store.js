// A store whose arrays zarrita opens although it lacks their data types, and reads of parts of chunks.

import * as zarr from "zarrita";
import { itemSizeOf, stridesOf, typed } from "./codecs.js";
import { hasBits } from "./dtypes.js";
import { CorruptDataError } from "./errors.js";
import { present } from "./metadata.js";
import { newBytes, readParts, wholeChunk } from "./parts.js";
import { axesInChunk, axesOf, touchedRanges } from "./touched.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./metadata.js").Details} Details */

const DETAILS = Symbol("bf16codecs.details");
const CORE = Symbol("bf16codecs.core");
// A block, as this package's encoders make them: a smaller chunk has one, and no parts. The format
// allows up to 4 MiB.
const BLOCK_BYTES = 2 ** 19;
// From this share on all of a chunk is asked for, in one request instead of two one after the other:
// at most a third more than is needed.
const WHOLE_SHARE = 0.75;

/** @param {readonly number[]} numbers */
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

/**
 * Wrap a store of zarrita's, so that it opens arrays of bfloat16, float8 and complex64 as arrays of
 * their bits (and float16, where the engine has no Float16Array), and get() reads parts of chunks.
 *
 * @template {import("zarrita").AsyncReadable} S
 * @param {S} store
 * @param {Core} core
 * @returns {S}
 */
export function withBF16(store, core) {
  /** @type {Map<string, Details>} */
  const known = new Map();
  const extend = zarr.defineStoreExtension((/** @type {any} */ inner) => ({
    async get(/** @type {string} */ key, /** @type {any} */ options) {
      const found = await inner.get(key, options);
      if (found === undefined) return undefined;
      const { bytes, path, details } = present(found, key);
      if (path !== undefined && details !== undefined) known.set(path, details);
      return bytes;
    },
    arrayExtensions: [
      zarr.defineArrayExtension((/** @type {any} */ array) => {
        const details = known.get(array.path);
        const dataType = details && hasBits(details.dataType) ? details.dataType : array.dtype;
        return {
          [DETAILS]: details && { ...details, dataType },
          [CORE]: core,
          getChunk: (/** @type {any[]} */ ...call) => checkedChunk(array, call),
        };
      }),
    ],
  }));
  return /** @type {any} */ (extend)(store);
}

/**
 * A chunk of zarrita's, which by itself takes one that is too small for one that ends in zeros.
 *
 * @param {any} array
 * @param {any[]} call
 */
async function checkedChunk(array, call) {
  const chunk = await array.getChunk(...call);
  const items = product(array.chunks);
  if (chunk.data.length === items) return chunk;
  throw new CorruptDataError(`a chunk has ${chunk.data.length} of ${items} items`);
}

/**
 * What zarrita does not tell of an array that was opened from a store of withBF16().
 *
 * @param {any} array
 * @returns {Details}
 */
export function detailsOf(array) {
  const details = array[DETAILS];
  if (details === undefined) throw new TypeError("the array is of no store of withBF16()");
  return details;
}

/**
 * Read a selection, as zarrita's get() does, but of chunks that are frames of this package only the
 * blocks that it touches.
 *
 * @template {import("zarrita").DataType} D
 * @param {import("zarrita").Array<D, any>} array Of a store of withBF16().
 * @param {null | (null | number | import("zarrita").Slice)[]} [selection] Something of each dimension.
 * @param {{ signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function get(array, selection = null, options = {}) {
  const { isInBlocks } = detailsOf(array);
  const axes = axesOf(selection, array.shape);
  options.signal?.throwIfAborted();
  if (axes.some(([start, stop]) => stop <= start)) return nothing(array, selection, axes);
  if (!isInBlocks) return zarr.get(array, selection, options);
  const ofParts = zarr.defineArrayExtension((/** @type {any} */ whole) => ({
    getChunk: (/** @type {number[]} */ coordinates, /** @type {any} */ settings) =>
      partOfChunk(whole, coordinates, axesInChunk(axes, coordinates, whole.chunks), settings),
  }));
  return zarr.get(/** @type {any} */ (ofParts)(array), selection, options);
}

/**
 * A selection without items, which zarrita stumbles over where an axis has the length 0.
 *
 * @param {any} array
 * @param {any} selection
 * @param {import("./touched.js").Axis[]} axes
 */
function nothing(array, selection, axes) {
  const shape = axes.flatMap(([start, stop, step], axis) =>
    typeof selection?.[axis] === "number" ? [] : [Math.max(0, Math.ceil((stop - start) / step))],
  );
  return { data: typed(new Uint8Array(0), array.dtype), shape, stride: stridesOf(shape) };
}

/**
 * A chunk, of which at least what is selected was decoded.
 *
 * @param {any} array
 * @param {number[]} coordinates
 * @param {import("./touched.js").Axis[]} axes
 * @param {any} options
 */
async function partOfChunk(array, coordinates, axes, options) {
  const shape = array.chunks;
  const itemSize = itemSizeOf(array.dtype);
  const nbytes = product(shape) * itemSize;
  const ranges = touchedRanges(axes, shape, itemSize);
  const raw = await rawChunk(array, coordinates, nbytes, ranges, options);
  const data = typed(raw ?? newBytes(nbytes), array.dtype);
  if (raw === undefined) data.fill(array.fillValue);
  return { data, shape, stride: stridesOf(shape) };
}

/**
 * @param {any} array
 * @param {number[]} coordinates
 * @param {number} nbytes
 * @param {import("./touched.js").Range[]} ranges
 * @param {{ signal?: AbortSignal }} options
 * @returns {Promise<Uint8Array | undefined>} Undefined if there is no such chunk.
 */
async function rawChunk(array, coordinates, nbytes, ranges, options) {
  const core = array[CORE], path = detailsOf(array).chunkPath(coordinates);
  const ask = async (/** @type {(store: any) => Promise<Uint8Array | undefined>} */ request) => {
    options.signal?.throwIfAborted();
    const bytes = await request(array.store);
    // Of a store that knows no signals.
    options.signal?.throwIfAborted();
    return bytes;
  };
  const touched = ranges.reduce((sum, [begin, end]) => sum + (end - begin), 0);
  if (nbytes <= BLOCK_BYTES || touched >= WHOLE_SHARE * nbytes || !array.store.getRange) {
    const bytes = await ask((store) => store.get(path, options));
    return bytes && wholeChunk(core, bytes, nbytes, ranges);
  }
  const getRange = (/** @type {number} */ offset, /** @type {number} */ length) =>
    ask((store) => store.getRange(path, { offset, length }, options));
  return readParts(core, getRange, nbytes, ranges);
}
