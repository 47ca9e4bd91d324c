// How fast a frame decodes: from the module's memory to the module's memory, on one thread.

import { sizeText } from "./words.js";

const ROUNDS = 12;
const MOST_MILLISECONDS = 2500;
const MOST_TURNS = 4000; // in a round

/** @typedef {import("../src/index.js").Core} Core */

/**
 * @param {number[]} sorted
 * @param {number} share
 */
const quantile = (sorted, share) => sorted[Math.round((sorted.length - 1) * share)];

/**
 * @param {number[]} milliseconds
 * @param {number} bytes
 */
function rates(milliseconds, bytes) {
  const found = milliseconds.map((time) => bytes / time / 1e6).sort((a, b) => a - b);
  return {
    median: quantile(found, 0.5), lower: quantile(found, 0.25), upper: quantile(found, 0.75),
    least: found[0], most: found[found.length - 1],
  };
}

/**
 * Decode a frame again and again, with pauses, so that the page stays alive.
 *
 * @param {Core} core
 * @param {Uint8Array} frame
 * @param {AbortSignal} signal
 */
export async function measureFrame(core, frame, signal) {
  const { bytes } = core.measure(frame, 2); // compiled, and memory touched, by then
  if (bytes === 0) throw new RangeError("the chunk holds nothing that could be decoded");
  /** @type {number[]} */
  const decode = [];
  /** @type {number[]} */
  const copy = [];
  const begin = performance.now();
  // Small frames several times in a round: clocks of browsers are coarse.
  const turns = Math.min(MOST_TURNS, Math.max(1, Math.round(4e6 / bytes)));
  for (let round = 0; round < ROUNDS && performance.now() - begin < MOST_MILLISECONDS; ++round) {
    await new Promise((resolve) => setTimeout(resolve));
    signal.throwIfAborted();
    const found = core.measure(frame, turns);
    decode.push(found.decode);
    copy.push(found.copy);
  }
  return {
    bytes, stored: frame.length, isa: core.isa,
    decode: rates(decode, bytes), copy: rates(copy, bytes),
  };
}

/** @param {Awaited<ReturnType<typeof measureFrame>>} found */
export function measureText({ bytes, stored, isa, decode, copy }) {
  const rate = (/** @type {number} */ value) => value.toFixed(2);
  return (
    `${rate(decode.median)} GB/s decoded, half of all rounds from ${rate(decode.lower)} to` +
    ` ${rate(decode.upper)}, all from ${rate(decode.least)} to ${rate(decode.most)}; a copy` +
    ` ${rate(copy.median)} GB/s. ${sizeText(bytes)} of ${sizeText(stored)} stored, one thread, ${isa}.`
  );
}
