// Parts of a chunk: of its frame, the head is read, and the blocks that hold what is wanted.

import { PREFIX_SIZE } from "./core.js";
import { BaseMismatchError, CorruptDataError, MemoryError, TruncatedDataError } from "./errors.js";
import { add } from "./touched.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./frame.js").Info} Info */
/** @typedef {import("./touched.js").Range} Range */
/** @typedef {(offset: number, length: number) => Promise<Uint8Array | undefined>} GetRange */

// What browsers open at once to a host of HTTP/1.1, and two that wait.
const REQUESTS_AT_ONCE = 8;
const GROWING = 16; // in place of a codec

// The first read, as Python's. It holds most heads: a block table has 8 bytes for each block, and
// those that this package writes have 512 KiB.
const firstRead = (/** @type {number} */ nbytes) => Math.max(4096, nbytes >> 15);
// The most bytes of a frame that are asked for, as of Python's: codecs grow a chunk by a few bytes in a
// thousand, and each of up to 65534 versions has an entry and a head.
const frameLimit = (/** @type {number} */ nbytes) => 2 * nbytes + 4096 + 128 * Math.min(nbytes, 65534);

/**
 * Call for each item, for some of them at once. After a failure no call begins, and none is left when
 * it is thrown.
 *
 * @template T, R
 * @param {T[]} items
 * @param {(item: T) => Promise<R>} call
 * @returns {Promise<R[]>}
 */
export async function someAtOnce(items, call) {
  /** @type {R[]} */
  const results = new Array(items.length);
  /** @type {unknown[]} */
  const failures = [];
  let next = 0;
  const worker = async () => {
    while (next < items.length && failures.length === 0) {
      const i = next++;
      try {
        results[i] = await call(items[i]);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: REQUESTS_AT_ONCE }, worker));
  if (failures.length > 0) throw failures[0];
  return results;
}

/** A stored chunk that is read range by range. */
class Stored {
  #getRange;
  /** Its first bytes. */
  prefix;
  #isWhole;

  /**
   * @param {GetRange} getRange
   * @param {Uint8Array} prefix
   * @param {number} length So many were asked for.
   */
  constructor(getRange, prefix, length) {
    this.#getRange = getRange;
    this.prefix = prefix;
    // A server that knows no ranges gives all of it, again and again.
    this.#isWhole = prefix.length < length;
  }

  /**
   * @param {number} offset
   * @param {number} length
   */
  async read(offset, length) {
    const end = offset + length;
    if (end <= this.prefix.length) return this.prefix.subarray(offset, end);
    if (this.#isWhole) throw cutOff(this.prefix.length, end);
    const bytes = await this.#getRange(offset, length);
    if (bytes === undefined) throw new CorruptDataError("the chunk disappeared while it was read");
    if (bytes.length < length) throw cutOff(offset + bytes.length, end);
    if (bytes.length > length) {
      throw new Error(`the server gave ${bytes.length} bytes for a range of ${length}`);
    }
    return bytes;
  }
}

/**
 * @param {number} found
 * @param {number} needed
 */
const cutOff = (found, needed) =>
  new TruncatedDataError(`the chunk ends at byte ${found}, and not at ${needed}`);

/**
 * @param {number} size
 * @returns {Uint8Array} Zeros.
 */
export function newBytes(size) {
  try {
    return new Uint8Array(size);
  } catch (cause) {
    throw new MemoryError(`there is no memory for ${size} bytes`, { cause });
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
  const length = firstRead(nbytes);
  const prefix = await getRange(0, length);
  if (prefix === undefined) return undefined;
  // From a server that knows no ranges.
  if (prefix.length > length) return wholeChunk(core, prefix, nbytes, ranges);
  const stored = new Stored(getRange, prefix, length);
  const headSize = core.headSize(prefix.subarray(0, PREFIX_SIZE));
  checkLimit(headSize, nbytes);
  const head = await completed(stored, prefix, 0, headSize);
  const read = prefix[5] === GROWING ? readVersions : readFrame;
  return read(core, stored, head, nbytes, ranges);
}

/**
 * Decode all of a chunk.
 *
 * @param {Core} core
 * @param {Uint8Array} bytes
 * @param {number} nbytes
 * @param {Range[]} [ranges] Which of its bytes are wanted; without them, what is not there yet is bytes
 *   of 255.
 */
export function wholeChunk(core, bytes, nbytes, ranges = []) {
  const check = (/** @type {Info} */ info) => {
    checkSize(info.paddedSize, nbytes);
    checkThere(info, ranges);
  };
  return core.decode(bytes, { padded: true, check });
}

/**
 * @param {number} found
 * @param {number} nbytes
 */
export function checkSize(found, nbytes) {
  if (found === nbytes) return;
  throw new CorruptDataError(`the frame holds ${found} bytes, a chunk of this array has ${nbytes}`);
}

/**
 * @param {number} claimed
 * @param {number} nbytes
 */
function checkLimit(claimed, nbytes) {
  if (claimed <= frameLimit(nbytes)) return;
  throw new CorruptDataError(`the frame claims ${claimed} bytes for a chunk of ${nbytes}`);
}

/**
 * Refuse what a growing frame has room for only, as Python does.
 *
 * @param {Info} info
 * @param {Range[]} ranges
 */
function checkThere({ room, steps, rawSize, paddedSize }, ranges) {
  const end = ranges.at(-1)?.[1] ?? 0;
  if (room === 0 || end <= rawSize) return;
  const version = Math.ceil(end / (paddedSize / room)) - 1;
  throw new CorruptDataError(
    `the chunk has ${steps} of ${room} versions, and version ${version} was asked for`,
  );
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
 * @param {number} nbytes
 * @param {Range[]} ranges
 */
async function readFrame(core, stored, head, nbytes, ranges) {
  const frame = core.open(head);
  try {
    const { rawSize, frameSize, steps, blocks, blockItems, itemSize, needsBase } = frame.info;
    checkSize(rawSize, nbytes);
    checkLimit(frameSize, nbytes);
    if (needsBase) throw new BaseMismatchError("the frame is of differences, and there is no base");
    const out = newBytes(nbytes);
    const places = blocks / steps, versionBytes = nbytes / steps;
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
    return await decodeTasks(stored, tasks, out);
  } finally {
    frame.close();
  }
}

/**
 * @param {Core} core
 * @param {Stored} stored
 * @param {Uint8Array} directory
 * @param {number} nbytes
 * @param {Range[]} ranges
 */
async function readVersions(core, stored, directory, nbytes, ranges) {
  const growing = core.openGrowing(directory);
  /** @type {Frame[]} */
  const frames = [];
  try {
    const { room, paddedSize, frameSize } = growing.info;
    checkSize(paddedSize, nbytes);
    checkLimit(frameSize, nbytes);
    checkThere(growing.info, ranges);
    const out = newBytes(nbytes);
    const versionBytes = nbytes / room;
    const wanted = rangesOfVersions(ranges, room, versionBytes);
    addParents(wanted, (version) => growing.version(version).parent);

    const versions = wanted.flatMap((of, version) => (of.length ? [version] : []));
    const heads = await someAtOnce(versions, (version) =>
      headOfVersion(core, stored, growing.version(version), versionBytes),
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
    return await decodeTasks(stored, tasks, out);
  } finally {
    for (const opened of [...frames, growing]) opened.close();
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
  return out;
}
