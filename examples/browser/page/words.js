// Numbers and errors in plain words.

/** @param {number} bytes */
export function sizeText(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toPrecision(3)} ${units[unit]}`;
}

/** @param {number} value */
export function numberText(value) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞");
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const size = Math.abs(value);
  return size < 1e-4 || size >= 1e6 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

/** @param {number[]} shape */
export const shapeText = (shape) => (shape.length ? shape.join(" × ") : "one number");

/**
 * What the codecs of an array are called.
 *
 * @param {any[]} codecs
 */
export function codecText(codecs) {
  const last = codecs.at(-1);
  const inner = last?.name === "bf16codecs.blocks" ? last.configuration?.codec : last;
  if (inner === undefined || inner.name === "bytes") return "none";
  // Of blocks, nobody but this page looks at what they name.
  const name = String(inner.name).replace("bf16codecs.", "");
  const level = inner.configuration?.level;
  return name === "arithmetic" && level !== undefined ? `${name}, ${level}` : name;
}

/**
 * What a tensor is, and how it is stored.
 *
 * @param {import("../src/model.js").Tensor} tensor
 */
export function factsText({ shape, dataType, isRounded, codecs, array, step }) {
  const codec = codecText(codecs);
  const type = `${dataType}${isRounded ? ", rounded from float32" : ""}`;
  const chunks = step === null ? array.chunks : array.chunks.slice(1);
  const isWhole = shape.every((length, axis) => length <= chunks[axis]);
  const steps = step === null ? "" : ` for every ${array.chunks[0]} steps`;
  return (
    `${numbersText(shape)} of ${type}; ${codec === "none" ? "no codec" : codec};` +
    ` ${isWhole ? "one chunk" : `chunks of ${numbersText(chunks)}`}${steps}`
  );
}

/** @param {number[]} shape */
function numbersText(shape) {
  if (shape.length !== 1) return shapeText(shape);
  return `${shape[0]} number${shape[0] === 1 ? "" : "s"}`;
}

/** @type {[RegExp, string][]} What zarrita and engines say, and what that means. */
const MEANINGS = [
  [
    /Failed to fetch|NetworkError|Load failed/,
    "The address could not be read. Either no server answers there, or it does not let pages of other" +
      " sites read it: then it has to send the header Access-Control-Allow-Origin (CORS).",
  ],
  [/status 40[13]/, "The server refuses to give that out (access denied)."],
  [/status 416/, "A chunk is empty: the store is damaged."],
  [/status 5\d\d/, "The server failed. Try again later."],
  [
    /Failed to decode JSON|is not JSON/,
    "What the server gives there is no metadata of Zarr. Is this the address of a store?",
  ],
  [/Invalid URL|Failed to (?:construct|parse)/, "That is not an address."],
  [/Unknown codec/i, "The array is coded in a way that this page does not know."],
  [/dataType|data type/i, "The array has a data type that this page does not know."],
];

const OF_CLASS = new Map([
  ["NotFoundError", "There is no such array in the store."],
  ["CorruptDataError", "The store is damaged."],
  ["TruncatedDataError", "The store is damaged: a chunk is cut off."],
  ["BaseMismatchError", "The data are differences to another store, which this page does not have."],
  ["UnsupportedVersionError", "The data were written by a newer release."],
  ["MemoryError", "There is not enough memory for that."],
]);

/** @param {string} text */
const sentence = (text) => text.slice(0, 1).toUpperCase() + text.slice(1).replace(/[^.?!]$/, "$&.");

/**
 * An error as a sentence for people, and what was said.
 *
 * @param {unknown} error
 */
export function errorText(error) {
  // zarrita tells which codec failed; what is behind it says why.
  let cause = /** @type {any} */ (error);
  while (cause?.cause instanceof Error) cause = cause.cause;
  const said = String(cause?.message ?? error);
  const meaning =
    OF_CLASS.get(cause?.name) ?? MEANINGS.find(([pattern]) => pattern.test(said))?.[1] ?? "";
  return meaning === "" ? sentence(said) : `${meaning} (${said})`;
}
