// Data types that JavaScript has no arrays for: their items are read as unsigned integers, the bits.

/**
 * Each such type: the integers that hold its items' bits, and the bits of what metadata call "NaN".
 *
 * @type {Record<string, { bits: "uint8" | "uint16" | "uint64", nan: number }>}
 */
export const BITS_OF = {
  bfloat16: { bits: "uint16", nan: 0x7fc0 },
  float16: { bits: "uint16", nan: 0x7e00 },
  float8_e4m3fn: { bits: "uint8", nan: 0x7f },
  float8_e5m2: { bits: "uint8", nan: 0x7e },
  complex64: { bits: "uint64", nan: 0x7fc00000 }, // of a float32: it has two
};

/**
 * @param {number} sign -1 or 1
 * @param {number} exponent Without a bias.
 * @param {number} fraction
 */
const number = (sign, exponent, fraction) => sign * fraction * 2 ** exponent;

/**
 * The value of a float of few bits.
 *
 * @param {number} bits
 * @param {number} exponentBits
 * @param {number} fractionBits
 * @param {boolean} hasInfinity Whether the largest exponent means infinity and NaN, or, but for the
 *   largest fraction, numbers.
 */
function smallFloat(bits, exponentBits, fractionBits, hasInfinity) {
  const sign = (bits >> (exponentBits + fractionBits)) & 1 ? -1 : 1;
  const largest = (1 << exponentBits) - 1, one = 1 << fractionBits;
  const exponent = (bits >> fractionBits) & largest, fraction = bits & (one - 1);
  const unit = 1 - (largest >> 1) - fractionBits; // the exponent of a subnormal's last bit
  if (exponent === 0) return number(sign, unit, fraction);
  if (exponent === largest) {
    if (hasInfinity) return fraction === 0 ? sign * Infinity : NaN;
    if (fraction === one - 1) return NaN;
  }
  return number(sign, unit + exponent - 1, one + fraction);
}

/** @type {Record<string, (bits: number) => number>} */
const VALUE_OF = {
  float16: (bits) => smallFloat(bits, 5, 10, true),
  float8_e4m3fn: (bits) => smallFloat(bits, 4, 3, false),
  float8_e5m2: (bits) => smallFloat(bits, 5, 2, true),
};

/** @type {Map<string, Float32Array>} */
const tables = new Map();

/** @param {string} dtype */
function tableOf(dtype) {
  let table = tables.get(dtype);
  if (table === undefined) {
    const size = BITS_OF[dtype].bits === "uint8" ? 2 ** 8 : 2 ** 16;
    table = Float32Array.from({ length: size }, (_, bits) => VALUE_OF[dtype](bits));
    tables.set(dtype, table);
  }
  return table;
}

/**
 * Numbers of a data type as float32, exactly where that has room for them: of float64 and of
 * integers above 2^24, it is the nearest.
 *
 * @param {ArrayLike<number | bigint | boolean>} data Numbers, or bits.
 * @param {string} dtype The array's data type, such as "bfloat16".
 * @returns {Float32Array}
 */
export function toFloat32(data, dtype) {
  if (dtype === "complex64") throw new TypeError("complex numbers are no float32: see complexParts()");
  if (data instanceof Float32Array) return data;
  if (dtype === "bfloat16") {
    const bits = new Uint32Array(data.length);
    for (let i = 0; i < bits.length; ++i) bits[i] = Number(data[i]) << 16;
    return new Float32Array(bits.buffer);
  }
  if (dtype in VALUE_OF && (data instanceof Uint8Array || data instanceof Uint16Array)) {
    const table = tableOf(dtype);
    const values = new Float32Array(data.length);
    for (let i = 0; i < values.length; ++i) values[i] = table[data[i]];
    return values;
  }
  // Also zarrita's arrays of booleans, which have no index but can be gone through.
  const items = Symbol.iterator in data ? data : Array.from(data);
  return Float32Array.from(/** @type {Iterable<any>} */ (items), Number);
}

/**
 * The real and the imaginary parts of complex64 numbers, in turn.
 *
 * @param {BigUint64Array} bits
 */
export const complexParts = (bits) =>
  new Float32Array(bits.buffer, bits.byteOffset, 2 * bits.length);

/**
 * Round float32 to bfloat16, ties to even: the bits. Of a NaN, the upper 16 bits are taken, and bit 6
 * of them is set. So a store leaves out tensors that are roundings of others (docs/store.md).
 *
 * @param {Float32Array} values
 * @returns {Uint16Array}
 */
export function roundToBFloat16(values) {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const rounded = new Uint16Array(bits.length);
  for (let i = 0; i < bits.length; ++i) {
    const x = bits[i];
    const isNaN = (x & 0x7fffffff) > 0x7f800000;
    rounded[i] = isNaN ? (x >>> 16) | 0x40 : (x + 0x7fff + ((x >>> 16) & 1)) >>> 16;
  }
  return rounded;
}

/** @param {number} value */
const float32Bits = (value) => new Uint32Array(Float32Array.of(value).buffer)[0];

/**
 * The bits of one number as metadata write it: a number, "NaN", "Infinity", or its bits in
 * hexadecimal.
 *
 * @param {unknown} value
 * @param {string} dtype
 * @returns {number}
 */
function bitsOfNumber(value, dtype) {
  if (value === "NaN") return BITS_OF[dtype].nan;
  const number = Number(value);
  if (typeof value === "string" && value.startsWith("0x")) return number;
  if (dtype === "complex64") return float32Bits(number);
  if (dtype === "bfloat16") return roundToBFloat16(Float32Array.of(number))[0];
  const bits = tableOf(dtype).findIndex((known) => Object.is(known, number));
  if (bits < 0) throw new TypeError(`${dtype} has no number ${value}`);
  return bits;
}

/**
 * The bits of a fill value, as metadata of an array of bits have them.
 *
 * @param {unknown} value As metadata of the array have it; null if there is none.
 * @param {string} dtype
 * @returns {number | string} As text where no number of JavaScript has so many bits.
 */
export function fillBits(value, dtype) {
  if (dtype !== "complex64") return value === null ? 0 : bitsOfNumber(value, dtype);
  const [real, imaginary] = /** @type {unknown[]} */ (Array.isArray(value) ? value : [value ?? 0, 0]);
  const bits = (/** @type {unknown} */ part) => BigInt(bitsOfNumber(part, dtype));
  return String(bits(real) | (bits(imaginary) << 32n));
}
