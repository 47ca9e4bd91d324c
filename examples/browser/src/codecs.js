// The codecs of bf16codecs for zarrita's registry.

import { BoolArray } from "zarrita";
import { CorruptDataError, UnsupportedError } from "./errors.js";
import { checkSize, wholeChunk } from "./parts.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {{ name: string, configuration?: any }} CodecMeta */
/** @typedef {{ dataType: string, shape: number[], codecs: CodecMeta[] }} ChunkMeta Of zarrita. */

/** @type {Record<string, any>} */
const ARRAYS = {
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  float16: /** @type {any} */ (globalThis).Float16Array, float32: Float32Array,
  float64: Float64Array, bool: BoolArray,
};

/** @param {string} dataType */
function arrayType(dataType) {
  const Type = Object.hasOwn(ARRAYS, dataType) ? ARRAYS[dataType] : undefined;
  if (Type === undefined) throw new UnsupportedError(`bf16codecs: data type ${dataType}`);
  return Type;
}

/**
 * Bytes, little-endian as those of stores, as an array of a data type that zarrita has.
 *
 * @param {Uint8Array} bytes Of a buffer of its own.
 * @param {string} dataType
 */
export function typed(bytes, dataType) {
  const Type = arrayType(dataType);
  return new Type(bytes.buffer, bytes.byteOffset, bytes.length / itemSizeOf(dataType));
}

/** @param {string} dataType */
export const itemSizeOf = (dataType) => new (arrayType(dataType))(0).BYTES_PER_ELEMENT;

/** @param {number[]} shape */
export function stridesOf(shape) {
  const strides = shape.map(() => 1);
  for (let axis = shape.length - 2; axis >= 0; --axis) {
    strides[axis] = strides[axis + 1] * shape[axis + 1];
  }
  return strides;
}

/** @param {string} name */
const encodeNothing = (name) => () => {
  throw new UnsupportedError(`${name}: this package reads only`);
};

/** @param {Core} core */
function blocksCodec(core) {
  return class BlocksCodec {
    kind = "array_to_bytes";
    encode = encodeNothing("bf16codecs.blocks");
    #meta;

    /** @param {ChunkMeta} meta */
    constructor(meta) {
      this.#meta = meta;
    }

    /**
     * @param {unknown} _configuration Frames say themselves how they are coded.
     * @param {ChunkMeta} meta
     */
    static fromConfig(_configuration, meta) {
      return new BlocksCodec(meta);
    }

    /** @param {Uint8Array} bytes */
    decode(bytes) {
      const { dataType, shape } = this.#meta;
      const items = shape.reduce((a, b) => a * b, 1);
      const raw = wholeChunk(core, bytes, items * itemSizeOf(dataType));
      return { data: typed(raw, dataType), shape, stride: stridesOf(shape) };
    }
  };
}

/** Codecs that give as many bytes, or items of the same size, as they take. */
const STEADY = new Set(["bytes", "transpose", "bf16codecs.delta"]);

/** @param {string} name So zarrita calls the compressors and filters of format 2. */
const plainName = (name) => name.replace(/^numcodecs\./, "");

/**
 * What compares the number of bytes that a codec would decode to with those of a chunk. They are as
 * many, unless another codec before it makes more or fewer of them: of one up to eight, as casts do.
 *
 * @param {string} name
 * @param {unknown} configuration
 * @param {ChunkMeta} meta
 * @returns {(found: number) => void}
 */
function sizeCheck(name, configuration, { dataType, shape, codecs }) {
  if (!Object.hasOwn(ARRAYS, dataType)) return () => {};
  const size = shape.reduce((a, b) => a * b, itemSizeOf(dataType));
  const at = codecs.findIndex(
    (codec) => plainName(codec.name) === name && codec.configuration === configuration,
  );
  const isExact = codecs.slice(0, at).every((codec) => STEADY.has(plainName(codec.name)));
  if (at >= 0 && isExact) return (found) => checkSize(found, size);
  return (found) => {
    if (found > 8 * size + 4096) throw new CorruptDataError(`${found} bytes, for a chunk of ${size}`);
  };
}

/**
 * @param {string} name
 * @param {(bytes: Uint8Array, check: (size: number) => void) => Uint8Array} decode
 */
function bytesCodec(name, decode) {
  return class BytesCodec {
    kind = "bytes_to_bytes";
    encode = encodeNothing(name);
    #check;

    /** @param {(size: number) => void} check */
    constructor(check) {
      this.#check = check;
    }

    /**
     * @param {unknown} configuration Frames say themselves how they are coded.
     * @param {ChunkMeta} meta
     */
    static fromConfig(configuration, meta) {
      return new BytesCodec(sizeCheck(name, configuration, meta));
    }

    /** @param {Uint8Array} bytes */
    decode(bytes) {
      return decode(bytes, this.#check);
    }
  };
}

/** The codec "bf16codecs.delta": each integer is the sum of all up to it. */
class DeltaCodec {
  kind = "bytes_to_bytes";
  encode = encodeNothing("bf16codecs.delta");
  #dataType;

  /** @param {string} dataType */
  constructor(dataType) {
    this.#dataType = dataType;
  }

  /** @param {{ dtype?: string }} configuration */
  static fromConfig(configuration) {
    const size = /^(?:\|u1|<u[248])$/.exec(configuration?.dtype ?? "")?.[0].slice(2);
    if (size === undefined) {
      const found = JSON.stringify(configuration?.dtype ?? null);
      throw new UnsupportedError(`bf16codecs.delta: its dtype is ${found}, and no unsigned integer`);
    }
    return new DeltaCodec(`uint${8 * Number(size)}`);
  }

  /** @param {Uint8Array} bytes */
  decode(bytes) {
    const size = itemSizeOf(this.#dataType);
    if (bytes.length % size !== 0) {
      throw new CorruptDataError(`bf16codecs.delta: ${bytes.length} bytes are no whole integers`);
    }
    const copy = new Uint8Array(bytes); // not slice(), which is no copy of a Buffer of Node's
    const items = typed(copy, this.#dataType);
    for (let i = 1; i < items.length; ++i) items[i] += items[i - 1];
    return copy;
  }
}

/**
 * Add the codecs to a registry of zarrita's.
 *
 * @param {Map<string, () => any>} registry zarrita's `registry`.
 * @param {Core} core
 */
export function registerCodecs(registry, core) {
  registry.set("bf16codecs.blocks", () => blocksCodec(core));
  const frames = ["split", "huffman", "arithmetic", "zstd"].map((name) => `bf16codecs.${name}`);
  const bytesCodecs = [
    ...frames.map((name) => bytesCodec(name, (bytes, check) =>
      core.decode(bytes, { padded: true, check: ({ paddedSize }) => check(paddedSize) }))),
    bytesCodec("bf16codecs.rle", (bytes, check) => core.decodeRunLengths(bytes, check)),
    DeltaCodec,
  ];
  [...frames, "bf16codecs.rle", "bf16codecs.delta"].forEach((name, i) => {
    registry.set(name, () => bytesCodecs[i]);
    // So zarrita calls the compressors of format 2.
    registry.set(`numcodecs.${name}`, () => bytesCodecs[i]);
  });
}
