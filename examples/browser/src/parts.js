// Parts of a chunk: of its frame, the head is read, and the blocks that hold what is wanted.

import { PREFIX_SIZE } from "./core.js";
import { BaseMismatchError, CorruptDataError, TruncatedDataError } from "./errors.js";
import { add } from "./touched.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./touched.js").Range} Range */
/** @typedef {(offset: number, length: number) => Promise<Uint8Array | undefined>} GetRange */

/** Up to this size, a chunk has one block, and is read as a whole. */
export const BLOCK_BYTES = 2 ** 19;
const REQUESTS_AT_ONCE = 8;
const GROWING = 16; // in place of a codec

// The first read: it holds most heads, whose tables have 8 bytes for each block.
const firstRead = (/** @type {number} */ nbytes) => Math.max(4096, nbytes >> 15);
// The most bytes of a frame: no codec grows a chunk by more than a few bytes in a thousand.
const frameLimit = (/** @type {number} */ nbytes) => 2 * nbytes + 4096 + 128 * Math.min(nbytes, 65534);

/**
 * @template T, R
 * @param {T[]} items
 * @param {(item: T) => Promise<R>} call
 * @returns {Promise<R[]>}
 */
async function someAtOnce(items, call) {
  /** @type {R[]} */
  const results = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const i = next++;
      results[i] = await call(items[i]);
    }
  };
  await Promise.all(Array.from({ length: REQUESTS_AT_ONCE }, worker));
  return results;
}

/** A stored chunk that is read range by range. */
class Stored {
  #getRange;

  /** @param {GetRange} getRange */
  constructor(getRange) {
    this.#getRange = getRange;
  }

  /**
   * @param {number} length
   * @returns {Promise<Uint8Array | undefined>} The first bytes, fewer of a smaller chunk; undefined
   *   if there is no such chunk. More, all of it, from a server that knows no ranges.
   */
  first(length) {
    return this.#getRange(0, length);
  }

  /**
   * @param {number} offset
   * @param {number} length
   */
  async read(offset, length) {
    const bytes = await this.#getRange(offset, length);
    if (bytes === undefined) throw new CorruptDataError("the chunk disappeared while it was read");
    if (bytes.length === length) return bytes;
    if (bytes.length > length) throw new Error(`${bytes.length} bytes for a range of ${length}`);
    throw new TruncatedDataError(
      `the chunk ends at byte ${offset + bytes.length}, and not at ${offset + length}`,
    );
  }
}

/**
 * Blocks of one version that are decoded in a call.
 *
 * @typedef {object} Task
 * @property {Frame} frame
 * @property {number} first
 * @property {number} last
 * @property {number} frameAt Where the frame is in the chunk.
 * @property {number} rawAt Where what it decodes to is in the chunk's bytes.
 * @property {number} [baseAt] Where the parent's is, if there is one.
 */

/**
 * Read parts of a chunk.
 *
 * @param {Core} core
 * @param {GetRange} getRange Bytes of the stored chunk; fewer at its end, undefined if there is none.
 * @param {number} nbytes The chunk's size, decoded.
 * @param {Range[]} ranges Which of its bytes are wanted, ascending.
 * @returns {Promise<Uint8Array | undefined>} All of the chunk's bytes, of which those that are wanted
 *   were decoded; undefined if there is no chunk.
 */
export async function readParts(core, getRange, nbytes, ranges) {
  const stored = new Stored(getRange);
  const length = firstRead(nbytes);
  const prefix = await stored.first(length);
  if (prefix === undefined) return undefined;
  if (prefix.length > length) return wholeChunk(core, prefix, nbytes);
  const headSize = core.headSize(prefix.subarray(0, PREFIX_SIZE));
  if (headSize > frameLimit(nbytes)) {
    throw new CorruptDataError(`a head of ${headSize} bytes for a chunk of ${nbytes}`);
  }
  const head = await completed(stored, prefix, 0, headSize);
  const out = new Uint8Array(nbytes);
  const read = prefix[5] === GROWING ? readVersions : readFrame;
  await read(core, stored, head, out, ranges);
  return out;
}

/**
 * @param {Core} core
 * @param {Uint8Array} bytes
 * @param {number} nbytes
 */
export function wholeChunk(core, bytes, nbytes) {
  const raw = core.decode(bytes, { padded: true });
  if (raw.length !== nbytes) throw wrongSize(raw.length, nbytes);
  return raw;
}

/**
 * @param {number} found
 * @param {number} nbytes
 */
function wrongSize(found, nbytes) {
  return new CorruptDataError(`the frame holds ${found} bytes, a chunk of this array has ${nbytes}`);
}

/**
 * @param {Stored} stored
 * @param {Uint8Array} prefix
 * @param {number} at Where it is in the chunk.
 * @param {number} size How many bytes are needed.
 */
async function completed(stored, prefix, at, size) {
  if (prefix.length >= size) return prefix;
  const rest = await stored.read(at + prefix.length, size - prefix.length);
  const whole = new Uint8Array(size);
  whole.set(prefix);
  whole.set(rest, prefix.length);
  return whole;
}

/**
 * Ranges of bytes as runs of blocks.
 *
 * @param {Range[]} ranges
 * @param {number} blockBytes
 * @param {number} blocks
 */
function blockRuns(ranges, blockBytes, blocks) {
  /** @type {Range[]} */
  const runs = [];
  for (const [begin, end] of ranges) {
    // The bytes after the last whole item belong to the last block.
    const first = Math.min(Math.floor(begin / blockBytes), blocks - 1);
    add(runs, first, Math.min(Math.ceil(end / blockBytes), blocks));
  }
  return runs;
}

/**
 * Ranges of bytes of a chunk as those of each of its versions.
 *
 * @param {Range[]} ranges
 * @param {number} versions
 * @param {number} versionBytes
 */
function rangesOfVersions(ranges, versions, versionBytes) {
  /** @type {Range[][]} */
  const found = Array.from({ length: versions }, () => []);
  for (const [begin, end] of ranges) {
    for (let at = begin; at < end;) {
      const version = Math.min(Math.floor(at / versionBytes), versions - 1);
      const before = version * versionBytes;
      const stop = version === versions - 1 ? end : Math.min(end, before + versionBytes);
      add(found[version], at - before, stop - before);
      at = stop;
    }
  }
  return found;
}

/**
 * Adds what versions take of their parents, from the last to the first.
 *
 * @param {Range[][]} wanted Of each version; changed.
 * @param {(version: number) => number} parentOf
 */
function addParents(wanted, parentOf) {
  for (let version = wanted.length - 1; version > 0; --version) {
    if (wanted[version].length === 0) continue;
    const parent = parentOf(version);
    if (parent < 0) continue;
    const both = [...wanted[parent], ...wanted[version]].sort((a, b) => a[0] - b[0]);
    wanted[parent] = [];
    for (const [begin, end] of both) add(wanted[parent], begin, end);
  }
}

/**
 * @param {Core} core
 * @param {Stored} stored
 * @param {Uint8Array} head
 * @param {Uint8Array} out
 * @param {Range[]} ranges
 */
async function readFrame(core, stored, head, out, ranges) {
  const frame = core.open(head);
  try {
    const { rawSize, frameSize, steps, blocks, blockItems, itemSize, needsBase } = frame.info;
    if (rawSize !== out.length) throw wrongSize(rawSize, out.length);
    if (frameSize > frameLimit(out.length)) {
      throw new CorruptDataError(`it claims ${frameSize} bytes for a chunk of ${out.length}`);
    }
    if (needsBase) throw new BaseMismatchError("the frame is of differences, and there is no base");
    const places = blocks / steps, versionBytes = out.length / steps;
    const wanted = rangesOfVersions(ranges, steps, versionBytes);
    const parentOf = (/** @type {number} */ version) => {
      const { parent } = frame.block(version * places);
      return parent < 0 ? -1 : Math.floor(parent / places);
    };
    addParents(wanted, parentOf);
    const tasks = wanted.flatMap((of, version) =>
      blockRuns(of, blockItems * itemSize, places).map(([first, last]) => {
        const parent = parentOf(version);
        return {
          frame, first: first + version * places, last: last + version * places,
          frameAt: 0, rawAt: 0, baseAt: parent < 0 ? undefined : (parent - version) * versionBytes,
        };
      }),
    );
    await decodeTasks(stored, tasks, out);
  } finally {
    frame.close();
  }
}

/**
 * @param {Core} core
 * @param {Stored} stored
 * @param {Uint8Array} directory
 * @param {Uint8Array} out
 * @param {Range[]} ranges
 */
async function readVersions(core, stored, directory, out, ranges) {
  const growing = core.openGrowing(directory);
  /** @type {Frame[]} */
  const frames = [];
  try {
    const { room, paddedSize } = growing.info;
    if (paddedSize !== out.length) throw wrongSize(paddedSize, out.length);
    const versionBytes = paddedSize / room;
    const wanted = rangesOfVersions(ranges, room, versionBytes);
    addParents(wanted, (version) => placeOfVersion(growing, version).parent);

    const versions = wanted.flatMap((of, version) => (of.length ? [version] : []));
    const heads = await someAtOnce(versions, (version) =>
      headOfVersion(core, stored, placeOfVersion(growing, version), versionBytes),
    );
    const tasks = versions.flatMap((version, i) => {
      const frame = growing.open(version, heads[i]);
      frames.push(frame);
      const { blocks, blockItems, itemSize } = frame.info;
      const { offset, parent } = growing.version(version);
      const baseAt = parent < 0 ? undefined : parent * versionBytes;
      const runs = blockRuns(wanted[version], blockItems * itemSize, blocks);
      return runs.map(([first, last]) => ({
        frame, first, last, frameAt: offset, rawAt: version * versionBytes, baseAt,
      }));
    });
    await decodeTasks(stored, tasks, out);
  } finally {
    for (const opened of [...frames, growing]) opened.close();
  }
}

/**
 * @param {import("./growing.js").Growing} growing
 * @param {number} version
 */
function placeOfVersion(growing, version) {
  try {
    return growing.version(version);
  } catch (error) {
    // Of a sound directory, as whoever asks for it has shown.
    if (!(error instanceof TypeError)) throw error;
    throw new TruncatedDataError(`version ${version} is not there: ${error.message}`);
  }
}

/**
 * @param {Core} core
 * @param {Stored} stored
 * @param {{ offset: number, size: number }} place
 * @param {number} versionBytes
 */
async function headOfVersion(core, stored, { offset, size }, versionBytes) {
  const prefix = await stored.read(offset, Math.min(size, firstRead(versionBytes)));
  const headSize = core.headSize(prefix.subarray(0, PREFIX_SIZE));
  if (headSize > size) {
    throw new CorruptDataError(`a version's head has ${headSize} bytes, its frame ${size}`);
  }
  return completed(stored, prefix, offset, headSize);
}

/**
 * Fetch all blocks, and decode them in their order, so that parents come first.
 *
 * @param {Stored} stored
 * @param {Task[]} tasks
 * @param {Uint8Array} out
 */
async function decodeTasks(stored, tasks, out) {
  const payloads = await someAtOnce(tasks, ({ frame, first, last, frameAt }) => {
    const begin = frame.block(first).offset, end = frame.block(last - 1);
    return stored.read(frameAt + begin, end.offset + end.size - begin);
  });
  tasks.forEach(({ frame, first, last, rawAt, baseAt }, i) => {
    const begin = frame.block(first).rawOffset, end = frame.block(last - 1);
    const size = end.rawOffset + end.rawSize - begin;
    const base =
      baseAt === undefined ? undefined : out.subarray(baseAt + begin, baseAt + begin + size);
    out.set(frame.decode(payloads[i], first, last, base), rawAt + begin);
  });
}
