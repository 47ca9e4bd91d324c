// Draws numbers as a heat map: blue below zero, red above, the paper's colour at zero.

/** @typedef {[number, number, number]} Color */

const BLUE = /** @type {Color} */ ([24, 96, 176]), RED = /** @type {Color} */ ([190, 40, 44]);
const NOT_A_NUMBER = /** @type {Color} */ ([214, 60, 214]);
const MOST_PIXELS = 1024;

/** @returns {Color} */
const paper = () =>
  matchMedia("(prefers-color-scheme: dark)").matches ? [38, 42, 48] : [247, 247, 245];

/**
 * @param {number} value From -1 to 1; beyond, the ends.
 * @param {Color} zero
 * @returns {Color}
 */
function colorOf(value, zero) {
  if (Number.isNaN(value)) return NOT_A_NUMBER;
  const end = value < 0 ? BLUE : RED;
  // More of the small numbers, which most weights are.
  const share = Math.sqrt(Math.min(1, Math.abs(value)));
  return /** @type {Color} */ (zero.map((from, i) => from + (end[i] - from) * share));
}

/** Colours of 511 steps from -1 to 1. */
function colorTable() {
  const zero = paper();
  return Array.from({ length: 511 }, (_, i) => colorOf((i - 255) / 255, zero));
}

/**
 * @param {Float32Array} values
 * @returns {{ limit: number, statistics: Record<string, number> }} The number that gets the full
 *   colour, which one in 200 is beyond; and what is told of the values.
 */
export function summary(values) {
  const sizes = [];
  let sum = 0, squares = 0, finite = 0, least = Infinity, most = -Infinity, nans = 0;
  const stride = Math.max(1, Math.floor(values.length / 65536));
  for (let i = 0; i < values.length; ++i) {
    const x = values[i];
    if (Number.isNaN(x)) nans += 1;
    if (!Number.isFinite(x)) continue;
    finite += 1;
    sum += x;
    squares += x * x;
    least = Math.min(least, x);
    most = Math.max(most, x);
    if (i % stride === 0) sizes.push(Math.abs(x));
  }
  sizes.sort((a, b) => a - b);
  const mean = sum / finite;
  const deviation = Math.sqrt(Math.max(0, squares / finite - mean * mean));
  return {
    limit: sizes[Math.floor(sizes.length * 0.995)] || sizes.at(-1) || 1,
    statistics: {
      least, most, mean, "standard deviation": deviation, NaN: nans,
      infinite: values.length - finite - nans,
    },
  };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Float32Array} values Rows one after the other.
 * @param {number} rows
 * @param {number} columns
 * @param {number} limit
 */
export function drawPicture(canvas, values, rows, columns, limit) {
  const width = Math.min(columns, MOST_PIXELS), height = Math.min(rows, MOST_PIXELS);
  canvas.width = width;
  canvas.height = height;
  // As large as fits beside what belongs to it; a flat one is drawn higher than it is.
  const ratio = width / Math.max(height, width / 24);
  canvas.style.aspectRatio = String(ratio);
  canvas.style.width = `min(100%, ${(58 * ratio).toFixed(2)}vh)`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(width, height);
  const table = colorTable();
  for (let y = 0, at = 0; y < height; ++y) {
    const top = Math.floor((y * rows) / height), bottom = Math.ceil(((y + 1) * rows) / height);
    for (let x = 0; x < width; ++x, at += 4) {
      const left = Math.floor((x * columns) / width), right = Math.ceil(((x + 1) * columns) / width);
      const value = meanOf(values, columns, top, bottom, left, right) / limit;
      const place = Math.round(Math.max(-1, Math.min(1, value)) * 255) + 255;
      const [red, green, blue] = table[place] ?? NOT_A_NUMBER;
      image.data.set([red, green, blue, 255], at);
    }
  }
  context.putImageData(image, 0, 0);
}

/**
 * The mean of a pixel's numbers; NaN if one of them is.
 *
 * @param {Float32Array} values
 * @param {number} columns
 * @param {number} top
 * @param {number} bottom
 * @param {number} left
 * @param {number} right
 */
function meanOf(values, columns, top, bottom, left, right) {
  let sum = 0;
  for (let row = top; row < bottom; ++row) {
    for (let i = row * columns + left; i < row * columns + right; ++i) sum += values[i];
  }
  return sum / ((bottom - top) * (right - left));
}

/** @param {HTMLCanvasElement} canvas */
export function drawScale(canvas) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, 1);
  const zero = paper();
  for (let x = 0; x < canvas.width; ++x) {
    image.data.set([...colorOf((2 * x) / (canvas.width - 1) - 1, zero), 255], 4 * x);
  }
  context.putImageData(image, 0, 0);
}
