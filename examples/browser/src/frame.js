// The head of a frame.

/**
 * @typedef {object} Info What a frame says of itself; sizes in bytes.
 * @property {string} codec
 * @property {string} dtype
 * @property {boolean} needsBase It has differences to a base outside of it.
 * @property {number} steps Versions in it; of a growing frame, those that are there.
 * @property {number} room For how many versions a growing frame has room; 0 for others.
 * @property {number} itemSize
 * @property {number} rawSize
 * @property {number} paddedSize With the versions that are not there yet.
 * @property {number} frameSize
 * @property {number} headSize
 * @property {number} blockItems
 * @property {number} blocks Of all versions; 0 for a growing frame.
 */

/**
 * @typedef {object} Block
 * @property {number} offset Of its bytes in the frame.
 * @property {number} size
 * @property {number} rawOffset Of what they decode to in what the frame does.
 * @property {number} rawSize
 * @property {number} parent The block that it is coded against: -1 for none, -2 for one of a base
 *   outside of the frame.
 */

/** What was opened is open until it is closed; to close it twice does nothing. */
export class Opened {
  #close;
  #isClosed = false;

  /** @param {() => void} close */
  constructor(close) {
    this.#close = close;
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#close();
  }

  /** Throws if it is closed: its memory is another's by then. */
  checkOpen() {
    if (this.#isClosed) throw new Error("the frame is closed");
  }
}

/** The head of a frame, which tells where its blocks are and decodes ranges of them. */
export class Frame extends Opened {
  /**
   * @param {{ info: () => Info, block: (number: number) => Block, close: () => void,
   *   decode: (payload: Uint8Array, first: number, last: number, rawSize: number,
   *     base?: Uint8Array) => Uint8Array }} calls
   */
  constructor(calls) {
    super(calls.close);
    this.#calls = calls;
    this.info = calls.info();
  }
  #calls;

  /**
   * Where a block is.
   *
   * @param {number} number
   */
  block(number) {
    this.checkOpen();
    return this.#calls.block(number);
  }

  /**
   * Decode blocks [first, last) of one version.
   *
   * @param {Uint8Array} payload Their bytes in the frame.
   * @param {number} first
   * @param {number} last
   * @param {Uint8Array} [base] The decoded items of their parents.
   */
  decode(payload, first, last, base) {
    const end = this.block(last - 1);
    const rawSize = end.rawOffset + end.rawSize - this.block(first).rawOffset;
    return this.#calls.decode(payload, first, last, rawSize, base);
  }
}
