// Which bytes of a chunk a selection touches.

import { _zarrita_internal_sliceIndices as sliceIndices } from "zarrita";

/** @typedef {[start: number, stop: number, step: number]} Axis What is selected of an axis. */
/** @typedef {[begin: number, end: number]} Range */

/**
 * A selection as zarrita takes it, axis by axis.
 *
 * @param {null | readonly (null | number | import("zarrita").Slice)[]} selection
 * @param {readonly number[]} shape
 * @returns {Axis[]}
 */
export function axesOf(selection, shape) {
  if (selection !== null && !Array.isArray(selection)) {
    throw new TypeError("a selection is null, or a list of numbers, slices and nulls");
  }
  if (selection !== null && selection.length !== shape.length) {
    throw new RangeError(`the selection has ${selection.length} of ${shape.length} dimensions`);
  }
  return shape.map((length, axis) => {
    const wanted = selection?.[axis] ?? null;
    if (wanted === null) return [0, length, 1];
    const axisOf = typeof wanted === "number" ? axisOfIndex : axisOfSlice;
    return axisOf(/** @type {any} */ (wanted), axis, length);
  });
}

/**
 * @param {number} wanted
 * @param {number} axis
 * @param {number} length
 * @returns {Axis}
 */
function axisOfIndex(wanted, axis, length) {
  const index = wanted < 0 ? wanted + length : wanted;
  if (!Number.isInteger(index) || index < 0 || index >= length) {
    throw new RangeError(`there is no index ${wanted} in dimension ${axis}, of length ${length}`);
  }
  return [index, index + 1, 1];
}

/**
 * @param {import("zarrita").Slice} wanted
 * @param {number} axis
 * @param {number} length
 * @returns {Axis}
 */
function axisOfSlice({ start = null, stop = null, step }, axis, length) {
  const isWhole = [start ?? 0, stop ?? 0].every(Number.isInteger);
  // As zarrita, which has no steps backwards.
  if (!isWhole || !Number.isInteger(step ?? 1) || (step ?? 1) < 1) {
    throw new RangeError(
      `dimension ${axis}: a slice has whole numbers, and a step of at least 1, not` +
        ` (${start}, ${stop}, ${step})`,
    );
  }
  return sliceIndices({ start, stop, step }, length);
}

/**
 * The part of a selection that is in a chunk, counted from the chunk's first item.
 *
 * @param {Axis[]} axes
 * @param {readonly number[]} coordinates
 * @param {readonly number[]} chunkShape
 * @returns {Axis[]}
 */
export function axesInChunk(axes, coordinates, chunkShape) {
  return axes.map(([start, stop, step], axis) => {
    const begin = coordinates[axis] * chunkShape[axis];
    const skipped = Math.max(0, Math.ceil((begin - start) / step));
    return [start + skipped * step - begin, Math.min(stop - begin, chunkShape[axis]), step];
  });
}

/**
 * The bytes of a selection, in C order; neighbours are joined. Of a row with steps in it, all
 * between its ends are taken.
 *
 * @param {Axis[]} axes
 * @param {readonly number[]} shape
 * @param {number} itemSize
 * @returns {Range[]}
 */
export function touchedRanges(axes, shape, itemSize) {
  // The axes from `run` on give one run of bytes for each index of those before.
  let run = axes.length - 1, rowBytes = itemSize;
  while (run > 0 && axes[run][0] === 0 && axes[run][1] === shape[run] && axes[run][2] === 1) {
    rowBytes *= shape[run--];
  }
  /** @type {Range[]} */
  const ranges = [];
  const [start, stop] = run < 0 ? [0, 1] : axes[run];
  if (stop <= start) return ranges;
  const visit = (/** @type {number} */ axis, /** @type {number} */ index) => {
    if (axis >= run) {
      const base = run < 0 ? 0 : index * shape[run];
      add(ranges, (base + start) * rowBytes, (base + stop) * rowBytes);
      return;
    }
    const [begin, end, step] = axes[axis];
    for (let i = begin; i < end; i += step) visit(axis + 1, index * shape[axis] + i);
  };
  visit(0, 0);
  return ranges;
}

/**
 * @param {Range[]} ranges Ascending.
 * @param {number} begin
 * @param {number} end
 */
export function add(ranges, begin, end) {
  const last = ranges.at(-1);
  if (last !== undefined && begin <= last[1]) {
    last[1] = Math.max(last[1], end);
  } else {
    ranges.push([begin, end]);
  }
}
