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

/** The head of a frame, which tells where its blocks are and decodes ranges of them. */
export class Frame {
  /**
   * @param {{ info: () => Info, block: (number: number) => Block, close: () => void,
   *   decode: (payload: Uint8Array, first: number, last: number, rawSize: number,
   *     base?: Uint8Array) => Uint8Array }} calls
   */
  constructor(calls) {
    this.info = calls.info();
    this.block = calls.block;
    this.close = calls.close;
    this.#decode = calls.decode;
  }
  #decode;

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
    return this.#decode(payload, first, last, rawSize, base);
  }
}
