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

/** @param {string} dataType */
export const hasBits = (dataType) => Object.hasOwn(BITS_OF, dataType);

/**
 * Whether zarrita, in this engine, has no arrays of a data type.
 *
 * @param {string} dataType
 */
export const isLacking = (dataType) =>
  hasBits(dataType) && (dataType !== "float16" || !("Float16Array" in globalThis));

/** The data types that are numbers to JavaScript. */
const NUMBERS = [
  "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
];

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
 * @param {ArrayLike<number | bigint | boolean>} data Numbers; of data types that JavaScript lacks, bits.
 * @param {string} dtype The array's data type, such as "bfloat16".
 * @returns {Float32Array}
 */
export function toFloat32(data, dtype) {
  if (dtype === "complex64") throw new TypeError("complex numbers are no float32: see complexParts()");
  const isOfBits = dtype === "bfloat16" || Object.hasOwn(VALUE_OF, dtype);
  if (!isOfBits && !NUMBERS.includes(dtype)) {
    const known = ["bfloat16", ...Object.keys(VALUE_OF), ...NUMBERS].join(", ");
    throw new TypeError(`the data type is one of ${known}, not ${dtype}`);
  }
  if (data instanceof Float32Array) return data;
  // float16 is of numbers where the engine has them.
  const { Float16Array } = /** @type {any} */ (globalThis);
  if (!isOfBits || (Float16Array !== undefined && data instanceof Float16Array)) {
    // Also zarrita's arrays of booleans, which have no index but can be gone through.
    const items = Symbol.iterator in data ? data : Array.from(data);
    return Float32Array.from(/** @type {Iterable<any>} */ (items), Number);
  }
  const bits = /** @type {ArrayLike<number>} */ (data);
  return dtype === "bfloat16" ? floatsOfUpperBits(bits) : floatsOfTable(bits, tableOf(dtype));
}

/** @param {ArrayLike<number>} data */
function floatsOfUpperBits(data) {
  const bits = new Uint32Array(data.length);
  for (let i = 0; i < bits.length; ++i) bits[i] = data[i] << 16;
  return new Float32Array(bits.buffer);
}

/**
 * @param {ArrayLike<number>} data
 * @param {Float32Array} table
 */
function floatsOfTable(data, table) {
  const values = new Float32Array(data.length);
  for (let i = 0; i < values.length; ++i) values[i] = table[data[i]];
  return values;
}

/**
 * The real and the imaginary parts of complex64 numbers, in turn.
 *
 * @param {BigUint64Array} bits
 */
export function complexParts(bits) {
  // Of other views, the places of numbers need not be multiples of four.
  if (!(bits instanceof BigUint64Array)) throw new TypeError("bits of complex64 are a BigUint64Array");
  return new Float32Array(bits.buffer, bits.byteOffset, 2 * bits.length);
}

/**
 * Round float32 to bfloat16, ties to even: the bits. Of a NaN, the upper 16 bits are taken, and bit 6
 * of them is set. So a store leaves out tensors that are roundings of others (docs/store.md).
 *
 * @param {Float32Array} values
 * @returns {Uint16Array}
 */
export function roundToBFloat16(values) {
  if (!(values instanceof Float32Array)) throw new TypeError("what is rounded is a Float32Array");
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

/** What JSON has no numbers for. */
const SPECIAL = new Map([["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]]);

/** @param {unknown} value */
const isHexadecimal = (value) => typeof value === "string" && /^0x[0-9a-f]+$/i.test(value);

/**
 * A float as metadata write it: a number, "NaN", "Infinity" or "-Infinity".
 *
 * @param {unknown} value
 */
function floatOf(value) {
  const found = typeof value === "string" ? SPECIAL.get(value) : value;
  if (typeof found !== "number") throw new TypeError(`${JSON.stringify(value)} is no number`);
  return found;
}

/**
 * The bits of a number as metadata write it: as floatOf() takes it, or its bits in hexadecimal.
 *
 * @param {unknown} value
 * @param {string} dtype
 * @returns {number}
 */
function bitsOfNumber(value, dtype) {
  if (value === "NaN") return BITS_OF[dtype].nan;
  if (isHexadecimal(value)) return Number(value);
  const number = floatOf(value);
  if (dtype === "complex64") return float32Bits(number);
  if (dtype === "bfloat16") return roundToBFloat16(Float32Array.of(number))[0];
  const bits = tableOf(dtype).findIndex((known) => Object.is(known, number));
  if (bits < 0) throw new TypeError(`${dtype} has no number ${value}`);
  return bits;
}

/**
 * The bits of a fill value, as metadata of an array of bits have them.
 *
 * @param {unknown} value As metadata of the array have it.
 * @param {string} dtype
 * @returns {number | string} As text where no number of JavaScript has so many bits.
 */
export function fillBits(value, dtype) {
  if (dtype !== "complex64") return bitsOfNumber(value, dtype);
  const parts = /** @type {unknown[]} */ (Array.isArray(value) ? value : [value, 0]);
  if (parts.length !== 2) throw new TypeError("a complex number has two parts");
  const [real, imaginary] = parts.map((part) => BigInt(bitsOfNumber(part, dtype)));
  return String(real | (imaginary << 32n));
}

/** @type {Record<string, (bits: bigint) => number>} */
const FLOAT_OF_BITS = {
  float16: (bits) => VALUE_OF.float16(Number(bits)),
  float32: (bits) => new Float32Array(Uint32Array.of(Number(bits)).buffer)[0],
  float64: (bits) => new Float64Array(BigUint64Array.of(bits).buffer)[0],
};

/**
 * A fill value of an array of numbers, as zarrita takes it; of data types that are not known, as it is.
 *
 * @param {unknown} value As metadata of the array have it.
 * @param {string} dtype
 */
export function fillNumber(value, dtype) {
  if (Object.hasOwn(FLOAT_OF_BITS, dtype)) {
    if (!isHexadecimal(value)) {
      floatOf(value);
      return value; // by its name, if JSON lacks it
    }
    const number = FLOAT_OF_BITS[dtype](BigInt(String(value)));
    return Number.isFinite(number) ? number : String(number);
  }
  const isTruth = typeof value === "boolean" || value === 0 || value === 1;
  const isRight = dtype === "bool" ? isTruth : Number.isInteger(value);
  if (NUMBERS.includes(dtype) && !isRight) throw new TypeError(`${JSON.stringify(value)} is no number`);
  return value;
}
