// A store whose arrays zarrita opens although it lacks their data types, and reads of parts of chunks.

import * as zarr from "zarrita";
import { BITS_OF, fillBits } from "./dtypes.js";
import { itemSizeOf, stridesOf, typed } from "./codecs.js";
import { BLOCK_BYTES, readParts } from "./parts.js";
import { axesInChunk, axesOf, touchedRanges } from "./touched.js";

/** @typedef {import("./core.js").Core} Core */

/**
 * What zarrita does not tell of an array.
 *
 * @typedef {object} Details
 * @property {string} dataType The true one, such as "bfloat16".
 * @property {boolean} isInBlocks Whether parts of its chunks can be read.
 * @property {any[]} codecs As its metadata have them.
 * @property {(coordinates: readonly number[]) => string} chunkPath In the store.
 */

const DETAILS = Symbol("bf16codecs.details");
const CORE = Symbol("bf16codecs.core");
// Where this share of a chunk is touched, one request for all of it is the better one.
const WHOLE_SHARE = 0.75;

const FRAME_CODECS = new Set(
  ["split", "huffman", "arithmetic", "zstd"].map((name) => `bf16codecs.${name}`),
);

/** @param {any} codecs */
const isBlocks = (codecs) => codecs.length === 1 && codecs[0].name === "bf16codecs.blocks";

/** @param {string} dataType */
function isLacking(dataType) {
  return dataType in BITS_OF && (dataType !== "float16" || !("Float16Array" in globalThis));
}

/** @param {any} meta Of an array of format 3; changed. */
function presentV3(meta) {
  const dataType = meta.data_type;
  if (!isLacking(dataType)) return dataType;
  meta.data_type = BITS_OF[dataType].bits;
  meta.fill_value = fillBits(meta.fill_value, dataType);
  return dataType;
}

/** @type {Record<string, string>} NumPy's names of the types, as format 2 has them. */
const V2_NAMES = { "<f2": "float16", "<c8": "complex64" };
/** @type {Record<string, string>} */
const V2_BITS = { uint8: "|u1", uint16: "<u2", uint64: "<u8" };

/** @param {any} meta Of an array of format 2; changed. */
function presentV2(meta) {
  const dataType = V2_NAMES[meta.dtype] ?? meta.dtype;
  // The filter is of integers, which zarrita takes for the array's own data type.
  const isDelta = meta.filters?.some((/** @type {any} */ filter) => filter.id === "delta");
  if (isLacking(dataType) || (dataType === "float16" && isDelta)) {
    meta.dtype = V2_BITS[BITS_OF[dataType].bits];
    meta.fill_value = fillBits(meta.fill_value, dataType);
  }
  return dataType;
}

/**
 * @param {any} meta
 * @param {string} folder
 */
function chunkPathV3(meta, folder) {
  const { name, configuration } = meta.chunk_key_encoding;
  const separator = configuration?.separator ?? (name === "default" ? "/" : ".");
  return (/** @type {readonly number[]} */ at) => {
    const key = name === "default" ? ["c", ...at].join(separator) : at.join(separator) || "0";
    return `${folder}/${key}`;
  };
}

/**
 * @param {string} name
 * @param {any} meta
 * @param {string} folder
 * @returns {Details | undefined}
 */
function present(name, meta, folder) {
  if (name === "zarr.json") {
    if (meta.node_type !== "array") return undefined;
    const codecs = meta.codecs;
    const chunkPath = chunkPathV3(meta, folder);
    return { dataType: presentV3(meta), isInBlocks: isBlocks(codecs), codecs, chunkPath };
  }
  const isPlain = !meta.filters?.length && (meta.order === "C" || meta.shape.length < 2);
  const codecs = [...(meta.filters ?? []), ...(meta.compressor ? [meta.compressor] : [])];
  const isInBlocks = isPlain && FRAME_CODECS.has(meta.compressor?.id);
  const separator = meta.dimension_separator ?? ".";
  return {
    dataType: presentV2(meta),
    isInBlocks,
    codecs: codecs.map(({ id, ...configuration }) => ({ name: id, configuration })),
    chunkPath: (at) => `${folder}/${at.join(separator) || "0"}`,
  };
}

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
      const bytes = await inner.get(key, options);
      const [, folder, name] = /^(.*)\/(zarr\.json|\.zarray)$/.exec(key) ?? [];
      if (bytes === undefined || name === undefined) return bytes;
      const meta = parsed(bytes, key);
      const details = present(name, meta, folder);
      if (details !== undefined) known.set(folder || "/", details);
      return new TextEncoder().encode(JSON.stringify(meta));
    },
    arrayExtensions: [
      zarr.defineArrayExtension((/** @type {any} */ array) => {
        const details = known.get(array.path);
        const dataType = details && details.dataType in BITS_OF ? details.dataType : array.dtype;
        return { [DETAILS]: details && { ...details, dataType }, [CORE]: core };
      }),
    ],
  }));
  return /** @type {any} */ (extend)(store);
}

/**
 * @param {Uint8Array} bytes
 * @param {string} key
 */
function parsed(bytes, key) {
  let meta;
  try {
    meta = JSON.parse(new TextDecoder().decode(bytes));
  } catch (cause) {
    throw new zarr.InvalidMetadataError(`${key} is not JSON`, { cause });
  }
  if (typeof meta !== "object" || meta === null) {
    throw new zarr.InvalidMetadataError(`${key} is not an object`);
  }
  return meta;
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

/** @param {readonly number[]} numbers */
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

/**
 * Read a selection, as zarrita's get() does, but of chunks that are frames of this package only the
 * blocks that it touches.
 *
 * @template {import("zarrita").DataType} D
 * @param {import("zarrita").Array<D, any>} array Of a store of withBF16().
 * @param {null | (null | number | import("zarrita").Slice)[]} [selection]
 * @param {{ signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function get(array, selection = null, options = {}) {
  const { isInBlocks } = detailsOf(array);
  const axes = axesOf(selection, array.shape);
  if (axes.some(([start, stop]) => stop <= start)) return nothing(array, selection, axes);
  if (!isInBlocks || array.shape.length === 0 || !array.store.getRange) {
    return zarr.get(array, selection, options);
  }
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
  if (nbytes <= BLOCK_BYTES) return array.getChunk(coordinates, options);
  const ranges = touchedRanges(axes, shape, itemSize);
  const touched = ranges.reduce((sum, [begin, end]) => sum + (end - begin), 0);
  if (touched >= WHOLE_SHARE * nbytes) return array.getChunk(coordinates, options);
  const path = detailsOf(array).chunkPath(coordinates);
  const getRange = (/** @type {number} */ offset, /** @type {number} */ length) =>
    array.store.getRange(path, { offset, length }, options);
  const raw = await readParts(array[CORE], getRange, nbytes, ranges);
  if (raw === undefined) return array.getChunk(coordinates, options); // fill values
  return { data: typed(raw, array.dtype), shape, stride: stridesOf(shape) };
}
