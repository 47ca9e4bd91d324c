// Metadata of arrays and groups. What is wrong with them is said before zarrita stumbles over it, and
// data types that zarrita lacks are presented as integers of their bits.

import { InvalidMetadataError } from "zarrita";
import { BITS_OF, fillBits, fillNumber, isLacking } from "./dtypes.js";

/**
 * What zarrita does not tell of an array.
 *
 * @typedef {object} Details
 * @property {string} dataType The true one, such as "bfloat16".
 * @property {boolean} isInBlocks Whether parts of its chunks can be read.
 * @property {boolean} isPlain Whether chunks have its items in C order, little-endian.
 * @property {any[]} codecs As its metadata have them.
 * @property {(coordinates: readonly number[]) => string} chunkPath In the store.
 */

/** @typedef {(value: any, meta: any) => boolean} Rule Whether metadata may have a value. */
/** @typedef {Record<string, [Rule, string]>} Rules What each key has to be. */

/** @param {any} value */
export const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);
/** @param {any} value */
const isText = (value) => typeof value === "string" && value !== "";
/** @type {(isRight: Rule) => Rule} */
const optional = (isRight) => (value, meta) => value === undefined || isRight(value, meta);
/** @param {any} value */
const isShape = (value) =>
  Array.isArray(value) && value.every((length) => Number.isSafeInteger(length) && length >= 0);

/**
 * Chunks of nothing are only in dimensions without items.
 *
 * @param {any} chunks
 * @param {number[]} shape
 */
const isChunkShape = (chunks, shape) =>
  isShape(chunks) && chunks.length === shape.length &&
  chunks.every(
    (/** @type {number} */ length, /** @type {number} */ axis) => length > 0 || shape[axis] === 0,
  );

/** @param {any} codec */
const isCodec = (codec) =>
  isObject(codec) && isText(codec.name) && optional(isObject)(codec.configuration, codec);
/** @param {any} codecs */
const isCodecs = (codecs) => Array.isArray(codecs) && codecs.every(isCodec);
/** @param {any} codec */
const isOldCodec = (codec) => isObject(codec) && isText(codec.id);
/** @param {any} value */
const isSeparator = (value) => value === undefined || value === "." || value === "/";
/** @param {any} value */
const isKeyEncoding = (value) =>
  ["default", "v2"].includes(value?.name) && optional(isObject)(value.configuration, value) &&
  isSeparator(value.configuration?.separator);

/** @type {Rules} */
const GROUP = {
  attributes: [optional(isObject), "an object"],
};
/** @type {Rules} */
const ARRAY = {
  ...GROUP,
  shape: [isShape, "a list of lengths"],
  // zarrita looks them up in an object, which has more than its own keys.
  data_type: [(name) => isText(name) && !(name in {}), "the name of a data type"],
  chunk_grid: [
    (grid, { shape }) =>
      grid?.name === "regular" && isChunkShape(grid.configuration?.chunk_shape, shape),
    "a regular one, with a length for each dimension",
  ],
  chunk_key_encoding: [isKeyEncoding, 'one of the known ones, "default" and "v2"'],
  codecs: [(codecs) => isCodecs(codecs) && codecs.length > 0, "a list of codecs"],
};
/** @type {Rules} */
const OLD_ARRAY = {
  shape: [isShape, "a list of lengths"],
  dtype: [(name) => isText(name) && !(name.slice(1) in {}), "the name of a data type"],
  chunks: [
    (chunks, { shape }) => isChunkShape(chunks, shape),
    "a list with a length for each dimension",
  ],
  order: [(order) => order === "C" || order === "F", '"C" or "F"'],
  filters: [
    (filters) => (filters ?? null) === null || (Array.isArray(filters) && filters.every(isOldCodec)),
    "a list of filters",
  ],
  compressor: [(codec) => (codec ?? null) === null || isOldCodec(codec), "a compressor"],
  dimension_separator: [isSeparator, '"." or "/"'],
};

/**
 * @param {any} meta
 * @param {Rules} rules
 * @param {string} key Of the metadata in the store.
 */
function check(meta, rules, key) {
  for (const [name, [isRight, what]] of Object.entries(rules)) {
    if (!isRight(meta[name], meta)) throw new InvalidMetadataError(`${key}: "${name}" is not ${what}`);
  }
}

/**
 * Checks what codecs are told that zarrita needs to be right.
 *
 * @param {any[]} codecs
 * @param {number[]} shape Of a chunk.
 * @param {string} dataType
 * @param {string} key
 */
function checkCodecs(codecs, shape, dataType, key) {
  for (const { name, configuration = {} } of codecs) {
    const fail = (/** @type {string} */ what) => {
      throw new InvalidMetadataError(`${key}: the codec "${name}" ${what}`);
    };
    if (name === "bytes") {
      const { endian = "little" } = configuration;
      if (endian !== "little" && endian !== "big") fail("has no known order of bytes");
      // It would be swapped as a whole, real and imaginary part with it.
      if (endian === "big" && dataType === "complex64") fail("is big-endian, of complex numbers");
    } else if (name === "transpose") {
      if (!isOrder(configuration.order, shape.length)) fail("has no order of the dimensions");
    } else if (name === "sharding_indexed") {
      const { chunk_shape: inner, codecs: own, index_codecs: index } = configuration;
      const divides =
        isChunkShape(inner, shape) && shape.every((length, axis) => length % inner[axis] === 0);
      if (!divides) fail("has no chunks that shards are made of");
      if (!isCodecs(own) || !isCodecs(index)) fail("has no list of codecs");
      checkCodecs(own, inner, dataType, key);
      checkCodecs(index, [...inner, 2], "uint64", key);
    }
  }
}

/**
 * @param {any} order
 * @param {number} rank
 */
const isOrder = (order, rank) =>
  order === "C" || order === "F" ||
  (Array.isArray(order) && order.length === rank &&
    Array.from({ length: rank }, (_, axis) => axis).every((axis) => order.includes(axis)));

const FRAME_CODECS = new Set(
  ["split", "huffman", "arithmetic", "zstd"].map((name) => `bf16codecs.${name}`),
);

/**
 * @param {any} meta Of an array of format 3; changed.
 * @param {string} key
 * @param {string} folder
 * @returns {Details}
 */
function presentNew(meta, key, folder) {
  check(meta, ARRAY, key);
  // Codecs of zarrita look into theirs, whether there is one or not.
  meta.codecs = meta.codecs.map((/** @type {any} */ codec) => ({ configuration: {}, ...codec }));
  const { data_type: dataType, codecs, chunk_grid: grid } = meta;
  checkCodecs(codecs, grid.configuration.chunk_shape, dataType, key);
  const asBits = isLacking(dataType);
  presentFill(meta, dataType, asBits, key);
  if (asBits) meta.data_type = BITS_OF[dataType].bits;
  return {
    dataType,
    isInBlocks: codecs.length === 1 && codecs[0].name === "bf16codecs.blocks",
    isPlain: !codecs.some(
      (/** @type {any} */ codec) => codec.name === "transpose" || codec.configuration?.endian === "big",
    ),
    codecs,
    chunkPath: chunkPath(meta.chunk_key_encoding, folder),
  };
}

/**
 * @param {{ name: string, configuration?: { separator?: string } }} encoding
 * @param {string} folder
 */
function chunkPath({ name, configuration }, folder) {
  const separator = configuration?.separator ?? (name === "default" ? "/" : ".");
  return (/** @type {readonly number[]} */ at) => {
    const key = name === "default" ? ["c", ...at].join(separator) : at.join(separator) || "0";
    return `${folder}/${key}`;
  };
}

/** NumPy's names of the types, as format 2 has them. */
const OLD_NAMES = new Map([
  ["|b1", "bool"], ["|i1", "int8"], ["|u1", "uint8"], ["<c8", "complex64"],
  ...["i2 int16", "i4 int32", "i8 int64", "u2 uint16", "u4 uint32", "u8 uint64", "f2 float16",
    "f4 float32", "f8 float64"].flatMap((pair) => {
    const [old, name] = pair.split(" ");
    return /** @type {[string, string][]} */ ([[`<${old}`, name], [`>${old}`, name]]);
  }),
]);
/** @type {Record<string, string>} */
const OLD_BITS = { uint8: "u1", uint16: "u2", uint64: "u8" };

/**
 * @param {any} meta Of an array of format 2; changed.
 * @param {string} key
 * @param {string} folder
 * @returns {Details}
 */
function presentOld(meta, key, folder) {
  check(meta, OLD_ARRAY, key);
  const dataType = OLD_NAMES.get(meta.dtype) ?? meta.dtype;
  const filters = meta.filters ?? [], compressor = meta.compressor ?? null;
  // zarrita swaps bytes, and then they are no longer those of the frame.
  const isSwapped = meta.dtype.startsWith(">");
  // The filter is of integers, which zarrita takes for the array's own data type.
  const isDelta = filters.some((/** @type {any} */ filter) => filter.id === "delta");
  const asBits = isLacking(dataType) || (dataType === "float16" && isDelta);
  presentFill(meta, dataType, asBits, key);
  if (asBits) {
    const { bits } = BITS_OF[dataType];
    meta.dtype = `${bits === "uint8" ? "|" : isSwapped ? ">" : "<"}${OLD_BITS[bits]}`;
  }
  const isPlain = (meta.order === "C" || meta.shape.length < 2) && !isSwapped;
  const codecs = [...filters, ...(compressor === null ? [] : [compressor])];
  const configuration = { separator: meta.dimension_separator };
  return {
    dataType,
    isInBlocks: isPlain && filters.length === 0 && FRAME_CODECS.has(compressor?.id),
    isPlain,
    codecs: codecs.map(({ id, ...own }) => ({ name: id, configuration: own })),
    chunkPath: chunkPath({ name: "v2", configuration }, folder),
  };
}

/**
 * What chunks that are not there hold, as zarrita takes it.
 *
 * @param {any} meta Changed.
 * @param {string} dataType
 * @param {boolean} asBits
 * @param {string} key
 */
function presentFill(meta, dataType, asBits, key) {
  // In format 2, null leaves it to the reader.
  const value = meta.fill_value === null && meta.zarr_format === 2 ? 0 : meta.fill_value;
  try {
    meta.fill_value = asBits ? fillBits(value, dataType) : fillNumber(value, dataType);
  } catch {
    throw new InvalidMetadataError(`${key}: "fill_value" is no number of ${dataType}`);
  }
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
    throw new InvalidMetadataError(`${key} is not JSON`, { cause });
  }
  if (!isObject(meta)) throw new InvalidMetadataError(`${key} is not an object`);
  return meta;
}

const DOCUMENT = /^(.*)\/(zarr\.json|\.zarray|\.zgroup|\.zattrs)$/;

/**
 * Metadata as zarrita reads them; other bytes stay as they are.
 *
 * @param {Uint8Array} bytes
 * @param {string} key Where they are in the store.
 * @returns {{ bytes: Uint8Array, path?: string, details?: Details }} With what is told of an array, and
 *   its path.
 */
export function present(bytes, key) {
  const [, folder, name] = DOCUMENT.exec(key) ?? [];
  if (name === undefined) return { bytes };
  const meta = parsed(bytes, key);
  if (name === ".zattrs") return { bytes };
  const format = name === "zarr.json" ? 3 : 2;
  if (meta.zarr_format !== format) {
    throw new InvalidMetadataError(`${key}: "zarr_format" is not ${format}`);
  }
  const kind = name === "zarr.json" ? meta.node_type : name.slice(2);
  if (kind === "group") {
    check(meta, GROUP, key);
    return { bytes };
  }
  if (kind !== "array") {
    throw new InvalidMetadataError(`${key}: "node_type" is neither an array nor a group`);
  }
  const details = (format === 3 ? presentNew : presentOld)(meta, key, folder);
  return { bytes: new TextEncoder().encode(JSON.stringify(meta)), path: folder || "/", details };
}
