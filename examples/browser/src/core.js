// The native decoder, compiled to WebAssembly.

import { errorOfStatus, MemoryError } from "./errors.js";
import { Frame } from "./frame.js";
import { Growing } from "./growing.js";

/** @typedef {import("./frame.js").Info} Info */

/**
 * @typedef {(payload: Uint8Array, size: number) => Uint8Array} ZstdDecompress
 * Decompresses one Zstandard frame to `size` bytes, or throws.
 */

/** So many first bytes tell where a frame's head ends. */
export const PREFIX_SIZE = 48;

// What the C library of the module calls where it has an operating system: none of it does anything.
const BAD_FILE = 8;
const SYSTEM = {
  fd_close: () => BAD_FILE,
  fd_seek: () => BAD_FILE,
  fd_write: () => BAD_FILE,
  proc_exit: (/** @type {number} */ status) => {
    throw new Error(`the decoder ended, with status ${status}`);
  },
};

/**
 * The milliseconds that one of many calls takes.
 *
 * @param {number} times
 * @param {() => void} call
 */
function timed(times, call) {
  const begin = performance.now();
  for (let turn = 0; turn < times; ++turn) call();
  return (performance.now() - begin) / times;
}

/** The decoder: one instance of the module, whose memory grows with the largest call. */
export class Core {
  /** @type {WebAssembly.Module} */ #module;
  /** @type {ZstdDecompress | undefined} */ #zstd;
  /** @type {any} */ #exports;
  #generation = 0;

  /**
   * What was decoded, and how long that took.
   *
   * @type {{ bytes: number, milliseconds: number }}
   */
  decoded = { bytes: 0, milliseconds: 0 };

  /**
   * @param {WebAssembly.Module} module
   * @param {ZstdDecompress} [zstd]
   */
  constructor(module, zstd) {
    this.#module = module;
    this.#zstd = zstd;
    this.#start();
  }

  /** The release of the native library. */
  get version() {
    return this.#text(this.#exports.bf16_version());
  }

  /** The instruction set: "simd128" or "scalar". */
  get isa() {
    return this.#text(this.#exports.bf16_active_isa());
  }

  /**
   * @param {Uint8Array} frame
   * @returns {Info}
   */
  inspect(frame) {
    return this.#with([frame], ([at]) => {
      this.#check(this.#exports.bf16_inspect(at, frame.length));
      return this.#info();
    });
  }

  /**
   * Decode a whole frame.
   *
   * @param {Uint8Array} frame
   * @param {object} [options]
   * @param {Uint8Array} [options.base] Of a frame that needs one.
   * @param {boolean} [options.padded] Of a growing frame, give all versions that there is room for:
   *   bytes of 255 instead of those that are not there.
   * @param {(info: Info) => void} [options.check] Throws if the frame is another one than is expected,
   *   before there is memory for what it claims to hold.
   * @returns {Uint8Array}
   */
  decode(frame, options = {}) {
    const { base, padded = false, check } = options;
    const inputs = base === undefined ? [frame] : [frame, base];
    return this.#with(inputs, ([at, baseAt = 0]) => {
      this.#check(this.#exports.bf16_inspect(at, frame.length));
      const info = this.#info();
      check?.(info);
      return this.#output(padded ? info.paddedSize : info.rawSize, (out, capacity) =>
        this.#exports.bf16_decode(
          at, frame.length, baseAt, base?.length ?? 0, padded, this.#zstd !== undefined, out, capacity,
        ),
      );
    });
  }

  /**
   * Time how long a frame takes that is in the module's memory already, and decodes to there; and a
   * copy of as many bytes, for comparison.
   *
   * @param {Uint8Array} frame
   * @param {number} times
   * @returns {{ bytes: number, decode: number, copy: number }} Decoded bytes, and the milliseconds of
   *   one turn.
   */
  measure(frame, times) {
    const zstd = this.#zstd !== undefined;
    return this.#with([frame], ([at]) => {
      this.#check(this.#exports.bf16_inspect(at, frame.length));
      const bytes = this.#info().rawSize;
      return this.#withMemory(bytes, (out) =>
        this.#withMemory(bytes, (copied) => {
          // All turns at once: clocks of browsers are coarse.
          const decode = timed(times, () =>
            this.#check(this.#exports.bf16_decode(at, frame.length, 0, 0, false, zstd, out, bytes)),
          );
          const copy = timed(times, () => this.#bytes(copied, bytes).set(this.#bytes(out, bytes)));
          return { bytes, decode, copy };
        }),
      );
    });
  }

  /**
   * How many first bytes of a frame open() needs; of a growing frame, how many its directory has.
   *
   * @param {Uint8Array} prefix The first PREFIX_SIZE bytes, or all of a smaller frame.
   */
  headSize(prefix) {
    return this.#with([prefix], ([at]) => {
      this.#check(this.#exports.bf16_head_size(at, prefix.length));
      return this.#result(0);
    });
  }

  /**
   * Open a frame of which the first bytes are there. It is to be closed.
   *
   * @param {Uint8Array} head
   * @returns {Frame}
   */
  open(head) {
    return this.#with([head], ([at]) => {
      this.#check(this.#exports.bf16_open(at, head.length));
      return this.#frame();
    });
  }

  /**
   * Open the directory of a growing frame. It is to be closed.
   *
   * @param {Uint8Array} directory Its bytes, or more.
   * @returns {Growing}
   */
  openGrowing(directory) {
    return this.#with([directory], ([at]) => {
      this.#check(this.#exports.bf16_growing_open(at, directory.length));
      return this.#growing();
    });
  }

  /**
   * Decode run lengths, the codec "bf16codecs.rle".
   *
   * @param {Uint8Array} encoded
   * @param {(size: number) => void} [check] Throws if they are another number of bytes than is expected.
   * @returns {Uint8Array}
   */
  decodeRunLengths(encoded, check) {
    return this.#with([encoded], ([at]) => {
      this.#check(this.#exports.bf16_rle_decoded_size(at, encoded.length));
      check?.(this.#result(0));
      return this.#output(this.#result(0), (out, capacity) =>
        this.#exports.bf16_rle_decode(at, encoded.length, out, capacity),
      );
    });
  }

  /** What was opened last: its address, until the decoder is started anew. */
  #opened() {
    const address = this.#result(0), generation = this.#generation;
    const isLive = () => generation === this.#generation;
    const live = () => {
      if (!isLive()) throw new Error("the decoder was started anew");
      return address;
    };
    return { live, isLive };
  }

  #growing() {
    const { live, isLive } = this.#opened();
    return new Growing({
      info: () => {
        this.#check(this.#exports.bf16_growing_info(live()));
        return this.#info();
      },
      version: (number) => {
        this.#check(this.#exports.bf16_growing_version(live(), number));
        return { offset: this.#result(0), size: this.#result(1), parent: this.#result(2) };
      },
      open: (number, head) =>
        this.#with([head], ([at]) => {
          this.#check(this.#exports.bf16_growing_frame(live(), number, at, head.length));
          return this.#frame();
        }),
      close: () => {
        if (isLive()) this.#exports.bf16_growing_close(live());
      },
    });
  }

  #frame() {
    const { live, isLive } = this.#opened();
    return new Frame({
      info: () => {
        this.#check(this.#exports.bf16_frame_info(live()));
        return this.#info();
      },
      block: (number) => {
        this.#check(this.#exports.bf16_block(live(), number));
        const [offset, size, rawOffset, rawSize, parent] = [0, 1, 2, 3, 4].map(this.#result, this);
        return { offset, size, rawOffset, rawSize, parent };
      },
      decode: (payload, first, last, rawSize, base) =>
        this.#with(base ? [payload, base] : [payload], ([at, baseAt = 0]) =>
          this.#output(rawSize, (out, capacity) =>
            this.#exports.bf16_decode_blocks(
              live(), at, payload.length, first, last, baseAt, base?.length ?? 0,
              this.#zstd !== undefined, out, capacity,
            ),
          ),
        ),
      close: () => {
        if (isLive()) this.#exports.bf16_close(live());
      },
    });
  }

  #start() {
    const instance = new WebAssembly.Instance(this.#module, {
      wasi_snapshot_preview1: {
        ...SYSTEM,
        random_get: (/** @type {number} */ at, /** @type {number} */ size) => {
          crypto.getRandomValues(this.#bytes(at, size));
          return 0;
        },
      },
      page: {
        zstd_decompress: (/** @type {number[]} */ ...call) => this.#zstdDecompress(...call),
      },
    });
    this.#exports = instance.exports;
    this.#generation += 1;
    this.#exports._initialize();
  }

  /** @returns {number} 0, or 1 for damage. */
  #zstdDecompress(payload = 0, size = 0, plane = 0, n = 0) {
    try {
      const found = this.#zstd?.(this.#bytes(payload, size).slice(), n);
      if (found?.length !== n) return 1;
      this.#bytes(plane, n).set(found);
      return 0;
    } catch {
      return 1;
    }
  }

  /**
   * Call a function with the addresses of copies of bytes.
   *
   * @template T
   * @param {Uint8Array[]} inputs
   * @param {(at: number[]) => T} call
   * @returns {T}
   */
  #with(inputs, call) {
    /** @type {number[]} */
    const copies = [];
    try {
      for (const bytes of inputs) {
        copies.push(this.#allocate(bytes.length));
        this.#bytes(copies[copies.length - 1], bytes.length).set(bytes);
      }
      return call(copies);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      // The module stopped where it was: out of memory, or of stack. Nothing of it can be used again.
      this.#start();
      copies.length = 0;
      throw new MemoryError(`the decoder stopped: ${error.message}`, { cause: error });
    } finally {
      for (const at of copies) this.#exports.bf16_free(at);
    }
  }

  /**
   * Decode to fresh memory, and copy that.
   *
   * @param {number} size
   * @param {(out: number, capacity: number) => number} decode
   */
  #output(size, decode) {
    return this.#withMemory(size, (out) => {
      const begin = performance.now();
      this.#check(decode(out, size));
      this.decoded.milliseconds += performance.now() - begin;
      this.decoded.bytes += size;
      return this.#bytes(out, size).slice();
    });
  }

  /**
   * @template T
   * @param {number} size
   * @param {(at: number) => T} call
   */
  #withMemory(size, call) {
    const at = this.#allocate(size);
    try {
      return call(at);
    } finally {
      this.#exports.bf16_free(at);
    }
  }

  /** @param {number} size */
  #allocate(size) {
    // One byte, so that null always means that there is no memory.
    const at = size < 2 ** 32 ? this.#exports.bf16_allocate(Math.max(1, size)) >>> 0 : 0;
    if (at === 0) throw new MemoryError(`there is no memory for ${size} bytes`);
    return at;
  }

  /**
   * @param {number} at
   * @param {number} size
   */
  #bytes(at, size) {
    return new Uint8Array(this.#exports.memory.buffer, at >>> 0, size >>> 0);
  }

  /** @param {number} at */
  #text(at) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, at >>> 0);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  /** @param {number} index */
  #result(index) {
    return new Float64Array(this.#exports.memory.buffer, this.#exports.bf16_results(), 16)[index];
  }

  /** @param {number} status */
  #check(status) {
    if (status !== 0) throw errorOfStatus(status, this.#text(this.#exports.bf16_message()));
  }

  /** @returns {Info} */
  #info() {
    const [codec, dtype, needsBase, steps, room, itemSize, rawSize, paddedSize, frameSize, headSize,
      blockItems, blocks] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(this.#result, this);
    return {
      codec: this.#text(this.#exports.bf16_codec_name(codec)),
      dtype: this.#text(this.#exports.bf16_dtype_name(dtype)),
      needsBase: needsBase !== 0,
      steps, room, itemSize, rawSize, paddedSize, frameSize, headSize, blockItems, blocks,
    };
  }
}
