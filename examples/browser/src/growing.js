// The directory of a growing frame.

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./frame.js").Info} Info */

/**
 * @typedef {object} Version
 * @property {number} offset Of its frame in the growing one.
 * @property {number} size
 * @property {number} parent The version that is its base, or -1.
 */

/** The directory, which tells where the versions' frames are and opens them. */
export class Growing {
  /**
   * @param {{ info: () => Info, version: (number: number) => Version, close: () => void,
   *   open: (number: number, head: Uint8Array) => Frame }} calls
   */
  constructor(calls) {
    this.info = calls.info();
    /** Where a version is. */
    this.version = calls.version;
    /** Open a version's frame, of which these are the first bytes. It is to be closed. */
    this.open = calls.open;
    this.close = calls.close;
  }
}
